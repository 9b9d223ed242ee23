"""A client's personal model as a file of its own: safetensors with a card, and back into a plain `nn.Module`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from fedtailor import __version__, registry, task
from fedtailor.arch import Arch
from fedtailor.compare import read_plan
from fedtailor.data import again
from fedtailor.data.federation import Column
from fedtailor.data.tables import further_rows
from fedtailor.deploy.store import Store, StoreError, stores
from fedtailor.driver import Driver
from fedtailor.metrics import per_client, select
from fedtailor.nn import make
from fedtailor.record import RunFolder, plain, to_json, write_atomically
from fedtailor.registry import WrongInput
from fedtailor.rounds import Run, restore
from fedtailor.runners import planner
from fedtailor.spec import RunSpec
from fedtailor.tree import Tree

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")
MOST_ROWS = 1024  # that are predicted at a time


@dataclass(frozen=True)
class Card:
    """What one must know of a model to use it."""

    client: str
    method: str
    model: str
    seed: int
    task: str
    classes: list[str]
    shape: list[int]
    words: int
    round: int
    point: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    columns: Sequence[Sequence[Any]] = ()  # of a table: name, word, mean and deviation of each number of a row
    fedtailor: str = __version__

    def net(self) -> nn.Module:
        """The network, built with what is installed here; its values are still to be filled in."""
        outputs = task.of(self.task).outputs(len(self.classes))
        net = make(self.model, classes=outputs, shape=tuple(self.shape), seed=self.seed, words=self.words or None)
        built: nn.Module = registry.parse("method", self.method).build(net)
        return built


def of_client(path: Path, client: str | None) -> tuple[Card, nn.Module]:
    """The personal model in a run's folder, or in what a site keeps."""
    if (path / "run.json").exists():
        return _of_run(path, client)
    if (path / "comparison.json").exists():
        runs = [str(path / part["path"]) for part in read_plan(path)["runs"]]
        raise WrongInput(f"{path} is a comparison; export from one of its runs: {', '.join(runs)}")
    return _of_state(path, client)


def _of_run(path: Path, client: str | None) -> tuple[Card, nn.Module]:
    folder = RunFolder.open(path)
    info = folder.info()
    names = info["data"]["clients"]
    if info["data"]["source"].startswith("federation "):
        raise WrongInput(
            f"{path} is the server's record, and personal models are at their sites; there, export the folder that was "
            "given to `fedtailor join --state`"
        )
    if client is None or client not in names:
        asked = "name one client" if client is None else f"there is no client {client!r}; name one"
        raise WrongInput(f"{asked} with --client: {', '.join(names)}")
    driver = Driver(RunSpec.from_dict(info["spec"]), again(info["data"]["source"]), planner.again(info["plan"]))
    restore(driver, folder)
    if not driver.round:
        raise WrongInput(f"{path} has no checkpoint yet; export it after some rounds")
    module = Run(driver, folder).model(client)
    row = select(folder.rows(), "last", info["primary"], info["higher_is_better"])
    place = names.index(client)
    metrics = {name: per_client(row, "test", name)[place] for name in row["test"] if name != "count"}
    spec, data = driver.spec, driver.federation
    return Card(
        client, repr(spec.method), info["model"], spec.seed, data.task, list(data.classes), list(data.x.shape[1:]),
        data.words or 0, driver.round, driver.common.point, {"test": metrics}, data.columns,
    ), module  # fmt: skip


def _of_state(path: Path, client: str | None) -> tuple[Card, nn.Module]:
    kept = [(store, store.noted("about")) for store in stores(path)]
    done = [(store, about, model) for store, about in kept if about and (model := store.load_final()) is not None]
    if not done:
        raise WrongInput(f"{path} has no final model yet; it is there when the federation has finished")
    store, about, model = max(done, key=lambda found: (found[0].path / "final.safetensors").stat().st_mtime)
    spec, form, result = RunSpec.from_dict(about["spec"]), about["form"], store.noted("result")
    name = about["clients"][about["me"]]
    if client not in (None, name):
        raise WrongInput(f"{path} is the state of {name}, not of {client}")
    metrics = {part: result[part] for part in ("test", "validation") if part in result}
    card = Card(
        name, repr(spec.method), str(spec.model), spec.seed, form["task"], form["classes"], form["shape"],
        form["words"], result["round"], result["point"], plain(metrics), result.get("columns", ()),
    )  # fmt: skip
    return card, Arch(card.net()).module(model)


def write(path: Path, card: Card, module: nn.Module) -> None:
    """The values under the network's own names, with the card in the file and beside it."""
    if path.suffix != ".safetensors":
        raise WrongInput(f"{path} must end in .safetensors")
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in module.state_dict().items()}
    text = to_json(asdict(card), indent=1)
    write_atomically(path, safetensors.torch.save(tensors, {"card": text.decode()}))
    write_atomically(path.with_suffix(".json"), text)


def read(path: Path) -> tuple[Card, nn.Module]:
    """A model that was exported, as a plain module in evaluation mode."""
    try:
        data = path.read_bytes()
        tensors: Tree = safetensors.torch.load(data)
        length = int.from_bytes(data[:8], "little")
        card = Card(**json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["card"]))
    except FileNotFoundError:
        raise WrongInput(f"there is no model {path}; `fedtailor export` makes one") from None
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise WrongInput(f"{path} is not a model that `fedtailor export` wrote ({error})") from None
    net = card.net()
    try:
        net.load_state_dict(tensors, strict=True)
    except RuntimeError:
        raise WrongInput(
            f"the values in {path} do not fit {card.model} as it is here; install the plugin and the version of "
            f"fedtailor ({card.fedtailor}) that it was made with"
        ) from None
    return card, net.eval()


def write_onnx(path: Path, card: Card, module: nn.Module) -> None:
    """The network for runtimes that know no Python; any number of rows at a time."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise WrongInput("ONNX needs more packages; install them with: pip install 'fedtailor[onnx]'") from None
    example = torch.zeros(2, *card.shape, dtype=torch.int64 if card.words else torch.float32)
    rows = torch.export.Dim("rows")
    torch.onnx.export(
        module, (example,), path, input_names=["x"], output_names=["out"], dynamic_shapes=({0: rows},), dynamo=True,
        external_data=False, verbose=False,
    )  # fmt: skip


@torch.no_grad()
def predict(card: Card, module: nn.Module, x: Tensor) -> list[tuple[str, float]]:
    """A label and its probability for each row; for a regression the value, and 1."""
    x = x.long() if card.words else x
    out = torch.cat([module(some) for some in torch.split(x, MOST_ROWS)])
    if card.task == "regression":
        return [(f"{value:g}", 1.0) for value in out.reshape(len(out), -1)[:, 0].tolist()]
    best = out.softmax(1).max(1) if card.task == "classification" else out.sigmoid().max(1)
    return [(card.classes[i], p) for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)]


def rows_of(path: Path, card: Card) -> Tensor:
    """The rows in a file: an array (.npy), a table like the one learned from, lines of numbers (.csv), or a picture,
    scaled to -1 ... 1."""
    shape = card.shape
    if card.columns and path.suffix != ".npy":
        return torch.from_numpy(further_rows(path, tuple(map(Column._make, card.columns))))
    try:
        if path.suffix == ".npy":
            with open(path, "rb") as file:
                values = np.lib.format.read_array(file, allow_pickle=False)
        elif path.suffix == ".csv":
            values = np.loadtxt(path, delimiter=",", ndmin=2)
        elif path.suffix.lower() in PICTURES:
            values = _picture(path, shape)
        else:
            raise WrongInput(f"{path} is of no kind that is read here; give .npy, .csv or {', '.join(PICTURES)}")
    except FileNotFoundError:
        raise WrongInput(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        if isinstance(error, WrongInput):
            raise
        raise WrongInput(f"{path} cannot be read: {error}") from None
    x = torch.from_numpy(np.ascontiguousarray(values)).float()
    single = int(np.prod(shape))
    if x.numel() % single or x.numel() == 0:
        raise WrongInput(f"{path} holds {tuple(x.shape)}, and the model takes rows of {tuple(shape)}")
    if x.shape != tuple(shape) and tuple(x.shape[1:]) not in (tuple(shape), (single,)):
        raise WrongInput(f"{path} holds {tuple(x.shape)}, and the model takes rows of {tuple(shape)}")
    return x.reshape(-1, *shape)


def _picture(path: Path, shape: Sequence[int]) -> Any:
    from PIL import Image

    if len(shape) != 3 or shape[0] not in (1, 3):
        raise WrongInput(f"the model takes rows of {tuple(shape)}, which are no pictures; give .npy or .csv")
    with Image.open(path) as picture:
        colours = picture.convert("L" if shape[0] == 1 else "RGB")
    if colours.size != (shape[2], shape[1]):
        colours = colours.resize((shape[2], shape[1]), Image.Resampling.BILINEAR)  # as when it was learned from
    values = np.asarray(colours, dtype=np.float32) / 127.5 - 1
    return values[None] if shape[0] == 1 else values.transpose(2, 0, 1)


def states(folder: Path) -> list[tuple[Store, Mapping[str, Any]]]:
    """What a site keeps, federation by federation."""
    return [(store, store.noted("about")) for store in stores(folder)]


def is_good(store: Store, round: int) -> bool:
    """Whether a state can be read; one that cannot is put aside."""
    try:
        store.load(round)
    except StoreError:
        return False
    return True
