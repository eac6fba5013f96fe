"""The console's pages, in a real browser: real hosts, dispatcher and worker on a real nats-server, in this process.

Without a Chromium on the machine these tests are skipped; ``PLANCAST_CHROMIUM`` names one that is not in the path.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import (
    Browser,
    BrowserContext,
    FloatRect,
    Locator,
    Page,
    Request,
    Route,
    async_playwright,
    expect,
)
from pydantic import BaseModel, Field, SecretStr
from tests.runtime.console.legibility import CUT_PLACEHOLDERS, FAINT_TEXTS

from plancast import (
    App,
    Client,
    Effect,
    PlanContext,
    Planner,
    RetryableError,
    Settings,
    StateAction,
    StateConfig,
    StateTransition,
    Worker,
)
from plancast.agents.registry import TTL_SECONDS
from plancast.console.server import ConsoleServer
from plancast.console.service.nats_probe import PROBE_SECONDS
from plancast.console.views.layout import place
from plancast.plan.requests import Request as OpenRequest
from plancast_actors.dispatch.dispatcher import Dispatcher, DispatcherOptions
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.liveness.registration import register_app
from plancast_actors.workers.runner import TaskRunner
from plancast_bus.events.codec import pack
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.nats_server.process import NatsServer

CHROMIUM = os.environ.get("PLANCAST_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; PLANCAST_CHROMIUM can name one"),
]
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
expect.set_options(timeout=60_000)
TOKEN = "the-token-of-ada"
HOSTILE = "<img src=x onerror=\"document.title='taken over'\"><script>document.title='taken over'</script>"
PHONE = {"width": 360, "height": 740}

# What runs: a refund that a machine moves, and a person decides when it is large.

refunds = Planner("refunds")
refunds.expects(
    "refund.decided",
    "A person's word on a refund",
    schema={
        "type": "object",
        "properties": {
            "approved": {"type": "boolean"},
            "limit": {"type": "integer", "minimum": 1, "title": "Limit"},
            "method": {"enum": ["cash", "card"]},
            "express": {"type": "boolean"},
            "note": {"type": "string", "description": "For the customer"},
        },
    },
)
refunds.add_goal(
    "refund.goal",
    {
        "start": StateConfig(state_name="start", default_next="checking"),
        "checking": StateConfig(
            state_name="checking",
            action=StateAction(
                event_type="refund.check.requested",
                response_event="refund.check.completed",
                data={"amount": "{goal_data.amount}"},
            ),
            transitions=[
                StateTransition(
                    on_event="refund.check.completed", to_state="approving", condition="event.data.amount > 100"
                ),
                StateTransition(on_event="refund.check.completed", to_state="done"),
            ],
        ),
        "approving": StateConfig(
            state_name="approving",
            action=StateAction(
                event_type="notification.human_input",
                response_event="refund.decided",
                data={"question": "Refund {goal_data.amount} to {goal_data.customer}?"},
            ),
            transitions=[StateTransition(on_event="refund.decided", to_state="done")],
        ),
        "done": StateConfig(state_name="done", is_terminal=True),
    },
)
refunds.add_goal(
    "claim.goal",
    {
        "start": StateConfig(state_name="start", default_next="refunding"),
        "refunding": StateConfig(
            state_name="refunding",
            action=StateAction(
                event_type="refund.goal",
                response_event="refund.goal.completed",
                data={"amount": "{goal_data.amount}", "customer": "{goal_data.customer}"},
            ),
            transitions=[StateTransition(on_event="refund.goal.completed", to_state="done")],
        ),
        "done": StateConfig(state_name="done", is_terminal=True),
    },
)
tagged = Planner("tagged")
clerk = Worker("clerk")


@tagged.on_goal("tagged.goal")
async def tag(goal: Any, context: Any) -> None:
    hold = StateConfig(state_name="start", transitions=[StateTransition(on_event="go", to_state="done")])
    done = StateConfig(state_name="done", is_terminal=True)
    plan = await PlanContext.create_from_goal(goal, {"start": hold, "done": done})
    plan.attributes |= goal.data
    await plan.execute_next()


refunds.add_goal(
    "payment.goal",
    {
        "start": StateConfig(state_name="start", default_next="paying"),
        "paying": StateConfig(
            state_name="paying",
            action=StateAction(
                event_type="card.charge", response_event="card.charged", data={"invoice": "{goal_data.invoice}"}
            ),
            transitions=[StateTransition(on_event="card.charged", to_state="done")],
        ),
        "done": StateConfig(state_name="done", is_terminal=True),
    },
)


@clerk.on_task("card.charge", "card.charged", effect=Effect(key="{{data.invoice}}", repeat="never"))
async def charge(task: Any, context: Any) -> dict[str, Any]:
    raise RetryableError(f"the bank is silent about {HOSTILE}")


@clerk.compensate("card.charge")
async def pay_back(task: Any, result: Any, context: Any) -> None:
    assert result == {"charge": "c-1"}


@clerk.on_task("refund.check.requested", "refund.check.completed")
async def check(task: Any, context: Any) -> dict[str, Any]:
    return {"amount": task.data["amount"], "known": True}


class Here:
    """Where the dispatcher finds its host."""

    def __init__(self, host: PlanHost) -> None:
        self.shared = [host]

    def dedicated(self, plan: str) -> PlanHost:
        return self.shared[0]


@dataclass
class Deployed:
    client: Client
    bus: JetStreamBus
    url: str
    settings: Settings
    link: str

    async def plan(self, amount: int, customer: str = "Grace", **options: Any) -> str:
        """A refund's plan, which waits for a person (over 100) or has ended."""
        handle = await self.client.submit("refund.goal", {"amount": amount, "customer": customer}, **options)
        await self.until(handle.plan_id, "approving" if amount > 100 else "done")
        return handle.plan_id

    async def until(self, plan_id: str, state: str) -> None:
        while True:
            found = await self.bus.checkpoints.load(plan_id)
            if found is not None and found.summary.current_state == state:
                return
            await asyncio.sleep(0.02)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deployed]:
    app = App("refunds", planners=[refunds, tagged], workers=[clerk])
    async with contextlib.AsyncExitStack() as stack:
        server = stack.enter_context(NatsServer(tmp_path_factory.mktemp("nats")))
        settings = Settings()
        settings.nats.url = server.url
        settings.console.port = 0

        async def connection() -> JetStreamBus:
            bus = await connect(settings.nats, settings.bus)
            stack.push_async_callback(bus.close)
            return bus

        bus = await connection()
        await bus.ensure_streams()
        await register_app(bus.registry, app, TTL_SECONDS)
        host = PlanHost(app, await connection(), settings, name="host-0")
        host.start()
        stack.push_async_callback(host.stop)
        runner = TaskRunner(app, await connection(), settings.workers, max_event_bytes=settings.bus.max_event_bytes)
        await runner.start()
        stack.push_async_callback(runner.stop, drain_seconds=0)
        options = replace(DispatcherOptions.of(app, settings), count=1)
        dispatcher = Dispatcher(await connection(), Here(host), options)
        await dispatcher.start()
        stack.push_async_callback(dispatcher.stop)
        console = await stack.enter_async_context(ConsoleServer(await connection(), settings))
        yield Deployed(Client(bus), bus, console.url, settings, console.link)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield opened
        await opened.close()


@pytest_asyncio.fixture(loop_scope="module")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    made = await browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")
    made.set_default_timeout(60_000)
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="module")
async def page(context: BrowserContext, deployed: Deployed) -> AsyncIterator[Page]:
    """The console; what the page's scripts throw, or the browser refuses them, fails the test."""
    made = await context.new_page()
    faults: list[str] = []
    made.on("pageerror", lambda error: faults.append(str(error)))
    made.on("console", lambda said: faults.append(said.text) if "Content Security Policy" in said.text else None)
    await made.goto(deployed.link)
    await expect(made.get_by_role("heading", name="Plans")).to_be_visible()
    assert "token" not in made.url  # what the address has is kept by the browser, and shown to who looks on
    yield made
    assert faults == []


def row(page: Page, plan_id: str) -> Locator:
    return page.locator(f'tr[data-key="{plan_id}"]')


async def box(shown: Locator) -> FloatRect:
    """The place of an element on the page, which has none for the moment in which it is drawn anew."""
    async with asyncio.timeout(60.0):
        while (found := await shown.bounding_box()) is None:
            await asyncio.sleep(0.02)
    return found


async def show(page: Page, plan_id: str, query: str = "") -> None:
    await page.evaluate("where => { location.hash = where }", f"#/plans/{plan_id}{query}")
    await expect(page.locator(".plan-id")).to_contain_text(plan_id)


async def test_a_plan_appears_and_moves_in_the_list_by_itself(page: Page, deployed: Deployed) -> None:
    await expect(page.locator("#liveness")).to_have_text("Live")
    plan_id = await deployed.plan(500, session_id="live")

    await expect(row(page, plan_id).locator(".c-state")).to_have_text("approving")
    place = await row(page, plan_id).evaluate_handle("element => element")
    await deployed.client.plan(plan_id).signal("refund.decided", {"approved": True})

    await expect(row(page, plan_id).locator(".c-status")).to_have_text("completed")
    assert await place.evaluate("element => element.isConnected")  # it was changed where it stood


async def test_a_plan_that_changes_while_the_list_is_loading_is_shown(page: Page, deployed: Deployed) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def late(route: Route) -> None:
        response = await route.fetch()
        asked.set()
        await answered.wait()
        await route.fulfill(response=response)

    await page.route(re.compile(r"/plans\?.*session_id=late"), late)
    await page.goto(f"{deployed.url}/#/plans?session_id=late")
    await asked.wait()
    plan_id = await deployed.plan(8, session_id="late")
    await expect(page.locator(".chip", has_text="completed").locator(".chip-count")).to_have_text("1")
    answered.set()

    await expect(row(page, plan_id)).to_be_visible()


async def test_rows_stay_where_they_are_while_somebody_is_in_the_list(page: Page, deployed: Deployed) -> None:
    first = await deployed.plan(5, session_id="still")
    followed = False

    def listed_again(request: Request) -> bool:
        nonlocal followed
        if "session_id=still" not in request.url:
            return False
        followed |= "/plans/stream?" in request.url
        return followed and "/plans?" in request.url

    async with page.expect_request(listed_again):  # the page's own, once its stream is open
        await page.goto(f"{deployed.url}/#/plans?session_id=still")
    await expect(page.locator(".list[aria-busy]")).to_have_count(0)
    await row(page, first).locator("a").focus()

    second = await deployed.plan(6, session_id="still")

    more = page.get_by_role("button", name="1 more plan has changed")
    await expect(more).to_be_visible()
    await expect(row(page, second)).to_have_count(0)
    await more.click()
    await expect(row(page, second)).to_be_visible()


async def test_plans_are_found_by_text_and_status_and_the_address_keeps_it(page: Page, deployed: Deployed) -> None:
    waiting = await deployed.plan(700, session_id="find-me", tenant_id="find-us")
    ended = await deployed.plan(7, session_id="find-me")

    await page.get_by_label("Search plans").fill("find-me")
    await expect(page.locator(".plans tbody tr")).to_have_count(2)
    await page.get_by_role("button", name="waiting").click()
    await expect(row(page, ended)).to_have_count(0)
    await expect(row(page, waiting)).to_be_visible()
    await expect(page.locator(".chip", has_text="completed").locator(".chip-count")).to_have_text("1")

    await page.reload()
    await expect(row(page, waiting)).to_be_visible()
    await expect(page.locator(".plans tbody tr")).to_have_count(1)

    await page.get_by_label("Search plans").fill("nothing is called so")
    await expect(page.get_by_text("No matching plans")).to_be_visible()
    await page.get_by_role("button", name="Filter").click()
    await page.get_by_role("button", name="Clear").click()
    await page.get_by_label("Tenant").fill("find-us")
    await page.get_by_label("Tenant").press("Enter")
    await expect(page.locator(".plans tbody tr")).to_have_count(1)


async def test_a_click_on_a_status_is_not_lost_while_its_count_changes(page: Page, deployed: Deployed) -> None:
    await deployed.plan(6, session_id="click")
    await page.goto(f"{deployed.url}/#/plans?session_id=click")
    await expect(page.locator("#liveness")).to_have_text("Live")
    chip = page.locator(".chip", has_text="completed")
    await expect(chip.locator(".chip-count")).to_have_text("1")
    await chip.hover()
    await page.mouse.down()
    await deployed.plan(7, session_id="click")
    await expect(chip.locator(".chip-count")).to_have_text("2")
    await page.mouse.up()
    await expect(chip).to_have_attribute("aria-pressed", "true")
    await expect(page).to_have_url(re.compile("status=completed"))


async def test_search_attributes_have_columns_and_filter_the_list(page: Page, deployed: Deployed) -> None:
    handle = await deployed.client.submit("tagged.goal", {"customer": "Initech", "amount": 40}, session_id="tags")
    other = await deployed.client.submit("tagged.goal", {"customer": "Hooli", "amount": 7}, session_id="tags")
    await page.evaluate("location.hash = '#/plans?session_id=tags'")
    await expect(page.locator(".plans tbody tr")).to_have_count(2)
    await expect(row(page, handle.plan_id).locator(".c-attributes")).to_have_text("customer=Initech, amount=40")
    await page.get_by_label("Columns").fill("amount, customer")
    await page.get_by_label("Columns").press("Enter")
    await expect(row(page, other.plan_id).locator(".c-attribute")).to_have_text(["7", "Hooli"])
    await page.get_by_label("Attribute", exact=True).fill("customer=Initech")
    await page.get_by_label("Attribute", exact=True).press("Enter")
    await expect(row(page, other.plan_id)).to_have_count(0)
    await page.reload()  # the address has the filter, the browser the columns
    await expect(row(page, handle.plan_id).locator(".c-attribute")).to_have_text(["40", "Initech"])
    await page.get_by_label("Columns").fill("")
    await page.get_by_label("Columns").press("Enter")
    await expect(page.locator(".c-attribute")).to_have_count(0)


async def test_the_list_shows_what_plans_wait_for_and_how_they_ended(page: Page, deployed: Deployed) -> None:
    waiting = await deployed.plan(501, session_id="rows")
    await page.evaluate("location.hash = '#/plans?session_id=rows'")
    await expect(row(page, waiting).locator(".c-outcome")).to_have_text("notification.human_input")
    await expect(row(page, waiting).locator(".c-took")).to_have_attribute("data-since", re.compile(r"^\d+$"))
    await deployed.client.plan(waiting).signal("refund.decided", {"approved": True})
    await expect(row(page, waiting).locator(".c-outcome")).to_contain_text('"known":true')
    await expect(row(page, waiting).locator(".c-took")).not_to_have_attribute("data-since", re.compile("."))
    failed = await deployed.plan(502, session_id="rows")
    await deployed.client.plan(failed).cancel("no longer wanted")
    await expect(row(page, failed).locator(".c-outcome")).to_contain_text("no longer wanted")


async def test_ids_that_differ_in_their_ends_can_be_told_apart_in_the_list(page: Page, deployed: Deployed) -> None:
    ids = [f"{'a' * 60}:1-{n}" for n in (10, 11)]
    for each in ids:
        await deployed.plan(10, session_id="ends", correlation_id=each)
    for width in (1440, 1024, 390):
        await page.set_viewport_size({"width": width, "height": 800})
        await page.evaluate("location.hash = '#/plans?session_id=ends'")
        for each in ids:
            link = row(page, each).locator(".c-plan a")
            await expect(link).to_have_text(each)
            end, cell = link.locator("span").last, row(page, each).locator(".c-plan")
            await expect(end).to_have_text(each[-6:])
            shown, room = await box(end), await box(cell)
            assert shown["x"] + shown["width"] <= room["x"] + room["width"] + 1


@pytest.mark.parametrize("width", [1440, 1024])
async def test_no_column_of_the_list_is_too_narrow_to_read(page: Page, deployed: Deployed, width: int) -> None:
    plan_id = await deployed.plan(10, session_id="narrow", tenant_id="acme", user_id="ada")
    tags = {"customer": "Initech"}
    tagged = await deployed.client.submit("tagged.goal", tags, session_id="narrow", tenant_id="acme")
    await page.set_viewport_size({"width": width, "height": 800})
    await page.evaluate("location.hash = '#/plans?session_id=narrow'")
    await expect(row(page, plan_id)).to_be_visible()
    await expect(row(page, tagged.plan_id)).to_be_visible()
    wide = "cells => cells.filter((cell) => cell.offsetParent).map((cell) => [cell.textContent, cell.clientWidth])"
    for name, size in await page.locator(".plans th").evaluate_all(wide):
        assert size >= 60, name


async def test_plans_are_found_by_the_time_of_their_creation(page: Page, deployed: Deployed) -> None:
    plan_id = await deployed.plan(9, session_id="dates")
    await page.evaluate("location.hash = '#/plans?session_id=dates'")
    await expect(row(page, plan_id)).to_be_visible()
    await page.get_by_label("Created from").fill("2099-01-01T00:00")
    await expect(page.get_by_text("No matching plans")).to_be_visible()
    await page.get_by_label("Created from").fill("2020-01-01T00:00")
    await expect(row(page, plan_id)).to_be_visible()
    await page.get_by_label("Created before").fill("2020-01-02T00:00")
    await expect(row(page, plan_id)).to_have_count(0)
    await page.reload()
    await expect(page.get_by_label("Created before")).to_have_value("2020-01-02T00:00")
    await page.get_by_role("button", name="Clear", exact=True).click()
    await expect(page.get_by_label("Created before")).to_have_value("")


async def test_pages_of_the_list_follow_each_other(page: Page, deployed: Deployed) -> None:
    for n in range(27):
        await deployed.client.submit("refund.goal", {"amount": n, "customer": "Ada"}, session_id="pages")
    await page.evaluate("localStorage.setItem('plancast.rows', '25')")
    await page.goto(f"{deployed.url}/#/plans?session_id=pages")
    await page.reload()
    await expect(page.locator(".pager-range")).to_have_text("1–25 of 27")

    await page.get_by_role("button", name="Older").click()
    await expect(page.locator(".pager-range")).to_have_text("26–27 of 27")
    await expect(page.locator(".plans tbody tr")).to_have_count(2)
    await page.get_by_role("button", name="Newer").click()
    await expect(page.locator(".pager-range")).to_have_text("1–25 of 27")


async def test_the_list_is_sorted_by_its_columns_and_searched_in_goal_data(page: Page, deployed: Deployed) -> None:
    plans = [
        await deployed.plan(700 + n, customer=f"Noether {n}", tenant_id=f"sorted-{n}", session_id="sorted")
        for n in (1, 0, 2)
    ]
    await page.evaluate("location.hash = '#/plans?session_id=sorted'")
    rows = page.locator(".plans tbody tr")
    keys = "rows => rows.map((row) => row.dataset.key)"
    await expect(rows).to_have_count(3)
    tenant = page.get_by_role("columnheader", name="Tenant")
    await tenant.get_by_role("button").click()
    await expect(tenant).to_have_attribute("aria-sort", "descending")
    await expect(rows.first).to_have_attribute("data-key", plans[2])
    await tenant.get_by_role("button").click()
    await expect(tenant).to_have_attribute("aria-sort", "ascending")
    await expect(rows.first).to_have_attribute("data-key", plans[1])
    assert await rows.evaluate_all(keys) == [plans[1], plans[0], plans[2]]
    await expect(page).to_have_url(re.compile("sort=tenant&order=asc"))
    await expect(page.get_by_role("button", name="Next")).to_be_visible()

    late = await deployed.plan(703, tenant_id="sorted-05", session_id="sorted")  # belongs between two rows
    await page.get_by_role("button", name="Many plans have changed").click()
    await expect(rows.nth(1)).to_have_attribute("data-key", late)

    await page.get_by_label("Goal data").fill("noether 2")  # the panel is open, as it filters by session
    await page.keyboard.press("Tab")
    await expect(rows).to_have_count(1)
    await expect(rows.first).to_have_attribute("data-key", plans[2])
    await expect(page.locator(".notice")).to_contain_text("Searched the data of the 4 plans updated last")


async def test_the_graph_shows_the_way_that_was_taken(page: Page, deployed: Deployed) -> None:
    plan_id = await deployed.plan(800)
    await show(page, plan_id)

    await expect(page.locator('.node[data-node="approving"]')).to_have_class(re.compile("current"))
    await expect(page.locator('.node[data-node="checking"]')).to_have_class(re.compile("visited"))
    await expect(page.locator('.node[data-node="done"]')).not_to_have_class(re.compile("visited"))
    await expect(page.locator("path.edge.taken")).to_have_count(2)
    await expect(page.locator("path.edge.open")).to_have_count(2)
    await expect(page.locator(".turn")).to_have_count(2)

    await page.locator('.node[data-node="approving"]').click()
    await expect(page.locator(".turn.marked .turn-event")).to_have_text("refund.check.completed")


async def test_labels_of_a_graph_do_not_cross(page: Page) -> None:
    states = ["start", "checking", "approving", "paying", "paid", "refused", "shipping", "returned"]
    graphs = []
    for seed in range(40):
        chance = random.Random(seed)
        edges = [
            (source, target) for source in states for target in chance.sample(states, 2 + seed % 2) if source != target
        ]
        edges += [("checking", "approving"), ("checking", "approving"), ("approving", "refused")] * (seed % 2)
        places, width, height = place(states, edges)
        nodes = [{"id": name, "label": name, "x": x, "y": y, "visited": 0} for name, (x, y) in places.items()]
        labels = ["order.checked [event.data.amount > 100]", "payment.failed", "refund.decided"]
        lines = [{"source": source, "target": target, "label": labels[n % 3], "taken": n % 2}
                 for n, (source, target) in enumerate(edges)]  # fmt: skip
        graphs.append({"kind": "machine", "nodes": nodes, "edges": lines, "width": width, "height": height})
    crossings = """async (graphs) => {
      const { routed } = await import("./js/graph.js");
      const clear = (a, b, at, size) => Math.abs(a[at] - b[at]) >= (a[size] + b[size]) / 2;
      const apart = (a, b) => clear(a, b, "x", "width") || clear(a, b, "y", "height");
      return graphs.map((graph) => {
        const { placed, labels } = routed(graph);
        const spots = [...placed.values(), ...labels.map((each) => each.spot)];
        return labels.length === graph.edges.length
          && spots.flatMap((a, n) => spots.slice(n + 1).filter((b) => !apart(a, b))).length === 0;
      });
    }"""
    clean = await page.evaluate(crossings, graphs)
    assert [seed for seed, each in enumerate(clean) if not each] == []


async def test_what_is_under_way_is_shown_as_it_is_reported(page: Page, deployed: Deployed) -> None:
    plan_id = await deployed.plan(500, session_id="under way")
    handle = deployed.client.plan(plan_id)
    while not (requests := (await handle.state())["requests"]):
        await asyncio.sleep(0.05)
    (asked,) = (OpenRequest.read(value).event_type for value in requests.values())
    await show(page, plan_id)
    running = page.get_by_role("region", name="Running tasks")
    await expect(running).to_be_hidden()
    notes = deployed.client.bus.progress
    about = {"task": "t", "event_type": asked, "attempt": 1}
    await notes.put(plan_id, pack({**about, "kind": "progress", "fraction": 0.4, "message": f"{HOSTILE} asks"}))
    await notes.put(plan_id, pack({**about, "kind": "chunk", "chunk": "first ", "number": 0}))
    await notes.put(plan_id, pack({**about, "kind": "chunk", "chunk": HOSTILE, "number": 1}))
    await expect(running).to_contain_text("40 %")
    await expect(running).to_contain_text(f"{HOSTILE} asks")
    await expect(running.locator(".output")).to_have_text(f"first {HOSTILE}")
    said = {"task": "d", "event_type": "decider", "attempt": 1, "kind": "tokens", "number": 0}
    await notes.put(plan_id, pack({**said, "chunk": '{"reasoning": '}))
    await expect(running).to_contain_text("decides")
    await handle.signal("refund.decided", {"approved": True})
    await expect(running).to_be_hidden()


async def test_an_unknown_effect_is_resolved_here_and_undone_with_its_plan(page: Page, deployed: Deployed) -> None:
    invoice = f"{HOSTILE}-7"
    handle = await deployed.client.submit("payment.goal", {"invoice": invoice}, session_id="effects")
    await page.evaluate("location.hash = '#/approvals'")
    card = page.get_by_role("region", name="Effects to decide about").locator(".card", has_text=handle.plan_id)
    await expect(card.locator(".badge")).to_have_text("unknown")
    await expect(card).to_contain_text(invoice)
    await expect(page.locator('#nav [data-page="approvals"] .nav-count')).to_be_visible()
    await card.get_by_role("button", name="It was done").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Result").fill("{")
    await dialog.get_by_role("button", name="It was done").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("Result is not JSON")
    await dialog.get_by_label("Result").fill('{"charge": "c-1"}')
    async with page.expect_request("**/effects/*") as sent:
        await dialog.get_by_role("button", name="It was done").click()
    assert (await sent.value).post_data_json == {"outcome": "done", "about": 1, "result": {"charge": "c-1"}}
    await expect(card).to_have_count(0)
    assert await handle.result(timeout=60) == {"paying": {"charge": "c-1"}}

    await show(page, handle.plan_id, "?tab=effects")
    effect = page.locator(".effect-list li")
    await expect(effect.locator(".badge")).to_have_text("done")
    await expect(effect).to_contain_text(invoice)
    await page.get_by_role("button", name="Roll back").click()
    await dialog.get_by_label("Reason").fill("withdrawn")
    await dialog.get_by_role("button", name="Roll back").click()
    await expect(effect.locator(".badge")).to_have_text("undone")
    await expect(page.locator(".banner.bad")).to_contain_text("rolled_back: withdrawn")
    await expect(page.get_by_role("button", name="Roll back")).to_have_count(0)
    [turn] = [each for each in await handle.history() if each["event"]["type"] == "plan.resolve_effect"]
    assert turn["event"]["user_id"].startswith("local:")
    assert await page.title() != "taken over"


async def test_what_is_approved_here_goes_on_in_the_name_of_who_approved(page: Page, deployed: Deployed) -> None:
    plan_id = await deployed.plan(900, customer="Hopper")
    user = await page.locator(".who").inner_text()
    await page.get_by_role("link", name="Approvals").click()
    card = page.locator(".card", has_text=plan_id)
    await expect(card).to_contain_text("Refund 900 to Hopper?")

    await card.get_by_role("button", name="Approve").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text(f"as {user}")
    await dialog.get_by_label("Reason").fill("She has the receipt")
    await dialog.get_by_role("button", name="Approve").click()

    await expect(card).to_have_count(0)
    await show(page, plan_id)
    await expect(page.locator(".plan-title .badge")).to_have_text("completed")
    decided = page.locator(".turn", has_text="refund.decided")
    await expect(decided.locator(".who-did")).to_have_text(f"by {user}")
    await decided.get_by_text("Details").click()
    await expect(decided).to_contain_text("She has the receipt")


async def test_an_answer_is_a_form_of_its_schema_with_what_is_asked_beside_it(page: Page, deployed: Deployed) -> None:
    plan_id = await deployed.plan(910, customer="Noether", tenant_id="forms")
    await page.get_by_role("link", name="Approvals").click()
    card = page.locator(".card", has_text=plan_id)
    await expect(card.locator(".card-amount")).to_have_text("910")
    await expect(card.locator(".card-data")).to_contain_text("Noether")
    await expect(card).to_contain_text("A person's word on a refund")
    await card.get_by_role("button", name="Reject").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("The plan goes on with the answer")
    await dialog.get_by_label("Reason").fill("No receipt")
    await dialog.get_by_label("Limit").fill("0")
    await dialog.get_by_label("method").select_option("card")
    await dialog.get_by_label("express").select_option("no")
    await dialog.get_by_label("note").fill("Sorry")
    await dialog.get_by_role("button", name="Reject").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("body.data.limit")  # the form keeps its values
    await dialog.get_by_label("Limit").fill("3")
    await dialog.get_by_role("button", name="Reject").click()
    await expect(card).to_have_count(0)
    state = await deployed.client.plan(plan_id).state()
    assert {**state["results"]["approving"], "by": ""} == {
        "approved": False, "by": "", "reason": "No receipt", "limit": 3, "method": "card", "express": False,
        "note": "Sorry",
    }  # fmt: skip


class Method(StrEnum):
    CASH = "cash"
    CARD = "card"


class Place(BaseModel):
    zip_code: str
    country: str | None = None


class Terms(BaseModel):
    """The schema of an answer as pydantic writes it: with references, bounds that are excluded, and nulls."""

    approved: bool
    method: Method
    other: Method | None = None
    limit: int = Field(gt=0, le=1000, title="Limit", description="In euro")
    pay_on: date
    tags: list[str] = Field(default_factory=list, max_length=3)
    place: Place | None = None
    lines: list[Place] = Field(default_factory=list)
    reason: str = Field(min_length=3)


async def test_a_model_of_pydantic_is_a_form_with_a_field_for_each_of_its_values(page: Page) -> None:
    sent: list[Any] = []

    async def answered(route: Route) -> None:
        sent.append(route.request.post_data_json)
        await route.fulfill(status=202, json={"plan_id": "p", "outcome": "moved"})

    await page.route("**/plans/p/approve", answered)
    asked = {"plan_id": "p", "reason": "Pay?", "expected_event": "e", "request_id": "p:1-0"}
    asked["answer_schema"] = Terms.model_json_schema()
    await page.evaluate("async (asked) => { (await import('./js/actions.js')).approve(asked) }", asked)
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Approve").click()
    await expect(dialog.get_by_role("alert")).to_have_text("Give a reason.")
    await dialog.get_by_label("Reason").fill("As agreed")
    await dialog.get_by_role("button", name="Approve").click()
    await expect(dialog.get_by_role("alert")).to_have_text("Method is needed.")
    await dialog.get_by_label("method").select_option("card")
    await expect(dialog.get_by_label("other")).to_have_text("–cashcard")
    await expect(dialog.locator(".field", has_text="Limit").locator(".hint")).to_have_text(
        "In euro; more than 0, at most 1000"
    )
    await dialog.get_by_label("Limit").fill("3")
    await dialog.get_by_label("pay on").fill("2026-12-31")
    await dialog.get_by_label("tags").fill("new\n two words \n")
    await dialog.get_by_label("place · zip code").fill("8000")
    await dialog.get_by_label("lines").fill('[{"zip_code": "1"}]')
    await dialog.get_by_role("button", name="Approve").click()
    await expect(dialog).to_have_count(0)
    [answer] = sent
    assert answer["request_id"] == "p:1-0"
    assert Terms.model_validate(answer["data"] | {"approved": True, "reason": answer["reason"]}).model_dump(
        mode="json", exclude_none=True
    ) == {
        "approved": True, "method": "card", "limit": 3, "pay_on": "2026-12-31", "tags": ["new", "two words"],
        "place": {"zip_code": "8000"}, "lines": [{"zip_code": "1"}], "reason": "As agreed",
    }  # fmt: skip


@pytest.mark.parametrize("height", [844, 500])
async def test_the_buttons_of_a_long_form_and_its_faults_are_in_view(page: Page, height: int) -> None:
    await page.set_viewport_size({"width": 390, "height": height})
    asked = {"plan_id": "p", "reason": "Pay?", "expected_event": "e", "answer_schema": Terms.model_json_schema()}
    await page.evaluate("async (asked) => { (await import('./js/actions.js')).approve(asked) }", asked)
    dialog = page.get_by_role("dialog")
    approve = dialog.get_by_role("button", name="Approve")
    await expect(approve).to_be_in_viewport(ratio=1)
    assert await dialog.evaluate("each => each.scrollHeight > each.clientHeight && each.scrollTop === 0")
    await approve.click()
    await expect(dialog.get_by_role("alert")).to_be_in_viewport(ratio=1)
    await expect(approve).to_be_in_viewport(ratio=1)


async def test_an_approval_says_its_amount_to_the_last_digit(page: Page) -> None:
    asked = {"reason": "Pay?", "can_refuse": True, "timeout_at": None, "since": None, "assignee": "", "payload": {}}
    plan = {"goal_event": "pay.goal", "status": "waiting", "current_state": "ask"}
    amounts = {"p1": (1234567.89, "1,234,567.89"), "p2": (0.5, "0.5"), "p3": ("19.90", "19.90"), "p4": ("many", None)}
    items = [
        asked | {"plan": plan | {"plan_id": name}, "goal_data": {"amount": amount, "to": "Ada"}}
        for name, (amount, _) in amounts.items()
    ]
    answer = {"items": items, "next": None, "total": len(items), "users": []}
    await page.route(re.compile(r"/approvals\?"), lambda route: route.fulfill(json=answer))
    await page.evaluate("location.hash = '#/approvals'")
    for name, (_, shown) in amounts.items():
        place = page.locator(".card", has_text=name).locator(".card-amount")
        await expect(place).to_have_text([shown] if shown is not None else [])


async def test_a_plan_that_waits_for_much_shows_some_of_it_and_its_deadline(page: Page, deployed: Deployed) -> None:
    plan_id = await deployed.plan(912)
    wait = {"event_type": "e", "since": None, "timeout_at": None, "kind": "child", "request": "", "plan_id": "c",
            "attempt": 1}  # fmt: skip
    approval = {"timeout_at": "2020-01-01T00:00:00Z", "description": "A person's word"}
    many: dict[str, Any] = {}

    async def shown(route: Route) -> None:
        found = await (await route.fetch()).json()
        found["approval"] = found["approval"] | approval if not many else None
        await route.fulfill(json=found | many)

    await page.route(re.compile(f"/plans/{plan_id}$"), shown)
    await show(page, plan_id)
    await expect(page.locator(".banner.ask")).to_contain_text("overdue")
    await expect(page.locator(".banner.ask")).to_contain_text("A person's word")
    many["waiting_for"] = [wait] * 60
    await page.reload()
    await expect(page.locator(".banner.wait li:visible")).to_have_count(5)
    await page.get_by_text("and 55 more").click()
    await expect(page.locator(".banner.wait li:visible")).to_have_count(60)


async def test_an_answer_that_the_plan_has_not_taken_is_no_approval(page: Page, deployed: Deployed) -> None:
    plan_id = await deployed.plan(911, customer="Late")
    await show(page, plan_id)
    outcome = {"plan_id": plan_id, "event_id": "e", "outcome": "ignored"}
    await page.route(re.compile("/approve$|/signal$"), lambda route: route.fulfill(status=202, json=outcome))
    dialog = page.get_by_role("dialog")
    await page.get_by_label("Waits for approval").get_by_role("button", name="Approve").click()
    await dialog.get_by_role("button", name="Approve").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("it was answered before, or waits for another user")
    await dialog.get_by_role("button", name="Back").click()
    await page.get_by_role("button", name="Signal").click()
    await dialog.get_by_role("button", name="Send").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("Nothing in this plan waits for refund.decided")


async def test_approvals_are_searched_assigned_and_answered_together(
    page: Page, context: BrowserContext, deployed: Deployed
) -> None:
    plans = [await deployed.plan(800 + n, customer=f"Curie{n}", tenant_id="many") for n in range(3)]
    other = await deployed.plan(808, customer="Bohr", tenant_id="many")
    await page.evaluate("location.hash = '#/approvals?tenant_id=many'")
    await expect(page.locator(".card")).to_have_count(4)
    await page.keyboard.press("/")
    await page.keyboard.type("curie")
    await expect(page.locator(".card")).to_have_count(3)
    await expect(page).to_have_url(re.compile("text=curie"))
    await page.keyboard.press("Escape")

    another = await context.new_page()  # somebody else, who looks at the same list
    await another.goto(deployed.link)
    await another.evaluate("location.hash = '#/approvals?tenant_id=many'")
    await expect(another.locator(".card")).to_have_count(4)
    await page.keyboard.press("j")
    await page.keyboard.press("m")
    user = await page.locator(".who").inner_text()
    await expect(another.locator(".card", has_text=plans[2]).locator(".assignee")).to_have_text(user)
    await another.get_by_label("Assigned to").select_option("@me")
    await expect(another.locator(".card")).to_have_count(1)
    await another.close()

    for key in ("s", "j", "s", "j", "s"):
        await page.keyboard.press(key)
    await expect(page.locator(".bulk")).to_contain_text("3 selected")
    await page.keyboard.press("y")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("3 plans get the same answer")
    await dialog.get_by_label("Reason").fill("All of them")
    await dialog.get_by_role("button", name="Approve 3").click()
    await expect(page.locator(".card")).to_have_count(0)
    for plan_id in plans:
        await deployed.until(plan_id, "done")
        results = (await deployed.client.plan(plan_id).state())["results"]
        assert results["approving"] == {"approved": True, "by": user, "reason": "All of them"}
    assert (await deployed.client.plan(other).state())["current_state"] == "approving"


async def test_a_plan_is_cancelled_with_a_reason_and_ends_before_ones_eyes(page: Page, deployed: Deployed) -> None:
    plan_id = await deployed.plan(901)
    await show(page, plan_id)
    await page.get_by_role("group", name="Actions").get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")

    await dialog.get_by_role("button", name="Cancel the plan").click()
    await expect(dialog.get_by_role("alert")).to_have_text("Give a reason.")
    await dialog.get_by_label("Reason").fill("ordered twice")
    await dialog.get_by_role("button", name="Cancel the plan").click()

    await expect(page.locator(".plan-title .badge")).to_have_text("cancelled")
    await expect(page.locator(".banner.bad")).to_contain_text("ordered twice")
    await expect(page.locator(".turn").last.locator(".who-did")).to_be_visible()
    await expect(page.get_by_role("button", name="Try again")).to_be_visible()


async def test_a_plan_is_held_signalled_and_tried_again(page: Page, deployed: Deployed) -> None:
    plan_id = await deployed.plan(902)
    await show(page, plan_id)
    can = page.get_by_role("group", name="Actions")
    dialog = page.get_by_role("dialog")

    await can.get_by_role("button", name="Pause").click()
    await dialog.get_by_role("button", name="Pause").click()
    await expect(page.locator(".plan-title .badge")).to_have_text("paused")
    await can.get_by_role("button", name="Resume").click()
    await dialog.get_by_role("button", name="Resume").click()
    await expect(page.locator(".plan-title .badge")).to_have_text("waiting")

    await can.get_by_role("button", name="Signal").click()
    await expect(dialog.get_by_label("Event")).to_have_value("refund.decided")
    await dialog.get_by_label("Data").fill("{not json")
    await dialog.get_by_role("button", name="Send").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("Data is not JSON")
    await dialog.get_by_label("Data").fill('{"approved": false}')
    await dialog.get_by_role("button", name="Send").click()
    await expect(page.locator(".toasts")).to_contain_text("The plan has taken the event.")
    await expect(page.locator(".plan-title .badge")).to_have_text("completed")

    failed = await deployed.plan(903)
    await deployed.client.plan(failed).cancel("for the test")
    await show(page, failed)
    await page.get_by_role("button", name="Try again").click()
    await dialog.get_by_role("button", name="Try again").click()
    await expect(page.locator(".plan-id")).not_to_contain_text(failed)
    await expect(page.locator(".turn").first).to_contain_text("refund.goal")


async def test_the_result_stands_at_the_top_of_a_plan(page: Page, deployed: Deployed) -> None:
    plan_id = await deployed.plan(6)
    await show(page, plan_id)
    result = page.get_by_role("region", name="Result")
    await expect(result).to_contain_text('"known": true')
    facts, shown = await box(page.locator(".facts")), await box(result)
    assert shown["y"] < facts["y"]


async def test_data_stands_side_by_side_between_turns(page: Page, deployed: Deployed) -> None:
    plan_id = await deployed.plan(3)
    await show(page, plan_id)
    await page.get_by_role("tab", name="Data").click()

    await expect(page.locator(".diff-head")).to_contain_text("After turn 2")
    came = page.locator(".diff-row.added .right, .diff-row.changed .right")
    await expect(came.filter(has_text='"known": true')).not_to_have_count(0)
    await page.get_by_role("button", name="Previous turn").click()
    await expect(page.locator(".diff-head")).to_contain_text("Before the first turn")
    await expect(came.filter(has_text='"customer": "Grace"')).not_to_have_count(0)


async def test_children_stand_under_their_parent_and_lead_there(page: Page, deployed: Deployed) -> None:
    parent = await deployed.client.submit("claim.goal", {"amount": 907, "customer": "Lamarr"})
    await deployed.until(parent.plan_id, "refunding")
    await show(page, parent.plan_id)
    await expect(page.locator(".banner.wait")).to_contain_text("a child plan")
    await page.get_by_role("tab", name="Family").click()
    child = page.locator(".tree-plan", has_text="refund.goal").get_by_role("link")
    name = await child.inner_text()
    await child.click()
    await expect(page.locator(".plan-id")).to_contain_text(name)
    await page.locator(".crumbs").get_by_role("link", name=parent.plan_id).click()
    await expect(page.locator(".plan-title")).to_contain_text("claim.goal")


async def test_a_goal_is_submitted_from_the_page(page: Page, deployed: Deployed) -> None:
    await page.get_by_role("button", name="New plan").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Goal").select_option("refund.goal")
    await dialog.get_by_label("Data").fill('{"amount": 12, "customer": "Noether"}')
    await dialog.get_by_label("Session").fill("by-hand")
    await dialog.get_by_role("button", name="Submit").click()
    await expect(page.locator(".plan-title .badge")).to_have_text("completed")
    await expect(page.locator(".turn").first.locator(".who-did")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.locator("tr", has_text="by-hand")).to_have_count(1)


async def test_of_a_long_timeline_the_newest_turns_come_first(page: Page, deployed: Deployed) -> None:
    plan_id = await deployed.plan(908)
    handle = deployed.client.plan(plan_id)
    for n in range(60):
        await handle.pause(f"reason {n}")
        await handle.resume({})
    await handle.signal("refund.decided", {})
    await deployed.until(plan_id, "done")
    await show(page, plan_id)
    await expect(page.locator(".turn")).to_have_count(100)
    await expect(page.locator(".turn").last).to_contain_text("refund.decided")
    await page.get_by_role("button", name="Show earlier turns").click()
    await expect(page.locator(".turn").first).to_contain_text("refund.goal")
    await page.get_by_role("button", name="Oldest first").click()
    await expect(page.locator(".turn").first).to_contain_text("refund.decided")


async def test_a_history_is_run_again_and_a_plan_begun_where_one_stood(page: Page, deployed: Deployed) -> None:
    plan_id = await deployed.plan(909)
    await show(page, plan_id)
    dialog = page.get_by_role("dialog")
    await page.get_by_role("button", name="Replay").click()
    await dialog.get_by_role("button", name="Replay").click()
    await expect(dialog).to_contain_text("All of 2 turns gave the same result")
    await dialog.get_by_role("button", name="Close").click()

    await page.locator(".turn").first.get_by_text("Details").click()
    await page.get_by_role("button", name="Fork from here").click()
    await expect(dialog.get_by_label("After turn")).to_have_value("1")
    await dialog.get_by_label("Changes to the goal's data").fill('{"amount": 910}')
    await dialog.get_by_role("button", name="Fork").click()
    await expect(page.locator(".plan-id")).not_to_contain_text(plan_id)
    await expect(page.locator(".plan-title")).to_contain_text("refund.goal")


async def test_requests_can_be_tried_on_the_page_of_the_api(page: Page, deployed: Deployed) -> None:
    plan_id = await deployed.plan(914)
    await page.goto(f"{deployed.url}/docs")

    async def opened(method: str, path: str) -> Locator:
        operation = page.locator(f"details[data-method={method}][data-path='/api/v1{path}']")
        await operation.locator("summary").click()
        return operation

    operation = await opened("get", "/plans/{plan_id}/status")
    await operation.get_by_role("button", name="Send").click()
    await expect(operation.get_by_label("Response")).to_have_text("plan_id is required.")
    await operation.get_by_label("plan_id").fill(plan_id)
    await operation.get_by_role("button", name="Send").click()
    await expect(operation.get_by_label("Response")).to_contain_text(f'"plan_id": "{plan_id}"')

    operation = await opened("get", "/plans/{plan_id}/stream")
    await operation.get_by_label("plan_id").fill(plan_id)
    await operation.get_by_role("button", name="Send").click()
    await expect(operation.get_by_label("Response")).to_contain_text("event: status")
    operation = await opened("post", "/plans/{plan_id}/signal")
    await operation.get_by_label("plan_id").fill(plan_id)
    await expect(operation.get_by_label("Body")).to_have_value(re.compile('"event_type": ""'))
    await operation.get_by_label("Body").fill('{"event_type": "refund.decided", "data": {"approved": true}}')
    await operation.get_by_role("button", name="Send").click()
    await expect(operation.get_by_label("Response")).to_contain_text("202")
    await deployed.until(plan_id, "done")  # the session is enough, and the write is not a cross-site one

    await operation.get_by_role("link", name="Signal", exact=True).click()
    await expect(page.locator("#Signal table")).to_be_visible()
    assert "``" not in await page.content()

    await page.context.clear_cookies()
    await operation.get_by_role("button", name="Send").click()
    await expect(operation.get_by_role("link", name="Sign in")).to_be_visible()
    await page.set_viewport_size(PHONE)
    assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


async def test_a_fork_is_a_button_that_says_what_it_does(page: Page, deployed: Deployed) -> None:
    plan_id = await deployed.plan(912)
    await show(page, plan_id)
    buttons, dialog = page.get_by_role("group", name="Actions"), page.get_by_role("dialog")
    await buttons.get_by_role("button", name="Fork").click()
    await expect(dialog).to_contain_text("Requests that were open then are sent again")
    await expect(dialog.get_by_label("After turn")).to_have_value("2")
    await dialog.get_by_label("After turn").fill("9")
    await dialog.get_by_role("button", name="Fork").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("9")  # there was no such turn
    await dialog.get_by_label("After turn").fill("1")
    await dialog.get_by_role("button", name="Fork").click()
    await expect(page.locator(".plan-id")).not_to_contain_text(plan_id)

    await deployed.client.plan(plan_id).signal("refund.decided", {"approved": True})
    await deployed.until(plan_id, "done")
    await show(page, plan_id)
    await buttons.get_by_role("button", name="Fork").click()
    await expect(dialog.get_by_label("After turn")).to_have_value("2")  # nothing is left to do after the third
    await dialog.get_by_role("button", name="Back").click()


async def test_who_may_only_read_sees_no_buttons_that_write(page: Page, deployed: Deployed) -> None:
    plan_id = await deployed.plan(913)
    reader = {"user": "eve", "auth": "token", "writable": False}
    await page.route(re.compile(r"/api/v1/session$"), lambda route: route.fulfill(json=reader))
    await page.reload()
    await show(page, plan_id)
    await expect(page.locator(".banner.ask")).to_contain_text("Your token allows reading only")
    await page.locator(".turn").first.get_by_text("Details").click()
    await expect(page.get_by_role("button", name="Show changes")).to_be_visible()
    for name in ("Fork", "Replay", "Cancel", "Approve"):
        await expect(page.get_by_role("button", name=name)).to_have_count(0)


async def test_a_plan_is_shown_on_a_time_axis(page: Page, deployed: Deployed) -> None:
    plan_id = await deployed.plan(911)
    await show(page, plan_id)
    await page.keyboard.press("t")
    spans = page.get_by_role("table", name="Time axis").get_by_role("row")
    await expect(spans.filter(has_text="2 turns")).to_be_visible()
    task, approving = spans.filter(has_text="refund.check.requested"), spans.filter(has_text="approving")
    await expect(task).to_contain_text("task")
    await expect(approving).to_contain_text("state · goes on")
    short = await approving.evaluate("""row => {
      const [track, bar] = [".span-track", ".span-bar"].map((each) => row.querySelector(each).getBoundingClientRect());
      return track.right - bar.right;
    }""")
    assert abs(short) < 4  # the bar ends where the axis does

    await deployed.client.plan(plan_id).signal("refund.decided", {"approved": True})
    await expect(spans.filter(has_text="3 turns")).to_be_visible()
    await expect(approving).not_to_contain_text("goes on")
    await task.get_by_role("button").click()
    await expect(page.get_by_role("tab", name="Way")).to_have_attribute("aria-selected", "true")
    await expect(page.locator(".turn.marked .turn-number")).to_have_text("#1")


async def test_of_two_texts_side_by_side_each_can_be_read_whole(page: Page) -> None:
    compare = """async () => {
      const { changes, folded } = await import("./js/lines.js");
      const below = (n) => Math.floor(Math.random() * n);
      const text = () => Array.from({ length: below(30) }, () => "abc"[below(3)]);
      const faults = [];
      for (let n = 0; n < 500; n += 1) {
        const [left, right] = [text(), text()];
        const rows = changes(left, right);
        const read = (side) => rows.map((row) => row[side]).filter((line) => line !== null).join("");
        const unfolded = folded(rows).flatMap((row) => row.rows ?? [row]);
        const honest = rows.every((row) => (row.kind === "same") === (row.left === row.right));
        if (read("left") !== left.join("") || read("right") !== right.join("")) faults.push([left, right]);
        else if (JSON.stringify(unfolded) !== JSON.stringify(rows) || !honest) faults.push([left, right]);
      }
      return faults;
    }"""
    assert await page.evaluate(compare) == []


async def test_what_a_plan_says_is_text_and_never_html(page: Page, deployed: Deployed) -> None:
    plan_id = await deployed.plan(904, customer=HOSTILE, session_id=HOSTILE, tenant_id="acme")
    await expect(row(page, plan_id).locator(".c-session")).to_have_text(HOSTILE)
    await show(page, plan_id)
    await expect(page.locator(".banner.ask")).to_contain_text(HOSTILE)
    for tab in ("Data", "Family", "Way"):
        await page.get_by_role("tab", name=tab).click()
    await page.locator(".turn").first.get_by_text("Details").click()
    await expect(page.locator(".turn").first.locator("pre").first).to_contain_text("onerror")
    await page.get_by_role("link", name="Approvals").click()
    await expect(page.locator(".card", has_text=plan_id)).to_contain_text(HOSTILE)

    assert await page.locator("main img, main script").count() == 0
    assert "taken over" not in await page.title()


async def test_everything_can_be_reached_by_keys(page: Page, deployed: Deployed) -> None:
    older, newer = await deployed.plan(1, session_id="keys"), await deployed.plan(2, session_id="keys")
    search = page.get_by_label("Search plans")
    await page.keyboard.press("/")
    await expect(search).to_be_focused()
    await page.keyboard.type("keys")
    await expect(page).to_have_url(re.compile("text=keys"))
    await expect(page.locator(".plans tbody tr")).to_have_count(2)
    await page.keyboard.press("Escape")
    await expect(search).not_to_be_focused()
    await page.keyboard.press("j")
    await expect(row(page, newer).locator("a")).to_be_focused()
    await page.keyboard.press("j")
    await page.keyboard.press("k")
    await page.keyboard.press("j")
    await expect(row(page, older).locator("a")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator(".plan-id")).to_contain_text(older)
    await expect(page.locator(".turn")).not_to_have_count(0)
    await page.keyboard.press("Escape")
    await expect(row(page, older).locator("a")).to_be_focused()
    for keys, title in (
        ("g a", "Approvals"),
        ("g s", "Schedules"),
        ("g d", "Dead letters"),
        ("g r", "Runtime"),
        ("g u", "Usage and cost"),
    ):
        for key in keys.split():
            await page.keyboard.press(key)
        await expect(page.get_by_role("heading", level=1)).to_have_text(title)
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keys")).to_contain_text("Next item")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_dark_mode_follows_the_system_until_somebody_chooses(page: Page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = await page.evaluate(ground)
    await page.emulate_media(color_scheme="dark")
    dark = await page.evaluate(ground)
    assert dark != light
    await page.get_by_role("button", name=re.compile("^Theme")).click()
    assert await page.evaluate(ground) == light
    await page.reload()
    assert await page.evaluate(ground) == light


async def faint_texts(page: Page) -> list[str]:
    """Return the texts that stay hard to read when nothing loads or fades any more."""
    found: list[str] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20):
            while await page.locator(".loading").count() or (found := await page.evaluate(FAINT_TEXTS)):
                await asyncio.sleep(0.05)
    return found


@pytest.mark.parametrize("colours", ["light", "dark"])
async def test_all_text_has_the_contrast_of_wcag_aa(
    page: Page, deployed: Deployed, colours: Literal["light", "dark"]
) -> None:
    waiting, ended, failed = await deployed.plan(914), await deployed.plan(9), await deployed.plan(915)
    await deployed.client.plan(failed).cancel("ordered twice")
    await page.emulate_media(color_scheme=colours, reduced_motion="reduce")
    places = [f"plans/{waiting}?tab={tab}" for tab in ("way", "time", "data", "effects", "family")]
    places += ["plans?goal=refund.goal", "plans?text=nothing-is-so", f"plans/{ended}", f"plans/{failed}", "plans/none"]
    for where in [*places, "approvals", "schedules", "deadletters", "runtime", "usage"]:
        await page.evaluate("where => { location.hash = where }", f"#/{where}")
        await expect(page.locator("main h1")).to_be_visible()
        assert await faint_texts(page) == [], where

    await show(page, waiting)
    for name, send in (("Signal", "Send"), ("Cancel", "Cancel the plan"), ("Fork", "Fork"), ("Reject", "Reject")):
        await page.locator("main").get_by_role("button", name=name).first.click()
        dialog = page.get_by_role("dialog")
        button = dialog.get_by_role("button", name=send)
        if name in ("Signal", "Cancel"):
            await dialog.locator("textarea").fill("{" if name == "Signal" else "")
            await button.click()
            await expect(dialog.get_by_role("alert")).to_be_visible()
        await button.hover()
        assert await faint_texts(page) == [], name
        await page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)


async def test_a_phone_shows_every_page_without_scrolling_sideways(page: Page, deployed: Deployed) -> None:
    plan_id = await deployed.plan(905, customer="a-name-without-a-single-space-in-it" * 5)
    await page.set_viewport_size(PHONE)
    places = [
        "plans",
        f"plans/{plan_id}",
        f"plans/{plan_id}?tab=data",
        f"plans/{plan_id}?tab=family",
        f"plans/{plan_id}?tab=time",
        f"plans/{plan_id}?tab=effects",
        "plans?goal=refund.goal",  # with the filters
    ]
    for where in [*places, "approvals", "schedules", "deadletters", "runtime", "usage"]:
        await page.evaluate("where => { location.hash = where }", f"#/{where}")
        await expect(page.locator("main h1")).to_be_visible()
        await expect(page.locator("main .loading")).to_have_count(0)
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert wide <= PHONE["width"], where
        assert await page.evaluate(CUT_PLACEHOLDERS) == [], where
    await page.get_by_role("link", name="Approvals").click()  # the pages' links are in reach of a thumb
    await expect(page.get_by_role("heading", level=1)).to_have_text("Approvals")


async def test_dead_letters_can_be_read_and_sent_again(page: Page, deployed: Deployed) -> None:
    subject = "plancast.action-requests.some-plan.refund.goal"
    await put_raw(deployed, subject, b"{this is no JSON")
    await page.get_by_role("link", name="Dead letters").click()
    card = page.locator(".card", has_text=subject).first
    await card.get_by_role("button", name="Show payload").click()
    await expect(page.get_by_role("dialog")).to_contain_text("{this is no JSON")
    await page.get_by_role("button", name="Close").click()
    await expect(card.locator(".card-of")).to_have_text(re.compile(r"^\S+ · 16 B · number \d+$"))
    await card.get_by_role("button", name="Send again").click()
    await page.get_by_role("dialog").get_by_role("button", name="Send again").click()
    await expect(page.locator(".toast")).to_contain_text("sent again")
    await expect(page.locator(".writes")).to_contain_text(await page.locator(".who").inner_text())


async def test_what_runs_and_its_streams_are_shown(page: Page) -> None:
    await page.get_by_role("link", name="Runtime").click()
    await expect(page.locator("main")).to_contain_text("PLANCAST_CHECKPOINTS")
    await expect(page.locator("main")).to_contain_text("dispatcher-0")
    await expect(page.locator("main")).to_contain_text("not connected to Ray")
    await expect(page.get_by_role("heading", name="Hosts")).to_have_count(0)  # Ray alone knows them


async def test_a_server_that_is_away_is_said_and_what_is_shown_stays(page: Page, deployed: Deployed) -> None:
    await page.evaluate("location.hash = '#/plans?session_id=away'")
    plan_id = await deployed.plan(4, session_id="away")
    await expect(row(page, plan_id)).to_be_visible()
    await page.context.set_offline(True)
    await expect(page.locator("#liveness")).to_have_text("Reconnecting")
    await page.get_by_role("button", name="completed").click()
    await expect(page.locator(".stale")).to_be_visible()
    await expect(row(page, plan_id)).to_be_visible()
    await page.context.set_offline(False)
    await expect(page.locator("#liveness")).to_have_text("Live")
    await expect(page.locator(".stale")).to_have_count(0)


async def test_a_page_outlives_its_server_and_shows_what_it_missed(context: BrowserContext, deployed: Deployed) -> None:
    settings = deployed.settings.model_copy(deep=True)
    page = await context.new_page()
    async with ConsoleServer(deployed.bus, settings) as console:
        await page.goto(console.link)
        await expect(page.get_by_role("heading", name="Plans")).to_be_visible()
        await page.goto(f"{console.url}/#/plans?session_id=missed")
        await expect(page.locator("#liveness")).to_have_text("Live")
        await expect(page.get_by_text("No matching plans")).to_be_visible()
        settings.console.port = urlsplit(console.url).port or 0
    await expect(page.locator("#liveness")).to_have_text("Reconnecting")
    plan_id = await deployed.plan(8, session_id="missed")
    async with ConsoleServer(deployed.bus, settings, own_token=console.token):
        await expect(row(page, plan_id)).to_be_visible()
        await expect(page.locator("#liveness")).to_have_text("Live")
        await page.close()


async def test_usage_is_drawn_over_time(page: Page) -> None:
    slots = [{"at": f"2026-01-01T{hour:02}:00:00Z", "decisions": hour, "tokens": 10 * hour, "cost": 0.5 * hour,
              "cached_tokens": 0} for hour in range(3)]  # fmt: skip
    total = {"key": "total", "decisions": 3, "tokens": 30, "cost": 1.5, "cached_tokens": 0}
    model = "some-provider/a-model-with-a-long-name-20260101"
    report = {"items": [total | {"key": model}], "total": total, "plans": 1, "left_out": 0, "slots": slots,
              "slot_seconds": 3600}  # fmt: skip
    await page.route(re.compile(r"/api/v1/usage"), lambda route: route.fulfill(json=report))
    await page.get_by_role("link", name="Usage").click()
    await expect(page.locator(".over-time figcaption")).to_have_text("Cost by hour · at most $1.00")
    heights = await page.locator(".bars li").evaluate_all("bars => bars.map((bar) => bar.clientHeight)")
    assert heights[0] == 0
    assert heights[1] * 2 == pytest.approx(heights[2], abs=2)
    assert heights[2] > 50
    await expect(page.locator(".bars li").nth(1)).to_have_attribute("title", re.compile("10 tokens, 1 decision$"))
    await page.set_viewport_size(PHONE)
    table = page.locator(".table-scroll")
    await expect(table.get_by_role("columnheader", name="Cost")).to_be_visible()
    assert await table.evaluate("place => place.scrollWidth <= place.clientWidth")  # the costs are in view


async def test_loss_and_return_of_nats_are_said_within_three_seconds(context: BrowserContext, tmp_path: Path) -> None:
    settings = Settings()
    settings.console.port = 0
    page = await context.new_page()
    said, pill = page.locator("#outage"), page.locator("#liveness")
    with NatsServer(tmp_path) as server:
        settings.nats.url = server.url
        bus = await connect(settings.nats, settings.bus)
        await bus.ensure_streams()
        async with ConsoleServer(bus, settings) as console:
            await page.goto(console.link)
            await expect(pill).to_have_text("Live")
            await expect(said).to_be_hidden()
            await asyncio.to_thread(server.kill)
            await expect(pill).to_have_text("NATS is gone")
            await expect(said).to_contain_text("NATS does not answer. This page shows what was known at")
            await expect(said).to_contain_text("plancast doctor")
            await asyncio.to_thread(server.start)
            await expect(pill).to_have_text("Live")
            await expect(said).to_be_hidden()
        await expect(said).to_contain_text("The console's server does not answer")
        await bus.close()
    pause, patience, limit = await page.evaluate("""async () => {
      const { PAUSE, PATIENCE, LIMIT } = await import("./js/connection.js");
      return [PAUSE, PATIENCE, LIMIT];
    }""")
    assert patience > PROBE_SECONDS * 1000
    assert pause + patience < limit <= 3000
    await page.close()


async def test_a_plan_that_is_unknown_is_said_to_be(page: Page) -> None:
    await page.evaluate("location.hash = '#/plans/no-such-plan'")
    await expect(page.get_by_role("heading", name="No such plan")).to_be_visible()
    await expect(page.locator("main")).to_contain_text("no-such-plan")


async def test_with_tokens_one_logs_in_and_acts_in_ones_own_name(context: BrowserContext, deployed: Deployed) -> None:
    settings = deployed.settings.model_copy(deep=True)
    settings.console.tokens = {"ada": SecretStr(TOKEN)}
    plan_id = await deployed.plan(906)
    async with ConsoleServer(deployed.bus, settings) as console:
        page = await context.new_page()
        await page.goto(f"{console.url}/#/plans/{plan_id}")
        await page.get_by_label("Your token").fill("not the token of anybody")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_have_text("This token is not valid.")
        await page.get_by_label("Your token").fill(TOKEN)
        await page.get_by_role("button", name="Sign in").click()

        await expect(page.locator(".who")).to_have_text("ada")
        await page.locator(".banner.ask").get_by_role("button", name="Approve").click()
        await page.get_by_role("dialog").get_by_role("button", name="Approve").click()
        await expect(page.locator(".who-did", has_text="by ada")).to_be_visible()

        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_label("Your token")).to_be_visible()
        await page.reload()
        await expect(page.get_by_label("Your token")).to_be_visible()
        await page.close()


async def put_raw(deployed: Deployed, subject: str, payload: bytes) -> None:
    """Publish as a plain NATS client does."""
    import nats

    connection = await nats.connect(deployed.settings.nats.url)
    try:
        await connection.jetstream().publish(subject, payload)
    finally:
        await connection.close()
    while not await deployed.bus.dead_letters.count():
        await asyncio.sleep(0.02)


async def test_schedules_are_listed_paused_and_triggered(page: Page, deployed: Deployed) -> None:
    name = "nightly-refund"
    schedules = deployed.client.schedules
    await schedules.create(name, event_type="refund.goal", data={"amount": 1, "customer": "Ada"}, every=86_400)
    await page.get_by_role("link", name="Schedules").click()
    card = page.locator("li.card").filter(has_text=name)
    await expect(card).to_contain_text("refund.goal, every 86400 s")
    await card.get_by_role("button", name="Pause").click()
    await expect(card.locator(".badge")).to_have_text("paused")
    assert (await schedules.get(name)).paused
    await card.get_by_role("button", name="Resume").click()
    await expect(card.get_by_role("button", name="Pause")).to_be_visible()
    await card.get_by_role("button", name="Trigger").click()
    await page.get_by_role("dialog").get_by_role("button", name="Trigger").click()
    await expect(page.get_by_text("was started")).to_be_visible()
    assert [each.kind for each in await schedules.runs(name)] == ["trigger"]
    await schedules.delete(name)
