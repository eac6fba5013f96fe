"""Checks that the console is not exposed without tokens."""

from __future__ import annotations

from ipaddress import ip_address

from plancast.errors import InvalidApp
from plancast.settings import Settings


def check_exposure(settings: Settings) -> None:
    """Check the address that the console listens on.

    Raises:
        InvalidApp: it is not loopback, and there are no tokens.
    """
    console = settings.console
    if not console.tokens and not is_loopback(console.host):
        raise InvalidApp(
            f"the console may not listen on {console.host!r} without tokens for its users. "
            'Set PLANCAST_CONSOLE__TOKENS=\'{"ada": "a long random text"}\', or listen on 127.0.0.1'
        )


def is_loopback(host: str) -> bool:
    """True for a host name or address that only this machine can reach."""
    if host.casefold() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
