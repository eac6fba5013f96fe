"""A first look at a nats-server over a plain socket: who it is, and whether its JetStream answers. No NATS client."""

import json
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit
from uuid import uuid4

from plancast_bus.errors import BusUnavailable, UnsupportedServer

MINIMUM_VERSION = (2, 12)
"""The oldest nats-server that has scheduled messages and atomic batches."""

_ANSWER_PATIENCE = 1.0  # servers of a cluster without a leader do not answer at all


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a nats-server says about itself when a client connects."""

    version: str
    """The version, as in "2.12.1"."""

    max_payload: int
    """The largest message that it takes, in bytes."""

    jetstream: bool
    """Whether JetStream is on. A leaf node may say no and still reach a JetStream beyond it."""

    server_name: str = ""
    auth_required: bool = False
    tls_required: bool = False


def find_server(url: str, *, timeout: float = 5.0) -> ServerInfo:
    """Ask the nats-server at `url` what it is, without logging in; `timeout` is in seconds.

    Raises `BusUnavailable` if nothing answers there, or something that is no nats-server. It blocks.
    """
    host, port = _parse(url)
    where = joined(host, port)  # never the URL itself: it may carry a password
    try:
        with socket.create_connection((host, port), timeout) as connection, connection.makefile("rb") as wire:
            info = _read_info(wire)
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise BusUnavailable(
            f"No nats-server answers at {where} ({reason}). Is it running, and is the address right?"
        ) from error
    except ValueError as error:
        raise BusUnavailable(f"What answers at {where} is no nats-server: {error}.") from error
    return ServerInfo(
        version=str(info.get("version", "")),
        max_payload=_whole(info.get("max_payload")),
        jetstream=bool(info.get("jetstream")),
        server_name=str(info.get("server_name", "")),
        auth_required=bool(info.get("auth_required")),
        tls_required=bool(info.get("tls_required")),
    )


def require_version(info: ServerInfo, minimum: tuple[int, int] = MINIMUM_VERSION) -> None:
    """Refuse a server that is older than `minimum` (major, minor).

    Raises `UnsupportedServer`, which says what to do about it.
    """
    found = re.match(r"v?(\d+)\.(\d+)", info.version)
    if found is not None and (int(found[1]), int(found[2])) >= minimum:
        return
    name = f" {info.server_name!r}" if info.server_name else ""
    raise UnsupportedServer(
        f"The nats-server{name} is version {info.version or 'unknown'}, and plancast needs "
        f"{minimum[0]}.{minimum[1]} or later (for scheduled messages and atomic batches). "
        "Upgrade it, or give no URL to use the embedded one."
    )


def _parse(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if host is None or parts.scheme not in ("nats", "tls"):
        raise BusUnavailable("The NATS URL is not understood: it should look like nats://host:4222.")
    return host, port or 4222


def joined(host: str, port: int) -> str:
    """An address, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def dialable(host: str) -> str:
    """Where a server that listens on a host can be reached from here."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


class _Readable(Protocol):
    def readline(self, size: int = -1, /) -> bytes: ...


def _read_info(wire: _Readable) -> Mapping[str, object]:
    line = wire.readline(64 * 1024)
    if not line.startswith(b"INFO "):
        raise ValueError("it does not greet as one")
    info = json.loads(line.removeprefix(b"INFO "))
    if not isinstance(info, dict):
        raise ValueError("its greeting makes no sense")
    return info


def ask_jetstream(
    host: str, port: int, credentials: Mapping[str, str], operation: str, body: object
) -> dict[str, Any] | None:
    """Call the JetStream API of a server: its answer, errors included; None when nobody answers for it.

    Raises `OSError` or `ValueError` if the server cannot be reached, or makes no sense.
    """
    inbox = f"_INBOX.{uuid4().hex}"
    hello = json.dumps({"verbose": False, "headers": True, "no_responders": True, "lang": "python", **credentials})
    payload = b"" if body is None else json.dumps(body).encode()
    with socket.create_connection((host, port), _ANSWER_PATIENCE) as connection, connection.makefile("rwb") as wire:
        _read_info(wire)
        wire.write(f"CONNECT {hello}\r\nSUB {inbox} 1\r\n".encode())
        wire.write(f"PUB $JS.API.{operation} {inbox} {len(payload)}\r\n".encode() + payload + b"\r\n")
        wire.flush()
        for line in wire:
            if line.startswith(b"MSG "):
                answer: dict[str, Any] = json.loads(wire.readline())
                return answer
            if line.startswith((b"HMSG ", b"-ERR")):  # nobody answers for JetStream yet
                return None
    return None


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
