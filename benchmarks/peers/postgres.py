"""Debian's PostgreSQL: found or installed, and started on an empty folder for one measurement.

The settings follow PostgreSQL's documentation (chapters 20.4, 20.5, 20.6 and 30.5) for the machine's size; none of them
weakens durability. ``fsync`` and ``full_page_writes`` always stay on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.peers.peer import PeerSync, PeerUnavailable
from benchmarks.peers.programs import install
from benchmarks.reports.rows import Say
from benchmarks.systems.ending import die_with_parent
from benchmarks.systems.scratch import sockets

INSTALLED = Path("/usr/lib/postgresql")
USER = "postgres"
"""User of Debian's package; a server started by root runs as this user, since PostgreSQL refuses to run as root."""
START_SECONDS = 60.0
DURABILITY: dict[PeerSync, str] = {
    "always": "PostgreSQL's default: fsync=on, synchronous_commit=on",
    "off": "PostgreSQL with fsync=on, synchronous_commit=off",
}


@dataclass(frozen=True)
class Postgres:
    """A running server."""

    url: str
    """URL of its database ``bench``, through a Unix socket, which is cheaper than TCP."""
    pid: int

    def pids(self) -> list[int]:
        """Return the postmaster and its child processes, including a backend for each connection."""
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.pid)], capture_output=True, text=True)
        return [self.pid, *map(int, listed.stdout.split())]


def binaries() -> Path | None:
    """Return the folder of the newest PostgreSQL's programs; None when there is none."""
    found = [folder for folder in INSTALLED.glob("*/bin") if (folder / "initdb").exists()]
    if found:
        return max(found, key=lambda folder: float(folder.parent.name))
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


def setup(say: Say) -> Path:
    """Find PostgreSQL, or install Debian's as root; return the folder of its programs.

    Raises:
        PeerUnavailable: it is missing and cannot be installed.
    """
    folder = binaries()
    if folder is None:
        install("postgresql", say)
        folder = binaries()
    if folder is None:
        raise PeerUnavailable(
            "PostgreSQL is not installed: `apt-get install postgresql` as root, or put initdb and postgres on the PATH"
        )
    if os.geteuid() == 0 and _user() is None:
        raise PeerUnavailable(f"PostgreSQL refuses to run as root, and there is no user {USER} to run it as: add one")
    return folder


def options(sync: PeerSync, memory_bytes: int) -> dict[str, str]:
    """Return the settings that differ from the defaults, for a machine's memory."""
    gigabyte = 2**30
    memory = max(1, memory_bytes // gigabyte)
    return {
        # 20.4: a quarter of the memory is a reasonable start for a dedicated server.
        "shared_buffers": f"{max(1, memory // 4)}GB",
        # 20.7: the size of kernel cache and shared_buffers together, for the planner's estimates.
        "effective_cache_size": f"{max(1, memory * 3 // 4)}GB",
        # 20.5, 30.5: fewer checkpoints, so fewer whole pages in the log after each of them.
        "max_wal_size": "8GB",
        "checkpoint_timeout": "15min",
        # 20.5: segments are recycled instead of created while the log grows.
        "min_wal_size": "2GB",
        # 20.5: the largest useful value, a segment; with 0.03 of shared_buffers it is this anyway.
        "wal_buffers": "16MB",
        # 20.7: pages on a solid state disk cost nearly the same in any order.
        "random_page_cost": "1.1",
        # 20.3: the total of the peers' pools, with a reserve.
        "max_connections": "200",
        # 20.5: the default is on.
        "synchronous_commit": "on" if sync == "always" else "off",
        # 20.3: a socket in a folder of its own, no port.
        "listen_addresses": "",
    }


@asynccontextmanager
async def postgres(folder: Path, sync: PeerSync) -> AsyncIterator[Postgres]:
    """Run a server with an empty database ``bench``, and stop it at the end.

    Args:
        folder: An empty folder for the data.
        sync: When it syncs to disk.

    Raises:
        PeerUnavailable: PostgreSQL is not installed, or does not start; the message has the end of its log.
    """
    programs = binaries()
    if programs is None:
        raise PeerUnavailable("PostgreSQL is not installed")
    data, user = folder / "postgres", _user() if os.geteuid() == 0 else None
    become = partial(_become, user)
    data.mkdir(mode=0o700)
    log = folder / "postgres.log"
    server: asyncio.subprocess.Process | None = None
    with sockets() as place:
        if user is not None:
            _reachable(folder, user)
            for each in (data, place):
                os.chown(each, user.pw_uid, user.pw_gid)
        await _run(become, programs / "initdb", "-D", data, "-U", USER, "--auth=trust", "-E", "UTF8", "--no-locale")
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        settings = [f"--{name}={value}" for name, value in options(sync, memory).items()]
        try:
            with log.open("wb") as output:
                server = await asyncio.create_subprocess_exec(
                    programs / "postgres", "-D", data, "-k", place, *settings,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                    preexec_fn=become,
                )  # fmt: skip
            await _accepting(programs, place, server, log)
            await _run(become, programs / "createdb", "-h", place, "-U", USER, "bench")
            yield Postgres(f"postgresql://{USER}@/bench?host={place}", server.pid)
        finally:
            if server is not None:
                await _stop(server)


def counters(url: str) -> tuple[int, int]:
    """Return the bytes of the write-ahead log so far, and those of the database ``bench``."""
    programs = binaries()
    assert programs is not None
    query = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn, pg_database_size('bench')"
    command = [str(programs / "psql"), "--no-psqlrc", "-At", "-F", " ", "-c", query, url]
    written, stored = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout.split()
    return int(written), int(stored)


async def _accepting(programs: Path, place: Path, server: asyncio.subprocess.Process, log: Path) -> None:
    deadline = asyncio.get_running_loop().time() + START_SECONDS
    while True:
        probe = await asyncio.create_subprocess_exec(
            programs / "pg_isready", "-q", "-h", place, "-U", USER, stdin=subprocess.DEVNULL
        )
        if await probe.wait() == 0:
            return
        if server.returncode is not None or asyncio.get_running_loop().time() > deadline:
            raise PeerUnavailable(f"PostgreSQL does not start: {_end(log)}")
        await asyncio.sleep(0.05)


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-500:]


async def _stop(server: asyncio.subprocess.Process) -> None:
    if server.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            server.send_signal(signal.SIGINT)  # a fast shutdown: it does not wait for clients
        try:
            await asyncio.wait_for(server.wait(), 5.0)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                server.send_signal(signal.SIGQUIT)  # an immediate shutdown; the data is not needed
            await server.wait()


async def _run(become: Callable[[], None], *command: Path | str) -> None:
    run = await asyncio.create_subprocess_exec(
        *command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        preexec_fn=become,
    )
    output, _ = await run.communicate()
    if run.returncode:
        raise PeerUnavailable(f"{command[0]} failed: {output.decode(errors='replace')[-500:]}")


def _become(user: pwd.struct_passwd | None) -> None:
    """Set the user of a starting process (as its ``preexec_fn``), and make it shut down with the benchmark.

    uvloop does not support ``user`` for subprocesses.
    """
    if user is not None:
        os.initgroups(user.pw_name, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    die_with_parent(signal.SIGQUIT)


def _user() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(USER)
    except KeyError:
        return None


def _reachable(folder: Path, user: pwd.struct_passwd) -> None:
    """Give the user access to a temporary folder that only its owner may enter."""
    os.chmod(folder, 0o711)
    closed = next((each for each in folder.parents if not each.stat().st_mode & 0o001), None)
    if closed is not None:
        raise PeerUnavailable(f"the user {user.pw_name}, which runs PostgreSQL, may not enter {closed}")
