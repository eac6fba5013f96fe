"""Push configurations: where clients want the events of their tasks sent, stored with the deployment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit

from a2a.types import AuthenticationInfo, TaskPushNotificationConfig
from a2a.utils.errors import InvalidParamsError

from plancast.console.a2a_server.endpoint import PUSHES as KIND
from plancast.console.a2a_server.tasks import Place
from plancast_bus.errors import AccessDenied, CommitConflict
from plancast_bus.events.codec import pack, unpack
from plancast_bus.ports.registry import Registry

MAX_CONFIGS: Final = 10
"""Most configurations of a task."""
MAX_TEXT: Final = 4_000
"""Longest field of a configuration, in characters."""
KEPT_SECONDS: Final = 30 * 86_400.0
"""Seconds after its last change for which a registration is stored."""
GONE_SECONDS: Final = 1.0
"""The same for one without configurations."""


@dataclass(frozen=True)
class Push:
    """A configuration, and how far its events were sent."""

    id: str
    url: str
    place: str
    """Cursor of the last event that was taken."""
    tenant: str = ""
    """Tenant whose plan it is; empty: any."""
    token: str = field(default="", repr=False)
    scheme: str = ""
    credentials: str = field(default="", repr=False)
    due: float = 0.0
    """When the next event is to be tried, seconds since the epoch."""
    attempts: int = 0
    """Attempts at it that have failed."""
    since: float = 0.0
    """When the first of them was."""

    @property
    def at(self) -> Place:
        return Place.read(self.place)

    @property
    def headers(self) -> dict[str, str]:
        """Headers by which the receiver knows the sender."""
        found = {"X-A2A-Notification-Token": self.token} if self.token else {}
        return found | ({"Authorization": f"{self.scheme} {self.credentials}"} if self.credentials else {})

    def to_config(self, task_id: str) -> TaskPushNotificationConfig:
        """The configuration, as its client has made it."""
        login = AuthenticationInfo(scheme=self.scheme, credentials=self.credentials) if self.scheme else None
        return TaskPushNotificationConfig(
            id=self.id, task_id=task_id, url=self.url, token=self.token, authentication=login, tenant=self.tenant
        )


def push_of(config: TaskPushNotificationConfig, place: Place, name: str, tenant: str) -> Push:
    """Read a client's configuration.

    Args:
        config: The configuration.
        place: The place of the task's events after which they are sent.
        name: Its id, if it has none.
        tenant: The client's tenant.

    Raises:
        InvalidParamsError: a field is invalid.
    """
    login = config.authentication
    texts = {"id": config.id, "url": config.url, "token": config.token}
    texts |= {"authentication.scheme": login.scheme, "authentication.credentials": login.credentials}
    for where, text in texts.items():
        if len(text) > MAX_TEXT or not (text.isascii() and text.isprintable()):
            raise InvalidParamsError(f"{where}: allowed: at most {MAX_TEXT} printable characters of ASCII")
    try:
        parts = urlsplit(config.url)
        valid = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
        )
    except ValueError:
        valid = False
    if not valid or " " in config.url:
        raise InvalidParamsError("url: allowed: one of http or https, without a login")
    return Push(config.id or name, config.url, str(place), tenant, config.token, login.scheme, login.credentials)


@dataclass(frozen=True)
class Pushes:
    """The configurations of a plan."""

    entries: Sequence[Push] = ()
    owner: str = ""
    """The process that sends."""
    until: float = 0.0
    """When another one may go on for it."""

    def with_entry(self, push: Push) -> Pushes:
        """With a configuration, in the place of the one that has its id."""
        return replace(self, entries=[*(each for each in self.entries if each.id != push.id), push])

    def without(self, name: str) -> Pushes:
        """Without a configuration."""
        return replace(self, entries=[each for each in self.entries if each.id != name])

    def seen_by(self, tenant: str) -> Pushes:
        """Those that a tenant may see; all for an empty one."""
        seen = [each for each in self.entries if not tenant or each.tenant in ("", tenant)]
        return replace(self, entries=seen)

    def entry(self, name: str) -> Push | None:
        """The configuration of an id."""
        return next((each for each in self.entries if each.id == name), None)


class PushConfigs:
    """The stored configurations. Every change compares and sets, so that several processes may make them."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._allowed: bool | None = None

    async def is_allowed(self) -> bool:
        """True if this process's login may store configurations: those of ``deploy/`` may not."""
        if self._allowed is None:
            try:
                await self._registry.read(KIND, "-")
                self._allowed = True
            except AccessDenied:
                self._allowed = False
        return self._allowed

    async def read(self, key: str) -> Pushes:
        """The configurations of a plan, by the key of its checkpoint."""
        return _read((await self._registry.read(KIND, key))[0])

    async def all(self) -> dict[str, Pushes]:
        """All configurations, by plan."""
        return {key: _of(fields) for key, fields in (await self._registry.list(KIND)).items()}

    async def change(self, key: str, change: Callable[[Pushes], Pushes | None]) -> Pushes | None:
        """Change the configurations of a plan; None, and no change, if ``change`` returns None."""
        while True:
            stored, version = await self._registry.read(KIND, key)
            before = _read(stored)
            changed = change(before)
            if changed is None or changed == before:
                return changed
            kept = KEPT_SECONDS if changed.entries else GONE_SECONDS  # a deletion could not be compared and set
            try:
                await self._registry.replace(KIND, key, pack(_fields(changed)), version, kept)
            except CommitConflict:
                continue
            return changed


def _read(stored: bytes) -> Pushes:
    return _of(unpack(stored)) if stored else Pushes()


def _of(fields: dict[str, Any]) -> Pushes:
    names = Push.__dataclass_fields__
    entries = [Push(**{name: each[name] for name in names if name in each}) for each in fields["entries"]]
    return Pushes(entries, fields["owner"], fields["until"])


def _fields(pushes: Pushes) -> dict[str, Any]:
    return {"entries": [asdict(each) for each in pushes.entries], "owner": pushes.owner, "until": pushes.until}
