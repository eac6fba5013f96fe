"""Settings of the bus. Entry points read them; all other code receives them as arguments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, model_validator

from plancast_bus.spelling import nearest

_LOGIN = re.compile(r"^((?:[A-Za-z][A-Za-z0-9+.-]*:)?//)?(.*)@")


class SettingsSection(BaseModel):
    """A group of settings; names that do not exist are refused with the nearest right one.

    Its schema is built when a process validates settings; actors get theirs validated, and are spared the memory.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _only_known(cls, given: Any) -> Any:
        check_names(cls, given)
        return given


def check_names(settings: type[BaseModel], given: object) -> None:
    """Refuse names that are no fields of the settings."""
    for name in given if isinstance(given, dict) else ():
        if name not in settings.model_fields:
            raise ValueError(f"there is no setting {str(name)[:80]!r}{nearest(str(name), settings.model_fields)}")


class NatsSettings(SettingsSection):
    """Address of NATS, and the login to use there.

    A user, password or token in the URL is moved to the fields below, also when the URL is assigned later, so
    that the URL can be displayed and logged.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(validate_assignment=True, hide_input_in_errors=True)

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
    """Certificate authority of the server; setting it turns TLS on."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    connect_timeout: float = Field(5.0, gt=0)
    """Seconds allowed for the first connection to each of the servers."""
    publish_timeout: float = Field(10.0, gt=0)
    """Seconds allowed for the acknowledgement of a publish."""
    server_uid: int | None = None
    """User id that the server must run as on this machine, root aside; the login is sent to no other.

    Set for an embedded server, whose port another user could take after it ends. Checked on Linux only, through
    ``/proc/net/tcp``."""
    inbox_prefix: str = Field("_INBOX", max_length=150, pattern=r"^_INBOX(\.[A-Za-z0-9_-]+)*$")
    """Prefix of reply inboxes: ``_INBOX.<user>`` where users may subscribe to their own inboxes only."""

    @model_validator(mode="after")
    def _take_login_out_of_url(self) -> Self:
        if "@" not in self.url:
            return self
        servers = [each.strip() for each in self.url.split(",") if each.strip()]
        logins = {found[2] for each in servers if (found := _LOGIN.match(each)) is not None}
        if len(logins) > 1:
            raise ValueError("the servers of a URL have different logins; one user is needed for all")
        moved: dict[str, object] = {"url": ",".join(_LOGIN.sub(lambda found: found[1] or "", each) for each in servers)}
        for login in logins:
            user, colon, password = login.partition(":")
            if colon:
                moved |= {"user": unquote(user), "password": SecretStr(unquote(password)), "token": None}
            elif user:
                moved |= {"user": "", "password": None, "token": SecretStr(unquote(user))}
        self.__dict__.update(moved)  # assigning would validate, and recurse
        self.__pydantic_fields_set__.update(moved)
        return self


GroupCommit = Literal["auto", "always", "never"]


class DataLimits(Protocol):
    """Limits of the data of an event, in bytes: those of plans."""

    @property
    def max_value_bytes(self) -> int: ...

    @property
    def max_plan_bytes(self) -> int: ...


class _DefaultLimits(NamedTuple):
    max_value_bytes: int = 64 << 20
    max_plan_bytes: int = 1 << 30


class BusSettings(SettingsSection):
    """Settings of streams and events."""

    prefix: str = "plancast"
    """First token of all subjects; streams are named after it."""
    wire_format: Literal["msgpack", "json"] = "msgpack"
    """Format that is written; both are read."""
    cloudevents: bool = False
    """Write events as CloudEvents 1.0 in binary mode: fields as ``ce-`` headers, data as payload. CloudEvents are
    always accepted."""
    shards: int = Field(16, ge=1, le=1024)
    """Number of partitions of correlation ids; fixed once the streams exist."""
    replicas: int = Field(1, ge=1, le=5)
    max_event_bytes: int = Field(1_048_576, ge=1024)
    """The data of larger events are stored apart, up to ``plans.max_value_bytes`` and ``plans.max_plan_bytes``. Larger
    messages of other programs become dead letters."""
    volume_bytes: int = -1
    """Size of the volume that holds the streams (each server's ``max_file_store``). New goals from outside are refused
    while three quarters of it are used, so that plans that have begun can end. -1: unknown."""
    max_stream_bytes: int = -1
    """Size bound of each work queue; a full one refuses publishers. -1: a 32nd of ``volume_bytes`` where that is
    given, else the server's limit. The plans of all goals in a full queue then fit into the volume's last quarter."""
    facts_max_age: float = Field(7 * 86400, ge=0)
    """Retention of facts and system events, in seconds."""
    responses_max_age: float = Field(86400, ge=0)
    """Retention of final responses for late readers, in seconds."""
    dead_letters_max_age: float = Field(30 * 86400, ge=0)
    """Retention of dead letters, in seconds."""
    max_dead_letters: int = Field(10_000, ge=1)
    """Maximum number of dead letters; in a flood one letter holds up to 1,000 messages or 256 KiB."""
    max_dead_letter_bytes: int = -1
    """Size bound of the dead letters, reserved by the server; -1: the server's limit."""
    group_commit: GroupCommit = "auto"
    """Use of atomic batches for messages of one stream. ``auto``: where a process measures them to be faster.
    ``always``: for servers with ``sync_interval: always``, whose streams share one disk."""
    duplicate_window: float = Field(120, gt=0)
    """Seconds in which a stream drops a repeated message id."""
    storage: Literal["file", "memory"] = "file"
    checkpoint_keys: tuple[Annotated[SecretStr, Field(min_length=32)], ...] = ()
    """Keys for the MACs of checkpoints, at least 32 characters each, the same in all processes of the runtime: the
    first one signs, all verify. When empty, the deployment creates a key and stores it in NATS. To rotate, give every
    process the new key after the old one, then before it; a process without a key rejects its checkpoints as forged."""

    _data_limits: DataLimits = PrivateAttr(default_factory=_DefaultLimits)

    @property
    def data_limits(self) -> DataLimits:
        """Limits of the data of an event: those of the plans that these settings came with, or the defaults."""
        return self._data_limits

    def limit_data(self, limits: DataLimits) -> None:
        """Limit the data of events as plans are."""
        self._data_limits = limits

    @property
    def queue_bytes(self) -> int:
        """Size bound of each work queue; -1: the server's limit."""
        if self.max_stream_bytes > 0 or self.volume_bytes <= 0:
            return self.max_stream_bytes
        return self.volume_bytes // 32
