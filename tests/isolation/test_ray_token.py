"""A Ray that is started as deploy/ starts it runs code for who has its token, and for nobody else."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import pytest

from plancast_actors import jobs
from plancast_bus.errors import BusUnavailable

pytestmark = pytest.mark.slow
PATIENCE = 90.0


@dataclass
class Head:
    """Ray's head node, as compose and Kubernetes have it."""

    dashboard: str
    token: Path

    def ask(self, path: str, token: str = "", body: object = None) -> int:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        data = json.dumps(body).encode() if body is not None else None
        try:
            with urllib.request.urlopen(urllib.request.Request(self.dashboard + path, data, headers)) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    folder = Path(tempfile.mkdtemp(prefix="ph"))  # Ray's sockets are there: their paths must be short
    token = folder / "token"
    token.write_text(token_hex(32))
    others = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    environment = others | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    gcs, dashboard, agent, client = (free_port() for _ in range(4))
    process = subprocess.Popen(
        [
            Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--disable-usage-stats",
            "--dashboard-host", "127.0.0.1", f"--dashboard-port={dashboard}", f"--port={gcs}", "--num-cpus=1",
            f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}", f"--temp-dir={folder}/r",
        ],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    made = Head(f"http://127.0.0.1:{dashboard}", token)
    try:
        give_up = time.monotonic() + PATIENCE
        while made.ask("/api/gcs_healthz") != 200:  # as the probes do, without a token
            assert process.poll() is None
            assert time.monotonic() < give_up
            time.sleep(0.2)
        yield made
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.attack(who="stranger", what="submit a job to Ray's dashboard", expected="401 or 403 without its token")
def test_the_job_server_runs_nothing_without_the_token(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    job = {"entrypoint": "touch /tmp/never"}
    assert [head.ask("/api/jobs/", token, job) for token in ("", "0" * 64)] == [401, 403]
    assert head.ask("/api/jobs/") == 401
    assert head.ask("/api/jobs/", head.token.read_text()) == 200
    with pytest.raises(BusUnavailable, match="token"):
        jobs.run(head.dashboard, ["true"], {})


def test_the_job_server_runs_a_job_with_the_token_of_the_settings(head: Head) -> None:
    outcome = jobs.run(head.dashboard, ["echo", "ran"], {}, token=head.token)
    assert (outcome.succeeded, "ran" in outcome.output.splitlines()) == (True, True), outcome
    assert head.token.read_text() not in outcome.output
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ
