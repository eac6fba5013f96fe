"""Imports nats-py without aiohttp, which only its WebSocket transport needs and which takes longer than all the rest.

`plancast_bus.jetstream` imports this module first. A connection to a ``ws://`` or ``wss://`` URL loads aiohttp.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

_LEFT_OUT = "aiohttp" not in sys.modules
if _LEFT_OUT:
    sys.modules["aiohttp"] = None  # type: ignore[assignment] # its import raises ImportError
try:
    from nats.aio import transport
finally:
    if _LEFT_OUT:
        del sys.modules["aiohttp"]


def load_for(urls: Iterable[str]) -> None:
    """Load what a connection to these URLs needs."""
    if any(url.startswith(("ws://", "wss://")) for url in urls):
        import aiohttp

        transport.aiohttp = aiohttp  # type: ignore[attr-defined] # it imports it in a `try`
