# mypy: disable-error-code="import-not-found,untyped-decorator"
"""Runs the plans as a Restate service, served by hypercorn.

A plan is a handler of a Restate service, and each of its steps is an awakeable, in the form that Restate's
documentation gives for work done by another process: create the awakeable, send its id in ``ctx.run``, so that
it is not sent again when the plan is replayed, and await it. The other process resolves it over HTTP, at the
server's ingress. Of the forms tried, with 1,000 plans, it takes the least CPU and is the fastest: a plain
``ctx.service_call`` to a service in another process, which is an invocation with a journal of its own, took twice as
long alone (11.6 ms against 5.8 ms) and reached two thirds of the rate; an awakeable resolved by such a service
was as slow alone, and in between in rate. W2 sends its ten requests in one ``ctx.run``; ten of them, gathered,
cost a sixth more CPU.

It is served by ``python -m hypercorn --config`` with the values that the documentation gives for production, as many
workers as there are cores, and uvloop.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from typing import Any

import restate

BRANCHES = 10


class Echo:
    """A connection to an echo process, opened on first use."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._opening = asyncio.Lock()
        self._taken: deque[asyncio.Future[None]] = deque()
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, request: dict[str, Any]) -> None:
        """Send a request; return when the echo process has taken it."""
        async with self._opening:
            if self._writer is None:
                reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
                self._reading = asyncio.create_task(self._read(reader))
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._taken.append(taken)
        self._writer.write(json.dumps({**request, "life": os.getpid()}).encode() + b"\n")
        await taken

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while await reader.readline():
            self._taken.popleft().set_result(None)


echoes = [Echo(int(port)) for port in os.environ["ECHO_PORTS"].split()]
plans = restate.Service("plans")


async def ask(request: dict[str, Any]) -> None:
    """Send one request."""
    await echoes[request["plan"] % len(echoes)].ask(request)


async def ask_all(requests: list[dict[str, Any]]) -> None:
    """Send several requests at once."""
    await asyncio.gather(*map(ask, requests))


@plans.handler()
async def steps(ctx: restate.Context, goal: dict[str, Any]) -> dict[str, Any]:
    """Send one request after the other."""
    value = goal["plan"]
    for step in range(goal["steps"]):
        reply_to, answer = ctx.awakeable(type_hint=dict)
        request = {"plan": goal["plan"], "step": step, "value": value, "reply_to": reply_to, "seconds": goal["seconds"]}
        await ctx.run_typed("ask", ask, request=request)
        value = (await answer)["value"]
    return {"value": value}


@plans.handler()
async def fan_out(ctx: restate.Context, goal: dict[str, Any]) -> dict[str, Any]:
    """Send ten requests at once, and join their responses."""
    awakeables = [ctx.awakeable(type_hint=dict) for _ in range(BRANCHES)]
    requests = [
        {"plan": goal["plan"], "step": branch, "value": goal["plan"], "reply_to": reply_to, "seconds": 0}
        for branch, (reply_to, _) in enumerate(awakeables)
    ]
    await ctx.run_typed("ask", ask_all, requests=requests)
    await restate.gather(*(answer for _, answer in awakeables))
    return {"value": sum([(await answer)["value"] for _, answer in awakeables])}


app = restate.app([plans])
