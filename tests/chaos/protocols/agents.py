"""The protocols of agents and front ends: A2A by its SDK's client, AG-UI by its server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any, Final

import ag_ui.core as agui
import httpx
from a2a.client import A2ACardResolver, ClientCallContext, ClientConfig, ClientFactory
from a2a.types import Message, Role, SendMessageRequest, StreamResponse
from pydantic import TypeAdapter
from tests.chaos.protocols.clients import HEADERS, PATIENCE, Event, Show, sse
from tests.chaos.protocols.parcels import GOAL
from tests.chaos.protocols.serving import USER

from plancast.a2a_client.values import CURSOR, CURSOR_HEADER, RESULT, from_struct, part_of, struct_of, value_of
from plancast.console.a2a_server.tasks import STATE, Place
from plancast.console.agui_server.position import Position
from plancast.console.routes.plans import stable_id

# A2A: the message is sent again, which is the same task; its stream goes on after the cursor of the last event.


def a2a_plan(key: str) -> str:
    return stable_id("a2a", USER, "", key)


async def call_a2a(url: str, key: str, cursor: str | None, show: Show) -> None:
    message = Message(
        message_id=key, role=Role.ROLE_USER, parts=[part_of({"parcel": key})], metadata=struct_of({"skill": GOAL})
    )
    context = ClientCallContext(service_parameters={CURSOR_HEADER: cursor} if cursor is not None else {})
    async with httpx.AsyncClient(headers=HEADERS, timeout=PATIENCE) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        async with ClientFactory(ClientConfig(httpx_client=http)).create(card) as client:
            async for each in client.send_message(SendMessageRequest(message=message), context=context):
                if (event := _of_task(each)) is not None:
                    show(event)


def _of_task(response: StreamResponse) -> Event | None:
    if response.HasField("artifact_update"):
        update = response.artifact_update
        kind = "result" if update.artifact.artifact_id == RESULT else "chunk"
        return Event(str(from_struct(update.metadata)[CURSOR]), kind, value_of(update.artifact.parts[0]))
    if not response.HasField("status_update"):
        return None  # the task as it is, with which a stream begins
    metadata = from_struct(response.status_update.metadata)
    cursor, status = str(metadata[CURSOR]), response.status_update.status
    if STATE not in metadata:
        return Event(cursor, "progress", status.message.parts[0].text)
    state = str(metadata[STATE])
    return Event(cursor, "turn", Place.read(cursor).cursor.revision, state, ends=state == "done")


# AG-UI: the run is asked for again, and goes on after the id of the last event.

AGUI_EVENTS: Final = 34
"""Events of a run of a plan that reports as it should, without its end."""
EVENTS: Final[TypeAdapter[agui.Event]] = TypeAdapter(agui.Event)
_RANKS: Final = {"b": 0, "t": 0, "n": 0, "": 1, "e": 2, "end": 3}


def agui_plan(key: str) -> str:
    return stable_id("agui", USER, "", key, key)


def agui_place(cursor: str) -> tuple[int, ...]:
    """The order of ids: the parts of a change come before the change, those of the end after it."""
    at = Position.read(cursor)
    return at.revision, at.note, _RANKS[at.part], at.sent


async def follow_agui(url: str, key: str, cursor: str | None) -> AsyncGenerator[Event]:
    props = {"goal": GOAL, "data": {"parcel": key}}
    body = {"threadId": key, "runId": key, "messages": [], "forwardedProps": props}
    resumed = {"Last-Event-ID": cursor} if cursor is not None else {}
    async with (
        httpx.AsyncClient(base_url=url, headers=HEADERS, timeout=PATIENCE) as http,
        http.stream("POST", "/agui", json=body, headers=resumed) as response,
    ):
        response.raise_for_status()
        async for fields in sse(response):
            if "data" in fields:
                yield _of_run(fields["id"], EVENTS.validate_python(json.loads(fields["data"])))


def _of_run(cursor: str, event: agui.Event) -> Event:
    match event:
        case agui.RunStartedEvent():
            return Event(cursor, "begin", 1)
        case agui.TextMessageContentEvent():
            return Event(cursor, "chunk", event.delta)
        case agui.ActivitySnapshotEvent():
            content: Any = event.content
            return Event(cursor, "progress", content["message"])
        case agui.StateDeltaEvent():
            changed: Any = {each["path"]: each["value"] for each in event.model_dump(mode="json")["delta"]}
            return Event(cursor, "turn", changed["/revision"], changed.get("/current_state", ""))
        case agui.RunFinishedEvent():
            return Event(cursor, "result", event.result, ends=True)
        case _:
            return Event(cursor, str(event.type), None)
