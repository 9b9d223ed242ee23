"""The server's folder: settings, keys, sites and their bundles."""

from __future__ import annotations

import datetime as dt
import json
import ssl
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedtailor import WrongInput
from fedtailor.deploy.lock import held
from fedtailor.deploy.settings import FILE, Form, Settings, read, write

pytest.importorskip("cryptography")

from fedtailor.deploy import keys
from fedtailor.deploy.folder import Bundle, Folder

FORM = Form("classification", ("a", "b"), (3, 4, 4))


def settings(**options: Any) -> Settings:
    run = {"method": "FedAvg()", "model": "mlr", "rounds": 5, "lr": 0.1}
    return Settings(
        **{"name": "clinic", "id": "", "host": "127.0.0.1", "port": 9443, "form": FORM, "run": run, **options}
    )


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder.create(tmp_path / "clinic", settings(), None, 30)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    chosen = settings(
        id="x", quorum=3, deadline=5.5, patience=1.0, norm_limit=2.0, combine="median", listen="0.0.0.0",
        run={"method": "Ditto(lam=0.5)", "model": "mlr", "rounds": 7, "cohort": 0.5, "lr": 1.0},
    )  # fmt: skip
    write(tmp_path, chosen)
    assert read(tmp_path) == chosen
    assert chosen.spec().rounds == 7 and chosen.spec().on_nan == "drop" and chosen.spec().checkpoint_every == 1


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("rouds = 4", "no key 'rouds'"),
        ('quorum = "two"', "quorum = 'two' is not a whole number"),
        ("quorum = 0", "quorum = 0 is not possible; it must be 1 or more"),
        ("largest_letter = 3", "largest_letter = 3 is not possible"),
        ("host = ", "cannot be read as TOML"),
    ],
)
def test_wrong_settings_are_named(line: str, why: str, folder: Folder) -> None:
    path = folder.path / FILE
    text = path.read_text()
    kept = [one for one in text.splitlines() if one.split(" = ")[0] != line.split(" = ")[0]]
    path.write_text("\n".join([line, *kept]))
    with pytest.raises(WrongInput, match=why):
        read(folder.path)


@pytest.mark.parametrize(
    ("run", "combine", "why"),
    [
        ({"method": "Centralised()"}, "mean", "everybody's rows"),
        ({"method": "FedHealth()"}, "mean", "public rows"),
        ({"method": "FedMCSA()"}, "median", "looks at them"),
        ({"method": "Nothing()"}, "mean", "no method 'Nothing"),
    ],
)
def test_what_a_federation_cannot_do_is_refused(run: Any, combine: str, why: str) -> None:
    with pytest.raises(WrongInput, match=why):
        settings(run={"model": "mlr", **run}, combine=combine).spec()


def test_private_files_are_for_their_owner_only(folder: Folder, tmp_path: Path) -> None:
    folder.invite("north").write(tmp_path / "north.bundle")
    private = [tmp_path / "north.bundle", folder.path / "sites.json", *(folder.path / "keys").glob("*.key")]
    assert len(private) == 4
    for path in private:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((folder.path / "keys").stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_a_bundle_is_read_as_it_was_written(folder: Folder, tmp_path: Path) -> None:
    bundle = folder.invite("north")
    bundle.write(tmp_path / "north.bundle")
    assert Bundle.read(tmp_path / "north.bundle") == bundle
    assert bundle.form == FORM and bundle.address == "127.0.0.1:9443"
    seal = folder.seal_of("north")
    assert seal == bundle.seal()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"format": 9}', "\x00"])
def test_what_is_no_bundle_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "x.bundle").write_text(content)
    with pytest.raises(WrongInput, match="is no bundle that can be read"):
        Bundle.read(tmp_path / "x.bundle")
    with pytest.raises(WrongInput, match="there is no bundle"):
        Bundle.read(tmp_path / "y.bundle")


def test_revoke_and_rotate(folder: Folder) -> None:
    first = folder.invite("north")
    folder.invite("south")
    folder.revoke("north")
    assert list(folder.known()) == ["south"] and folder.seal_of("north") is None
    second = folder.rotate("north")
    assert list(folder.known()) == ["north", "south"]
    assert {first.secret, first.private_key, first.key_id}.isdisjoint(
        {second.secret, second.private_key, second.key_id}
    )
    assert folder.seal_of("north") == second.seal() != first.seal()
    assert [site.name for site in folder.sites()] == ["north", "south"]


def test_a_change_is_seen_by_others(folder: Folder) -> None:
    folder.invite("north")
    other = Folder(folder.path)
    assert list(other.known()) == ["north"]
    folder.revoke("north")
    assert list(other.known()) == []


@pytest.mark.parametrize("name", ["", "server", "a/b", "..", "a b", "x" * 65, "-x"])
def test_names_that_cannot_be_sites(name: str, folder: Folder) -> None:
    with pytest.raises(WrongInput, match="cannot be called"):
        folder.invite(name)


def test_places_are_given_out_before_the_first_round(folder: Folder) -> None:
    folder.invite("north")
    with pytest.raises(WrongInput, match="was invited already"):
        folder.invite("north")
    with pytest.raises(WrongInput, match="no site 'south'; invited are north"):
        folder.revoke("south")
    (folder.path / "run").mkdir()
    (folder.path / "run" / "run.json").write_text("{}")
    with pytest.raises(WrongInput, match="has begun with 1 places"):
        folder.invite("south")


def test_a_second_federation_does_not_overwrite_the_first(folder: Folder) -> None:
    with pytest.raises(WrongInput, match="holds a federation already"):
        Folder.create(folder.path, settings(), None, 30)


def handshake(server: Path, authority: Path, host: str) -> None:
    """A TLS handshake in memory."""
    here, there = ssl.MemoryBIO(), ssl.MemoryBIO()
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(server / "server.crt", server / "server.key")
    of_site = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    of_site.load_verify_locations(authority)
    ends = [of_site.wrap_bio(there, here, server_hostname=host), of_server.wrap_bio(here, there, server_side=True)]
    for _ in range(10):
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not ends


def test_the_certificate_is_for_the_host_and_the_authority(folder: Folder, tmp_path: Path) -> None:
    made = folder.path / "keys"
    handshake(made, made / "ca.crt", "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(made, made / "ca.crt", "127.0.0.2")
    keys.make_authority(tmp_path / "other", "other")
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        handshake(made, tmp_path / "other" / "ca.crt", "127.0.0.1")
    before = (made / "server.crt").read_bytes()
    keys.make_server_certificate(made, "127.0.0.1", 10)
    assert (made / "server.crt").read_bytes() != before
    handshake(made, made / "ca.crt", "127.0.0.1")
    left = keys.expiry(made / "server.crt") - dt.datetime.now(dt.UTC)
    assert dt.timedelta(days=9) < left <= dt.timedelta(days=10)


def test_certificates_of_one_s_own(folder: Folder, tmp_path: Path) -> None:
    made = folder.path / "keys"
    own = (made / "ca.crt", made / "server.crt", made / "server.key")
    second = Folder.create(tmp_path / "second", settings(), own, 30)
    handshake(second.path / "keys", made / "ca.crt", "127.0.0.1")
    assert not (second.path / "keys" / "ca.key").exists()
    with pytest.raises(WrongInput, match="your own authority's to renew"):
        keys.make_server_certificate(second.path / "keys", "127.0.0.1", 30)
    with pytest.raises(WrongInput, match=r"is for 127\.0\.0\.1, not for fed.example.org"):
        Folder.create(tmp_path / "third", settings(host="fed.example.org"), own, 30)
    with pytest.raises(WrongInput, match="is not the key of"):
        Folder.create(tmp_path / "third", settings(), (made / "ca.crt", made / "ca.crt", made / "server.key"), 30)


def test_nothing_of_one_federation_fits_another(tmp_path: Path) -> None:
    one, two = (Folder.create(tmp_path / name, settings(), None, 30) for name in ("one", "two"))
    assert one.settings.id != two.settings.id
    assert json.loads((one.path / "sites.json").read_text()) == []


def test_what_looks_after_a_federation_needs_no_pytorch(folder: Folder) -> None:
    """It would be some hundred megabytes in each process, and a second before each answer."""
    code = (
        "import sys; from pathlib import Path; from fedtailor.deploy import serve; from fedtailor.deploy.folder import "
        f"Folder; Folder(Path({str(folder.path)!r})).invite('north'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_server_s_parts_end_with_it(folder: Folder) -> None:
    """Even if it was gone before they had begun: they are told whose they are."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    command = [sys.executable, "-m", "fedtailor.deploy.serve", "loop", str(folder.path), str(gone.pid)]
    folder.invite("north")
    (folder.path / "loop.lock").touch()
    with held(folder.path / "loop.lock", "the test"):  # so that it has nothing to do but wait
        assert subprocess.run(command, timeout=90, check=False).returncode == 1
