"""`plancast effects` and `plancast plans rollback`, over an app on a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from tests.runtime.cli.plans.conftest import Invoke
from tests.runtime.console.desk import PATIENCE, Desk

from plancast import PlanHandle, Settings
from plancast_bus.nats_server.process import NatsServer

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desk(nats_server: NatsServer) -> AsyncIterator[Desk]:
    settings = Settings()
    settings.nats.url = nats_server.url
    settings.bus.prefix = f"effects{uuid4().hex}"
    async with Desk.deployed(settings) as deployed:
        yield deployed


async def until(plan: PlanHandle, status: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while await plan.status() != status:
            await asyncio.sleep(0.01)


async def unknown(desk: Desk, **fields: Any) -> tuple[PlanHandle, str, str]:
    """A plan that waits for the outcome of an effect, with the effect's task and key."""
    invoice = f"i-{uuid4().hex[:8]}"
    plan = await desk.client.submit("transfer.goal", {"invoice": invoice, "lost": True}, **fields)
    await until(plan, "paused")
    [effect] = await plan.effects()
    return plan, effect.task, invoice


async def test_effects_are_listed_by_outcome_and_plan(desk: Desk, invoke: Invoke) -> None:
    assert "no unknown effects" in (await invoke("effects", "list", "--session-id", "nobody")).err
    plan, task, invoice = await unknown(desk, session_id="s-list", tenant_id="t1")
    [found] = (await invoke("effects", "list", "--tenant-id", "t1", "--json")).json
    assert (found["plan_id"], found["task"], found["key"], found["outcome"], found["undo"]) == (
        plan.plan_id, task, invoice, "unknown", True,
    )  # fmt: skip
    assert (found["goal_event"], found["tenant_id"], found["session_id"]) == ("transfer.goal", "t1", "s-list")
    assert (await invoke("effects", "list", "--outcome", "done", "--session-id", "s-list", "--json")).json == []
    for arguments in (["--goal", "transfer.goal"], ["--outcome", "all", "--text", plan.plan_id]):
        shown = await invoke("effects", "list", *arguments)
        assert all(each in shown.out for each in (task, "transfer.requested", invoice, "unknown", "not known"))


async def test_the_status_counts_plans_with_an_unknown_effect_until_it_is_resolved(desk: Desk, invoke: Invoke) -> None:
    async def counted() -> int:
        return int((await invoke("status", "--json")).json["effects_unknown"])

    before = await counted()
    plan, task, _ = await unknown(desk)
    assert await counted() == before + 1
    assert (await invoke("effects", "resolve", task, "--give-up")).code == 0
    await until(plan, "failed")
    assert await counted() == before


@pytest.mark.parametrize(
    ("arguments", "said", "state"),
    [
        (["--done", '{"transfer": "t-1"}'], "it was done", "confirming"),
        (["--done", "null"], "it was done", "confirming"),
        (["--not-done"], "it was not done", "confirming"),
        (["--give-up"], "it is given up", "failed"),
    ],
)
async def test_an_unknown_outcome_is_resolved_once(
    desk: Desk, invoke: Invoke, arguments: list[str], said: str, state: str
) -> None:
    plan, task, _ = await unknown(desk, correlation_id=f"plan {uuid4().hex}")  # a space: tasks have encoded ids
    told = await invoke("effects", "resolve", task, *arguments, "--user-id", "grace")
    assert (told.code, told.out) == (0, f"✓ plan {plan.plan_id}: sent for {task}: {said}\n")
    async with asyncio.timeout(PATIENCE):
        while (await plan.state())["current_state"] != state:
            await asyncio.sleep(0.01)
    [turn] = [each for each in await plan.history() if each["event"]["type"] == "plan.resolve_effect"]
    assert turn["event"]["user_id"] == "grace"
    again = await invoke("effects", "resolve", task, "--not-done", "--plan", plan.plan_id)
    assert (again.code, again.out) == (1, "")
    assert f"the effect of task {task}" in again.err


@pytest.mark.parametrize("arguments", [[], ["--done", "1", "--not-done"], ["--not-done", "--give-up"]])
async def test_a_resolution_says_one_thing(invoke: Invoke, arguments: list[str]) -> None:
    refused = await invoke("effects", "resolve", "p:1-0", *arguments)
    assert (refused.code, refused.out) == (2, "")
    assert "one of --done JSON, --not-done and --give-up" in refused.err


async def test_what_is_no_task_or_no_json_is_wrong_usage(invoke: Invoke) -> None:
    for task in ("p", "p:x", ":1-0", "p:wait:s"):
        refused = await invoke("effects", "resolve", task, "--not-done")
        assert (refused.code, "is no task of a plan" in refused.err) == (2, True)
    refused = await invoke("effects", "resolve", "p:1-0", "--done", "{")
    assert (refused.code, "--done: the value is not valid JSON" in refused.err) == (2, True)
    unknown_plan = await invoke("effects", "resolve", "nobody:1-0", "--not-done")
    assert (unknown_plan.code, "plan nobody is unknown" in unknown_plan.err) == (1, True)


async def test_a_plan_is_shown_with_its_effects(desk: Desk, invoke: Invoke) -> None:
    plan, task, invoice = await unknown(desk)
    shown = await invoke("plans", "show", plan.plan_id)
    assert all(each in shown.out for each in ("effects", task, invoice, "unknown"))
    [effect] = (await invoke("plans", "show", plan.plan_id, "--json")).json["effects"]
    assert (effect["task"], effect["outcome"], effect["key"]) == (task, "unknown", invoice)
    other = await desk.client.submit("order.goal", {"item": "lamp"})
    await until(other, "running")
    assert (await invoke("plans", "show", other.plan_id, "--json")).json["effects"] == []


async def transferred(desk: Desk, invoice: str) -> PlanHandle:
    """A plan with a done effect that goes on."""
    plan = await desk.client.submit("transfer.goal", {"invoice": f"{invoice}-{uuid4().hex[:8]}"})
    async with asyncio.timeout(PATIENCE):
        while (await plan.state())["current_state"] != "confirming":
            await asyncio.sleep(0.01)
    return plan


async def test_a_rollback_is_waited_for_and_done_once(desk: Desk, invoke: Invoke) -> None:
    plan = await transferred(desk, "i")
    told = await invoke("plans", "rollback", plan.plan_id, "--reason", "withdrawn", "--wait", "--json")
    assert (told.code, told.json["left"], told.json["waits_for"]) == (0, [], "")
    assert [each["event_type"] for each in told.json["undone"]] == ["transfer.requested"]
    assert (await plan.state())["error"] == "rolled_back: withdrawn"
    async with asyncio.timeout(PATIENCE):
        while (again := await invoke("plans", "rollback", plan.plan_id)).code == 0:
            pass  # its turn took longer than it was waited for
    assert (again.code, "nothing left to undo" in again.out) == (1, True)


async def test_a_plan_that_has_ended_is_rolled_back(desk: Desk, invoke: Invoke) -> None:
    plan = await transferred(desk, "i")
    await plan.signal("transfer.confirmed")
    await until(plan, "completed")
    told = await invoke("plans", "rollback", plan.plan_id, "--wait")
    assert (told.code, told.out) == (0, f"✓ plan {plan.plan_id}: 1 effect undone\n")
    other = await transferred(desk, "i")
    told = await invoke("plans", "rollback", other.plan_id)
    assert (told.code, told.out.startswith(f"✓ plan {other.plan_id}: ")) == (0, True)
    await until(other, "failed")


async def test_what_is_left_is_named_and_fails_the_command(desk: Desk, invoke: Invoke) -> None:
    plan = await transferred(desk, "stays")
    waits = await invoke("plans", "rollback", plan.plan_id, "--wait")
    assert (waits.code, "0 effects undone; it waits for a person" in waits.out, "it is spent" in waits.out) == (
        1, True, True,
    )  # fmt: skip
    [effect] = (await invoke("effects", "list", "--text", plan.plan_id, "--json")).json
    assert (effect["outcome"], effect["undecided"]) == ("done", True)
    outdated = await invoke("effects", "resolve", effect["task"], "--done", "{}", "--about", "1")
    assert (outdated.code, "has changed since it was looked at" in outdated.err) == (1, True)
    resolved = await invoke("effects", "resolve", effect["task"], "--give-up", "--about", effect["about"])
    assert resolved.code == 0
    await until(plan, "failed")
    tried_again = await invoke("plans", "rollback", plan.plan_id, "--wait", "--json")
    assert (tried_again.code, "it is spent" in tried_again.json["waits_for"]) == (1, True)
    await invoke("effects", "resolve", effect["task"], "--give-up")
    await until(plan, "failed")
    assert "it is spent" in (await plan.state())["result"]["left"][0]["reason"]


async def test_an_unknown_plan_is_no_success(invoke: Invoke) -> None:
    told = await invoke("plans", "rollback", "nobody", "--wait")
    assert (told.code, "plan nobody is unknown" in told.err) == (1, True)
