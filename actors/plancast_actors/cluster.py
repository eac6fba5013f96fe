"""This process' connection to Ray. The only module, with :mod:`ray_actors`, that imports it."""

from __future__ import annotations

import logging
import os
from typing import Any

import ray
import ray._private.worker as ray_worker

from plancast.settings import RaySettings
from plancast_bus.errors import BusUnavailable

logger = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"


def connect(settings: RaySettings, *, num_cpus: int | None = None, log_to_driver: bool = False) -> bool:
    """Join the Ray cluster of the settings, or start Ray on this machine; True when it was started here.

    Raises:
        BusUnavailable: the cluster does not answer.
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
    if settings.address:
        try:
            ray.init(address=settings.address, **common)
        except (ConnectionError, RuntimeError, TimeoutError) as error:
            raise BusUnavailable(f"cannot join the Ray cluster at {settings.address}: {error}") from error
        return False
    ray.init(
        address="local",  # not whatever cluster happens to run here
        include_dashboard=False,
        num_cpus=num_cpus,
        _node_ip_address=LOOPBACK,
        _temp_dir=os.environ.get("RAY_TMPDIR") or None,
        **common,
    )
    return True


def _log_what_ray_prints() -> None:
    """Have Ray's remarks on dying workers logged; it prints them into the program's own output."""

    def log(data: dict[str, Any], ignore_prefix: bool = False) -> None:
        for line in data.get("lines", ()):
            logger.info("ray: %s", line)

    if hasattr(ray_worker, "print_to_stdstream"):
        ray_worker.print_to_stdstream = log


def disconnect() -> None:
    """Leave the cluster, and stop it when this process has started it."""
    if ray.is_initialized():
        ray.shutdown()
