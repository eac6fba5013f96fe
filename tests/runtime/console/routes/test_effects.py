"""Effects over the API: what is unknown is listed and resolved once, in the name of who has resolved it."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from tests.runtime.console.desk import PATIENCE, Api
from tests.runtime.console.routes.test_plan_actions import turn_of

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def listed(api: Api, **query: Any) -> list[dict[str, Any]]:
    return list((await api.get("/effects", params=query))["items"])


async def test_a_done_effect_is_shown_with_its_plan(api: Api) -> None:
    invoice = f"i-{uuid4().hex}"
    plan = await api.transferred(invoice)
    [effect] = (await api.get(f"/plans/{plan}/effects"))["items"]
    assert effect == {
        "plan_id": plan, "task": effect["task"], "event_type": "transfer.requested", "key": invoice, "outcome": "done",
        "result": {"transfer": f"t-{invoice}"}, "reason": "", "undo": True, "decision": "",
        "undecided": False, "about": 1,
    }  # fmt: skip
    assert effect["task"].startswith(f"{plan}:")
    assert (await api.get(f"/plans/{plan}"))["effects"] == 1
    assert (await api.get(f"/plans/{await api.waiting()}"))["effects"] == 0
    assert [each["plan"]["plan_id"] for each in await listed(api, outcome="all", text=invoice)] == [plan]
    assert await listed(api, outcome="failed", text=invoice) == []
    assert await listed(api, text=invoice) == [], "it is known"


async def test_unknown_effects_are_listed_until_they_are_resolved(api: Api) -> None:
    session, invoice = f"s-{uuid4().hex}", f"i-{uuid4().hex}"
    plan, task = await api.unknown(invoice, session_id=session, tenant_id="t-effects")
    [found] = await listed(api, session_id=session)
    assert (found["task"], found["outcome"], found["plan"]["status"]) == (task, "unknown", "waiting")
    assert "not known" in found["reason"]
    for query in (
        {"tenant_id": "t-effects"},
        {"goal": "transfer.goal", "text": invoice},
        {"text": "TRANSFER.requested"},
    ):
        assert task in [each["task"] for each in await listed(api, **query)]
    for query in ({"tenant_id": "t-other"}, {"goal": "order.goal"}, {"text": f"{invoice}-no"}):
        assert task not in [each["task"] for each in await listed(api, **query)]
    shown = await api.get(f"/plans/{plan}")
    assert (shown["status"], shown["approval"]) == ("paused", None), "a resume or a yes does not tell the outcome"

    accepted = await api.post(f"/plans/{plan}/effects/{task}", {"outcome": "done", "result": {"transfer": "t-7"}})
    await api.until(plan, lambda found: found["current_state"] == "confirming")
    assert (await api.get(f"/plans/{plan}"))["results"]["paying"] == {"transfer": "t-7"}
    turn = await turn_of(api, plan, "plan.resolve_effect")
    assert (turn["by"], turn["event"]["id"]) == ((await api.get("/session"))["user"], accepted["event_id"])
    assert await listed(api, session_id=session) == []
    assert [each["outcome"] for each in await listed(api, session_id=session, outcome="all")] == ["done"]


@pytest.mark.parametrize(("outcome", "state"), [("not_done", "confirming"), ("give_up", "failed")])
async def test_a_task_is_begun_again_or_given_up(api: Api, outcome: str, state: str) -> None:
    plan, task = await api.unknown(f"i-{uuid4().hex}")
    await api.post(f"/plans/{plan}/effects/{task}", {"outcome": outcome})
    await api.until(plan, lambda found: found["current_state"] == state)


async def test_a_resolution_counts_once(api: Api) -> None:
    plan, task = await api.unknown(f"i-{uuid4().hex}")
    other, _ = await api.unknown(f"i-{uuid4().hex}")
    path, body = f"/plans/{plan}/effects/{task}", {"outcome": "done", "result": 7}
    key = {"Idempotency-Key": uuid4().hex}
    first = await api.post(path, body, headers=key)
    await api.until(plan, lambda found: found["current_state"] == "confirming")
    assert (await api.post(path, body, headers=key))["event_id"] == first["event_id"]
    assert "is done" in (await api.post(path, {"outcome": "not_done"}, 409))["detail"]
    for unknown in (f"/plans/{other}/effects/{task}", f"/plans/{plan}/effects/nothing"):
        assert "effect" in (await api.post(unknown, body, 409))["detail"]
    assert (await api.get(f"/plans/{plan}"))["results"]["paying"] == 7


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"outcome": "unknown"},
        {"outcome": "not_done", "result": 1},
        {"outcome": "done", "by": "root"},
        {"done": 1},
        {"outcome": "not_done", "about": "attempt"},
        {"outcome": "not_done", "about": 1.5},
    ],
)
async def test_a_resolution_says_one_thing_and_names_nobody(api: Api, body: dict[str, Any]) -> None:
    plan, task = await api.unknown(f"i-{uuid4().hex}")
    await api.post(f"/plans/{plan}/effects/{task}", body, 422)
    assert (await api.get(f"/plans/{plan}/effects"))["items"][0]["decision"] == ""


async def test_plans_and_their_tasks_may_have_any_id(api: Api) -> None:
    name = f"a/b c%2F.ü {uuid4().hex}"
    plan = quote(await api.submit("transfer.goal", {"invoice": name, "lost": True}, correlation_id=name), safe="")
    await api.until(plan, lambda found: found["status"] == "paused")
    [effect] = (await api.get(f"/plans/{plan}/effects"))["items"]
    assert (effect["plan_id"], effect["key"]) == (name, name)
    await api.post(f"/plans/{plan}/effects/{quote(effect['task'], safe='')}", {"outcome": "done", "result": None})
    await api.until(plan, lambda found: found["current_state"] == "confirming")


async def test_pages_of_effects_continue_where_the_last_one_ended(api: Api) -> None:
    session = f"s-{uuid4().hex}"
    tasks = [(await api.unknown(f"i-{uuid4().hex}", session_id=session))[1] for _ in range(3)]
    found, cursor = [], None
    for _ in range(3):
        query = {"session_id": session, "limit": 1} | ({"cursor": cursor} if cursor else {})
        page = await api.get("/effects", params=query)
        assert page["total"] == 3
        found += [each["task"] for each in page["items"]]
        cursor = page["next"]
    assert (found, cursor) == (tasks[::-1], None)


@pytest.mark.parametrize("ended", [False, True])
async def test_a_plan_is_rolled_back_in_the_name_of_who_asked(api: Api, ended: bool) -> None:
    plan = await api.transferred(f"i-{uuid4().hex}")
    if ended:
        await api.post(f"/plans/{plan}/signal", {"event_type": "transfer.confirmed"})
        await api.until(plan, lambda found: found["status"] == "completed")
    key = {"Idempotency-Key": uuid4().hex}
    accepted = await api.post(f"/plans/{plan}/rollback", {"reason": "withdrawn"}, headers=key)
    shown = await api.until(plan, lambda found: found["status"] == "failed")
    assert shown["error"] == "rolled_back: withdrawn"
    assert [each["outcome"] for each in (await api.get(f"/plans/{plan}/effects"))["items"]] == ["undone"]
    turn = await turn_of(api, plan, "plan.rollback")
    assert (turn["by"], turn["event"]["id"]) == ((await api.get("/session"))["user"], accepted["event_id"])
    assert (await api.post(f"/plans/{plan}/rollback", {}, headers=key))["event_id"] == accepted["event_id"]
    async with asyncio.timeout(PATIENCE):
        while (await api.post(f"/plans/{plan}/rollback"))["outcome"] != "ignored":  # nothing is left
            pass  # its turn took longer than it was waited for


async def test_an_undo_that_has_failed_is_listed_and_decided_about(api: Api) -> None:
    session, invoice = f"s-{uuid4().hex}", f"stays-{uuid4().hex}"
    plan = await api.transferred(invoice, session_id=session)
    await api.post(f"/plans/{plan}/rollback", {"reason": "withdrawn"})
    await api.until(plan, lambda found: found["status"] == "paused")
    [found] = await listed(api, session_id=session)
    assert (found["outcome"], found["undecided"], "it is spent" in found["reason"]) == ("done", True, True)
    path = f"/plans/{plan}/effects/{found['task']}"
    outdated = await api.post(path, {"outcome": "done", "about": 1}, 409)  # by who has seen that its outcome is unknown
    assert "has changed since it was looked at" in outdated["detail"]
    assert await listed(api, session_id=session) == [found]
    await api.post(path, {"outcome": "give_up", "about": found["about"]})
    shown = await api.until(plan, lambda found: found["status"] == "failed")
    assert ("it is spent" in shown["error"], await listed(api, session_id=session)) == (True, [])
