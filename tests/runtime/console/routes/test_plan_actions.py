"""Moving plans over the API: what is sent arrives once, and says who sent it."""

from __future__ import annotations

import asyncio
import base64
from typing import Any
from uuid import uuid4

import pytest
from tests.runtime.console.desk import PATIENCE, Api, lost

from plancast.console.service import approvals

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def turn_of(api: Api, plan: str, event_type: str) -> dict[str, Any]:
    """The turn of a plan on an event, once there was one."""
    async with asyncio.timeout(PATIENCE):
        while True:
            items = (await api.get(f"/plans/{plan}/history"))["items"]
            found = [entry for entry in items if entry["event"]["type"] == event_type]
            if found:
                return dict(found[0])
            await asyncio.sleep(0.02)


async def test_a_signal_says_what_became_of_it(api: Api) -> None:
    plan = await api.waiting()
    for event_type, outcome in (("order.aproved", "ignored"), ("order.approved", "moved")):
        said = await api.post(f"/plans/{plan}/signal", {"event_type": event_type, "data": {}})
        assert said["outcome"] == outcome
    plan = await api.waiting()
    assert (await api.post(f"/plans/{plan}/approve", {}))["outcome"] == "moved"
    plan = await api.waiting()
    assert (await api.post(f"/plans/{plan}/cancel", {}))["outcome"] is None


@pytest.mark.parametrize(
    ("move", "body", "event_type", "said"),
    [
        ("signal", {"event_type": "order.note", "data": {"a": 1}}, "order.note", {"a": 1}),
        ("pause", {"reason": "inventory"}, "plan.pause", {"reason": "inventory"}),
        ("cancel", {"reason": "no longer"}, "plan.cancel", {"reason": "no longer"}),
        ("reject", {"reason": "too dear"}, "order.refused", {"approved": False, "by": "ME", "reason": "too dear"}),
        ("redirect", {"goal_data": {"item": "chair"}}, "plan.redirect", {"goal_data": {"item": "chair"}}),
        ("inject", {"context": ["hint"]}, "plan.inject", {"context": ["hint"]}),
        (
            "approve",
            {"reason": "fine", "data": {"limit": 3}},
            "order.approved",
            {"approved": True, "by": "ME", "reason": "fine", "limit": 3},
        ),
        ("approve", {"comment": "fine"}, "order.approved", {"approved": True, "by": "ME", "reason": "fine"}),
    ],
)
async def test_every_move_reaches_the_plan_and_says_who_made_it(
    api: Api, move: str, body: dict[str, Any], event_type: str, said: Any
) -> None:
    me = (await api.get("/session"))["user"]
    plan = await api.waiting()
    if move == "signal":
        event_type = "order.refused"
        body = body | {"event_type": event_type}
    accepted = await api.post(f"/plans/{plan}/{move}", body)
    turn = await turn_of(api, plan, event_type)
    expected = said | {"by": me} if isinstance(said, dict) and "by" in said else said
    assert (turn["by"], turn["event"]["id"], turn["event"]["data"]) == (me, accepted["event_id"], expected)
    assert me.startswith("local:")


async def test_a_paused_plan_is_resumed_with_what_is_said(api: Api) -> None:
    plan = await api.waiting()
    await api.post(f"/plans/{plan}/pause", {"reason": "hold"})
    held = await api.until(plan, lambda found: found["status"] == "paused")
    assert (held["pause_reason"], held["approval"]) == ("hold", None)  # held by hand, it asks nobody
    await api.post(f"/plans/{plan}/resume", {"data": {"go": "on"}})
    shown = await api.until(plan, lambda found: found["status"] != "paused")
    assert shown["results"]["user_input"] == {"go": "on"}


async def test_a_move_that_is_repeated_under_its_key_counts_once(api: Api) -> None:
    plan, key = await api.waiting(), {"Idempotency-Key": uuid4().hex}
    first = await api.post(f"/plans/{plan}/inject", {"context": 1}, headers=key)
    await turn_of(api, plan, "plan.inject")
    assert await api.post(f"/plans/{plan}/inject", {"context": 1}, headers=key) == first
    ending = {"Idempotency-Key": uuid4().hex}
    cancelled = await api.post(f"/plans/{plan}/cancel", {}, headers=ending)
    await api.until(plan, lambda found: found["status"] == "cancelled")
    assert await api.post(f"/plans/{plan}/cancel", {}, headers=ending) == cancelled
    await api.post(f"/plans/{plan}/cancel", {}, 409, headers=key)
    items = (await api.get(f"/plans/{plan}/history"))["items"]
    assert [entry["event"]["type"] for entry in items].count("plan.inject") == 1


async def test_an_answer_that_breaks_the_schema_of_its_event_is_refused_with_what_and_where(api: Api) -> None:
    ticket = await api.submit("ticket.goal", {"id": "7"})
    shown = await api.until(ticket, lambda found: found["approval"] is not None)
    schema = shown["approval"]["answer_schema"]
    assert (schema["properties"]["note"], shown["approval"]["description"]) == (
        {"type": "string"},
        "A manager's decision",
    )
    for move in ("approve", "reject"):
        refused = await api.post(f"/plans/{ticket}/{move}", {"data": {"note": 7}}, 422)
        assert refused["errors"] == [{"where": "body.data.note", "what": "got 7, allowed: string"}]
    said = {"event_type": "ticket.approved", "data": {"note": 7, "approved": True}}
    assert (await api.post(f"/plans/{ticket}/signal", said, 422))["errors"][0]["where"] == "body.data.note"
    key = {"Idempotency-Key": uuid4().hex}
    accepted = await api.post(f"/plans/{ticket}/reject", {"data": {"note": "no"}}, headers=key)
    await api.until(ticket, lambda found: found["status"] == "failed")
    assert await api.post(f"/plans/{ticket}/reject", {"data": {"note": "no"}}, headers=key) == accepted
    await api.post(f"/plans/{ticket}/approve", {}, 409)


async def test_an_answer_names_the_approval_that_was_shown(api: Api) -> None:
    plan = await api.waiting()
    shown = (await api.get(f"/plans/{plan}"))["approval"]["request_id"]
    refused = await api.post(f"/plans/{plan}/approve", {"request_id": "of-an-earlier-approval"}, 409)
    assert "something else by now" in refused["detail"]
    await api.post(f"/plans/{plan}/approve", {"request_id": shown})


async def test_nobody_answers_in_another_users_name(api: Api) -> None:
    plan, me = await api.waiting(), (await api.get("/session"))["user"]
    forged = {"approved": True, "by": "the boss"}
    fault = {"where": "body.data.by", "what": f'got "the boss", allowed: "{me}", or nothing'}
    for move, body in (("approve", {}), ("signal", {"event_type": "order.approved"})):
        refused = await api.post(f"/plans/{plan}/{move}", body | {"data": forged}, 422)
        assert refused["errors"] == [fault]
    await api.post(f"/plans/{plan}/approve", {"data": {"by": me}})


async def test_a_plan_that_has_failed_is_tried_anew_as_another_plan(api: Api) -> None:
    failed, key = await api.failed(), {"Idempotency-Key": uuid4().hex}
    again = await api.post(f"/plans/{failed}/retry", {}, 201, headers=key)
    assert again["retry_of"] == failed != again["plan_id"]
    shown = await api.until(again["plan_id"], lambda found: found["status"] == "failed")
    fields = ("session_id", "user_id", "tenant_id", "goal")
    assert [shown[name] for name in fields] == [(await api.get(f"/plans/{failed}"))[name] for name in fields]
    begun = (await api.get(f"/plans/{again['plan_id']}/history"))["items"][0]
    assert begun["by"] == (await api.get("/session"))["user"]
    assert await api.post(f"/plans/{failed}/retry", {}, 201, headers=key) == again


async def test_approvals_show_what_waits_for_a_person_and_are_answered(api: Api) -> None:
    tenant = uuid4().hex
    ordered = await api.waiting(tenant_id=tenant)
    ticket = await api.submit("ticket.goal", {"id": "42"}, tenant_id=tenant)
    held = await api.waiting(tenant_id=tenant)
    await api.post(f"/plans/{held}/pause", {})
    for plan in (ticket, held):
        await api.until(plan, lambda found: found["status"] == "paused")

    async def waiting() -> dict[str, dict[str, Any]]:
        found = await api.get("/approvals", params={"tenant_id": tenant})
        return {each["plan"]["plan_id"]: each for each in found["items"]}

    async with asyncio.timeout(PATIENCE):
        while (found := await waiting()).keys() != {ordered, ticket}:
            await asyncio.sleep(0.02)
    assert found[ordered]["expected_event"] == "order.approved"
    assert found[ordered]["payload"] == {"question": "May lamp be ordered?"}
    assert found[ordered]["reason"] == "May lamp be ordered?"
    assert (found[ticket]["expected_event"], found[ticket]["payload"]) == ("ticket.approved", {"ticket": "42"})
    assert (await api.get(f"/plans/{ticket}"))["approval"]["payload"] == {"ticket": "42"}
    await api.post(f"/plans/{ticket}/approve", {"data": {"note": "do it"}})
    await api.until(ticket, lambda shown: shown["status"] == "completed")
    assert (await api.get(f"/plans/{ticket}"))["results"]["ticket.approved"]["note"] == "do it"
    await api.post(f"/plans/{ordered}/reject", {"reason": "no"})
    await api.until(ordered, lambda shown: shown["status"] == "failed")
    await api.post(f"/plans/{held}/approve", {}, 409)
    async with asyncio.timeout(PATIENCE):
        while await waiting():
            await asyncio.sleep(0.02)


async def test_approvals_are_a_work_list_that_is_filtered_searched_and_assigned(api: Api) -> None:
    tenant, me = uuid4().hex, (await api.get("/session"))["user"]
    lamp = await api.waiting({"item": "lamp", "amount": 40}, tenant_id=tenant, session_id="s1", user_id="ada")
    chair = await api.waiting({"item": "Åse's chair"}, tenant_id=tenant)
    ticket = await api.submit("ticket.goal", {"id": "42"}, tenant_id=tenant)
    await api.until(ticket, lambda found: found["status"] == "paused")

    async def listed(count: int, **query: str) -> list[str]:
        async with asyncio.timeout(PATIENCE):
            while True:
                page = await api.get("/approvals", params={"tenant_id": tenant, **query})
                if page["total"] == count:
                    return [each["plan"]["plan_id"] for each in page["items"]]
                await asyncio.sleep(0.02)

    assert await listed(3) == [ticket, chair, lamp]
    assert await listed(2, goal="order.goal") == [chair, lamp]
    assert await listed(1, session_id="s1") == [lamp]
    assert await listed(1, text="åse's CHAIR ordered") == [chair]
    assert await listed(0, text="nothing of it") == []
    found = await api.get("/approvals", params={"tenant_id": tenant, "text": "lamp"})
    assert (found["total"], found["searched"], found["waiting"]) == (1, 3, 3)
    [shown] = found["items"]
    assert (shown["goal_data"], shown["assignee"], shown["only_user"]) == ({"item": "lamp", "amount": 40}, "", "")
    assert (shown["plan"]["user_id"], shown["plan"]["status"], shown["can_refuse"]) == ("ada", "waiting", True)
    assert await api.post(f"/plans/{lamp}/assign", {"assignee": me}, 200) == {"plan_id": lamp, "assignee": me}
    await api.post(f"/plans/{chair}/assign", {"assignee": "grace"}, 200)
    assert await listed(1, assignee="@me") == [lamp]
    assert await listed(1, assignee="grace") == [chair]
    assert await listed(1, assignee="-") == [ticket]
    await api.post(f"/plans/{chair}/assign", {"assignee": ""}, 200)
    assert await listed(2, assignee="-") == [ticket, chair]
    await api.post(f"/plans/{lamp}/approve")
    assert await listed(2) == [ticket, chair]
    assert await api.desk.bus.registry.get("approval-assignment", lamp) is None
    await api.post(f"/plans/{lamp}/assign", {"assignee": me}, 409)
    await api.get("/approvals", 422, params={"text": "a " * 17})


async def test_a_search_of_approvals_says_of_how_many_it_has_read_the_text(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = uuid4().hex
    first, *others = [await api.waiting({"item": "lamp"}, tenant_id=tenant) for _ in range(3)]
    query = {"tenant_id": tenant, "text": "lamp", "limit": 1}
    monkeypatch.setattr(approvals, "MOST_SEARCHED", 2)
    async with asyncio.timeout(PATIENCE):
        while (page := await api.get("/approvals", params=query))["waiting"] < 3:
            await asyncio.sleep(0.02)
    assert (page["searched"], page["total"], [each["plan"]["plan_id"] for each in page["items"]]) == (
        2,
        2,
        others[:0:-1],
    )
    page = await api.get("/approvals", params=query | {"cursor": page["next"]})
    assert ([each["plan"]["plan_id"] for each in page["items"]], page["next"]) == (others[:1], None)
    monkeypatch.undo()
    page = await api.get("/approvals", params=query | {"limit": 10})
    assert (page["searched"], [each["plan"]["plan_id"] for each in page["items"]]) == (3, [*others[::-1], first])
    assert (await api.get("/approvals", params={"tenant_id": tenant}))["searched"] is None


async def test_plans_are_filtered_by_what_their_handlers_tag_them_with(api: Api) -> None:
    session = uuid4().hex
    for customer in ("acme", "initech"):
        plan = await api.submit("tagged.goal", {"customer": customer, "amount": 40}, session_id=session)
        await api.until(plan, lambda found: found["status"] == "running")
    async with asyncio.timeout(PATIENCE):
        while len(await api.listed(session_id=session)) < 2:
            await asyncio.sleep(0.02)
    found = await api.get("/plans", params={"session_id": session, "attribute": ["customer=initech", "amount=40"]})
    assert [each["attributes"] for each in found["items"]] == [{"customer": "initech", "amount": 40}]
    assert found["counts"] == {"running": 1}
    assert (await api.get(f"/plans/{plan}"))["attributes"] == {"customer": "initech", "amount": 40}
    assert await api.listed(session_id=session, text="customer=ACME") != [plan]
    assert await api.listed(session_id=session, attribute="customer=nobody") == []
    assert "NAME=VALUE" in (await api.get("/plans", 422, params={"attribute": "acme"}))["detail"]


async def test_approvals_go_on_behind_a_page(api: Api) -> None:
    tenant = uuid4().hex
    plans = [await api.waiting(tenant_id=tenant) for _ in range(3)]
    found: list[str] = []
    query: dict[str, Any] = {"tenant_id": tenant, "limit": 2}
    async with asyncio.timeout(PATIENCE):
        while (page := await api.get("/approvals", params=query))["total"] < 3:
            await asyncio.sleep(0.02)
    found += [each["plan"]["plan_id"] for each in page["items"]]
    page = await api.get("/approvals", params=query | {"cursor": page["next"]})
    found += [each["plan"]["plan_id"] for each in page["items"]]
    assert (found, page["next"]) == (plans[::-1], None)


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        (b'{"a": [1]}', {"a": [1]}),
        (b'{"a": "\\ud800"}', '{"a": "\\ud800"}'),
        (b"\x00\xff", None),
        (b"[" * 5000, "[" * 5000),
        (b"plain words", "plain words"),
    ],
)
async def test_a_dead_letter_may_hold_anything(api: Api, payload: bytes, told: Any) -> None:
    await api.desk.bus.dead_letters.put(lost(api, payload), "undecodable", "no event")
    newest = (await api.get("/dead-letters", params={"limit": 500}))["items"][-1]
    shown = await api.get(f"/dead-letters/{newest['id']}")
    assert base64.b64decode(shown["payload_base64"]) == payload
    assert shown["payload"] == told


async def test_dead_letters_are_listed_shown_and_sent_again(api: Api) -> None:
    bus = api.desk.bus
    before = (await api.get("/dead-letters"))["total"]
    subject = bus.subjects.event("business-facts", "c1", "it.happened")
    for number in range(3):
        payload = b'{"broken": %d}' % number
        await bus.dead_letters.put(lost(api, payload), "undecodable", "no event")
    page = await api.get("/dead-letters", params={"limit": 500})
    assert page["total"] == before + 3
    first, second, _ = page["items"][-3:]
    assert (first["reason"], first["subject"]) == ("undecodable", subject)
    behind = await api.get("/dead-letters", params={"limit": 1, "cursor": str(first["id"])})
    assert [each["id"] for each in behind["items"]] == [second["id"]]
    assert behind["next"] == str(second["id"])
    assert (await api.get(f"/dead-letters/{first['id']}"))["payload"] == {"broken": 0}
    assert await api.post(f"/dead-letters/{first['id']}/replay") == {"id": first["id"], "accepted": True}
    await api.get(f"/dead-letters/{first['id']}", 404)
    written = (await api.get("/writes"))["items"][0]
    assert (written["by"], written["what"]) == ((await api.get("/session"))["user"], "dead letter replayed")
    assert written["subject"] == f"{first['id']} to {subject}"
