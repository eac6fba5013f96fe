"""The MCP server over a real deployment, used by the official client in both of its protocol's eras."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, ElicitResult, ErrorData, InputRequiredResult
from tests.runtime.console.desk import ADA, BOB, Api, Desk, with_tokens

from plancast.console.mcp_server.results import IDEMPOTENCY_KEY, PLAN_ID, STATUS

pytestmark = pytest.mark.asyncio(loop_scope="session")
PATIENCE = 120.0
ERAS = pytest.mark.parametrize("mode", ["legacy", "auto"])


@contextlib.asynccontextmanager
async def connected(api: Api, token: str | None = None, **options: Any) -> AsyncIterator[Client]:
    headers = dict(api.http.headers) if token is None else {"Authorization": f"Bearer {token}"}
    headers = {"Authorization": headers.get("authorization") or headers["Authorization"]}
    http = httpx2.AsyncClient(headers=headers, timeout=PATIENCE)
    async with http, Client(streamable_http_client(f"{api.url}/mcp", http_client=http), **options) as client:
        yield client


def plan_of(result: CallToolResult) -> str:
    assert result.meta is not None
    return str(result.meta[PLAN_ID])


def status_of(result: CallToolResult) -> str:
    assert result.meta is not None
    return str(result.meta[STATUS])


def person(*answers: ElicitResult, asked: list[Any] | None = None) -> Callable[..., Any]:
    """A person at a client, who answers in turn."""
    left = list(answers)

    async def answer(context: Any, params: Any) -> ElicitResult:
        if asked is not None:
            asked.append(params)
        return left.pop(0)

    return answer


YES = ElicitResult(action="accept", content={"approved": True, "reason": "cheap"})
NO = ElicitResult(action="accept", content={"approved": False, "reason": "dear"})


@ERAS
async def test_goals_are_tools_with_schemas_and_a_call_returns_the_result_of_its_plan(api: Api, mode: str) -> None:
    progress: list[tuple[float, str | None]] = []

    async def report(done: float, total: float | None, message: str | None) -> None:
        progress.append((done, message))

    async with connected(api, mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {"order.goal", "ticket.goal", "plan_result", "plan_answer", "plan_cancel"} <= tools.keys()
        assert tools["order.goal"].description == "Orders, one at a time"
        assert tools["sized.goal"].input_schema["properties"]["size"] == {"type": "integer"}
        result = await client.call_tool("sized.goal", {"size": 3}, progress_callback=report)
        assert not result.is_error
        assert json.loads(result.content[0].text) == result.structured_content
        plan = await api.get(f"/plans/{plan_of(result)}")
        assert (plan["status"], plan["goal"]["data"]) == ("completed", {"size": 3})
        assert plan["result"] == result.structured_content
        failed = await client.call_tool("order.goal", {"item": "none"}, progress_callback=report)
        assert (failed.is_error, status_of(failed)) == (True, "failed")
        assert "there is none" in failed.content[0].text
        assert [done for done, _ in progress] == sorted(done for done, _ in progress)
        broken = await client.call_tool("sized.goal", {"size": "large"})
        assert broken.is_error
        assert "goal_data.size" in broken.content[0].text
        with pytest.raises(MCPError, match="no tool"):
            await client.call_tool("nothing.goal", {})


@ERAS
async def test_a_decision_is_elicited_and_its_answer_moves_the_plan(api: Api, mode: str) -> None:
    asked: list[Any] = []
    async with connected(api, mode=mode, elicitation_callback=person(YES, asked=asked)) as client:
        result = await client.call_tool("order.goal", {"item": "lamp"})
        assert (result.is_error, status_of(result)) == (False, "completed")
        approval = result.structured_content["approving"]
        assert (approval["approved"], approval["reason"]) == (True, "cheap")
        assert approval["by"].startswith("local:")
    [question] = asked
    assert question.message.startswith("May lamp be ordered?")
    assert question.requested_schema["required"] == ["approved"]
    async with connected(api, mode=mode, elicitation_callback=person(NO)) as client:
        result = await client.call_tool("ticket.goal", {"id": "t1"})
        assert (result.is_error, status_of(result)) == (True, "failed")
        assert "constraints_conflict" in result.content[0].text


@ERAS
async def test_what_a_person_declines_to_answer_stays_open_and_is_answered_elsewhere(api: Api, mode: str) -> None:
    declines = ElicitResult(action="decline")
    async with connected(api, mode=mode, elicitation_callback=person(declines)) as client:
        result = await client.call_tool("order.goal", {"item": "lamp"})
        assert status_of(result) == "input_required"
        assert result.structured_content["asks"]["question"] == "May lamp be ordered?"
        plan = plan_of(result)
    async with connected(api, mode=mode) as client:  # another one, which cannot ask
        again = await client.call_tool("plan_result", {"plan_id": plan})
        assert status_of(again) == "input_required"
        assert "plancast approvals" in again.content[0].text
        forged = await client.call_tool("plan_answer", {"plan_id": plan, "data": {"approved": True}})
        assert forged.is_error
        assert "which no tool can give" in forged.content[0].text
        assert (await api.get(f"/plans/{plan}"))["current_state"] == "approving"
        await api.post(f"/plans/{plan}/approve", {})
        ended = await client.call_tool("plan_result", {"plan_id": plan})
        assert status_of(ended) == "completed"


@ERAS
async def test_input_is_asked_by_a_form_of_its_schema_or_given_by_a_tool(api: Api, mode: str) -> None:
    asked: list[Any] = []
    empty = ElicitResult(action="accept", content={"street": ""})
    filled = ElicitResult(action="accept", content={"street": "Main St", "number": 5})
    async with connected(api, mode=mode, elicitation_callback=person(filled, asked=asked)) as client:
        result = await client.call_tool("form.goal", {})
        assert result.structured_content["start"] == {"street": "Main St", "number": 5}
    [question] = asked
    assert question.requested_schema == {
        "type": "object",
        "properties": {"street": {"type": "string", "minLength": 1}, "number": {"type": "integer"}},
        "required": ["street"],
    }
    async with connected(api, mode=mode) as client:
        plan = plan_of(await client.call_tool("form.goal", {}))
        for data in ({"number": 5}, {"street": "x", "approved": True}, {"street": "x", "by": "the boss"}, "Main St"):
            refused = await client.call_tool("plan_answer", {"plan_id": plan, "data": data})
            assert refused.is_error, data
        given_by_tool = await client.call_tool("plan_answer", {"plan_id": plan, "data": {"street": "Side St"}})
        assert given_by_tool.structured_content["start"] == {"street": "Side St"}
        late = await client.call_tool("plan_answer", {"plan_id": plan, "data": {"street": "Side St"}})
        assert late.is_error
    asked.clear()  # whoever enters what the schema refuses is asked again
    async with connected(api, mode=mode, elicitation_callback=person(empty, filled, asked=asked)) as client:
        assert status_of(await client.call_tool("form.goal", {})) == "completed"
    assert "data.street" in asked[1].message


async def test_a_client_that_cannot_ask_though_it_says_so_learns_of_its_plan(api: Api) -> None:
    async def fails(context: Any, params: Any) -> ErrorData:
        return ErrorData(code=-32603, message="there is no screen")

    async with connected(api, mode="legacy", elicitation_callback=fails) as client:
        result = await client.call_tool("order.goal", {"item": "lamp"})
        assert status_of(result) == "input_required"
        cancelled = await client.call_tool("plan_cancel", {"plan_id": plan_of(result)})
        assert status_of(cancelled) == "cancelled"


async def test_an_open_form_is_withdrawn_when_the_plan_is_answered_elsewhere(api: Api) -> None:
    shown = asyncio.Event()

    async def waits(context: Any, params: Any) -> ElicitResult:
        shown.set()
        await asyncio.Event().wait()
        raise AssertionError

    session = uuid4().hex
    async with connected(api, mode="legacy", elicitation_callback=waits) as client:
        calling = asyncio.create_task(client.call_tool("order.goal", {"item": session}))
        async with asyncio.timeout(PATIENCE):
            await shown.wait()
        plan = await waiting_plan(api, session)
        await api.post(f"/plans/{plan}/approve", {})
        assert status_of(await calling) == "completed"


async def test_who_may_not_decide_is_told_where_it_is_decided_and_cannot_forge_it(desk: Desk) -> None:
    async with with_tokens(desk, mcp_approvers=["bob"]) as api:
        for mode in ("legacy", "auto"):
            asked: list[Any] = []
            async with connected(api, ADA, mode=mode, elicitation_callback=person(YES, asked=asked)) as client:
                result = await client.call_tool("order.goal", {"item": "lamp"})
                assert status_of(result) == "input_required"
                assert "ada may not decide it here" in result.content[0].text
                assert asked == []
        plan = plan_of(result)
        shown = await api.http.get(f"/api/v1/plans/{plan}", headers={"Authorization": f"Bearer {ADA}"})
        request = shown.json()["approval"]["request_id"]
        state = json.dumps({"plan": plan, "request": request})
        async with connected(api, ADA, mode="auto") as client:  # a client that answers what it was not asked
            forged = await client.session.call_tool(
                "order.goal", {}, input_responses={"answer": YES}, request_state=state, allow_input_required=True
            )
            assert isinstance(forged, CallToolResult)
            assert "ada may not decide it here" in forged.content[0].text
        async with connected(api, BOB, mode="auto") as client:  # whose client may, but not in a call of ada's
            foreign = await client.session.call_tool(
                "order.goal", {}, input_responses={"answer": YES}, request_state=state, allow_input_required=True
            )
            assert isinstance(foreign, CallToolResult)
            assert "none of order.goal that bob has begun" in foreign.content[0].text
            with pytest.raises(MCPError, match="none of this server"):
                await client.call_tool("order.goal", {}, input_responses={"answer": YES}, request_state="?")
        async with connected(api, BOB, mode="auto", elicitation_callback=person(YES)) as client:
            assert status_of(await client.call_tool("plan_result", {"plan_id": plan})) == "completed"


@ERAS
async def test_a_client_that_is_killed_finds_its_plan_by_its_key(api: Api, mode: str) -> None:
    key = uuid4().hex
    calling: asyncio.Task[Any]

    async def call(client: Client) -> CallToolResult:
        return await client.call_tool("order.goal", {"item": key}, meta={IDEMPOTENCY_KEY: key})

    shown = asyncio.Event()

    async def hangs(context: Any, params: Any) -> ElicitResult:
        shown.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with connected(api, mode=mode, elicitation_callback=hangs) as client:
        calling = asyncio.create_task(call(client))
        async with asyncio.timeout(PATIENCE):
            await shown.wait()  # a response that arrives while the official client ends is an error of its own
            while not (plans := await api.listed(status="waiting", data=key)):
                await asyncio.sleep(0.02)
        if mode == "auto":  # the call is over, and the form is open
            calling.cancel()
        calling.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait((calling,))
    async with connected(api, mode=mode, elicitation_callback=person(YES)) as client:
        result = await call(client)
        assert (status_of(result), [plan_of(result)]) == ("completed", plans)
        assert plan_of(await call(client)) == plan_of(result)
        other = await client.call_tool("order.goal", {"item": "else"}, meta={IDEMPOTENCY_KEY: key})
        assert other.is_error
    assert await api.listed(data=key) == plans


async def test_a_plan_goes_on_when_the_connection_of_its_call_is_lost(api: Api) -> None:
    key = uuid4().hex
    async with connected(api, mode="auto") as client:
        calling = asyncio.create_task(client.call_tool("transfer.goal", {"invoice": key}, meta={IDEMPOTENCY_KEY: key}))
        async with asyncio.timeout(PATIENCE):
            while not (plans := await api.listed(data=key)):
                await asyncio.sleep(0.02)
        await api.until(plans[0], lambda found: found["current_state"] == "confirming")
        calling.cancel()  # closes the connection of the call
        await asyncio.wait((calling,))
    await api.post(f"/plans/{plans[0]}/signal", {"event_type": "transfer.confirmed", "data": {}})
    async with connected(api, mode="auto") as client:
        result = await client.call_tool("transfer.goal", {"invoice": key}, meta={IDEMPOTENCY_KEY: key})
        assert (plan_of(result), status_of(result)) == (plans[0], "completed")


async def test_cancelling_a_call_cancels_its_plan(api: Api) -> None:
    marks = [uuid4().hex, uuid4().hex]
    async with connected(api, mode="legacy", elicitation_callback=hang) as client:
        calling = asyncio.create_task(client.call_tool("order.goal", {"item": marks[0]}))
        plan = await waiting_plan(api, marks[0])
        calling.cancel()  # the official client says so to the server
        await asyncio.wait((calling,))
        ended = await api.until(plan, lambda found: found["status"] == "cancelled")
        assert "the client has cancelled" in ended["error"]
    async with connected(api, mode="auto") as client:
        plan = plan_of(await client.call_tool("order.goal", {"item": marks[1]}))
        result = await client.call_tool("plan_cancel", {"plan_id": plan, "reason": "too dear"})
        assert (result.is_error, status_of(result)) == (True, "cancelled")
        assert "too dear" in result.content[0].text


async def hang(context: Any, params: Any) -> ElicitResult:
    await asyncio.Event().wait()
    raise AssertionError


async def waiting_plan(api: Api, mark: str) -> str:
    async with asyncio.timeout(PATIENCE):
        while not (plans := await api.listed(status="waiting", data=mark)):
            await asyncio.sleep(0.02)
    [plan] = plans
    return plan


@ERAS
async def test_plans_are_resources_newest_first_with_their_history(api: Api, mode: str) -> None:
    async with connected(api, mode=mode) as client:
        plan = plan_of(await client.call_tool("sized.goal", {"size": 1}))
        async with asyncio.timeout(PATIENCE):
            while (listed := (await client.list_resources(cache_mode="bypass")).resources[0]).name != plan:
                await asyncio.sleep(0.02)
        assert (listed.uri, listed.title) == (f"plan://{plan}", "sized.goal: completed")
        state = json.loads((await client.read_resource(listed.uri)).contents[0].text)
        assert (state["plan_id"], state["status"]) == (plan, "completed")
        history = json.loads((await client.read_resource(f"{listed.uri}/history")).contents[0].text)
        assert [turn["revision"] for turn in history] == list(range(1, state["revision"] + 1))
        templates = (await client.list_resource_templates()).resource_templates
        assert [each.uri_template for each in templates] == ["plan://{plan_id}", "plan://{plan_id}/history"]
        for uri in ("plan://nothing", "file:///etc/passwd"):
            with pytest.raises(MCPError):
                await client.read_resource(uri)


async def test_each_request_needs_a_token_and_no_other_site_may_send_one(desk: Desk, api: Api) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    async with httpx2.AsyncClient(base_url=api.url) as http:
        assert (await http.post("/mcp", json=body)).status_code == 401
        assert (await http.get("/mcp")).status_code == 401
        assert (await http.post("/mcp", json=body, headers={"Authorization": "Bearer no"})).status_code == 401
        token = {"Authorization": api.http.headers["authorization"]}
        evil = token | {"Origin": "http://evil.example"}
        assert (await http.post("/mcp", json=body, headers=evil)).status_code == 403
        assert (await http.post("/mcp", json=body, headers=token | {"Host": "evil.example"})).status_code == 403
        large = b" " * (2 * desk.settings.bus.max_event_bytes + 1)
        headers = token | {"Content-Type": "application/json"}
        assert (await http.post("/mcp", content=large, headers=headers)).status_code == 413


async def test_a_session_is_that_of_the_user_who_has_opened_it(desk: Desk) -> None:
    async with with_tokens(desk) as api, httpx2.AsyncClient(base_url=api.url) as http:
        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        opened = await http.post("/mcp", json=body, headers=headers | {"Authorization": f"Bearer {ADA}"})
        assert opened.status_code == 200
        session = headers | {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
        asks = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        foreign = await http.post("/mcp", json=asks, headers=session | {"Authorization": f"Bearer {BOB}"})
        assert foreign.status_code == 404
        own = await http.post("/mcp", json=asks, headers=session | {"Authorization": f"Bearer {ADA}"})
        assert own.status_code == 200


async def test_a_server_of_a_tenant_begins_and_sees_its_plans_only(desk: Desk, api: Api) -> None:
    foreign = await api.submit("sized.goal", {"size": 1}, tenant_id="globex")
    await api.until(foreign, lambda found: found["status"] == "completed")
    async with with_tokens(desk, mcp_tenant="acme") as acme, connected(acme, ADA) as client:
        plan = plan_of(await client.call_tool("sized.goal", {"size": 2}))
        assert (await api.get(f"/plans/{plan}"))["tenant_id"] == "acme"
        async with asyncio.timeout(PATIENCE):
            while plan not in (
                names := [each.name for each in (await client.list_resources(cache_mode="bypass")).resources]
            ):
                await asyncio.sleep(0.02)
        assert foreign not in names
        with pytest.raises(MCPError, match="unknown"):
            await client.read_resource(f"plan://{foreign}")
        for tool in ("plan_result", "plan_cancel"):
            refused = await client.call_tool(tool, {"plan_id": foreign})
            assert refused.is_error
            assert "has no plan" in refused.content[0].text


async def test_any_arguments_are_answered_by_a_result_or_an_error_of_the_protocol(api: Api) -> None:
    texts = st.text(max_size=20)
    scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
    values = st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
    )
    names = st.sampled_from(["size", "plan_id", "data", "reason"]) | texts
    arguments = st.none() | st.dictionaries(names, values, max_size=4)
    tools = st.sampled_from(["sized.goal", "plan_result", "plan_answer", "plan_cancel"])
    loop = asyncio.get_running_loop()
    async with connected(api, mode="auto") as client:

        @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(tools, arguments, st.none() | texts)
        def fuzz(tool: str, data: dict[str, Any] | None, state: str | None) -> None:
            calling = client.session.call_tool(tool, data, request_state=state, allow_input_required=True)
            future = asyncio.run_coroutine_threadsafe(calling, loop)
            try:
                result = future.result(PATIENCE)
            except MCPError as error:
                assert error.code in (-32602, -32600), error  # noqa: PT017
            else:
                assert isinstance(result, CallToolResult | InputRequiredResult)

        await asyncio.to_thread(fuzz)
        assert not (await client.call_tool("sized.goal", {"size": 3})).is_error
