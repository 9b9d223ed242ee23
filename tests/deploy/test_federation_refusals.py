"""Who is kept out, and what is not there to be reached."""

from __future__ import annotations

import json
import os
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import real

pytest.importorskip("flwr")
httpx = pytest.importorskip("httpx")
pytestmark = [
    pytest.mark.federation,
    pytest.mark.xdist_group("refusals"),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
]

SITES = ("plain-1", "inverted-1", "noisy-1", "strokes-1")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real.Processes]:
    """A server with one good site and three that have something wrong; all try at the same time."""
    from fedtailor.deploy import keys
    from fedtailor.deploy.folder import Bundle

    base = tmp_path_factory.mktemp("refusals")
    folder = real.make(base / "server", SITES, {"rounds": 500}, quorum=1, patience=1.0, deadline=30.0)
    good = {site: Bundle.read(base / f"{site}.bundle") for site in SITES}
    drawn = keys.SiteKeys.draw()
    replace(good["inverted-1"], private_key=drawn.private, secret=drawn.secret).write(base / "unknown.bundle")
    keys.make_authority(base / "other", "other")
    replace(good["noisy-1"], authority=(base / "other" / "ca.crt").read_text()).write(base / "wrong-ca.bundle")
    replace(good["noisy-1"], secret="00" * 32).write(base / "no-secret.bundle")
    folder.revoke("strokes-1")
    with real.processes(folder, pause=0.2) as processes:
        processes.serve()
        processes.join("plain-1")
        processes.join("inverted-1", base / "unknown.bundle", "unknown")
        processes.join("noisy-1", base / "wrong-ca.bundle", "wrong-ca")
        processes.join("strokes-1", name="revoked")
        processes.join("noisy-1", base / "no-secret.bundle", "no-secret")
        processes.wait_for_round(2)
        yield processes


def test_unknown_and_revoked_keys_and_a_wrong_authority_are_refused(federation: real.Processes) -> None:
    federation.wait_for_word("unknown", "the server lets nobody in with this key")
    federation.wait_for_word("revoked", "the server lets nobody in with this key")
    federation.wait_for_word("wrong-ca", "the server's certificate is not one of this federation's authority")
    joined = {event["site"] for event in real.events(federation.folder) if event["event"] == "joined"}
    assert joined == {"plain-1"}


def test_a_site_without_the_secret_is_not_believed(federation: real.Processes) -> None:
    """Its key pair is good, so the transport lets it in; letters sealed by the server it cannot open."""
    federation.wait_for_word("no-secret", "a letter was refused: its code is wrong")
    assert "it was not taken" in str([e for e in real.events(federation.folder) if e.get("site") == "noisy-1"])


def test_status_says_who_is_there_now(federation: real.Processes) -> None:
    federation.wait(lambda: "plain-1" in federation.folder.online()[0], "plain-1 to be online")
    command = [sys.executable, "-m", "fedtailor", "federation", "status", str(federation.folder.path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    states = {words[0]: words[1] for line in told.splitlines() if (words := line.split()) and words[0] in SITES}
    # the transport lets in whoever has the key: without the secret, a site is online and not believed
    assert states == {"plain-1": "online", "inverted-1": "away", "noisy-1": "online", "strokes-1": "revoked"}, told
    assert "running, round " in told and "(29 days)" in told and "does not run" not in told


def test_a_site_that_is_revoked_in_the_middle_is_shut_out(federation: real.Processes) -> None:
    federation.wait_for_round(3)
    federation.folder.revoke("plain-1")
    try:
        federation.wait_for_word("plain-1", "lets nobody in with this key")
        stopped = federation.round()
        time.sleep(2)
        assert federation.round() == stopped
    finally:
        federation.folder.rotate("plain-1")


def get(federation: real.Processes, path: str, **request: Any) -> Any:
    context = ssl.create_default_context(cafile=str(federation.folder.path / "keys" / "ca.crt"))
    with httpx.Client(verify=context, trust_env=False) as client:
        address = f"https://127.0.0.1:{federation.folder.settings.port}{path}"
        return client.request(request.pop("method", "POST"), address, **request)


PROTOBUF = {"content-type": "application/protobuf"}


def every_route() -> list[str]:
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    return [path for _, path in PROTOBUF_REQUEST_TYPES if not path.startswith("/v1/fleet/")]


def test_control_and_run_time_routes_are_not_there(federation: real.Processes) -> None:
    routes = every_route()
    assert "/v1/control/start-run" in routes and "/v1/runtime/acquire-task" in routes and len(routes) > 40
    for path in [*routes, "/docs", "/openapi.json", "/health", "/", "/v1/responses", "/v1/fleet/../control/start-run"]:
        for method in ("POST", "GET"):
            answer = get(federation, path, method=method, content=b"", headers=PROTOBUF)
            assert answer.status_code == 403, (method, path, answer.status_code)


FLEET = ("register-node", "activate-node", "pull-messages", "push-messages", "pull-object", "push-object", "get-run")


@pytest.mark.parametrize("route", FLEET)
def test_without_a_key_the_routes_for_sites_answer_nobody(route: str, federation: real.Processes) -> None:
    assert get(federation, f"/v1/fleet/{route}", content=b"", headers=PROTOBUF).status_code == 401


def test_a_request_that_is_too_large_is_refused(federation: real.Processes) -> None:
    answer = get(federation, "/v1/fleet/push-object", content=b"\0" * (9 << 20), headers=PROTOBUF)
    assert answer.status_code == 403


def test_a_key_of_one_s_own_cannot_register(federation: real.Processes) -> None:
    """With SuperNode authentication as Flower ships it, this would be a control route's affair."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from flwr.proto.fleet_pb2 import RegisterNodeFleetRequest
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    key = ec.generate_private_key(ec.SECP384R1())
    authority = (federation.folder.path / "keys" / "ca.crt").read_bytes()
    with FleetHttpClient.from_server_address(
        f"127.0.0.1:{federation.folder.settings.port}", False, authority,
        [NodeAuthHttpInterceptor(key, key.public_key())],
    ) as client, pytest.raises(httpx.HTTPStatusError) as refused:  # fmt: skip
        client.RegisterNode(RegisterNodeFleetRequest(public_key=public_key_to_bytes(key.public_key())))
    assert refused.value.response.status_code in (401, 403, 412)


def test_secrets_are_in_no_command_line_no_log_and_no_file_of_others(federation: real.Processes) -> None:
    secrets = {site.secret for site in federation.folder.sites()}
    secrets |= {json.loads(path.read_text())["secret"] for path in federation.base.glob("*.bundle")}
    lines = b"".join(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK))
    logs = [*federation.base.glob("*.out"), *(federation.folder.path / "logs").iterdir()]
    logs += [federation.folder.path / "events.jsonl", federation.folder.path / "status.json"]
    for secret in secrets:
        assert secret.encode() not in lines
        for log in logs:
            assert secret not in log.read_text(errors="replace"), log
    private = [*federation.base.glob("*.bundle"), federation.folder.path / "sites.json"]
    private += [*(federation.folder.path / "keys").glob("*.key"), *(federation.folder.path / "link").iterdir()]
    for path in private:
        assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path


def test_nobody_connects_to_anybody_else(federation: real.Processes) -> None:
    assert not (federation.base / "noted").exists(), (federation.base / "noted").read_text()


def test_the_guard_would_have_noticed(tmp_path: Path) -> None:
    """Else the test above proves nothing."""
    guarded = {
        **os.environ, "PYTHONPATH": str(real.HERE / "guard"), "FEDTAILOR_ALLOWED": "127.0.0.1:1",
        "FEDTAILOR_NOTED": str(tmp_path / "noted"),
    }  # fmt: skip
    code = "import socket; socket.create_connection(('example.org', 443))"
    done = subprocess.run([sys.executable, "-c", code], env=guarded, capture_output=True, text=True, check=False)
    assert done.returncode and "forbidden here" in done.stderr and "example.org:443" in (tmp_path / "noted").read_text()
