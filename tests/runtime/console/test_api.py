"""Each route of the API, over a real deployment."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any
from uuid import uuid4

import pytest
from tests.runtime.console.desk import PATIENCE, Api, large_data

from plancast_bus.events.codec import pack

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_what_is_submitted_is_listed_shown_and_ends(api: Api) -> None:
    session = uuid4().hex
    plan = await api.waiting(session_id=session, user_id="ada")
    (listed,) = (await api.get("/plans", params={"session_id": session}))["items"]
    shown = await api.get(f"/plans/{plan}")
    assert listed["plan_id"] == shown["plan_id"] == plan
    assert (listed["status"], shown["status"]) == ("waiting", "running")
    assert {name: shown[name] for name in listed} == listed | {"status": "running"}
    assert (shown["goal"], shown["machine"]) == ({"event_type": "order.goal", "data": {"item": "lamp"}}, True)
    assert shown["results"]["checking"] == {"in_stock": True}
    assert shown["size"]["inline"] > 500
    assert shown["size"]["history"] > 500
    assert shown["size"]["referenced"] == 0
    assert await api.get(f"/plans/{plan}/status") == {"plan_id": plan, "status": "running", "revision": 2}
    await api.post(f"/plans/{plan}/signal", {"event_type": "order.approved", "data": {"by": "boss"}})
    ended = await api.get(f"/plans/{plan}/result", params={"wait": PATIENCE})
    assert (ended["status"], ended["result"]["approving"]) == ("completed", {"by": "boss"})
    assert (await api.get(f"/plans/{plan}"))["waiting_for"] == []


async def test_a_list_has_details_and_is_bounded_by_dates_when_asked(api: Api) -> None:
    session = uuid4().hex
    waiting, failed = (
        await api.waiting(session_id=session),
        await api.submit("order.goal", {"item": "none"}, session_id=session),
    )
    await api.until(failed, lambda found: found["status"] == "failed")
    error = (await api.get(f"/plans/{failed}"))["error"]
    asked = {"session_id": session, "details": "true"}
    items = {each["plan_id"]: each for each in (await api.get("/plans", params=asked))["items"]}
    assert items[waiting]["details"] == {"waiting_for": ["notification.approval"], "outcome": "", "step": ""}
    assert items[failed]["details"] == {"waiting_for": [], "outcome": error[:200], "step": ""}
    assert all(each["details"] is None for each in (await api.get("/plans", params={"session_id": session}))["items"])
    async with api.events("/plans/stream", params=asked) as events:
        await api.post(f"/plans/{waiting}/signal", {"event_type": "order.approved", "data": {"by": "boss"}})
        async for name, plan in events:
            if name == "plan" and plan["status"] == "completed":
                assert '"by":"boss"' in plan["details"]["outcome"]
                break
    begun = items[failed]["created_at"]
    assert await api.listed(session_id=session, created_after=begun) == [failed]
    assert await api.listed(session_id=session, created_before=begun) == [waiting]
    await api.get("/plans", 422, params={"created_after": "yesterday"})


async def test_a_goal_is_submitted_once_for_a_correlation_id_or_an_idempotency_key(api: Api) -> None:
    name, body = f"order {uuid4().hex}/é", {"event_type": "order.goal", "data": {"item": "lamp"}}
    first = await api.post("/plans", {**body, "correlation_id": name}, 201)
    assert first == {"plan_id": name, "status": "pending"}
    await api.until("order%20" + name[6:].replace("/", "%2F"), lambda found: found["current_state"] == "approving")
    again = await api.post("/plans", {**body, "correlation_id": name}, 200)
    assert again == {"plan_id": name, "status": "running"}
    await api.post("/plans", {**body, "correlation_id": name, "tenant_id": "another"}, 409)
    other = {**body, "correlation_id": name, "data": {"item": "chair"}}
    assert "another goal or other data" in (await api.post("/plans", other, 409))["detail"]
    assert (await api.post("/plans", {**other, "reuse": True}, 200))["plan_id"] == name
    key = {"Idempotency-Key": uuid4().hex}
    plan = (await api.post("/plans", body, 201, headers=key))["plan_id"]
    await api.until(plan, lambda found: True)
    assert (await api.post("/plans", body, 200, headers=key))["plan_id"] == plan
    await api.post("/plans", {**body, "data": {"item": "chair"}}, 409, headers=key)
    assert (await api.post("/plans", body, 201))["plan_id"] != plan


async def test_a_goal_has_a_deadline_and_begins_after_other_plans(api: Api) -> None:
    first = await api.waiting()
    body = {"event_type": "sized.goal", "data": {"size": 3}, "deadline": 3600, "after": [first]}
    plan = (await api.post("/plans", body, 201))["plan_id"]
    await api.until(plan, lambda found: found["status"] == "pending")
    state = await api.desk.client.plan(plan).state()
    assert (state["dependencies"]["after"], state["deadline"] > state["created_at"]) == ([first], True)
    await api.post(f"/plans/{first}/cancel", {})
    await api.until(plan, lambda found: found["status"] == "completed")
    await api.post("/plans", {**body, "after": ["nobody"]}, 404)
    await api.post("/plans", {**body, "correlation_id": "own", "after": ["own"]}, 422)
    await api.post("/plans", {**body, "deadline": 0}, 422)


async def test_a_goal_whose_data_break_its_schema_is_refused(api: Api) -> None:
    refused = await api.post("/plans", {"event_type": "sized.goal", "data": {"size": "large"}}, 422)
    assert "goal_data.size" in refused["detail"]


async def test_a_list_is_filtered_searched_sorted_and_paged(api: Api) -> None:
    session, tenant = uuid4().hex, uuid4().hex
    plans = [await api.waiting(session_id=session, tenant_id=tenant) for _ in range(3)]
    ended = await api.submit("order.goal", {"item": "none"}, session_id=session, tenant_id=tenant)
    await api.until(ended, lambda found: found["status"] == "failed")
    await api.post(f"/plans/{plans[0]}/inject", {"context": "moves it to the front"})
    await api.until(plans[0], lambda found: found["revision"] == 3)
    moved = [plans[0], ended, plans[2], plans[1]]

    async def listed(**query: Any) -> list[str]:
        page = await api.get("/plans", params=query)
        return [each["plan_id"] for each in page["items"]]

    async with asyncio.timeout(PATIENCE):
        while await listed(session_id=session) != moved:
            await asyncio.sleep(0.01)
    assert await listed(session_id=session, sort="created") == [ended, *reversed(plans)]
    assert await listed(session_id=session, status="failed") == [ended]
    assert await listed(session_id=session, status="", text="", goal="") == moved
    assert await listed(session_id=session, status=["failed", "waiting"]) == moved
    assert await listed(text=f"APPROV {session[:20]}") == [plans[0], plans[2], plans[1]]
    assert await listed(text=plans[1][3:]) == [plans[1]]
    assert await listed(text=tenant[2:], goal="order.goal") == moved
    assert await listed(tenant_id=tenant, goal="ticket.goal") == []
    whole = await api.get("/plans", params={"session_id": session, "status": "waiting"})
    assert (whole["total"], whole["counts"], whole["next"]) == (3, {"waiting": 3, "failed": 1}, None)
    for sort, expected in (("updated", moved), ("created", [ended, *reversed(plans)])):
        found, cursor = [], None
        while True:
            query = {"session_id": session, "sort": sort, "limit": 3} | ({"cursor": cursor} if cursor else {})
            page = await api.get("/plans", params=query)
            found += [each["plan_id"] for each in page["items"]]
            cursor = page["next"]
            if cursor is None:
                break
        assert found == expected
    await api.get("/plans", 422, params={"cursor": "u12", "sort": "created"})


async def test_a_list_is_sorted_by_columns_either_way_page_by_page(api: Api) -> None:
    session = uuid4().hex
    waiting = [await api.waiting(session_id=session, tenant_id=tenant) for tenant in ("b", "a", "b")]
    failed = await api.submit("order.goal", {"item": "none"}, session_id=session, tenant_id="c")
    await api.until(failed, lambda found: found["status"] == "failed")
    await api.post(f"/plans/{waiting[0]}/signal", {"event_type": "order.approved", "data": {}})
    await api.until(waiting[0], lambda found: found["status"] == "completed")
    tenants = dict(zip([*waiting, failed], "babc", strict=True))
    turns = {plan: 3 if plan == waiting[0] else 2 for plan in tenants}
    for sort, values in (("tenant", tenants), ("turns", turns)):
        expected = sorted(tenants, key=lambda plan: (values[plan], plan))
        for order, plans in (("asc", expected), ("desc", expected[::-1])):
            found: list[str] = []
            query = {"session_id": session, "sort": sort, "order": order, "limit": 3}
            page = await api.get("/plans", params=query)
            found = [each["plan_id"] for each in page["items"]]
            page = await api.get("/plans", params=query | {"cursor": page["next"]})
            assert found + [each["plan_id"] for each in page["items"]] == plans
            assert (page["next"], page["total"]) == (None, 4)
    assert await api.listed(session_id=session, sort="created", order="asc") == [*waiting, failed]
    await api.get("/plans", 422, params={"sort": "text"})


async def test_plans_are_found_by_the_data_of_their_goals(api: Api) -> None:
    session, word = uuid4().hex, f"Lamp {uuid4().hex[:12]}"
    plans = [await api.waiting({"item": "lamp", "note": note}, session_id=session) for note in (word, "else", word)]
    found = await api.get("/plans", params={"session_id": session, "data": word.upper(), "limit": 1})
    assert [each["plan_id"] for each in found["items"]] == [plans[2]]
    assert (found["total"], found["searched"], found["counts"]) == (2, 3, {"waiting": 2})
    behind = await api.get("/plans", params={"session_id": session, "data": word, "limit": 1, "cursor": found["next"]})
    assert ([each["plan_id"] for each in behind["items"]], behind["next"]) == ([plans[0]], None)
    assert await api.listed(data=word.split()[1]) == [plans[2], plans[0]]  # among all plans
    assert await api.listed(session_id=session, data=f"{word} more") == []
    assert await api.listed(session_id="none-has-this", data="lamp") == []
    await api.desk.client.plan(plans[0]).cancel("enough")
    await api.until(plans[0], lambda plan: plan["status"] == "cancelled")
    assert await api.listed(data=word, status="cancelled") == [plans[0]]
    assert (await api.get("/plans", params={"session_id": session}))["searched"] is None


async def test_history_is_paged_and_says_what_each_turn_did(api: Api) -> None:
    plan = await api.waiting()
    first = await api.get(f"/plans/{plan}/history", params={"limit": 1})
    rest = await api.get(f"/plans/{plan}/history", params={"after": first["next"]})
    assert (first["next"], rest["next"]) == (1, None)
    (begun,), (checked,) = first["items"], rest["items"]
    assert (begun["event"]["type"], begun["move"]["to"], begun["move"]["path"]) == (
        "order.goal",
        "checking",
        ["checking"],
    )
    assert begun["effects"][0] == {"kind": "event", "event_type": "stock.check.requested", "id": f"{plan}:1-0"}
    assert checked["revision"] == 2
    assert checked["move"] == {"from": "checking", "to": "approving", "path": ["approving"]}
    assert checked["event"]["data"] == {"in_stock": True}


async def test_a_machine_is_drawn_with_the_way_that_was_taken(api: Api) -> None:
    plan = await api.waiting()
    graph = await api.get(f"/plans/{plan}/graph")
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert graph["kind"] == "machine"
    assert {name: node["kind"] for name, node in nodes.items()} == {
        "start": "start", "checking": "state", "approving": "state", "done": "end", "failed": "fail"
    }  # fmt: skip
    assert [name for name, node in nodes.items() if node["current"]] == ["approving"]
    assert nodes["start"]["y"] < nodes["checking"]["y"] < nodes["approving"]["y"] < nodes["done"]["y"]
    taken = {(edge["source"], edge["target"]): edge["order"] for edge in graph["edges"] if edge["taken"]}
    assert taken == {("start", "checking"): 1, ("checking", "approving"): 2}
    assert all(0 <= node["x"] <= graph["width"] and 0 <= node["y"] <= graph["height"] for node in nodes.values())


async def test_decisions_are_drawn_one_after_the_other_and_children_are_a_tree(api: Api) -> None:
    plan = await api.submit("ticket.goal", {"id": "42", "order": True})
    paused = await api.until(plan, lambda found: found["status"] == "paused")
    assert (paused["machine"], paused["decider"]) == (False, "ticket-tree")
    listed = (await api.get("/plans", params={"text": plan, "details": True}))["items"]
    assert [paused["step"], *(each["details"]["step"] for each in listed)] == ["wait ticket.approved"] * 2
    await api.post(f"/plans/{plan}/approve", {"comment": "go"})
    shown = await api.until(plan, lambda found: bool(found["children"]))
    child = shown["children"][0]["plan_id"]
    assert [wait["kind"] for wait in shown["waiting_for"]] == ["child"]
    assert shown["waiting_for"][0]["plan_id"] == child
    tree = await api.get(f"/plans/{plan}/tree")
    assert [each["plan"]["plan_id"] for each in tree["children"]] == [child]
    assert await api.listed(parent=plan) == [child]
    await api.until(child, lambda found: found["current_state"] == "approving")
    await api.post(f"/plans/{child}/approve", {"data": {"ok": True}})
    await api.until(plan, lambda found: found["status"] == "completed")
    graph = await api.get(f"/plans/{plan}/graph")
    assert graph["kind"] == "decisions"
    assert [node["kind"] for node in graph["nodes"]] == ["start", "wait", "tool", "wait", "tool", "end"]
    assert graph["nodes"][3]["label"] == "await <spawn-and-await>/1"
    assert [edge["order"] for edge in graph["edges"]] == [1, 2, 3, 4, 5]
    assert (await api.get(f"/plans/{plan}"))["step"] == "complete: goal"
    assert (await api.get(f"/plans/{child}"))["step"] == ""  # a state machine moves it
    spans = await api.get(f"/plans/{plan}/spans")
    kinds = [(span["kind"], span["label"], span["plan_id"]) for span in spans["items"] if span["kind"] != "turn"]
    assert kinds == [
        ("pause", "somebody has to approve", None), ("child", "order.goal", child),
        ("task", "stock.check.requested", None),
    ]  # fmt: skip
    assert all(spans["start"] <= span["start"] <= span["end"] <= spans["end"] for span in spans["items"])


async def test_what_goes_on_has_no_end_on_the_time_axis(api: Api) -> None:
    plan = await api.waiting()
    spans = await api.get(f"/plans/{plan}/spans")
    shown = [(span["kind"], span["label"], span["end"] is None) for span in spans["items"] if span["kind"] != "turn"]
    assert sorted(shown) == [
        ("state", "approving", True), ("state", "checking", False), ("task", "notification.approval", True),
        ("task", "stock.check.requested", False),
    ]  # fmt: skip


async def test_a_result_that_is_not_there_yet_is_waited_for_as_long_as_asked(api: Api) -> None:
    plan = await api.waiting()
    assert await api.get(f"/plans/{plan}/result", 202) == {"plan_id": plan, "status": "running", "revision": 2}
    assert (await api.get(f"/plans/{plan}/result", 202, params={"wait": 0.05}))["status"] == "running"
    waiting = asyncio.ensure_future(api.get(f"/plans/{plan}/result", params={"wait": PATIENCE}))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await api.post(f"/plans/{plan}/cancel", {"reason": "enough"})
    assert await waiting == {
        "plan_id": plan, "status": "cancelled", "result": {"checking": {"in_stock": True}}, "error": "enough"
    }  # fmt: skip


async def test_a_plan_that_was_just_submitted_is_pending_and_its_result_is_waited_for(api: Api) -> None:
    await api.desk.bus.registry.put("app", "later", {"goals": ["later.goal"], "tasks": []}, ttl=60)
    async with asyncio.timeout(PATIENCE):  # the client looks at the goals that are taken every few seconds
        while (await api.http.post("/api/v1/plans", json={"event_type": "later.goal"})).status_code != 201:
            await asyncio.sleep(0.1)
    await api.desk.bus.registry.delete("app", "later")
    plan = (await api.post("/plans", {"event_type": "later.goal"}, 201))["plan_id"]
    pending = {"plan_id": plan, "status": "pending", "revision": 0}
    assert await api.get(f"/plans/{plan}/status") == pending
    assert await api.get(f"/plans/{plan}/result", 202, params={"wait": 0.05}) == pending
    ending = (await api.post("/plans", {"event_type": "order.goal", "data": {"item": "none"}}, 201))["plan_id"]
    assert (await api.get(f"/plans/{ending}/result", params={"wait": PATIENCE}))["status"] == "failed"


async def test_apps_deployment_and_readiness_tell_what_runs(api: Api) -> None:
    goals: dict[str, tuple[str, str]] = {}
    while not all(planner for planner, _ in goals.values()) or not goals:  # agents register after their app
        (app,) = (await api.get("/apps"))["items"]
        goals = {goal["event_type"]: (goal["planner"], goal["kind"]) for goal in app["goals"]}
    machines = dict.fromkeys(("order.goal", "sized.goal"), ("orders", "machine"))
    machines |= {"transfer.goal": ("accounts", "machine"), "form.goal": ("forms", "machine")}
    machines |= {"story.goal": ("stories", "machine")}
    assert goals == {**machines, "tagged.goal": ("tagged", "machine"), "ticket.goal": ("tickets", "autonomous")}
    assert {"stock.check.requested", "transfer.requested"} <= {*app["tasks"]}
    runs = await api.get("/deployment")
    assert (runs["source"], [each["name"] for each in runs["dispatchers"]]) == ("nats", ["dispatcher-0"])
    assert any(worker["tasks"] == ["stock.check.requested"] for worker in runs["workers"])
    assert {stream["name"].rpartition("_")[2] for stream in runs["nats"]["streams"]} >= {"CHECKPOINTS", "REQUESTS"}
    assert (await api.http.get("/healthz")).json() == {"status": "alive"}
    ready = await api.http.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")
    assert all(check["ok"] for check in ready.json()["checks"])


async def test_what_cannot_be_is_refused_with_a_problem_that_says_why(api: Api) -> None:
    await api.get("/plans/unknown", 404)
    await api.get("/nowhere", 404)
    told = await api.post("/plans", {"event_type": "no such type!", "data": []}, 422)
    assert {fault["where"] for fault in told["errors"]} == {"body.event_type", "body.data"}
    unknown = await api.post("/plans", {"event_type": "order.gaol"}, 422)
    assert "did you mean 'order.goal'" in unknown["detail"]
    await api.post("/plans/unknown/cancel", {}, 404)
    ended = await api.failed()
    assert "failed" in (await api.post(f"/plans/{ended}/pause", {}, 409))["detail"]
    plan = await api.waiting()
    assert "its own route" in (await api.post(f"/plans/{plan}/signal", {"event_type": "plan.cancel"}, 422))["detail"]
    assert "plan_id" not in await api.post(f"/plans/{plan}/signal", {"event_type": "a", "date": {}}, 422)
    await api.post(f"/plans/{plan}/retry", {}, 409)
    huge = {"event_type": "order.goal", "data": {"item": "x" * 3_000_000}}
    await api.post("/plans", huge, 413)
    response = await api.http.post("/api/v1/plans", content=b'{"event_type": "order.goal", "data": {"x": NaN}}',
                                   headers={"Content-Type": "application/json"})  # fmt: skip
    assert response.status_code == 422
    assert (await api.http.put(f"/api/v1/plans/{plan}")).status_code == 405


async def test_the_page_of_the_api_needs_nothing_from_elsewhere(api: Api) -> None:
    page = (await api.http.get("/docs")).text
    for path in (await api.http.get("/api/v1/openapi.json")).json()["paths"]:
        assert f"<code>{path}</code>" in page
    assert "http://" not in page
    assert "https://" not in page
    assert re.findall("<script[^>]*>", page) == ["<script type=module src=/js/api_docs.js>"]
    assert (await api.http.get("/js/api_docs.js")).status_code == 200


@pytest.mark.parametrize(
    ("path", "where", "what"),
    [
        ("/plans?status=late", "query.status", "Input should be 'pending', 'running', 'waiting'"),
        ("/plans?created_after=yesterday", "query.created_after", "Input should be a valid datetime"),
        ("/plans?limit=many", "query.limit", "Input should be a valid integer"),
    ],
)
async def test_a_parameter_that_is_wrong_is_named_as_it_was_sent(api: Api, path: str, where: str, what: str) -> None:
    [fault] = (await api.get(path, 422))["errors"]
    assert (fault["where"], fault["what"][: len(what)]) == (where, what)


async def test_a_body_that_is_no_json_says_so(api: Api) -> None:
    headers = {"Content-Type": "application/json"}
    response = await api.http.post("/api/v1/plans", content=b"[1", headers=headers)
    assert Api.read(response, 422)["errors"] == [
        {"where": "body", "what": "no JSON, at character 2: Expecting ',' delimiter"}
    ]


async def test_large_data_of_events_is_read_by_its_hash_and_with_the_plans_tenant(api: Api) -> None:
    plan, data = await api.waiting(), {"text": "x" * 2_000_000, "rows": [{"n": n} for n in range(10_000)]}
    known = await large_data(api, plan, data)
    assert await api.get(f"/plans/{plan}/values/{known}") == data
    theirs = await large_data(api, plan, {"said": "a secret"}, tenant_id="other")
    await api.get(f"/plans/{plan}/values/{theirs}", 404)
    await api.get(f"/plans/{plan}/values/{'ab' * 32}", 404)
    await api.get(f"/plans/unknown/values/{known}", 404)
    await api.get(f"/plans/{plan}/values/{known.upper()}", 422)
    await api.get(f"/plans/{plan}/values/*", 422)


async def test_a_plan_is_followed_from_any_event_on(api: Api) -> None:
    plan = await api.submit("order.goal", {"item": "lamp"})
    await api.until(plan, lambda found: found["current_state"] == "approving")
    report = {"task": "t", "event_type": "order.price", "attempt": 1}
    await api.desk.bus.progress.put(plan, pack({**report, "kind": "progress", "fraction": 0.5, "message": "half"}))
    await api.desk.bus.progress.put(plan, pack({**report, "kind": "chunk", "chunk": "42 ", "number": 0}))

    async def follow(headers: dict[str, str], params: dict[str, str], last: str) -> list[tuple[str, str, Any]]:
        """Names, ids and data of events, up to one that is named."""
        found, name, number = list[tuple[str, str, Any]](), "", ""
        url = f"/api/v1/plans/{plan}/stream"
        async with asyncio.timeout(60), api.http.stream("GET", url, headers=headers, params=params) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "id":
                    number = value
                elif field == "data":
                    found.append((name, number, json.loads(value)))
                elif not line and found and found[-1][0] == last:
                    break
        return found

    begun = await follow({}, {"after": "0"}, "chunk")
    reports = {name: data for name, _, data in begun if name in ("progress", "chunk")}
    assert (reports["progress"]["fraction"], reports["progress"]["message"]) == (0.5, "half")
    assert (reports["chunk"]["chunk"], reports["chunk"]["event_type"]) == ("42 ", "order.price")
    await api.post(f"/plans/{plan}/signal", {"event_type": "order.approved", "data": {"by": "boss"}})
    whole = [(name, number) for name, number, _ in await follow({}, {"after": "0"}, "end") if name != "status"]
    assert whole[-1][0] == "end"
    changes = whole[:-1]
    assert {name for name, _ in changes} == {"change", "progress", "chunk"}
    for place, (_, number) in enumerate(changes):
        for asked in (({"Last-Event-ID": number}, {}), ({}, {"after": number})):
            rest = [(name, after) for name, after, _ in await follow(*asked, "end") if name not in ("status", "end")]
            assert rest == changes[place + 1 :]
    await api.get(f"/plans/{plan}/stream", 422, params={"after": "the last one"})
