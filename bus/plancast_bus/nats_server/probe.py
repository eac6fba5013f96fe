"""Calls the JetStream API over a plain socket, without a NATS client."""

import json
import socket
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

_ANSWER_PATIENCE = 1.0
"""Seconds; the servers of a cluster without a leader do not answer at all."""


def joined(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def dialable(host: str) -> str:
    """The address on this machine that reaches a server listening on ``host``."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def ask_jetstream(
    host: str, port: int, credentials: Mapping[str, str], operation: str, body: object
) -> dict[str, Any] | None:
    """Call the JetStream API of a server and return its reply, errors included; None when JetStream does not reply.

    Raises:
        OSError, ValueError: the server cannot be reached, or is no nats-server.
    """
    inbox = f"_INBOX.{uuid4().hex}"
    hello = json.dumps({"verbose": False, "headers": True, "no_responders": True, "lang": "python", **credentials})
    payload = b"" if body is None else json.dumps(body).encode()
    with socket.create_connection((host, port), _ANSWER_PATIENCE) as connection, connection.makefile("rwb") as wire:
        if not wire.readline(64 * 1024).startswith(b"INFO "):
            raise ValueError("not the greeting of a nats-server")
        wire.write(f"CONNECT {hello}\r\nSUB {inbox} 1\r\n".encode())
        wire.write(f"PUB $JS.API.{operation} {inbox} {len(payload)}\r\n".encode() + payload + b"\r\n")
        wire.flush()
        for line in wire:
            if line.startswith(b"MSG "):
                answer: dict[str, Any] = json.loads(wire.readline())
                return answer
            if line.startswith((b"HMSG ", b"-ERR")):  # no responder: JetStream is not up yet
                return None
    return None
