"""Three sites, TLS, keys and Flower between them: the end is the simulation's, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
import real

pytest.importorskip("flwr")
pytestmark = [
    pytest.mark.federation,
    pytest.mark.xdist_group("parity"),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # of Flower and what it stands on
]

METHODS = (
    "FedAvg()", "FedBN()", "Ditto()", "FedMCSA()", "FedALA()", "FedHAM()", "PartialFedAdaptive()", "pFedLA(FedBN())",
    "SCAFFOLD()",
)  # fmt: skip


@pytest.fixture(scope="module")
def federations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, real.Folder]]:
    """One server and three sites, which carry out the federations one after the other."""
    from fedtailor.deploy.flower_server import FlowerLink
    from fedtailor.deploy.folder import Bundle
    from fedtailor.deploy.round_loop import run

    base = tmp_path_factory.mktemp("parity")
    first = real.make(base / "first")
    (first.path / "link").mkdir()
    folders, bundles = dict[str, real.Folder](), dict[str, list[str]]()
    for number, method in enumerate(METHODS):
        path = base / f"federation-{number}"
        path.mkdir()
        for name in ("sites.json", real.PLUGIN.name):
            (path / name).write_bytes((first.path / name).read_bytes())
        text = (first.path / "federation.toml").read_text()
        text = text.replace("FedAvg()", method).replace(first.settings.id, f"federation-{number}")
        (path / "federation.toml").write_text(text)
        folders[method] = real.Folder(path)
        for site in real.SITES:
            bundle = replace(Bundle.read(base / f"{site}.bundle"), federation=f"federation-{number}")
            bundle.write(base / f"{site}-{number}.bundle")
            bundles.setdefault(site, []).append(str(base / f"{site}-{number}.bundle"))
    with real.processes(first) as processes:
        processes.start("link", "-m", "fedtailor.deploy.serve", "link", str(first.path), str(os.getpid()))
        for site in real.SITES:
            script = str(real.HERE / "many_federations.py")
            processes.start(site, script, site, str(base / f"{site}-state"), *bundles[site])
        link = FlowerLink(first.path / "link" / "link.db", first.known, 1 << 30)
        for folder in folders.values():
            run(folder, link, lambda text: None)
        yield folders
        assert not (base / "noted").exists(), (base / "noted").read_text()


@pytest.mark.parametrize("method", METHODS)
def test_the_end_is_the_simulation_s(method: str, federations: dict[str, real.Folder]) -> None:
    folder = federations[method]
    driver = real.simulated(folder)
    real.assert_equal(folder, driver)


def test_flower_s_database_stays_small(federations: dict[str, real.Folder]) -> None:
    """Nine federations of three rounds went through it; a round of three sites is 1.1 MB of letters."""
    database = federations["FedAvg()"].path.parent / "first" / "link" / "link.db"
    sizes = [path.stat().st_size for path in database.parent.glob("link.db*")]
    assert sum(sizes) < 100e6
