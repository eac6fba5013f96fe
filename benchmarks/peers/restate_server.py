"""Restate's server and the processes of plans, started for one measurement.

One node with all roles, on defaults except for :func:`configuration`. At its start the server also queries GitHub
for a newer release, which no setting disables; the measurement does not wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.load.outcome import BenchmarkFailed
from benchmarks.peers.peer import ENVIRONMENTS, PeerSync, PeerUnavailable
from benchmarks.peers.programs import PEERS, Program, install, program
from benchmarks.reports.rows import Say
from benchmarks.systems.ending import dying_with_parent
from benchmarks.systems.scratch import scratch

NAME = "restate"
SERVER = ENVIRONMENTS / "restate-server"
ECHOES = 2
"""Number of echo processes. W2 needs more than one: the echo of a plan's ten requests takes 1.5 ms of CPU time."""
STREAMS = 32
"""Plans per connection. With the default of 128 the workers share few connections, which is a tenth slower."""
START_SECONDS, ROUND_SECONDS = 60.0, 600.0
SETTLE_SECONDS = 2.0
"""Seconds until each partition has its leader."""


def fetch(say: Say) -> None:
    """Fetch the server with npm, unless it exists; the lock pins everything by hash, and no install script runs.

    Raises:
        PeerUnavailable: it cannot be fetched.
    """
    files = [PEERS / NAME / name for name in ("package.json", "package-lock.json")]
    stamp, wanted = SERVER / ".installed", hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    if shutil.which("npm") is None:
        install("npm", say)
    if shutil.which("npm") is None:
        raise PeerUnavailable("restate-server comes from npm: `apt-get install npm` as root, or put npm on the PATH")
    say("fetching restate-server")
    SERVER.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copy(file, SERVER)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    fetched = subprocess.run(command, cwd=SERVER, capture_output=True, text=True, check=False)
    if fetched.returncode or not _binaries():
        raise PeerUnavailable(f"npm cannot fetch restate-server: {fetched.stderr[-500:]}")
    stamp.write_text(wanted)


def configuration(folder: Path, ports: Mapping[str, int], sync: PeerSync) -> str:
    """Render the server's configuration file.

    - ``disable-telemetry``: no reports from benchmarks.
    - ``http2-streams-per-connection-limit``: see :data:`STREAMS`.
    - ``rocksdb-disable-wal-fsync``: the log that contains each transition before it is acknowledged. The default,
      false, syncs after each batch of writes; true leaves that to the operating system.
    - Defaults that matter: 24 partitions; 1,000 concurrent invocations at the workers, the others wait in the server
      (with 10,000 the rate fell, and connections were reset); a minute without progress before a waiting
      plan is suspended, longer than any wait here; journals of completed plans kept for a day (not keeping them
      made no measurable difference); memory.
    """
    return f"""\
disable-telemetry = true
node-name = "benchmark"
base-dir = "{folder / "data"}"
listen-mode = "tcp"
bind-ip = "127.0.0.1"
bind-port = {ports["fabric"]}
log-filter = "warn"
log-disable-ansi-codes = true

[ingress]
bind-port = {ports["ingress"]}

[admin]
bind-port = {ports["admin"]}
disable-web-ui = true

[worker.invoker]
http2-streams-per-connection-limit = {STREAMS}

[log-server]
rocksdb-disable-wal-fsync = {"true" if sync == "off" else "false"}
"""


def serving(port: int, workers: int) -> str:
    """Render Hypercorn's configuration file: the values of Restate's documentation for production, and uvloop."""
    return f"""\
bind = "127.0.0.1:{port}"
h2_max_concurrent_streams = 2147483647
keep_alive_max_requests = 2147483647
keep_alive_timeout = 2147483647
workers = {workers}
worker_class = "uvloop"
"""


@dataclass
class Running:
    """A server with its plans and echo processes."""

    folder: Path
    ports: dict[str, int]
    client: Program
    echoes: list[Program]
    app: str
    """Address of the services, a module of the folder ``restate``."""
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """The server and hypercorn, each in a process group of its own."""

    def start(self, kind: str, *command: str | Path, **variables: str) -> None:
        """Start a process; its output goes to a file in the folder."""
        with (self.folder / f"{kind}.out").open("ab") as output:
            self.children[kind] = subprocess.Popen(
                command, cwd=PEERS / NAME, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**_environment(), **variables}, start_new_session=True,
                preexec_fn=dying_with_parent(signal.SIGTERM),
            )  # fmt: skip

    def serve(self) -> None:
        """Start the processes of plans."""
        settings = ("--config", self.folder / "hypercorn.toml")
        echo_ports = " ".join(str(echo.hello["port"]) for echo in self.echoes)
        python = ENVIRONMENTS / NAME / "bin" / "python"
        self.start("plans", python, "-m", "hypercorn", *settings, self.app, ECHO_PORTS=echo_ports)

    def kill(self, kind: str) -> None:
        """Kill a process and all below it."""
        process = self.children.pop(kind)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def pids(self) -> dict[str, list[int]]:
        """Return its process ids by kind, including the client."""
        groups = {kind: _group(process.pid) for kind, process in self.children.items()}
        return {**groups, "echo": [echo.pid for echo in self.echoes], "client": [self.client.pid]}

    async def round(self, handler: str, count: int, *, together: bool = True, **goal: Any) -> dict[str, Any]:
        """Run a round of the client; raise BenchmarkFailed unless each plan returns its result."""
        wanted = {"steps": 3, "seconds": 0, **goal}
        return await self.client.ask(ROUND_SECONDS, handler=handler, count=count, together=together, goal=wanted)

    async def requests(self) -> list[list[float]]:
        """Return the requests to the echo processes since the last call: plan, step, process and monotonic time."""
        return [each for echo in self.echoes for each in (await echo.ask(START_SECONDS))["requests"]]


@asynccontextmanager
async def restate(sync: PeerSync, app: str = "plans:app") -> AsyncIterator[Running]:
    """Run a server on an empty folder, its plans and echo processes, and the client; stop all at the end.

    Args:
        sync: When it syncs to disk.
        app: Address of the services, a module of the folder ``restate``.

    Raises:
        BenchmarkFailed: they do not start.
    """
    with scratch() as folder, _free_ports("fabric", "ingress", "admin", "plans") as ports:
        (folder / "restate.toml").write_text(configuration(folder, ports, sync))
        (folder / "hypercorn.toml").write_text(serving(ports["plans"], os.cpu_count() or 1))
        ingress = f"http://127.0.0.1:{ports['ingress']}"
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(program(NAME, "client", ingress=ingress, patience=ROUND_SECONDS))
            programs = [program(NAME, "echo", ingress=ingress) for _ in range(ECHOES)]
            echoes = [await stack.enter_async_context(each) for each in programs]
            running = Running(folder, ports, client, echoes, app)
            try:
                running.start("restate-server", _binaries()[0], "--no-logo", "--config-file", folder / "restate.toml")
                running.serve()
                await _ready(running)
                yield running
            finally:
                for kind in list(running.children):
                    running.kill(kind)


async def _ready(running: Running) -> None:
    admin, plans = (f"http://127.0.0.1:{running.ports[kind]}" for kind in ("admin", "plans"))
    deployment = json.dumps({"uri": plans}).encode()
    steps = (f"{plans}/health", None), (f"{admin}/health", None), (f"{admin}/deployments", deployment)
    deadline = time.monotonic() + START_SECONDS
    for url, data in steps:
        while not await asyncio.to_thread(_answers, url, data):
            ended = [kind for kind, process in running.children.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                output = "".join(path.read_text(errors="replace")[-1000:] for path in running.folder.glob("*.out"))
                raise BenchmarkFailed(f"restate did not start: {url} does not respond, {ended} ended; {output}")
            await asyncio.sleep(0.1)
    await asyncio.sleep(SETTLE_SECONDS)


def _answers(url: str, data: bytes | None) -> bool:
    request = urllib.request.Request(url, data=data, headers={"content-type": "application/json"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=START_SECONDS):
            return True
    except OSError:
        return False


@contextmanager
def _free_ports(*names: str) -> Iterator[dict[str, int]]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        ports = {name: each.getsockname()[1] for name, each in zip(names, sockets, strict=True)}
    yield ports


def _environment() -> dict[str, str]:
    """Return this process's environment without variables that would change the server's configuration."""
    names = {"HTTP_PROXY", "MEMORY_LIMIT", "RUST_LOG"}
    return {name: value for name, value in os.environ.items() if name not in names and not name.startswith("RESTATE_")}


def _binaries() -> list[Path]:
    return sorted(SERVER.glob("node_modules/@restatedev/restate-server-*/bin/restate-server"))


def _group(leader: int) -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,pgid="], capture_output=True, text=True, check=True).stdout.split()
    return [int(pid) for pid, group in zip(listed[::2], listed[1::2], strict=True) if int(group) == leader]
