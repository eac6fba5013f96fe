"""Settings of the bus. Read at the edge by whoever composes a program; handed in everywhere else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

_LOGIN = re.compile(r"^((?:[A-Za-z][A-Za-z0-9+.-]*:)?//)?(.*)@")


class NatsSettings(BaseModel):
    """How to reach NATS, and who one is there.

    A user, password or token that is written into the URL is moved out of it, also when the URL is assigned
    later: the URL can be shown, noted and logged.
    """

    model_config = ConfigDict(validate_assignment=True, hide_input_in_errors=True)

    url: str = ""
    """``nats://host:port``, several separated by commas; empty takes ``NATS_URL`` or an embedded server."""
    credentials: Path | None = None
    """A ``.creds`` file (JWT and seed)."""
    nkey: Path | None = None
    """A file with the seed of an nkey."""
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
    server_uid: int | None = None
    """The user that the server must run as on this machine, unless it is root: the login is sent to no other.

    Set for an embedded server, whose port another user could take when it is gone. It is checked on Linux; without
    ``/proc/net/tcp``, as on macOS, nothing is."""
    inbox_prefix: str = Field("_INBOX", max_length=150, pattern=r"^_INBOX(\.[A-Za-z0-9_-]+)*$")
    """Answers come to inboxes under it: ``_INBOX.<user>`` where each user may listen to its own inboxes alone."""

    @model_validator(mode="after")
    def _take_login_out_of_url(self) -> Self:
        if "@" not in self.url:
            return self
        servers = [each.strip() for each in self.url.split(",") if each.strip()]
        logins = {found[2] for each in servers if (found := _LOGIN.match(each)) is not None}
        if len(logins) > 1:
            raise ValueError("the servers of a URL have different logins; one user is needed for all")
        said: dict[str, object] = {"url": ",".join(_LOGIN.sub(lambda found: found[1] or "", each) for each in servers)}
        for login in logins:
            user, colon, password = login.partition(":")
            if colon:
                said |= {"user": unquote(user), "password": SecretStr(unquote(password)), "token": None}
            elif user:
                said |= {"user": "", "password": None, "token": SecretStr(unquote(user))}
        self.__dict__.update(said)  # assigning would validate, and come back here
        self.__pydantic_fields_set__.update(said)
        return self


GroupCommit = Literal["auto", "always", "never"]


class BusSettings(BaseModel):
    """The streams, and what travels in them."""

    prefix: str = "plancast"
    """First token of all subjects; streams are named after it."""
    wire_format: Literal["msgpack", "json"] = "msgpack"
    """What is written. Both are read."""
    cloudevents: bool = False
    """Whether events are written as CloudEvents 1.0 in binary mode: their fields as ``ce-`` headers, their data as the
    payload. CloudEvents are read in any case."""
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
    max_dead_letters: int = Field(10_000, ge=1)
    """Dead letters that are kept, those of last; in a flood one letter holds up to 1,000 messages, 256 KiB of them."""
    max_dead_letter_bytes: int = -1
    """Bound of the dead letters in bytes, which the server reserves; -1: the server's limit."""
    group_commit: GroupCommit = "auto"
    """Whether many messages for a stream are stored as one batch. ``auto``: where each process finds that faster for
    itself. ``always``: right for servers with ``sync_interval: always``, whose streams all wait for one disk."""
    duplicate_window: float = Field(120, gt=0)
    """Seconds in which a stream drops a repeated message id."""
    storage: Literal["file", "memory"] = "file"
    checkpoint_keys: tuple[Annotated[SecretStr, Field(min_length=32)], ...] = ()
    """Keys of the MACs of checkpoints, texts of at least 32 characters, the same for all of the runtime: the first one
    makes them, all verify them. Without any the deployment makes one and keeps it in NATS. To change keys, give
    every process the new one behind the old one, then before it; who lacks a key takes its checkpoints for forged."""
