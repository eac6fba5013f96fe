"""Ray's head node, started as deploy/ starts it: whoever has its token runs code on it."""

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_hex

PATIENCE = 90.0


@dataclass
class Head:
    """Ray's head node, as compose and Kubernetes have it."""

    dashboard: str
    token: Path

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a process has the token."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token)}

    def ask(self, path: str, token: str = "", body: object = None) -> int:
        """The status of an answer of the dashboard; 0 where there is none."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        data = json.dumps(body).encode() if body is not None else None
        try:
            with urllib.request.urlopen(urllib.request.Request(self.dashboard + path, data, headers)) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0


@contextmanager
def ray_head(environment: Mapping[str, str] | None = None, *, cpus: int = 1) -> Iterator[Head]:
    """A head node that runs on the loopback, with further variables for all that runs on it."""
    folder = Path(tempfile.mkdtemp(prefix="ph"))  # Ray's sockets are there: their paths must be short
    token = folder / "token"
    token.write_text(token_hex(32))
    gcs, dashboard, agent, client = (free_port() for _ in range(4))
    made = Head(f"http://127.0.0.1:{dashboard}", token)
    others = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    bin_folder = Path(sys.executable).parent
    path = {"PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}  # jobs are started by their command's name
    start = partial(
        subprocess.Popen,
        [
            bin_folder / "ray", "start", "--head", "--block", "--disable-usage-stats",
            "--dashboard-host", "127.0.0.1", f"--dashboard-port={dashboard}", f"--port={gcs}", f"--num-cpus={cpus}",
            f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}", f"--temp-dir={folder}/r",
        ],
        env=others | path | made.environment | dict(environment or {}),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    process, starts = start(), 1
    try:
        give_up = time.monotonic() + PATIENCE
        while made.ask("/api/gcs_healthz") != 200:  # as the probes do, without a token
            if process.poll() is not None:
                assert starts == 1
                process, starts = start(), 2  # its node may not have registered in the 30 s that Ray gives it
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
    """A port of the loopback that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
