"""Settings of the bus. Read at the edge by whoever composes a program; handed in everywhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, SecretStr


class NatsSettings(BaseModel):
    """How to reach NATS, and who one is there."""

    url: str = ""
    """``nats://host:port``, several separated by commas; empty takes ``NATS_URL`` or an embedded server."""
    credentials: Path | None = None
    """A ``.creds`` file (JWT and seed)."""
    token: SecretStr | None = None
    user: str = ""
    password: SecretStr | None = None
    tls_ca: Path | None = None
    """Authority that signed the server's certificate; also turns TLS on."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    connect_timeout: float = Field(5.0, gt=0)
    """Seconds until a first connection must stand."""
    publish_timeout: float = Field(10.0, gt=0)
    """Seconds until a publish must be acknowledged."""


class BusSettings(BaseModel):
    """The streams, and what travels in them."""

    prefix: str = "plancast"
    """First token of all subjects; streams are named after it."""
    wire_format: Literal["msgpack", "json"] = "msgpack"
    """What is written. Both are read."""
    shards: int = Field(16, ge=1, le=1024)
    """Slices of correlation ids. Fixed once the streams exist."""
    replicas: int = Field(1, ge=1, le=5)
    max_event_bytes: int = Field(1_048_576, ge=1024)
    """Events over this go to the dead letters."""
    max_stream_bytes: int = -1
    """Bound of each must-process stream; a full one refuses publishers. -1: the server's limit."""
    facts_max_age: float = Field(7 * 86400, ge=0)
    """Seconds that facts and system events are kept."""
    responses_max_age: float = Field(86400, ge=0)
    """Seconds that final responses are kept for late readers."""
    dead_letters_max_age: float = Field(30 * 86400, ge=0)
    """Seconds that dead letters are kept."""
    duplicate_window: float = Field(120, gt=0)
    """Seconds in which a stream drops a repeated message id."""
    storage: Literal["file", "memory"] = "file"
