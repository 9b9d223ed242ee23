"""The server's folder: settings, keys, the sites that are invited, and the run.

federation.toml   what is trained, by which rules
keys/             the authority and the server's certificate (private parts readable by the owner only)
sites.json        the sites in their order, with their public keys and secrets (likewise)
run/              the record, as a simulation writes it: `fedtailor report` draws it
events.jsonl      what happened
status.json       where it stands        online.json   who is there
link/             Flower's database; of no use once the server has ended
"""

from __future__ import annotations

import json
import math
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtailor.deploy import keys, settings
from fedtailor.deploy.settings import SERVER, Form, Settings
from fedtailor.registry import WrongInput

if TYPE_CHECKING:
    from fedtailor.deploy.envelope import Seal

BUNDLE = 1  # the format of bundles
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Invited:
    """A site as the server knows it."""

    name: str
    group: str
    key_id: str
    public: str
    secret: str
    revoked: bool = False


@dataclass(frozen=True)
class Bundle:
    """All that a site needs in order to join; whoever has it can pose as the site."""

    federation: str
    name: str
    site: str
    address: str
    authority: str
    private_key: str
    secret: str
    key_id: str
    form: Form

    def seal(self) -> Seal:
        from fedtailor.deploy.envelope import Seal

        return Seal(self.federation, bytes.fromhex(self.secret))

    def write(self, path: Path) -> None:
        plain = {"format": BUNDLE, **asdict(self), "form": self.form.to_dict()}
        keys.write_private(path, json.dumps(plain, indent=1).encode())

    @classmethod
    def read(cls, path: Path) -> Bundle:
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            if plain.pop("format") != BUNDLE:
                raise ValueError("it is of another version of fedtailor")
            bundle = cls(**{**plain, "form": Form.from_dict(plain["form"])})
            bytes.fromhex(bundle.secret)
            return bundle
        except FileNotFoundError:
            raise WrongInput(
                f"there is no bundle {path}; `fedtailor federation invite` makes one, at the server"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise WrongInput(f"{path} is no bundle that can be read ({error}); ask for a new one") from None


class Folder:
    """One federation at its server."""

    def __init__(self, path: Path):
        self.path = path
        self.settings = settings.read(path)
        self._seen: tuple[int, list[Invited]] = (0, [])

    @classmethod
    def create(cls, path: Path, chosen: Settings, own: tuple[Path, Path, Path] | None, days: int) -> Folder:
        """A new folder with keys of its own, or with certificates that one has (authority, certificate, key)."""
        if (path / settings.FILE).exists():
            raise WrongInput(f"{path} holds a federation already; choose another folder")
        chosen = replace(chosen, id=str(uuid.uuid4()))
        chosen.spec()
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if own:
            keys.check_own(*own, chosen.host)
            for source, name in zip(own, ("ca.crt", "server.crt", "server.key"), strict=True):
                keys.write_private(path / "keys" / name, source.read_bytes())
        else:
            keys.make_authority(path / "keys", chosen.name)
            keys.make_server_certificate(path / "keys", chosen.host, days)
        keys.write_private(path / "sites.json", b"[]")
        settings.write(path, chosen)
        return cls(path)

    def sites(self) -> list[Invited]:
        """All that were invited, in their order; read again when the file is another one."""
        file = self.path / "sites.json"
        stamp = file.stat().st_mtime_ns
        if self._seen[0] != stamp:
            self._seen = stamp, [Invited(**site) for site in json.loads(file.read_text(encoding="utf-8"))]
        return self._seen[1]

    def known(self) -> Mapping[str, str]:
        """The public keys of those who may come in."""
        return {site.name: site.public for site in self.sites() if not site.revoked}

    def seal_of(self, name: str) -> Seal | None:
        """The seal of a site that may come in."""
        from fedtailor.deploy.envelope import Seal

        site = next((site for site in self.sites() if site.name == name and not site.revoked), None)
        return Seal(self.settings.id, bytes.fromhex(site.secret)) if site else None

    def invite(self, name: str, group: str = "all") -> Bundle:
        """A place in the federation for a new site; places are given out before the first round."""
        if not _NAME.fullmatch(name) or name == SERVER:
            raise WrongInput(f"a site cannot be called {name!r}; use letters, digits, dots and dashes, up to 64")
        if any(site.name == name for site in self.sites()):
            raise WrongInput(f"{name} was invited already; `fedtailor federation rotate` makes a new bundle")
        if (self.path / "run" / "run.json").exists():
            raise WrongInput(
                f"the federation in {self.path} has begun with {len(self.sites())} places, and methods count on their "
                "number; invite everybody before the first round, those too who come later"
            )
        return self._give(Invited(name, group, "", "", ""))

    def rotate(self, name: str) -> Bundle:
        """New keys for a site; the old ones are refused from now on. A revoked site comes back in."""
        return self._give(self._find(name))

    def revoke(self, name: str) -> None:
        self._keep(replace(self._find(name), revoked=True))

    def _find(self, name: str) -> Invited:
        found = next((site for site in self.sites() if site.name == name), None)
        if found is None:
            names = ", ".join(site.name for site in self.sites()) or "nobody yet"
            raise WrongInput(f"there is no site {name!r}; invited are {names}")
        return found

    def _give(self, site: Invited) -> Bundle:
        drawn, chosen = keys.SiteKeys.draw(), self.settings
        self._keep(replace(site, key_id=drawn.key_id, public=drawn.public, secret=drawn.secret, revoked=False))
        authority = (self.path / "keys" / "ca.crt").read_text(encoding="utf-8")
        address = f"[{chosen.host}]:{chosen.port}" if ":" in chosen.host else f"{chosen.host}:{chosen.port}"
        return Bundle(
            federation=chosen.id, name=chosen.name, site=site.name, address=address, authority=authority,
            private_key=drawn.private, secret=drawn.secret, key_id=drawn.key_id, form=chosen.form,
        )  # fmt: skip

    def _keep(self, changed: Invited) -> None:
        sites = {site.name: site for site in self.sites()} | {changed.name: changed}
        keys.write_private(self.path / "sites.json", json.dumps([asdict(site) for site in sites.values()]).encode())

    def rows(self) -> dict[str, Any]:
        """How many rows each site said it has, for training, validation and testing."""
        try:
            found: dict[str, Any] = json.loads((self.path / "rows.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return found

    def tell_online(self, names: Sequence[str]) -> None:
        """Note who is there; done again and again while the server runs."""
        keys.write_private(self.path / "online.json", json.dumps({"time": time.time(), "sites": names}).encode())

    def online(self) -> tuple[list[str], float]:
        """Who was there when the server last said so, and how many seconds ago that was."""
        try:
            found = json.loads((self.path / "online.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return [], math.inf
        return found["sites"], time.time() - found["time"]

    def status(self) -> dict[str, Any]:
        """Where the federation stood when the server last said so."""
        try:
            found: dict[str, Any] = json.loads((self.path / "status.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return found
