"""This process's connection to Ray."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import socket
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import ray
import ray._private.authentication.authentication_token_setup as ray_token
import ray._private.services as ray_services
import ray._private.worker as ray_worker
from ray._common.utils import get_default_system_temp_dir
from ray._private.node import Node
from ray.exceptions import RayError

from plancast.settings import RaySettings
from plancast_bus import private_files
from plancast_bus.errors import BusUnavailable

logger = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"
AUTH_MODE, AUTH_TOKEN, AUTH_TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
T = TypeVar("T")
_session = contextlib.ExitStack()
"""Cleanups that :func:`disconnect` runs."""
_own_folder: Path | None = None
"""The folder of the cluster that this process has started."""


def connect(
    settings: RaySettings,
    *,
    num_cpus: int | None = None,
    metrics_port: int = 0,
    runtime_env: dict[str, Any] | None = None,
) -> bool:
    """Join the Ray cluster of the settings, or start one on this machine; True if it was started.

    Code in ``runtime_env`` is shipped to the cluster. A cluster that is started here requires a new token, and has a
    folder that no other user can enter, in ``RAY_TMPDIR`` or Ray's default; :func:`disconnect` removes it.

    Raises:
        BusUnavailable: the cluster does not answer, or refuses the code or the token.
    """
    if ray.is_initialized():
        return False
    _redirect_output()
    # By default Ray ships the working directory of a program started by `uv run`.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    common: dict[str, Any] = {
        "namespace": settings.namespace,
        "logging_level": "error",
        "log_to_driver": False,
    }
    if runtime_env:
        common["runtime_env"] = runtime_env
    if settings.address:
        _check_answers(settings.address)
        with contextlib.ExitStack() as session:
            if settings.auth_token_path is not None:
                session.enter_context(authenticated(settings.auth_token_path))
            elif settings.address.startswith(f"{LOOPBACK}:"):
                _use_token()
            try:
                with _find_on_loopback():
                    ray.init(address=settings.address, **common)
            except (ConnectionError, RuntimeError, TimeoutError, RayError) as error:
                raise BusUnavailable(f"cannot join the Ray cluster at {settings.address}: {error}") from error
            _session.push(session.pop_all())
        return False
    # By default Ray runs its workers, so our hosts and dispatchers, with low priority.
    os.environ.setdefault("RAY_worker_niceness", "0")
    with contextlib.ExitStack() as session:
        folder = session.enter_context(_private_folder())
        token = folder / "token"
        private_files.write(token, secrets.token_hex(private_files.TOKEN_BYTES))
        session.enter_context(authenticated(token))
        start = partial(
            ray.init,
            address="local",  # not a cluster that runs here already
            include_dashboard=False,
            num_cpus=num_cpus,
            _node_ip_address=LOOPBACK,
            _metrics_export_port=metrics_port or None,
            _temp_dir=str(folder / "r"),
            **common,
        )
        with _start_on_loopback():
            start_node(start)
        _session.push(session.pop_all())
    return True


def start_node(start: Callable[[], T]) -> T:
    """Start a node of Ray on this machine; once more if it has not registered in the 30 s that Ray gives it.

    Raises:
        BusUnavailable: it has not registered the second time either.
    """
    try:
        return start()
    except Exception as error:
        if not _is_late(error):
            raise
        logger.warning("Ray's node was not up in time, and is started again: %s", error)
        _end_processes(error)
    try:
        return start()
    except Exception as error:
        if not _is_late(error):
            raise
        _end_processes(error)
        raise BusUnavailable(f"Ray cannot be started on this machine, which may be overloaded: {error}") from error


def _is_late(error: Exception) -> bool:
    """Return whether Ray reports that a node has not registered in time, for which it has no type of its own."""
    return any(words in str(error) for words in ("timed out during startup", "waiting for node to startup"))


def _end_processes(error: Exception) -> None:
    """End the processes of a node whose start has failed: Ray forgets them, and they would live as long as this one."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for node in frame.f_locals.values():
            if isinstance(node, Node):
                node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)


def own_token_path() -> Path | None:
    """The token file of the cluster that this process has started; None if it has started none."""
    return _own_folder / "token" if _own_folder is not None else None


def shipped() -> dict[str, Any] | None:
    """The runtime environment of this process's job, for its actors; None if no code was shipped with the job."""
    found = dict(ray.get_runtime_context().runtime_env or {})
    return found if found.get("working_dir") or found.get("py_modules") or found.get("pip") else None


def address() -> str:
    """Address of the cluster, for other processes to join."""
    return str(ray.get_runtime_context().gcs_address)


def _redirect_output() -> None:
    """Log Ray's messages about dying workers, which it prints to the program's output."""

    def log(data: dict[str, Any], ignore_prefix: bool = False) -> None:
        for line in data.get("lines", ()):
            logger.info("ray: %s", line)

    if hasattr(ray_worker, "print_to_stdstream"):
        ray_worker.print_to_stdstream = log


@contextlib.contextmanager
def _replaced(name: str, make: Callable[[Any], Callable[..., Any]]) -> Iterator[None]:
    """Monkeypatch a private function of Ray; a no-op if this version of Ray does not have it."""
    original = getattr(ray_services, name, None)
    if original is None:
        yield
        return
    setattr(ray_services, name, make(original))
    try:
        yield
    finally:
        setattr(ray_services, name, original)


def _start_on_loopback() -> contextlib.AbstractContextManager[None]:
    """Make Ray listen on 127.0.0.1 when it starts.

    It replaces the address by one that other machines can reach, and listens on all addresses; no option prevents it.
    """
    return _replaced("resolve_ip_for_localhost", lambda _original: lambda host: host)


def _find_on_loopback() -> contextlib.AbstractContextManager[None]:
    """Make Ray find a cluster of this machine that listens on the loopback only."""

    def make(original: Any) -> Callable[..., Any]:
        def canonicalize(*args: Any, **options: Any) -> Any:
            found = original(*args, **options)
            here = f"{LOOPBACK}:{str(found).rpartition(':')[2]}"
            return here if found and not _answers(found) and _answers(here) else found

        return canonicalize

    return _replaced("canonicalize_bootstrap_address", make)


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """Create a folder that no other user can enter.

    Ray opens its own folder to all users, so it gets one inside. Names are short: the path of a Unix socket is limited
    to 107 bytes. ``session_latest`` in ``RAY_TMPDIR`` links to the newest one's logs, as Ray itself does it.
    """
    global _own_folder
    folder = Path(tempfile.mkdtemp(prefix="p", dir=get_default_system_temp_dir()))  # type: ignore[no-untyped-call]
    _own_folder = folder
    latest = folder.parent / "session_latest" if os.environ.get("RAY_TMPDIR") else None
    if latest is not None:
        with contextlib.suppress(OSError):
            if latest.is_symlink():
                latest.unlink()
            latest.symlink_to(folder / "r" / "session_latest")
    try:
        yield folder
    finally:
        _own_folder = None
        if latest is not None and latest.is_symlink() and latest.readlink().is_relative_to(folder):
            latest.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def authenticated(token: Path) -> Iterator[None]:
    """Authenticate Ray's processes by this token file; `ps` would show a token in the environment."""
    wanted = {AUTH_MODE: "token", AUTH_TOKEN_PATH: str(token.absolute()), AUTH_TOKEN: None}
    before = {name: os.environ.get(name) for name in wanted}
    _set_environment(wanted)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    # Ray caches what it has read of them.
    if (loader := getattr(ray_token, "AuthenticationTokenLoader", None)) is not None:
        loader.instance().reset_cache()
    if (config := getattr(ray_token, "Config", None)) is not None:
        config.initialize("")


def _use_token() -> None:
    """Use the token that Ray stores for this user, if any; a cluster started here may require it."""
    enable = getattr(ray_token, "maybe_enable_token_auth_if_token_available", None)
    if enable is not None:
        enable(warn_if_disabled=False)


def _check_answers(address: str) -> None:
    """Check that the cluster answers, since Ray would try to connect for minutes.

    Raises:
        BusUnavailable: nothing listens at ``host:port`` or ``ray://host:port``.
    """
    where = address.removeprefix("ray://").rstrip("/")
    port = where.rpartition(":")[2]
    if "://" not in where and port.isdigit() and not _answers(where) and not _answers(f"{LOOPBACK}:{port}"):
        raise BusUnavailable(f"cannot join the Ray cluster at {address}: nothing answers there")


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=2.0):
            return True
    except (OSError, ValueError):
        return False


def is_connected() -> bool:
    return bool(ray.is_initialized())


def own_node() -> str:
    """The id of the Ray node on which this process runs."""
    return str(ray.get_runtime_context().get_node_id())


def disconnect() -> None:
    """Leave the cluster; if this process has started it, stop it and remove its folder."""
    if ray.is_initialized():
        ray.shutdown()
    _session.close()


def look() -> dict[str, Any]:
    """Ray's version, live and dead nodes, and total and free resources (``CPU``; ``memory`` in bytes). Blocks.

    Raises:
        BusUnavailable: the cluster does not answer.
    """
    try:
        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        total = ray.cluster_resources()  # type: ignore[no-untyped-call]
        free = ray.available_resources()  # type: ignore[no-untyped-call]
    except (RayError, OSError, RuntimeError) as error:
        raise BusUnavailable(f"the resources of the Ray cluster cannot be read: {error}") from error
    kinds = ("CPU", "memory", "object_store_memory")
    return {
        "version": ray.__version__,
        "nodes": sum(bool(node.get("Alive")) for node in nodes),
        "dead_nodes": sum(not node.get("Alive") for node in nodes),
        "total": {kind: total[kind] for kind in kinds if kind in total},
        "free": {kind: free.get(kind, 0.0) for kind in kinds if kind in total},
    }
