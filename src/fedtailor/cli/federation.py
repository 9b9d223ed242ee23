"""`federation`, `serve` and `join`: a server and sites on different machines."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedtailor.cli import options as o
from fedtailor.cli.terminal import console, interruptible, say
from fedtailor.registry import WrongInput

if TYPE_CHECKING:
    from fedtailor.deploy.folder import Folder

app = typer.Typer(help="Set up and look after a real federation: init, invite, status, ...", no_args_is_help=True)

Dir = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder of the federation, at the server.", show_default=False)
]
SiteName = Annotated[str, typer.Argument(metavar="SITE", help="Name of the site.", show_default=False)]
Out = Annotated[
    Path | None, typer.Option("--out", help="File to write; SITE.bundle here if not given.", show_default=False)
]
STALE = 20.0  # seconds of silence after which the server counts as not running


def _folder(path: Path) -> Folder:
    from fedtailor.deploy.folder import Folder

    return Folder(path)


def init(
    dir: Dir,
    name: Annotated[str, typer.Option("--name", help="What the federation is called.", show_default=False)],
    host: Annotated[
        str, typer.Option("--host", help="Name or address at which the sites find the server.", show_default=False)
    ],
    data: Annotated[
        str, typer.Option("--data", metavar="NAME", help="Data that look as every site's do; with plugins, your own.")
    ] = "digits",
    method: Annotated[
        str, typer.Option("--method", metavar="NAME", help="Method, such as 'Ditto(lam=0.1)'.")
    ] = "fedavg",
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Model; the data's own if not given.")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Rounds; the data's own if not given.")] = None,
    port: Annotated[int, typer.Option("--port", help="Port of the server.")] = 9443,
    listen: Annotated[str, typer.Option("--listen", help="Address to listen on; that of --host if not given.")] = "",
    quorum: Annotated[int, typer.Option("--quorum", help="Answers that a round needs.")] = 1,
    plugin: o.Plugin = None,
    days: Annotated[int, typer.Option("--days", help="How long the server's certificate is good.")] = 365,
    authority: Annotated[Path | None, typer.Option("--ca", help="Your own authority's certificate (PEM) ...")] = None,
    certificate: Annotated[Path | None, typer.Option("--certificate", help="... the server's certificate ...")] = None,
    key: Annotated[Path | None, typer.Option("--key", help="... and its key.")] = None,
) -> None:
    """Make a federation's folder: keys, certificate, and a commented federation.toml.

    \\b
    Example:
      fedtailor federation init clinic --name clinic --host fed.example.org --method fedbn
    """
    import shutil

    from fedtailor.data import load
    from fedtailor.deploy.folder import Folder
    from fedtailor.deploy.settings import Form, Settings
    from fedtailor.spec import RunSpec

    plugins = o.load_plugins(plugin or ())
    given = [part for part in (authority, certificate, key) if part is not None]
    if len(given) not in (0, 3):
        raise WrongInput("certificates of your own are three files: give --ca, --certificate and --key")
    like = load(data)
    spec = RunSpec.of(like, _method(method), rounds=rounds)
    run: dict[str, Any] = {"method": repr(spec.method), "model": model or like.model}
    run |= {key: getattr(spec, key) for key in dict.fromkeys(["rounds", *like.settings]) if key not in run}
    chosen = Settings(
        name=name, id="", host=host, port=port, form=Form.of(like), run=run,
        listen=listen, plugin=tuple(Path(path).name for path in plugins), quorum=quorum,
    )  # fmt: skip
    own = (given[0], given[1], given[2]) if given else None
    folder = Folder.create(dir, chosen, own, days)
    for path in plugins:
        shutil.copy(path, dir / Path(path).name)
    say(f"{dir} is ready. Look through {dir / 'federation.toml'}, then invite each site:")
    say(f"  fedtailor federation invite {folder.path} NAME")


def _method(text: str) -> Any:
    import fedtailor.methods  # noqa: F401
    from fedtailor import registry

    return registry.parse("method", text)


def invite(
    dir: Dir,
    site: SiteName,
    group: Annotated[
        str, typer.Option("--group", help="Group that the site belongs to, for methods that use it.")
    ] = "all",
    out: Out = None,
) -> None:
    """Give a site its place: writes the bundle with which it joins.

    \\b
    Example:
      fedtailor federation invite clinic north
    """
    path = out or Path(f"{site}.bundle")
    if path.exists():
        raise WrongInput(f"{path} is there already; give another --out")
    _folder(dir).invite(site, group).write(path)
    say(f"{path} is for {site} alone: send it over a way that nobody else reads. There:")
    say(f"  fedtailor join {path.name} --data NAME --state {site}-state")


def rotate(
    dir: Dir,
    site: Annotated[str | None, typer.Argument(metavar="[SITE]", help="The site.", show_default=False)] = None,
    server: Annotated[bool, typer.Option("--server", help="Renew the server's certificate.")] = False,
    days: Annotated[int, typer.Option("--days", help="How long the server's certificate is good.")] = 365,
    out: Out = None,
) -> None:
    """Make new keys for a site, whose old ones are refused from then on; or a new certificate for the server."""
    from fedtailor.deploy import keys

    folder = _folder(dir)
    if server == (site is not None):
        raise WrongInput("name a site whose keys are to be new, or give --server")
    if site is None:
        keys.make_server_certificate(dir / "keys", folder.settings.host, days)
        say("The server has a new certificate, and uses it from now on.")
        return
    path = out or Path(f"{site}.bundle")
    if path.exists():
        raise WrongInput(f"{path} is there already; give another --out")
    folder.rotate(site).write(path)
    say(f"{path} replaces the bundle of {site}.")


def revoke(dir: Dir, site: SiteName) -> None:
    """Keep a site out, from now on; `rotate` lets it in again."""
    _folder(dir).revoke(site)
    say(f"{site} is not let in any more. Its place stays, and what it gave is in the model.")


def status(dir: Dir) -> None:
    """Who is there, which round it is, the last numbers, the traffic and the certificate."""
    from fedtailor.deploy import keys
    from fedtailor.report import words

    folder = _folder(dir)
    found, screen = folder.status(), console()
    chosen = folder.settings
    good = keys.expiry(dir / "keys" / "server.crt")
    left = (good - datetime.now(UTC)).days
    online, silent = folder.online()
    runs = silent < STALE
    stood = "waiting for sites" if runs else "not started"
    if found:
        stood = f"{found['status']}, round {found['round']} of {found['rounds']}"
    method = found.get("method") or chosen.run.get("method", "FedAvg")
    screen.print(f"{chosen.name} at {chosen.host}:{chosen.port}, {method}: {stood}", soft_wrap=True)
    if not runs and found.get("status") != "complete":
        screen.print(f"the server does not run: `fedtailor serve {dir}` starts it", soft_wrap=True)
    screen.print(f"certificate good until {good:%Y-%m-%d} ({left} days)")
    metric = found.get("metric", "")
    table = Table("site", "state", "rows", metric, "sent to it", "received", box=None)
    rows = folder.rows()
    for site in folder.sites():
        here = found.get("sites", {}).get(site.name, {})
        value = here.get(metric)
        state = "revoked" if site.revoked else "online" if runs and site.name in online else "away"
        table.add_row(
            site.name, state, str(rows.get(site.name, ["?"])[0]), "" if value is None else words.number(value, metric),
            words.size(here.get("down", 0)), words.size(here.get("up", 0)),
        )  # fmt: skip
    screen.print(table)


def logs(dir: Dir, last: Annotated[int, typer.Option("--last", help="So many lines.")] = 40) -> None:
    """What happened: who came and went, what was dropped and why."""
    import json

    path = _folder(dir).path / "events.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines[-last:]:
        event = json.loads(line)
        when = datetime.fromtimestamp(event["time"]).strftime("%Y-%m-%d %H:%M:%S")
        what = ": ".join(part for part in (event.get("site"), event["event"], event.get("reason")) if part)
        console().print(f"{when}  {what}", soft_wrap=True, markup=False)


def stop(dir: Dir) -> None:
    """Have the server end after the round it is in; `fedtailor serve` goes on from there."""
    folder = _folder(dir)
    (folder.path / "stop").touch()
    say("The server ends after this round. `fedtailor serve` goes on from there.")


def serve(
    dir: Dir,
    check: Annotated[
        bool, typer.Option("--check", help="Look through settings, keys and sites; start nothing.")
    ] = False,
) -> None:
    """Run the server of a federation until it is complete; resumes by itself after any crash.

    \\b
    Example:
      fedtailor serve clinic
    """
    from fedtailor.deploy import keys
    from fedtailor.deploy.serve import serve as carry_out

    folder = _folder(dir)
    if keys.expiry(dir / "keys" / "server.crt") < datetime.now(UTC):
        raise WrongInput(f"the certificate has expired; `fedtailor federation rotate {dir} --server` renews it")
    if check:
        o.load_plugins(folder.settings.plugin)
        spec = folder.settings.spec()
        names = ", ".join(site.name for site in folder.sites()) or "nobody yet"
        say(f"{dir} is in order: {spec.method!r}, {spec.rounds} rounds; invited: {names}")
        return
    try:
        code = carry_out(dir, say)
    except KeyboardInterrupt:
        say("interrupted; the same command goes on after the last round that was done", "bold")
        raise typer.Exit(130) from None
    if code:
        raise typer.Exit(code)
    say(f"The record is {dir / 'run'}: `fedtailor report {dir / 'run'}` draws it.")


def join(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="What the server's side sent you.", show_default=False)
    ],
    data: Annotated[
        str,
        typer.Option("--data", metavar="NAME", help="This site's rows: 'my_data(path=\"rows\")'.", show_default=False),
    ],
    state: Annotated[
        Path, typer.Option("--state", help="Folder that keeps this site's own state.", show_default=False)
    ],
    client: Annotated[
        str | None,
        typer.Option("--client", help="Whose rows, where the data hold those of several.", show_default=False),
    ] = None,
    plugin: o.Plugin = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Let the server see what a method shows of its insides.")
    ] = False,
    threads: Annotated[int, typer.Option("--threads", help="Threads to train with; 0: all cores.")] = 0,
    device: Annotated[str, typer.Option("--device", help="Where to train: cpu, cuda, cuda:1, mps.")] = "cpu",
    check: Annotated[bool, typer.Option("--check", help="Look whether the data fit; connect to nobody.")] = False,
) -> None:
    """Take part in a federation with this site's data, until it is complete.

    Trains with the methods and models installed here. Keeps trying when the server is away, and goes on where it
    was when it is started again. Rows never leave; `--state` holds what is personal.

    \\b
    Example:
      fedtailor join north.bundle --plugin north.py --data north --state north-state
    """
    from fedtailor.deploy.folder import Bundle
    from fedtailor.deploy.join import join as take_part
    from fedtailor.deploy.join import own_rows

    o.load_plugins(plugin or ())
    read = Bundle.read(bundle)
    own = own_rows(data, client, read)
    sizes = [len(rows[0]) for rows in (own.train, own.validation, own.test)]
    say(f"{read.site} has {sizes[0]} training, {sizes[1]} validation and {sizes[2]} test rows that fit {read.name}")
    if check:
        return
    try:
        take_part(read, own, state, explain=explain, threads=threads, device=device, say=lambda text: say(text))
    except KeyboardInterrupt:
        say(f"interrupted; the state is kept in {state}, and the same command goes on", "bold")
        raise typer.Exit(130) from None


def demo(
    out: Annotated[Path | None, typer.Option("--out", help="Folder; one under runs/ if not given.")] = None,
    method: Annotated[str, typer.Option("--method", metavar="NAME", help="Method.")] = "fedbn",
) -> None:
    """Run a server and three sites on this machine, as processes of their own: takes less than two minutes."""
    from fedtailor.cli.terminal import show_results
    from fedtailor.deploy.demo import carry_out, set_up

    path = out or o.new_folder("federation-demo")
    if path.exists():
        raise WrongInput(f"{path} is there already; give another --out")
    set_up(path, repr(_method(method)))
    say(f"In {path}: the server's folder, a bundle and the state of each site, and sites.log, what the sites say.")
    code = carry_out(path, say)
    if code:
        raise typer.Exit(code)
    show_results([path / "server" / "run"])
    say(f"Each site keeps its personal model: fedtailor export {path}/plain-1-state")


for command in (init, invite, rotate, revoke, status, logs, stop, demo):
    app.command(command.__name__)(interruptible(command))
