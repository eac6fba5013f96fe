"""The first examples of the README and of the page on planners are short, valid, and run."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import plancast
import plancast.planners
from plancast import App, Worker
from plancast.testing import PlancastTest

ROOT = Path(__file__).parent.parent


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


async def test_the_tree_decides_its_goal() -> None:
    (code,) = (block for block in python_blocks("docs/planners.md") if "DeterministicPlanner" in block)
    worker = Worker("w")
    worker.on_task("ticket.classify.requested", "ticket.classify.completed")(lambda task, context: {"severity": "low"})
    worker.on_task("issue.reproduce.requested", "issue.reproduce.completed")(lambda task, context: {"seen": True})
    worker.on_task("ticket.route.requested", "ticket.route.completed")(lambda task, context: task.data)
    names: dict[str, Any] = {
        **{name: getattr(plancast, name) for name in (*plancast.__all__, *plancast.planners.__all__)},
        "critical": lambda run: run.results["ticket.classify.completed"]["severity"] != "critical",
        "is_bug": lambda run: True,
        "route": lambda run, reproduced: plancast.PublishAction(
            event_type="ticket.route.requested", data={"reproduced": reproduced}
        ),
    }
    exec(code, names)
    async with PlancastTest(App("a", planners=[names["desk"]], workers=[worker])) as env:
        handle = await env.submit("ticket.received", {"text": "down"})
        async with asyncio.timeout(20):
            while await handle.status() != "paused":
                await asyncio.sleep(0.01)
        await handle.approve(user_id="Grace")
        assert await handle.result(timeout=20) == {"reproduced": True}


async def test_the_first_example_runs() -> None:
    code = python_blocks("README.md")[0]
    names: dict[str, object] = {}
    exec(code, names)
    app = names["app"]
    assert isinstance(app, App)
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    async with PlancastTest(app) as env:
        handle = await env.submit("greet.goal", {"name": "Ada"})
        assert await handle.result(timeout=20) == {"greeting": {"greeting": "Hello, Ada!"}}
