"""Terminal: shows a plan while it runs, by the AG-UI events of the server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import aiohttp

CANCELLED = "cancelled"
"""Answer of a run that is resumed without one to its question: somebody else gives that."""


@dataclass
class Terminal:
    """A front end in the terminal, of one thread.

    Args:
        http: Requests with the user's token.
        url: The address of the server.
        show: Prints a line.
    """

    http: aiohttp.ClientSession
    url: str
    show: Callable[[str], None]
    thread: str = field(default_factory=lambda: uuid4().hex)
    seen: list[str] = field(default_factory=list)
    """Ids of the events that were shown, with those of their runs."""
    steps: list[str] = field(default_factory=list)
    text: str = ""
    """Texts of the desk so far."""

    async def run(self, goal: str, data: dict[str, Any]) -> dict[str, Any]:
        """Begin a plan and show it; returns the event that ends the run: its result, an error, or a question."""
        return await self._follow({"forwardedProps": {"goal": goal, "data": data}})

    async def go_on(self, interrupt: dict[str, Any]) -> dict[str, Any]:
        """Show how a plan goes on after a question that was answered elsewhere; as :meth:`run`."""
        return await self._follow({"resume": [{"interruptId": interrupt["id"], "status": CANCELLED}]})

    async def _follow(self, asked: dict[str, Any]) -> dict[str, Any]:
        body = {"threadId": self.thread, "runId": uuid4().hex, "messages": [], **asked}
        last: str | None = None
        while True:
            headers = {"Last-Event-ID": last} if last is not None else {}
            async with self.http.post(f"{self.url}/agui", json=body, headers=headers) as response:
                response.raise_for_status()
                async for last, event in _events(response):
                    self.seen.append(f"{body['runId']} {last}")
                    self._show(event)
                    if event["type"] in ("RUN_FINISHED", "RUN_ERROR"):
                        return event

    def _show(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "STEP_STARTED":
                self.steps.append(event["stepName"])
                self.show(f"· {event['stepName']}")
            case "TOOL_CALL_START":
                self.show(f"    asks for {event['toolCallName']}")
            case "TEXT_MESSAGE_CONTENT":
                self.text += event["delta"]
            case "TEXT_MESSAGE_END":
                self.show(f"    writes: {self.text.strip()}")


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yield server-sent events with their ids."""
    name = ""
    async for line in response.content:
        field_name, _, value = line.decode().rstrip("\r\n").partition(": ")
        if field_name == "id":
            name = value
        elif field_name == "data":
            yield name, json.loads(value)
