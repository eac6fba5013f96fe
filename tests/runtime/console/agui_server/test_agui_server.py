"""Runs of AG-UI over a real deployment."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import httpx
import pytest
import schemathesis
from ag_ui.core import RunAgentInput
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from tests.runtime.console.agui_server.client import (
    PATIENCE,
    Seen,
    answers,
    asks,
    interrupt_of,
    refused,
    run,
    types,
    whole,
)
from tests.runtime.console.desk import ADA, BOB, Api, Desk, with_tokens

from plancast.models.port import ReasonRequest
from plancast.tasks.progress import DecisionReporter, TaskReporter
from plancast_bus.events.envelope import EventEnvelope

pytestmark = pytest.mark.asyncio(loop_scope="session")
YES = {"approved": True, "reason": "cheap"}


def ids() -> tuple[str, str]:
    return uuid4().hex, uuid4().hex


async def asked(api: Api, goal: str = "order.goal", data: Any = None, token: str | None = None) -> tuple[str, Any]:
    """A thread whose plan waits for a person, and the interrupt."""
    thread, name = ids()
    events = await whole(api.http, asks(thread, name, goal, data or {"item": "lamp"}), token=token)
    return thread, interrupt_of(events)


def without_arguments(events: list[Seen]) -> list[Seen]:
    """Events without the arguments of calls, which are stored for two turns only."""
    for each in events:
        if each.type == "TOOL_CALL_ARGS":
            each.event.delta = ""
    return events


def plan_of(interrupt: Any) -> str:
    return str(interrupt.id.partition("/")[0])


async def test_a_run_shows_states_calls_and_the_state_and_ends_with_what_a_person_is_asked(api: Api) -> None:
    thread, name = ids()
    events = await whole(api.http, asks(thread, name, "order.goal", {"item": "lamp"}))
    assert types(events) == [
        *("RUN_STARTED", "STATE_SNAPSHOT"),
        *("STEP_STARTED", "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "STATE_DELTA"),
        *("TOOL_CALL_RESULT", "STEP_FINISHED", "STEP_STARTED"),
        *("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "STATE_DELTA"),
        *("STEP_FINISHED", "RUN_FINISHED"),
    ]
    begun = events[0].event
    assert (begun.thread_id, begun.run_id, begun.protocol_version) == (thread, name, "1.0")
    call, result = events[3].event, events[7].event
    assert (call.tool_call_name, result.tool_call_id) == ("stock.check.requested", call.tool_call_id)
    assert result.content == '{"in_stock": true}'
    interrupt = interrupt_of(events)
    assert (interrupt.reason, interrupt.message.partition("\n")[0]) == ("approval", "May lamp be ordered?")
    assert interrupt.response_schema["properties"]["approved"] == {"type": "boolean"}
    assert interrupt.metadata["plancast"]["may_answer"]
    plan = await api.get(f"/plans/{plan_of(interrupt)}")
    assert (plan["session_id"], plan["status"], plan["current_state"]) == (thread, "running", "approving")


async def test_an_answer_goes_on_with_the_plan_in_a_run_of_its_own(api: Api) -> None:
    thread, interrupt = await asked(api)
    body = answers(thread, uuid4().hex, interrupt.id, YES)
    events = await whole(api.http, body)
    assert types(events) == [
        *("RUN_STARTED", "STATE_SNAPSHOT", "STEP_STARTED"),
        *("TOOL_CALL_RESULT", "STEP_FINISHED", "STEP_STARTED", "STATE_DELTA"),
        *("STEP_FINISHED", "RUN_FINISHED"),
    ]
    assert events[1].event.snapshot["current_state"] == "approving"
    assert events[3].event.tool_call_id == interrupt.tool_call_id
    ended = events[-1].event
    assert (ended.outcome.type, ended.result["approving"]["reason"]) == ("success", "cheap")
    assert ended.result["approving"]["by"].startswith("local:")
    assert await whole(api.http, body) == events  # the same answer, which counts once
    again = await refused(api, answers(thread, uuid4().hex, interrupt.id, YES), 409)
    assert "does not wait" in again or "completed" in again


async def test_what_is_left_open_is_asked_again_and_a_no_fails_the_plan(api: Api) -> None:
    thread, interrupt = await asked(api, "ticket.goal", {"id": "1"})
    left = await whole(api.http, answers(thread, uuid4().hex, interrupt.id, None, "cancelled"))
    assert interrupt_of(left).id == interrupt.id
    events = await whole(api.http, answers(thread, uuid4().hex, interrupt.id, {"approved": False}))
    assert (events[-1].type, events[-1].event.code) == ("RUN_ERROR", "plan_failed")


async def test_input_is_asked_with_its_schema_and_bad_answers_say_what_is_wrong(api: Api) -> None:
    thread, interrupt = await asked(api, "form.goal", {"for": "test"})
    assert interrupt.reason == "input"
    assert interrupt.response_schema["required"] == ["street"]
    for payload in ({"street": ""}, {"number": 1}, {"street": "x", "approved": True}, {"street": "x", "by": "me"}):
        assert "data" in await refused(api, answers(thread, uuid4().hex, interrupt.id, payload), 422)
    assert "payload" in await refused(api, answers(thread, uuid4().hex, interrupt.id, "Main St"), 422)
    events = await whole(api.http, answers(thread, uuid4().hex, interrupt.id, {"street": "Main St"}))
    assert events[-1].event.result == {"start": {"street": "Main St"}}


async def test_plans_that_fail_or_are_cancelled_end_their_runs(api: Api) -> None:
    events = await whole(api.http, asks(*ids(), "order.goal", {"item": "none"}))
    assert (events[-1].type, events[-1].event.message) == ("RUN_ERROR", "ValueError: there is none")
    async with run(api.http, asks(*ids(), "transfer.goal", {"invoice": uuid4().hex})) as stream:
        seen: list[Seen] = []
        async for each in stream:
            seen.append(each)
            if each.type == "STATE_DELTA" and each.event.delta[-1].path == "/revision" and each.id == "2":
                await api.post(f"/plans/{seen[1].event.snapshot['plan_id']}/cancel", {"reason": "too dear"})
    assert seen[-1].event.outcome.type == "cancelled"


async def reported(api: Api) -> tuple[dict[str, Any], list[Seen]]:
    """A run whose plan has ended, with reports of tasks in it."""
    body, invoice = asks(*ids(), "transfer.goal", {"invoice": (mark := uuid4().hex)}), mark
    bus, plan = api.desk.bus, ""
    async with run(api.http, body) as stream:
        seen: list[Seen] = []
        async for each in stream:
            seen.append(each)
            if each.id != "2":
                continue
            plan = seen[1].event.snapshot["plan_id"]
            fields = {"topic": "action-requests", "source": "t", "plan_id": plan, "correlation_id": plan}
            for task in ("s", "t"):
                request = EventEnvelope(id=f"{invoice}-{task}", type="write.requested", **fields)
                reporter = TaskReporter(bus.progress, request, 1)
                await reporter.progress(0.5, "half")
                for piece in ("Hel", "lo", {"n": 1}):
                    await reporter.chunk(piece)
            decides = DecisionReporter(bus.progress)
            await decides(ReasonRequest([], "m", idempotency_key="k", planner="p", plan_id=plan), 1, 0, "{")
            await api.until(plan, lambda found: found["current_state"] == "confirming")
            async with asyncio.timeout(PATIENCE):
                while len(await bus.progress.kept(plan)) < 9:
                    await asyncio.sleep(0.02)
            await api.post(f"/plans/{plan}/signal", {"event_type": "transfer.confirmed", "data": {}})
    return body, seen


async def test_a_run_goes_on_after_each_of_its_events_without_a_gap_or_a_repetition(api: Api) -> None:
    body, seen = await reported(api)
    counted = types(seen)
    assert [counted.count(f"TEXT_MESSAGE_{each}") for each in ("START", "CONTENT", "END")] == [3, 7, 3]
    assert counted.count("ACTIVITY_SNAPSHOT") == 2
    assert counted[-1] == "RUN_FINISHED"
    assert len({each.id for each in seen}) == len(seen)
    seen = without_arguments(seen)
    assert without_arguments(await whole(api.http, body)) == seen
    for number, each in enumerate(seen[:-1], 1):
        assert without_arguments(await whole(api.http, body, last=each.id)) == seen[number:], each.id
    ended = await api.http.post("/agui", json=body, headers={"Last-Event-ID": seen[-1].id})
    assert ended.status_code == 204  # which tells a client not to come again


async def test_runs_that_a_person_has_ended_go_on_after_each_of_their_events(api: Api) -> None:
    thread, name = ids()
    body = asks(thread, name, "order.goal", {"item": "lamp"})
    first = await whole(api.http, body)
    for number, each in enumerate(first[:-1], 1):  # it has taken two turns, whose arguments are stored
        assert await whole(api.http, body, last=each.id) == first[number:], each.id
    second_body = answers(thread, uuid4().hex, interrupt_of(first).id, YES)
    second = await whole(api.http, second_body)
    for number, each in enumerate(second[:-1], 1):
        assert await whole(api.http, second_body, last=each.id) == second[number:], each.id
    # In the first run the question is answered meanwhile: what its end has closed is opened again.
    assert types(first)[-2:] == ["STEP_FINISHED", "RUN_FINISHED"]
    goes_on = await whole(api.http, body, last=first[-2].id)
    assert types(goes_on)[:3] == ["STEP_STARTED", "TOOL_CALL_RESULT", "STEP_FINISHED"]
    assert goes_on[1:-1] == second[3:-1]


async def test_one_thread_and_run_is_one_plan(api: Api) -> None:
    thread, name = ids()
    mark = uuid4().hex
    bodies = [asks(thread, name, "order.goal", {"item": mark})] * 3
    first, *others = await asyncio.gather(*[whole(api.http, body) for body in bodies])
    assert others == [first, first]
    assert len(await api.listed(data=mark)) == 1
    assert "other data" in await refused(api, asks(thread, name, "order.goal", {"item": "else"}), 409)


async def test_bad_input_is_refused_with_what_and_where(api: Api) -> None:
    good = asks(*ids(), "sized.goal", {"size": 1})
    for change, said in (
        ({"threadId": ""}, "body.threadId"),
        ({"runId": "x" * 401}, "body.runId"),
        ({"messages": [{"role": "nobody"}]}, "body.messages.0"),
        ({"forwardedProps": None}, "body.forwardedProps"),
        ({"forwardedProps": {"goal": 7}}, "body.forwardedProps.goal"),
        ({"forwardedProps": {"goal": "sized.goal", "data": []}}, "body.forwardedProps.data"),
        ({"forwardedProps": {"goal": "sized.goal", "data": {"size": "x"}}}, "goal_data.size"),
        ({"forwardedProps": {"goal": "none.goal"}}, "no planner takes"),
        ({"resume": [{"interruptId": "x", "status": "resolved"}]}, "body.resume.0.interruptId"),
        ({"resume": [{"interruptId": "x/1/y", "status": "resolved"}] * 2}, "got 2 answers"),
    ):
        assert said in await refused(api, good | change, 422), change
    assert "Last-Event-ID" in await refused(api, good, 422, last="nothing")
    assert "no JSON" in api.read(await api.http.post("/agui", content=b"{"), 422)["detail"]
    await refused(api, good | {"resume": [{"interruptId": "x/1/y", "status": "resolved"}]}, 404)
    await refused(api, good, 404, last="7")  # a plan that was forgotten is not begun again
    api.read(await api.http.get("/agui"), 405)


async def test_who_may_not_decide_is_told_so_and_cannot_forge_it(desk: Desk) -> None:
    async with with_tokens(desk, agui_approvers=["bob"]) as api:
        thread, interrupt = await asked(api, token=ADA)
        assert not interrupt.metadata["plancast"]["may_answer"]
        body = answers(thread, uuid4().hex, interrupt.id, YES)
        assert "ada may not decide it here" in await refused(api, body, 403, ADA)
        foreign = answers(uuid4().hex, uuid4().hex, interrupt.id, YES)
        await refused(api, foreign, 404, BOB)
        assert (await whole(api.http, body, token=BOB))[-1].event.result["approving"]["by"] == "bob"
        thread, interrupt = await asked(api, "form.goal", {"for": "ada"}, token=ADA)
        given_ = await whole(api.http, answers(thread, uuid4().hex, interrupt.id, {"street": "x"}), token=ADA)
        assert given_[-1].event.outcome.type == "success"


async def test_users_do_not_share_runs(desk: Desk) -> None:
    async with with_tokens(desk) as api:
        body = asks(*ids(), "sized.goal", {"size": 1})
        plans = {(await whole(api.http, body, token=each))[1].event.snapshot["plan_id"] for each in (ADA, BOB)}
        assert len(plans) == 2


async def test_a_server_of_a_tenant_begins_and_goes_on_with_its_plans_only(desk: Desk, api: Api) -> None:
    async with with_tokens(desk, agui_tenant="acme") as acme:
        events = await whole(acme.http, asks(*ids(), "sized.goal", {"size": 2}), token=ADA)
        plan = events[1].event.snapshot["plan_id"]
        assert (await api.get(f"/plans/{plan}"))["tenant_id"] == "acme"
        thread, interrupt = await asked(api)
        await refused(acme, answers(thread, uuid4().hex, interrupt.id, YES), 404, ADA)


async def test_each_request_needs_a_token_and_no_other_site_may_send_one(desk: Desk, api: Api) -> None:
    body = asks(*ids(), "sized.goal", {"size": 1})
    async with httpx.AsyncClient(base_url=api.url) as http:
        assert (await http.post("/agui", json=body)).status_code == 401
        assert (await http.get("/agui")).status_code == 401
        assert (await http.post("/agui", json=body, headers={"Authorization": "Bearer no"})).status_code == 401
        token = {"Authorization": api.http.headers["authorization"]}
        for others in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            assert (await http.post("/agui", json=body, headers=token | others)).status_code == 403
        large = b" " * (2 * desk.settings.bus.max_event_bytes + 1)
        assert (await http.post("/agui", content=large, headers=token)).status_code == 413


async def test_streams_are_limited(desk: Desk) -> None:
    body, token = asks(*ids(), "transfer.goal", {"invoice": uuid4().hex}), {"Authorization": f"Bearer {ADA}"}
    async with with_tokens(desk, max_streams=1) as api, run(api.http, body, token=ADA) as stream:
        await anext(stream)
        response = await api.http.post("/agui", json=body, headers=token)
        assert response.status_code == 429
        assert response.headers["retry-after"]


@pytest.mark.slow
async def test_whatever_is_sent_is_a_run_or_refused(api: Api) -> None:
    schema = RunAgentInput.model_json_schema(ref_template="#/components/schemas/{model}")
    components = {"schemas": schema.pop("$defs") | {"Run": schema}}
    body = {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Run"}}}}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "AG-UI", "version": "1"},
        "paths": {"/agui": {"post": {"requestBody": body, "responses": {"200": {"description": "events"}}}}},
        "components": components,
    }
    operation = schemathesis.openapi.from_dict(document)["/agui"]["POST"]
    cases = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    cases |= operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
    loop, answered = asyncio.get_running_loop(), set[int]()

    async def send(sent: Any, *, completes: bool) -> None:
        if completes and isinstance(sent, dict):
            sent |= {"forwardedProps": {"goal": "sized.goal", "data": {"size": 1}}, "resume": None}
        async with api.http.stream("POST", "/agui", json=sent, timeout=PATIENCE) as response:
            await response.aread()
        answered.add(response.status_code)
        assert response.status_code in (200, 404, 409, 422), response.text

    @settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(cases)
    def fuzz(case: Any) -> None:
        if isinstance(case.body, dict | list | str | int | float | bool | None):
            for completes in (False, True):
                asyncio.run_coroutine_threadsafe(send(case.body, completes=completes), loop).result(PATIENCE)

    await asyncio.to_thread(fuzz)
    assert {200, 422} <= answered
