"""A worker process of DBOS: W1's and W2's plans as workflows.

A plan is started in the process that runs it, like a web application does for a request; its input is durable then.
A step hands a request to the echo worker, which responds by a message: ``DBOS.recv`` waits for it, and takes
and persists it in one transaction. Workflows are asynchronous, so a waiting one needs no thread.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections import deque
from typing import Any

import uvloop
from dbos import DBOS, DBOSConfig, SetWorkflowID

STEPS = ("one", "two", "three")
FAN_OUT = 10
PATIENCE = 900.0
"""Seconds that a plan waits for a response: with all plans at once the last ones wait long."""


class Requests:
    """A connection to the echo worker."""

    def __init__(self) -> None:
        self._taken: deque[asyncio.Future[None]] = deque()

    async def open(self, port: int) -> None:
        """Connect."""
        reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        self._reading = asyncio.create_task(self._read(reader))

    async def send(self, plan: str, step: str, value: int) -> None:
        """Send a request; return when the echo worker has taken it."""
        taken = asyncio.get_running_loop().create_future()
        self._taken.append(taken)
        self._writer.write(json.dumps({"plan": plan, "step": step, "value": value}).encode() + b"\n")
        await taken

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while await reader.readline():
            self._taken.popleft().set_result(None)


requests = Requests()


@DBOS.step()
async def request(step: str, value: int) -> None:
    """Send one request."""
    await requests.send(DBOS.workflow_id, step, value)


@DBOS.step()
async def request_all(value: int) -> None:
    """Send all requests of W2 in one step: one write instead of ten."""
    plan = DBOS.workflow_id
    await asyncio.gather(*(requests.send(plan, str(each), value) for each in range(FAN_OUT)))


@DBOS.workflow(name="w1")
async def w1(value: int) -> list[Any]:
    """Send three requests, one after the other."""
    answers = []
    for step in STEPS:
        await request(step, value)
        answers.append(await DBOS.recv_async(step, PATIENCE))
    return answers


@DBOS.workflow(name="w2")
async def w2(value: int) -> list[Any]:
    """Send ten requests at once."""
    await request_all(value)
    return [await DBOS.recv_async(str(each), PATIENCE) for each in range(FAN_OUT)]


WORKFLOWS = {"w1": w1, "w2": w2}


async def run(workload: str, plan: str, value: int, begin: float) -> tuple[str, float, list[Any]]:
    """Run one plan; return its name, its seconds since ``begin``, its responses."""
    with SetWorkflowID(plan):
        handle = await DBOS.start_workflow_async(WORKFLOWS[workload], value)
    answers = await handle.get_result()
    return plan, time.time() - begin, answers


async def obey(workload: str, plans: list[tuple[str, int]], alone: bool) -> list[Any]:
    """Run plans, all at once or one after the other."""
    if alone:
        return [await run(workload, plan, value, time.time()) for plan, value in plans]
    begin = time.time()
    return list(await asyncio.gather(*(run(workload, plan, value, begin) for plan, value in plans)))


async def main(url: str, number: int, echo: int, connections: int) -> None:
    """Run the commands on the lines of the input."""
    await requests.open(echo)
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url,
        "executor_id": str(number),
        "application_version": "1",
        "log_level": "WARNING",
        "sys_db_pool_size": connections,
        # Additional threads would only wait for a connection, and time out after 30 s.
        "max_executor_threads": connections,
    }
    DBOS(config=config)
    DBOS.launch()
    say(ready=True)
    lines = listen()
    while line := await lines.get():
        try:
            say(done=await obey(**json.loads(line)))
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
