"""A client of AG-UI, which validates each event by the official SDK."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
from ag_ui.core import Event, EventType, RunAgentInput
from pydantic import TypeAdapter
from tests.runtime.console.desk import Api

EVENTS: TypeAdapter[Any] = TypeAdapter(Event)
PATIENCE = 120.0


class Seen(NamedTuple):
    """An event with its id."""

    id: str
    event: Any

    @property
    def type(self) -> EventType:
        found: EventType = self.event.type
        return found


def asks(thread: str, run: str, goal: str = "", data: Any = None, **fields: Any) -> dict[str, Any]:
    """The body of a run."""
    props = {"goal": goal, "data": data or {}} if goal else None
    body = {"threadId": thread, "runId": run, "messages": [], "forwardedProps": props} | fields
    RunAgentInput.model_validate(body)
    return body


def answers(thread: str, run: str, interrupt: str, payload: Any, status: str = "resolved") -> dict[str, Any]:
    """The body of a run that answers an interrupt."""
    return asks(thread, run, resume=[{"interruptId": interrupt, "status": status, "payload": payload}])


def headers_of(token: str | None, last: str | None) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return headers | ({"Last-Event-ID": last} if last is not None else {})


async def read(response: httpx.Response) -> AsyncIterator[Seen]:
    name = ""
    async for line in response.aiter_lines():
        field, _, value = line.partition(": ")
        if field == "id":
            name = value
        elif field == "data":
            yield Seen(name, EVENTS.validate_python(json.loads(value)))


@contextlib.asynccontextmanager
async def run(
    http: httpx.AsyncClient, body: Any, last: str | None = None, token: str | None = None
) -> AsyncIterator[AsyncIterator[Seen]]:
    """The events of a run, from one on."""
    sending = http.stream("POST", "/agui", json=body, headers=headers_of(token, last), timeout=PATIENCE)
    async with sending as response:
        if response.status_code != 200:
            await response.aread()
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        yield read(response)


async def whole(http: httpx.AsyncClient, body: Any, last: str | None = None, token: str | None = None) -> list[Seen]:
    """All events of a run, until its stream ends."""
    async with run(http, body, last, token) as events:
        return [each async for each in events]


async def refused(api: Api, body: Any, status: int, token: str | None = None, last: str | None = None) -> str:
    """The detail of a refusal."""
    response = await api.http.post("/agui", json=body, headers=headers_of(token, last), timeout=PATIENCE)
    return str(api.read(response, status)["detail"])


def types(events: list[Seen]) -> list[str]:
    return [each.type.value for each in events]


def interrupt_of(events: list[Seen]) -> Any:
    """The interrupt that has ended a run."""
    outcome = events[-1].event.outcome
    assert outcome.type == "interrupt"
    [found] = outcome.interrupts
    return found
