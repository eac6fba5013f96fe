"""The table of the protocols by which plans are followed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.chaos.protocols.agents import AGUI_EVENTS, a2a_plan, agui_place, agui_plan, call_a2a, follow_agui
from tests.chaos.protocols.clients import Follow, call_mcp, follow_sse, in_a_task, mcp_plan
from tests.chaos.protocols.parcels import EVENTS, TURNS

from plancast.client.changes import Cursor
from plancast.console.a2a_server.tasks import Place


@dataclass(frozen=True)
class Protocol:
    """A protocol in the table."""

    name: str
    follow: Follow
    """Begins the plan of a key, unless it has begun, and yields its events after a cursor, from a server's URL."""
    events: int
    """Events after which the server is killed, at most: those that every plan has."""
    has_reports: bool = True
    """True if it shows what running tasks report."""
    plan_id: Callable[[str], str] = str
    """Returns the id of a key's plan."""
    place: Callable[[str], Any] = Cursor.read
    """Reads a cursor, so that one is less than a later one."""


PROTOCOLS: Final = {
    each.name: each
    for each in (
        Protocol("sse", follow_sse, EVENTS),
        Protocol("mcp", in_a_task(call_mcp), TURNS, has_reports=False, plan_id=mcp_plan),
        Protocol("a2a", in_a_task(call_a2a), EVENTS, plan_id=a2a_plan, place=Place.read),
        Protocol("agui", follow_agui, AGUI_EVENTS, plan_id=agui_plan, place=agui_place),
    )
}
