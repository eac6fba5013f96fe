"""Runs tasks by a naive loop, and by ``ChoreographyPlanner`` in a deployment in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from pydantic import SecretStr

from benchmarks.planners.oracle import Oracle
from benchmarks.planners.tasks import GOAL, STEPS, Task, registry
from plancast import App, ChoreographyPlanner, PlanCancelled, PlanFailed, ReasonRequest, Worker
from plancast.models.reasoner import Reasoner
from plancast.testing import ModelServer, PlancastTest

OURS: Final = "plancast"
MODEL: Final = "openai/oracle"
KEY: Final = "sk-none-needed-here"
MAX_STEPS: Final = 2 * STEPS
"""Most decisions of a task."""
AT_ONCE: Final = 40
"""Tasks at a time."""
PATIENCE: Final = 300.0
"""Seconds for a task, before the benchmark counts it as failed."""

Side = Callable[[Sequence[Task], Oracle, str], Awaitable[None]]


async def naive(tasks: Sequence[Task], oracle: Oracle, url: str) -> None:
    """Ask, take the first JSON object of the answer, do what it says, and append the result to the conversation."""
    reasoner = Reasoner()
    events = json.dumps([event.to_dict() for event in registry().values()])
    rules = f"Decide the next step as JSON: publish one of these events, or complete.\n{events}"

    async def work(task: Task) -> None:
        messages = [{"role": "system", "content": rules}, {"role": "user", "content": f"Work on {task.name}."}]
        for _ in range(MAX_STEPS):
            request = ReasonRequest(list(messages), MODEL, api_base=url, api_key=SecretStr(KEY))
            text = (await reasoner.complete(request)).text
            try:
                action = json.JSONDecoder().raw_decode(text, text.index("{"))[0]["next_action"]
                if action["action"] == "complete":
                    oracle.runs[task.name].completed = True
                    return
                oracle.effect(task.name, action["event_type"], action["data"])
            except (KeyError, TypeError, ValueError):
                return  # the loop has crashed
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": '{"done": true}'}]

    await _each(tasks, work)


async def choreography(tasks: Sequence[Task], oracle: Oracle, url: str) -> None:
    """Have a ``ChoreographyPlanner`` decide, with its default options."""
    planner = ChoreographyPlanner("cases", MODEL, api_base=url, api_key=KEY, goals=[GOAL], max_actions=MAX_STEPS)
    worker = Worker("clerk", concurrency=AT_ONCE)
    for event in registry().values():
        _serve(worker, event.event_type, event.payload_schema, event.description, oracle)
    async with PlancastTest(App("cases", planners=[planner], workers=[worker])) as env:

        async def work(task: Task) -> None:
            plan = await env.submit(GOAL, {"case": task.name})
            try:
                await plan.result(timeout=PATIENCE)
                oracle.runs[task.name].completed = True
            except (PlanFailed, PlanCancelled, TimeoutError):
                return

        await _each(tasks, work)


def _serve(worker: Worker, event_type: str, schema: Any, description: str, oracle: Oracle) -> None:
    @worker.on_task(event_type, f"{event_type}.completed", schema=schema, description=description)
    async def work(task: Any, context: Any) -> dict[str, bool]:
        oracle.effect(task.data["case"], event_type, task.data)
        return {"done": True}


async def _each(tasks: Sequence[Task], work: Callable[[Task], Awaitable[None]]) -> None:
    places = asyncio.Semaphore(AT_ONCE)

    async def one(task: Task) -> None:
        async with places:
            await work(task)

    await asyncio.gather(*(one(task) for task in tasks))


SIDES: Final[dict[str, Side]] = {"naive": naive, OURS: choreography}


async def run(side: str, tasks: Sequence[Task], noise: float, seed: int) -> Oracle:
    """Run all tasks by a side; what came of them is in the oracle's `runs`."""
    oracle = Oracle(tasks, noise, seed, repairs=side == OURS)
    async with ModelServer(rule=oracle.answer) as server:
        await SIDES[side](tasks, oracle, server.url)
        if server.errors:
            raise server.errors[0]
    return oracle
