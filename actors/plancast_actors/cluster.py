"""This process' connection to Ray. The only module, with :mod:`ray_actors`, that imports it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import ray
import ray._private.authentication.authentication_token_setup as ray_token
import ray._private.services as ray_services
import ray._private.worker as ray_worker
from ray.exceptions import RayError

from plancast.settings import RaySettings
from plancast_bus.errors import BusUnavailable

logger = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"


def connect(
    settings: RaySettings,
    *,
    num_cpus: int | None = None,
    log_to_driver: bool = False,
    metrics_port: int = 0,
    runtime_env: dict[str, Any] | None = None,
) -> bool:
    """Join the Ray cluster of the settings, or start Ray on this machine; True when it was started here.

    Code in ``runtime_env`` is shipped to the cluster.

    Raises:
        BusUnavailable: the cluster does not answer, or does not take the code.
    """
    if ray.is_initialized():
        return False
    _log_what_ray_prints()
    # Ray would ship the working directory of a program started by `uv run`.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    common: dict[str, Any] = {
        "namespace": settings.namespace,
        "logging_level": "error",
        "log_to_driver": log_to_driver,
    }
    if runtime_env:
        common["runtime_env"] = runtime_env
    if settings.address:
        _refuse_dead(settings.address)
        if settings.address.startswith(f"{LOOPBACK}:"):
            _use_token()
        try:
            with _find_on_loopback():
                ray.init(address=settings.address, **common)
        except (ConnectionError, RuntimeError, TimeoutError, RayError) as error:
            raise BusUnavailable(f"cannot join the Ray cluster at {settings.address}: {error}") from error
        return False
    # Ray would have its workers, and so our hosts and dispatchers, stand behind all else on the machine.
    os.environ.setdefault("RAY_worker_niceness", "0")
    with _start_on_loopback():
        ray.init(
            address="local",  # not whatever cluster happens to run here
            include_dashboard=False,
            num_cpus=num_cpus,
            _node_ip_address=LOOPBACK,
            _metrics_export_port=metrics_port or None,
            _temp_dir=os.environ.get("RAY_TMPDIR") or None,
            **common,
        )
    return True


def shipped() -> dict[str, Any] | None:
    """The runtime environment of this process' job, for actors: archives by their address in the cluster.

    None when nothing was shipped with the job.
    """
    found = dict(ray.get_runtime_context().runtime_env or {})
    return found if found.get("working_dir") or found.get("py_modules") or found.get("pip") else None


def address() -> str:
    """Where the cluster that this process has joined or started is, for others to join."""
    return str(ray.get_runtime_context().gcs_address)


def _log_what_ray_prints() -> None:
    """Have Ray's remarks on dying workers logged; it prints them into the program's own output."""

    def log(data: dict[str, Any], ignore_prefix: bool = False) -> None:
        for line in data.get("lines", ()):
            logger.info("ray: %s", line)

    if hasattr(ray_worker, "print_to_stdstream"):
        ray_worker.print_to_stdstream = log


@contextlib.contextmanager
def _replaced(name: str, make: Callable[[Any], Callable[..., Any]]) -> Iterator[None]:
    """Have one of Ray's own functions replaced by what is made of it; a Ray that has it no more goes on without."""
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
    """Have Ray take 127.0.0.1 at its word when it starts.

    It puts an address in its place that other machines can reach, and then listens on all addresses. There is no
    option against that.
    """
    return _replaced("resolve_ip_for_localhost", lambda _original: lambda host: host)


def _find_on_loopback() -> contextlib.AbstractContextManager[None]:
    """Have Ray find a cluster of this machine that listens on the loopback alone."""

    def make(original: Any) -> Callable[..., Any]:
        def canonicalize(*args: Any, **options: Any) -> Any:
            found = original(*args, **options)
            here = f"{LOOPBACK}:{str(found).rpartition(':')[2]}"
            return here if found and not _answers(found) and _answers(here) else found

        return canonicalize

    return _replaced("canonicalize_bootstrap_address", make)


def _use_token() -> None:
    """Show the token that Ray keeps for this user, if there is one: a Ray that was started here asks for it."""
    enable = getattr(ray_token, "maybe_enable_token_auth_if_token_available", None)
    if enable is not None:
        enable(warn_if_disabled=False)


def _refuse_dead(address: str) -> None:
    """Ray would look for a cluster that is not there for minutes.

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


def disconnect() -> None:
    """Leave the cluster, and stop it when this process has started it."""
    if ray.is_initialized():
        ray.shutdown()
