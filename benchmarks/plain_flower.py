"""Flower by itself: a link, three official nodes with keys over TLS, and its own FedAvg on one array."""

from __future__ import annotations

import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fedtailor.deploy import keys
from fedtailor.deploy.demo import free_port

SITES = ("a", "b", "c")
APP = """
[project]
name = "plain"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "local"
[tool.flwr.app.components]
serverapp = "plain.server_app:app"
clientapp = "plain.client_app:app"
[tool.flwr.app.config]
rounds = 3
numbers = 1
"""
SERVER = """
import time
import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()

@app.main()
def main(grid: Grid, context: Context) -> None:
    first = np.random.default_rng(0).random(int(context.run_config["numbers"]), dtype=np.float32)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    def told(number, arrays):
        print("TOLD", number, time.time(), flush=True)
    strategy.start(grid, ArrayRecord([first]), num_rounds=int(context.run_config["rounds"]), evaluate_fn=told)
"""
CLIENT = """
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message: Message, context: Context) -> Message:
    array = message.content["arrays"].to_numpy_ndarrays()[0] + context.node_id % 7
    content = RecordDict({"arrays": ArrayRecord([array]), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=message)
"""


def seconds_per_round(megabytes: float, rounds: int) -> float:
    """The median over all rounds but the first."""
    with tempfile.TemporaryDirectory() as base:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            return statistics.median(measured(Path(base), megabytes, rounds, processes))
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(30)


def measured(base: Path, megabytes: float, rounds: int, processes: list[subprocess.Popen[bytes]]) -> list[float]:
    port, programs = free_port(), Path(sys.executable).parent
    address = f"127.0.0.1:{port}"
    keys.make_authority(base / "keys", "plain")
    keys.make_server_certificate(base / "keys", "127.0.0.1", 1)
    authority = str(base / "keys" / "ca.crt")
    keys.write_private(base / "secret", os.urandom(32).hex().encode())
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("FLWR_")},
        "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "PATH": f"{programs}:{os.environ['PATH']}",
    }  # fmt: skip

    def start(name: str, *command: str) -> None:
        home = {**environment, "FLWR_HOME": str(base / f"home-{name}")}
        with open(base / f"{name}.log", "ab") as log:
            processes.append(subprocess.Popen(command, env=home, stdout=log, stderr=log))

    secret = ("--superexec-auth-secret-file", str(base / "secret"))
    made = base / "keys"
    certificate = ("--ssl-certfile", str(made / "server.crt"), "--ssl-keyfile", str(made / "server.key"))
    start(
        "link", "flower-superlink", "--host", "127.0.0.1", "--port", str(port), "--ssl-ca-certfile", authority,
        *certificate, "--enable-supernode-auth", "--isolation", "process", *secret, "--database", str(base / "link.db"),
    )  # fmt: skip
    start("exec", "flower-superexec", "--runtime-api-address", address, "--root-certificates", authority, *secret)
    app = base / "app"
    (app / "plain").mkdir(parents=True)
    for name, text in {"server_app.py": SERVER, "client_app.py": CLIENT, "__init__.py": ""}.items():
        (app / "plain" / name).write_text(text)
    (app / "pyproject.toml").write_text(APP)
    home = base / "home-admin"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "real"\n[superlink.real]\naddress = "{address}"\nroot-certificates = "{authority}"\n'
    )
    admin = {**environment, "FLWR_HOME": str(home)}
    time.sleep(15)
    for number, site in enumerate(SITES):
        drawn = keys.SiteKeys.draw()
        private, public = base / site, base / f"{site}.pub"
        keys.write_private(private, drawn.private.encode())
        public.write_bytes(open_ssh(drawn.private))
        subprocess.run(
            ["flwr", "supernode", "register", str(public), "real", "--format", "json"], env=admin, check=True,
            capture_output=True,
        )  # fmt: skip
        start(
            site, "flower-supernode", "--superlink", address, "--root-certificates", authority,
            "--auth-supernode-private-key", str(private), "--port", str(free_port() + number),
        )  # fmt: skip
    config = f"rounds={rounds + 1} numbers={int(megabytes * 250_000)}"
    done = subprocess.run(
        ["flwr", "run", str(app), "real", "--stream", "-c", config], env=admin, check=False, capture_output=True,
        text=True, timeout=1800,
    )  # fmt: skip
    told = [float(when) for when in re.findall(r"TOLD \d+ ([0-9.]+)", done.stdout + done.stderr)]
    if len(told) < rounds + 2:
        raise RuntimeError(json.dumps([done.stdout[-2000:], done.stderr[-2000:]]))
    return [after - before for before, after in itertools.pairwise(told[1:])]


def open_ssh(private: str) -> bytes:
    """The public key as Flower's command line wants it."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_ssh_private_key(private.encode(), None)
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    public: bytes = key.public_key().public_bytes(*form)
    return public + b"\n"
