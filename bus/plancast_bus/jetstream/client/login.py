"""Login: what the server says of the user of a connection."""

from __future__ import annotations

import json
from dataclasses import dataclass

from plancast_bus.errors import BusUnavailable
from plancast_bus.jetstream.client.request_reply import NoResponders, Requester

WHO_AM_I = "$SYS.REQ.USER.INFO"
"""What every login may ask of itself."""


@dataclass(frozen=True, slots=True)
class ConnectedUser:
    """The user of a connection."""

    account: str
    publishes: tuple[str, ...]
    """Subjects that it may publish on; empty: all of its account."""
    hears: tuple[str, ...]
    """Subjects that it may listen to; empty: all of its account."""


async def read_user(requester: Requester) -> ConnectedUser:
    """Ask the server who this connection is.

    Raises:
        AccessDenied: the login may not ask.
        BusUnavailable: the server does not say.
    """
    try:
        said = json.loads((await requester.request(WHO_AM_I)).data)["data"]
    except (NoResponders, ValueError, KeyError) as error:
        raise BusUnavailable("the nats-server does not say who this login is") from error
    permissions = said.get("permissions") or {}
    publishes, hears = ((permissions.get(each) or {}).get("allow") or () for each in ("publish", "subscribe"))
    return ConnectedUser(str(said.get("account", "")), tuple(publishes), tuple(hears))
