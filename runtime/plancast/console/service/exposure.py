"""Who can reach the console, and whether that may be."""

from __future__ import annotations

from ipaddress import ip_address

from plancast.errors import InvalidApp
from plancast.settings import Settings


def check_exposure(settings: Settings) -> None:
    """
    Raises:
        InvalidApp: others could reach the console, and nobody has a token but who starts it.
    """
    console = settings.console
    if not console.tokens and not is_loopback(console.host):
        raise InvalidApp(
            f"the console may not listen on {console.host!r} without tokens that say who may use it. "
            'Set PLANCAST_CONSOLE__TOKENS=\'{"ada": "a long random text"}\', or listen on 127.0.0.1'
        )


def is_loopback(host: str) -> bool:
    """Whether a host, by name or address, is this machine as only itself can reach it."""
    if host.casefold() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
