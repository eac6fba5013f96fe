"""The TCP endpoint that an actor offers beside its Ray calls."""

from __future__ import annotations

import logging
import os

import ray

from plancast.settings import Settings
from plancast_actors.rpc.client import Endpoint
from plancast_actors.rpc.server import RpcServer

logger = logging.getLogger(__name__)

FALLBACK_SECONDS = 60.0
"""Seconds for which calls go through Ray after a direct connection failed or was lost though the actor lives."""


def ray_is_encrypted() -> bool:
    """True if Ray's own connections use TLS, which direct connections do not."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


async def open_endpoint(server: RpcServer, settings: Settings, name: str, calls: str) -> Endpoint | None:
    """Listen on Ray's address of this node, which is the loopback where all of Ray is on one machine.

    Returns None when calls are to go through Ray. The log names the actor, and what its ``calls`` carry.
    """
    if not settings.hosts.direct_lines or ray_is_encrypted():
        return None
    address = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    try:
        return await server.open(address)
    except OSError as error:
        logger.warning("%s cannot listen on %s, its %s go through Ray: %s", name, address, calls, error)
        return None
