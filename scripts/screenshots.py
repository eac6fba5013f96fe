"""Makes the screenshots of the console: `python scripts/screenshots.py` writes docs/screenshots/*.png.

`--all` writes those of all pages, in three sizes, light and dark; a folder after it is written to instead.

Runs an app in memory, whose model is a local server with fixed answers, the console over it, and a Chromium
(`PLANCAST_CHROMIUM` names one that is not in the path).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, ViewportSize, async_playwright, expect

from plancast import App, ChoreographyPlanner, Planner, Settings, StateAction, StateConfig, StateTransition, Worker
from plancast.client.handle import PlanHandle
from plancast.console.server import ConsoleServer
from plancast.testing import Answer, ModelRequest, ModelServer, PlancastTest

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "screenshots"
SIZES: dict[str, ViewportSize] = {
    "wide": {"width": 1440, "height": 900},
    "tablet": {"width": 1024, "height": 768},
    "phone": {"width": 390, "height": 844},
}
DOCUMENTED = {
    "plans": ("#/plans", "wide", "light"),
    "plan": ("#/plans/{refund}", "wide", "light"),
    "decisions": ("#/plans/{research}", "wide", "light"),
    "time": ("#/plans/{research}?tab=time", "wide", "light"),
    "approvals": ("#/approvals", "wide", "dark"),
}
"""Name of each picture: address, size and colours of its page."""
PAGES = {
    "plans": "#/plans",
    "plan": "#/plans/{refund}",
    "ended": "#/plans/{ended}",
    "decisions": "#/plans/{research}",
    "time": "#/plans/{research}?tab=time",
    "data": "#/plans/{research}?tab=data",
    "family": "#/plans/{research}?tab=family",
    "approvals": "#/approvals",
    "deadletters": "#/deadletters",
    "usage": "#/usage",
    "docs": "docs",
}
"""All pages, for `--all`; without that of the runtime, which shows NATS."""
CHROMIUM = os.environ.get("PLANCAST_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PATIENCE = 60.0
QUERIES, FOUND = ("what causes tides", "sun and tides"), "tides follow the moon"


def to(event: str, state: str, condition: str | None = None) -> StateTransition:
    """Move to a state on an event."""
    return StateTransition(on_event=event, to_state=state, condition=condition)


def ask(event: str, answer: str, **data: str) -> StateAction:
    """Send a request with data of the goal."""
    return StateAction(event_type=event, response_event=answer, data={k: f"{{goal_data.{v}}}" for k, v in data.items()})


STATES = [
    StateConfig(state_name="start", default_next="checking"),
    StateConfig(
        state_name="checking",
        action=ask("order.check.requested", "order.checked", order="order"),
        transitions=[
            to("order.checked", "approving", "event.data.amount > 100"),
            to("order.checked", "paying"),
            to("order.check.failed", "refused"),
        ],
    ),
    StateConfig(
        state_name="approving",
        action=ask("notification.approval", "refund.decided", question="question", order="order"),
        transitions=[
            to("refund.decided", "paying", "event.data.approved == true"),
            to("refund.decided", "refused"),
            to("refund.withdrawn", "refused"),
        ],
    ),
    StateConfig(
        state_name="paying",
        action=ask("payment.requested", "payment.done", order="order"),
        transitions=[to("payment.done", "paid"), to("payment.failed", "checking")],
    ),
    StateConfig(state_name="paid", is_terminal=True),
    StateConfig(state_name="refused", is_terminal=True, outcome="failed"),
]
ORDERS = [
    ("A-1042", "Ada", 340, "The lamp arrived broken"),
    ("A-1043", "Grace", 45, "Delivered twice"),
    ("A-1044", "Emmy", 1290, "Wrong size, sent back on Monday"),
    ("A-1045", "Alan", 20, "Never arrived"),
]


def app_of(model: str) -> App:
    """The app: refunds by a state machine, research that a model decides."""
    refunds = Planner("refunds", description="Refunds of orders")
    refunds.add_goal("refund.goal", {state.state_name: state for state in STATES})
    schema = {"approved": {"type": "boolean"}, "note": {"type": "string", "description": "For the customer"}}
    refunds.expects("refund.decided", "A clerk's decision", schema={"type": "object", "properties": schema})
    research = ChoreographyPlanner(
        "researcher", "openai/demo-model", api_base=model, api_key="not-needed", goals=["research.goal"]
    )
    worker = Worker("shop")

    @worker.on_task("order.check.requested", "order.checked")
    async def check(task: Any, _context: Any) -> dict[str, Any]:
        return {"amount": next(amount for name, _, amount, _ in ORDERS if name == task.data["order"])}

    @worker.on_task("payment.requested", "payment.done")
    async def pay(task: Any, _context: Any) -> dict[str, Any]:
        return {"paid": task.data["order"]}

    @worker.on_task("web.search", "web.searched", description="Searches the web")
    async def search(task: Any, _context: Any) -> dict[str, Any]:
        await asyncio.sleep(0.3)
        return {"found": [f"{task.data['query']}: {FOUND}"]}

    return App("shop", planners=[refunds, research], workers=[worker])


def decide(request: ModelRequest) -> Answer:
    """Search twice, then complete."""
    said = "\n".join(str(message["content"]) for message in request.messages)
    searched = sum(f"{query}: {FOUND}" in said for query in QUERIES)
    if searched == len(QUERIES):
        done = {"action": "complete", "result": {"summary": "Tides follow the moon, and the sun with half its force."}}
        return Answer.json({"next_action": done, "reasoning": "Two sources agree.", "confidence": 0.93})
    query = QUERIES[searched]
    action = {"action": "publish", "event_type": "web.search", "data": {"query": query}}
    sure = {"confidence": 0.8} if searched else {}
    return Answer.json({"next_action": action, "reasoning": f"Nothing is known yet about {query}.", **sure})


async def until(handle: PlanHandle, reached: Callable[[list[dict[str, Any]]], bool]) -> None:
    """Wait until a plan's history is as wanted."""
    async with asyncio.timeout(PATIENCE):
        while not reached(await handle.history()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def begin(env: PlancastTest) -> dict[str, str]:
    """Plans that wait, that have ended, and that a model has decided; their ids by name."""
    handles = []
    for order, customer, amount, reason in ORDERS:
        data = {"order": order, "customer": customer, "amount": amount, "reason": reason}
        data["question"] = f"Refund {amount} € to {customer}?"
        handle = await env.submit("refund.goal", data, tenant_id="shop-eu", session_id=f"chat-{order}")
        handles.append(handle)
        states = ("approving",) if amount > 100 else ("paid", "refused")
        await until(handle, lambda history, states=states: bool(history) and history[-1]["state"] in states)
    research = await env.submit("research.goal", {"topic": "tides"}, tenant_id="school")
    await research.result(timeout=PATIENCE)
    return {"refund": handles[2].plan_id, "ended": handles[1].plan_id, "research": research.plan_id}


async def shoot(browser: Browser, console: ConsoleServer, where: str, size: str, colours: Any, file: Path) -> None:
    """Write a picture of one page."""
    context = await browser.new_context(viewport=SIZES[size], color_scheme=colours, locale="en-GB", timezone_id="UTC")
    page: Page = await context.new_page()
    await page.goto(console.link)
    await page.locator("main h1").wait_for()
    await page.goto(f"{console.url}/{where}")
    await page.locator("h1").first.wait_for()
    await expect(page.locator(".loading, [aria-busy=true]")).to_have_count(0)
    await page.evaluate("document.fonts.ready")
    full = size == "phone" or where == "docs"
    await page.screenshot(path=file, full_page=full, animations="disabled")
    await context.close()


async def main(folder: Path, *, everything: bool = False) -> None:
    """Write the pictures of the documentation; of all pages, in all sizes and colours, with ``everything``."""
    settings = Settings()
    settings.console.port = 0
    async with ModelServer(rule=decide) as model, PlancastTest(app_of(model.url)) as env:
        await (await env.submit("research.goal", {})).result(timeout=PATIENCE)  # loads what calls models
    async with (
        ModelServer(rule=decide, latency=0.4) as model,
        PlancastTest(app_of(model.url)) as env,
        ConsoleServer(env.bus, settings) as console,
        async_playwright() as playwright,
    ):
        plans = await begin(env)
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        wanted = DOCUMENTED
        if everything:
            wanted = {
                f"{name}-{size}-{colours}": (where, size, colours)
                for name, where in PAGES.items()
                for size in SIZES
                for colours in ("light", "dark")
            }
        for name, (where, size, colours) in wanted.items():
            await shoot(browser, console, where.format(**plans), size, colours, folder / f"{name}.png")
        await browser.close()


if __name__ == "__main__":
    given = [each for each in sys.argv[1:] if each != "--all"]
    asyncio.run(main(Path(given[0]) if given else FOLDER, everything="--all" in sys.argv))
