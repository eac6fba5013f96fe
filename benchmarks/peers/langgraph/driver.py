"""A driver process of LangGraph: it holds a share of the threads (the plans), and resumes each with its response.

Each request is the value of a node's ``interrupt()``, and is sent when the interrupted run has returned: its checkpoint
is durable then (``durability="sync"``). ``Command(resume=...)`` passes the response to the node.

LangGraph has no dispatcher, so this is a minimal one, in LangGraph's favour: requests wait in memory and
would be lost with the process, a queued plan is not persisted before it begins, and the ten
responses of W2 are collected in memory and resume their plan at once, as in LangGraph's documentation.
An ``AsyncPostgresSaver`` holds a lock while it uses its pool, so one saver performs one write at a time; a process has
``savers`` of them on one pool, each with its own compiled graph, and its threads are spread over those.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from itertools import cycle
from operator import add
from typing import Annotated, Any, TypedDict

import uvloop
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

STEPS = ("one", "two", "three")
FAN_OUT = 10


class Plan(TypedDict):
    """State of a thread: its input, and the responses."""

    value: int
    answers: Annotated[list[Any], add]


class Request(TypedDict):
    """Input of a branch of W2."""

    step: str
    value: int


def step(name: str) -> Any:
    """Build a node of W1: a request and its response."""

    async def node(state: Plan) -> dict[str, Any]:
        return {"answers": [interrupt({"step": name, "value": state["value"]})]}

    return node


async def branch(state: Request) -> dict[str, Any]:
    """Run a branch of W2, like :func:`step`."""
    return {"answers": [interrupt({"step": state["step"], "value": state["value"]})]}


def spread(state: Plan) -> list[Send]:
    """Return a branch for each of W2's requests."""
    return [Send("branch", Request(step=str(each), value=state["value"])) for each in range(FAN_OUT)]


def w1() -> Any:
    """Build three nodes in a row."""
    graph = StateGraph(Plan)
    for name in STEPS:
        graph.add_node(name, step(name))
    for before, after in zip((START, *STEPS), (*STEPS, END), strict=True):
        graph.add_edge(before, after)
    return graph


def w2() -> Any:
    """Build ten parallel branches."""
    graph = StateGraph(Plan)
    graph.add_node("branch", branch)
    graph.add_conditional_edges(START, spread, ["branch"])
    graph.add_edge("branch", END)
    return graph


class Echo:
    """A connection to the echo worker."""

    def __init__(self) -> None:
        self._awaited: dict[str, asyncio.Future[Any]] = {}

    async def open(self, port: int) -> None:
        """Connect."""
        reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        self._reading = asyncio.create_task(self._read(reader))

    def ask(self, key: str, request: Any) -> asyncio.Future[Any]:
        """Send a request; the future returns its response."""
        self._awaited[key] = answer = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps({"key": key, "request": request}).encode() + b"\n")
        return answer

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            answer = json.loads(line)
            self._awaited.pop(answer["key"]).set_result(answer["request"])


class Driver:
    """Runs plans."""

    def __init__(self, graphs: dict[str, list[Any]], echo: Echo, running: int) -> None:
        self._graphs = {name: cycle(each) for name, each in graphs.items()}
        self._echo = echo
        self._turnstile = asyncio.Semaphore(running)

    async def run(self, workload: str, plan: str, value: int, begin: float) -> tuple[str, float, list[Any]]:
        """Run one plan; return its name, its seconds since ``begin``, its responses."""
        graph = next(self._graphs[workload])
        config = {"configurable": {"thread_id": plan}}
        given: Any = {"value": value, "answers": []}
        while True:
            async with self._turnstile:
                state = await graph.ainvoke(given, config, durability="sync")
            waiting = state.get("__interrupt__")
            if not waiting:
                return plan, time.time() - begin, state["answers"]
            pending = {each.id: self._echo.ask(f"{plan}.{each.id}", each.value) for each in waiting}
            answers = {key: await answer for key, answer in pending.items()}
            given = Command(resume=answers)

    async def obey(self, workload: str, plans: list[tuple[str, int]], alone: bool) -> list[Any]:
        """Run plans, all at once or one after the other."""
        if alone:
            return [await self.run(workload, plan, value, time.time()) for plan, value in plans]
        begin = time.time()
        return list(await asyncio.gather(*(self.run(workload, plan, value, begin) for plan, value in plans)))


async def main(url: str, echo: int, connections: int, savers: int, running: int) -> None:
    """Run the commands on the lines of the input."""
    requests = Echo()
    await requests.open(echo)
    kwargs = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(url, min_size=connections, max_size=connections, open=False, kwargs=kwargs) as pool:
        saved = [AsyncPostgresSaver(pool) for _ in range(savers)]
        await saved[0].setup()
        graphs = {"w1": w1(), "w2": w2()}
        compiled = {name: [graph.compile(checkpointer=each) for each in saved] for name, graph in graphs.items()}
        driver = Driver(compiled, requests, running)
        say(ready=True)
        lines = listen()
        while line := await lines.get():
            try:
                say(done=await driver.obey(**json.loads(line)))
            except Exception as error:
                say(failed=repr(error))


def say(**words: Any) -> None:
    """Write a line to the parent process."""
    print(json.dumps(words), flush=True)


def listen() -> asyncio.Queue[str]:
    """Read the lines of the input; exit at its end, even with plans in flight."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[str]()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return lines


if __name__ == "__main__":
    uvloop.run(main(**json.loads(sys.argv[1])))
