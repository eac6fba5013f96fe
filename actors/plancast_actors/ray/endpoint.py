"""The TCP endpoint that an actor offers beside its Ray calls."""

from __future__ import annotations

import logging
import os

import ray

from plancast.settings import Settings
from plancast_actors.rpc.client import LineOffer
from plancast_actors.rpc.server import Listener

logger = logging.getLogger(__name__)

DETOUR_SECONDS = 60.0
"""Seconds for which events go through Ray when a line could not be had, or was cut although its host lives on."""


def ray_is_encrypted() -> bool:
    """Whether Ray's own connections use TLS; a line would carry in clear what they do not."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


async def listen_where_ray_does(server: Listener, settings: Settings, name: str, what: str) -> LineOffer | None:
    """Listen on the loopback alone, when the whole of Ray runs there; None when what comes is to go through Ray."""
    if not settings.hosts.direct_lines or ray_is_encrypted():
        return None
    address = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    try:
        return await server.open(address)
    except OSError as error:
        logger.warning("%s cannot listen on %s, its %s go through Ray: %s", name, address, what, error)
        return None
