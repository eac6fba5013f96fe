"""The user of a connection, as reported by the server."""

from __future__ import annotations

import json
from dataclasses import dataclass

from plancast_bus.errors import BusUnavailable
from plancast_bus.jetstream.client.request_reply import NoResponders, Requester

WHO_AM_I = "$SYS.REQ.USER.INFO"
"""Request for the account and permissions of the connected user; allowed to every login."""


@dataclass(frozen=True, slots=True)
class ConnectedUser:
    """The user of a connection."""

    account: str
    publishes: tuple[str, ...]
    """Subjects that the user may publish on; empty for all of the account."""
    subscribes: tuple[str, ...]
    """Subjects that the user may subscribe to; empty for all of the account."""


async def read_user(requester: Requester) -> ConnectedUser:
    """Request the user of this connection from the server.

    Raises:
        AccessDenied: the login may not send the request.
        BusUnavailable: the server does not respond.
    """
    try:
        info = json.loads((await requester.request(WHO_AM_I)).data)["data"]
    except (NoResponders, ValueError, KeyError) as error:
        raise BusUnavailable("the nats-server does not report the user of this login") from error
    permissions = info.get("permissions") or {}
    publishes, subscribes = ((permissions.get(each) or {}).get("allow") or () for each in ("publish", "subscribe"))
    return ConnectedUser(str(info.get("account", "")), tuple(publishes), tuple(subscribes))
