"""Creates a peer's environment, and runs its programs: processes controlled by lines of JSON."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load.outcome import BenchmarkFailed
from benchmarks.peers.peer import ENVIRONMENTS, PeerUnavailable
from benchmarks.reports.rows import Say

PEERS = Path(__file__).resolve().parent
STOP_SECONDS = 10.0
LINE_BYTES = 2**26
"""A line can hold the latencies of all plans of a round."""


def environment(name: str, say: Say) -> Path:
    """Create a virtual environment with the peer's ``requirements.txt``; return its Python.

    Raises:
        PeerUnavailable: the packages cannot be installed.
    """
    folder, requirements = ENVIRONMENTS / name, PEERS / name / "requirements.txt"
    python, stamp = folder / "bin" / "python", folder / ".installed"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    say(f"creating the environment of {name}")
    venv.create(folder, clear=True, with_pip=True)
    command = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r"]
    installed = subprocess.run([python, *command, requirements], capture_output=True, text=True, check=False)
    if installed.returncode:
        raise PeerUnavailable(f"the packages of {name} cannot be installed: {installed.stderr[-500:]}")
    stamp.write_text(wanted)
    return python


def install(package: str, say: Say) -> None:
    """Try to install a Debian package, which requires root; the caller checks the result."""
    if os.geteuid() or shutil.which("apt-get") is None:
        return
    say(f"installing the Debian package {package}")
    subprocess.run(["apt-get", "update"], check=False, capture_output=True)
    command = ["apt-get", "install", "--yes", "--no-install-recommends", package]
    noninteractive = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(command, check=False, capture_output=True, env=noninteractive)


@dataclass
class Program:
    """A running program. It exits when its input ends, so also when the benchmark is killed."""

    name: str
    process: asyncio.subprocess.Process
    hello: dict[str, Any]
    """Its first line, sent when it is ready."""

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self.process.pid

    async def ask(self, seconds: float, **command: Any) -> dict[str, Any]:
        """Send a command and wait for the response.

        Raises:
            BenchmarkFailed: it has exited, reports a failure, or does not respond within ``seconds``.
        """
        assert self.process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            await self.process.stdin.drain()
        return await self.answer(seconds)

    async def answer(self, seconds: float) -> dict[str, Any]:
        """Return its next line; raises like :meth:`ask`."""
        assert self.process.stdout is not None
        try:
            line = await asyncio.wait_for(self.process.stdout.readline(), seconds)
        except TimeoutError:
            raise BenchmarkFailed(f"{self.name} does not respond within {seconds:g} s") from None
        if not line:
            raise BenchmarkFailed(f"{self.name} has exited with {await self.process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        if "failed" in reply:
            raise BenchmarkFailed(f"{self.name}: {reply['failed']}")
        return reply

    async def stop(self) -> None:
        """Close its input, and kill it if it does not exit."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), STOP_SECONDS)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


@asynccontextmanager
async def program(peer: str, name: str, seconds: float = 60.0, **options: Any) -> AsyncIterator[Program]:
    """Run ``benchmarks/peers/<peer>/<name>.py`` in the peer's environment; yields when it is ready.

    Raises:
        BenchmarkFailed: it is not ready within ``seconds``.
    """
    process = await asyncio.create_subprocess_exec(
        ENVIRONMENTS / peer / "bin" / "python", PEERS / peer / f"{name}.py", json.dumps(options),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, limit=LINE_BYTES, start_new_session=True,
    )  # fmt: skip
    started = Program(f"{peer} {name}", process, {})
    try:
        started.hello = await started.answer(seconds)
        yield started
    finally:
        await started.stop()


async def enter_all(stack: AsyncExitStack, programs: Iterable[AbstractAsyncContextManager[Program]]) -> list[Program]:
    """Start programs concurrently; if one does not start, the others are stopped."""
    async with asyncio.TaskGroup() as group:
        starting = [group.create_task(stack.enter_async_context(each)) for each in programs]
    return [each.result() for each in starting]
