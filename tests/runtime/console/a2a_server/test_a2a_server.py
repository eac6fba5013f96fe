"""The A2A server over a real deployment, used by the official client."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from a2a.client import A2ACardResolver, Client, ClientCallContext, ClientConfig, ClientFactory
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime.console.desk import ADA, BOB, Api, Desk, served, with_tokens

from plancast.a2a_client.values import CURSOR, CURSOR_HEADER, from_struct, part_of, struct_of, value_of
from plancast.console.a2a_server.card import SCHEMAS
from plancast.console.a2a_server.tasks import STATE
from plancast.console.routes import event_streams
from plancast.console.server import ConsoleServer

pytestmark = pytest.mark.asyncio(loop_scope="session")
PATIENCE = 120.0


@contextlib.asynccontextmanager
async def connected(api: Api, token: str | None = None, **config: Any) -> AsyncIterator[Client]:
    authorization = api.http.headers.get("authorization") if token is None else f"Bearer {token}"
    async with httpx.AsyncClient(headers={"Authorization": authorization or ""}, timeout=PATIENCE) as http:
        card = await A2ACardResolver(http, api.url).get_agent_card()
        async with ClientFactory(ClientConfig(httpx_client=http, **config)).create(card) as client:
            yield client


def message(skill: str | None, *parts: Any, **fields: Any) -> Message:
    metadata = struct_of({} if skill is None else {"skill": skill})
    named = {"message_id": uuid4().hex, "role": Role.ROLE_USER} | fields
    return Message(parts=list(map(part_of, parts)), metadata=metadata, **named)


async def ask(client: Client, sent: Message, **options: Any) -> Task:
    """Send a message without a stream; returns the task."""
    configuration = SendMessageConfiguration(**options)
    [answer] = [
        each async for each in client.send_message(SendMessageRequest(message=sent, configuration=configuration))
    ]
    return answer.task


def result_of(task: Task) -> Any:
    [artifact] = task.artifacts
    return value_of(artifact.parts[0])


def cursor_of(event: StreamResponse) -> str:
    return str(from_struct(getattr(event, event.WhichOneof("payload") or "task").metadata)[CURSOR])


async def test_goals_are_skills_and_a_message_is_answered_by_the_task_of_its_plan(api: Api) -> None:
    async with connected(api, streaming=False) as client:
        card = await client.get_extended_agent_card(GetExtendedAgentCardRequest())
        skills = {each.id: each for each in card.skills}
        assert {"order.goal", "sized.goal"} <= skills.keys()
        assert skills["order.goal"].description == "Orders, one at a time"
        assert card.supported_interfaces[0].url == f"{api.url}/a2a"
        [extension] = card.capabilities.extensions
        assert extension.uri == SCHEMAS
        assert from_struct(extension.params)["sized.goal"]["properties"] == {"size": {"type": "integer"}}
        task = await ask(client, message("sized.goal", {"size": 3}))
        assert task.status.state == TaskState.TASK_STATE_COMPLETED
        plan = await api.get(f"/plans/{task.id}")
        assert (plan["status"], plan["goal"]["data"], plan["session_id"]) == ("completed", {"size": 3}, task.id)
        assert (plan["result"], task.context_id) == (result_of(task), task.id)
        assert await client.get_task(GetTaskRequest(id=task.id)) == task
        failed = await ask(client, message("order.goal", {"item": "none"}))
        assert failed.status.state == TaskState.TASK_STATE_FAILED
        assert "there is none" in failed.status.message.parts[0].text


async def test_a_message_that_comes_again_is_the_same_task_and_never_another_one(api: Api) -> None:
    async with connected(api, streaming=False) as client:
        sent = message("sized.goal", {"size": 1}, context_id="talk-1")
        first, again = await ask(client, sent), await ask(client, sent)
        assert (first.id, result_of(first), first.context_id) == (again.id, result_of(again), "talk-1")
        sent.parts[0].CopyFrom(part_of({"size": 2}))
        with pytest.raises(InvalidParamsError):
            await ask(client, sent)


@pytest.mark.parametrize(
    ("sent", "kind", "fault"),
    [
        (message("nothing.goal", {}), InvalidParamsError, "metadata.skill"),
        (message(None, {}), InvalidParamsError, "metadata.skill"),
        (message("sized.goal", {"size": "large"}), InvalidParamsError, "goal_data.size"),
        (message("sized.goal", [1]), InvalidParamsError, "no object"),
        (message("sized.goal", {}, {}), InvalidParamsError, "2 parts of data"),
        (message("sized.goal", {"size": 1}, role=Role.ROLE_AGENT), InvalidParamsError, "ROLE_USER"),
        (message("sized.goal", {"size": 1}, message_id="x" * 401), InvalidParamsError, "messageId"),
        (message("sized.goal", {"size": 1}, context_id="x" * 1001), InvalidParamsError, "session_id"),
        (message("sized.goal", {"size": 1}, task_id="nothing"), TaskNotFoundError, "unknown"),
    ],
)
async def test_a_message_that_is_none_is_refused_with_the_reason(
    api: Api, sent: Message, kind: type[A2AError], fault: str
) -> None:
    async with connected(api, streaming=False) as client:
        with pytest.raises(kind, match=fault):
            await ask(client, sent)


async def test_files_are_refused_and_so_is_a_client_that_takes_no_json(api: Api) -> None:
    async with connected(api, streaming=False) as client:
        sent = message("sized.goal")
        sent.parts.append(Part(url="http://x.example/file"))
        with pytest.raises(ContentTypeNotSupportedError):
            await ask(client, sent)
        with pytest.raises(ContentTypeNotSupportedError):
            await ask(client, message("sized.goal", {"size": 1}), accepted_output_modes=["image/png"])


async def test_input_is_required_and_a_message_on_the_task_gives_it_once(api: Api) -> None:
    async with connected(api, streaming=False) as client:
        task = await ask(client, message("form.goal", {}))
        assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        text, asked = map(value_of, task.status.message.parts)
        assert text.startswith("Where?")
        assert asked["schema"]["required"] == ["street"]
        for data in ({"number": 5}, {"street": "x", "approved": True}, {"street": "x", "by": "the boss"}):
            with pytest.raises(InvalidParamsError, match="data"):
                await ask(client, message(None, data, task_id=task.id))
        with pytest.raises(InvalidParamsError, match="contextId"):
            await ask(client, message(None, {"street": "x"}, task_id=task.id, context_id="another"))
        answer = message(None, {"street": "Main St", "number": 5}, task_id=task.id)
        ended = await ask(client, answer)
        assert result_of(ended)["start"] == {"street": "Main St", "number": 5}
        assert await ask(client, answer) == ended
        with pytest.raises(UnsupportedOperationError, match="completed"):
            await ask(client, message(None, {"street": "x"}, task_id=task.id))


async def test_an_approval_is_given_by_those_only_who_may_decide_over_a2a(desk: Desk) -> None:
    async with with_tokens(desk, a2a_approvers=["bob"]) as api:
        async with connected(api, ADA, streaming=False) as client:
            task = await ask(client, message("order.goal", {"item": "lamp"}))
            assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
            for data in ({"approved": True}, {}, "yes"):
                with pytest.raises(UnsupportedOperationError, match="ada may not give"):
                    await ask(client, message(None, data, task_id=task.id))
            assert (await client.get_task(GetTaskRequest(id=task.id))).status == task.status
        async with connected(api, BOB, streaming=False) as client:
            with pytest.raises(InvalidParamsError, match="approved"):
                await ask(client, message(None, "yes", task_id=task.id))
            ended = await ask(client, message(None, {"approved": True, "reason": "cheap"}, task_id=task.id))
            given = result_of(ended)["approving"]
            assert (given["approved"], given["by"], given["reason"]) == (True, "bob", "cheap")


def name_of(event: StreamResponse) -> tuple[str, int]:
    """Identity of an event of a task. Reports of its tasks may come before or after a turn."""
    revision, _, note = cursor_of(event).partition(".")
    if event.HasField("artifact_update") and event.artifact_update.last_chunk:
        return "result", 0
    is_turn = event.HasField("status_update") and STATE in from_struct(event.status_update.metadata)
    return ("turn", int(revision)) if is_turn else ("note", int(note))


async def followed(client: Client, sent: Message) -> list[StreamResponse]:
    return [each async for each in client.send_message(SendMessageRequest(message=sent))]


async def resumed(client: Client, task: str, cursor: str) -> list[StreamResponse]:
    context = ClientCallContext(service_parameters={CURSOR_HEADER: cursor})
    return [each async for each in client.subscribe(SubscribeToTaskRequest(id=task), context=context)]


async def test_a_stream_that_is_cut_between_any_two_events_goes_on_at_another_server(desk: Desk, api: Api) -> None:
    sent = message("story.goal", {"words": ["a", {"b": [1]}, "c"]})
    async with connected(api) as client:
        [begun, *events] = await followed(client, sent)
        assert begun.task.status.state == TaskState.TASK_STATE_SUBMITTED
        cursors = list(map(cursor_of, events))
        assert len(set(cursors)) == len(cursors)
        chunks = [each.artifact_update for each in events if each.HasField("artifact_update")]
        assert [value_of(each.artifact.parts[0]) for each in chunks[:-1]] == ["a", {"b": [1]}, "c"]
        assert [each.append for each in chunks[:-1]] == [False, True, True]
        assert value_of(chunks[-1].artifact.parts[0])["start"] == {"words": 3}
        states = [each.status_update.status.state for each in events if each.HasField("status_update")]
        assert states[-1] == TaskState.TASK_STATE_COMPLETED
        assert set(states[:-1]) == {TaskState.TASK_STATE_WORKING}
        assert sorted(map(name_of, (await followed(client, sent))[1:])) == sorted(map(name_of, events))
    async with served(desk, desk.settings) as other, connected(other) as client:
        for place, cursor in enumerate(["0", *cursors]):
            [task, *rest] = await resumed(client, begun.task.id, cursor)
            assert cursor_of(task) == cursor
            assert sorted(map(name_of, rest)) == sorted(map(name_of, events[place:])), cursor
            assert [each for each in map(name_of, rest) if each[0] == "note"] == sorted(
                each for each in map(name_of, rest) if each[0] == "note"
            )
            assert not rest or rest[-1] == events[-1]
        with pytest.raises(UnsupportedOperationError, match="is over"):
            await followed_on(client, begun.task.id)
        with pytest.raises(InvalidParamsError, match="cursor"):
            await resumed(client, begun.task.id, "here")


async def followed_on(client: Client, task: str) -> list[StreamResponse]:
    return [each async for each in client.subscribe(SubscribeToTaskRequest(id=task))]


async def test_a_stream_ends_where_input_is_required_and_another_one_goes_on_from_there(api: Api) -> None:
    async with connected(api) as client:
        [begun, *events] = await followed(client, message("form.goal", {}))
        assert events[-1].status_update.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        following = client.subscribe(SubscribeToTaskRequest(id=begun.task.id))
        assert (await anext(following)).task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        [_, *rest] = await followed(client, message(None, {"street": "Main St"}, task_id=begun.task.id))
        assert rest[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
        assert [each async for each in following] == rest


async def test_a_task_is_not_waited_for_where_the_client_wants_it_at_once(api: Api) -> None:
    async with connected(api, streaming=False) as client:
        task = await ask(client, message("transfer.goal", {"invoice": uuid4().hex}), return_immediately=True)
        assert task.status.state in (TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING)
        await api.until(task.id, lambda found: found["current_state"] == "confirming")
        cancelled = await client.cancel_task(CancelTaskRequest(id=task.id))
        assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(CancelTaskRequest(id=task.id))


async def test_a_client_that_hangs_up_is_not_waited_for(desk: Desk) -> None:
    async with with_tokens(desk, max_streams=1) as api, connected(api, ADA, streaming=False) as client:
        endless = message("transfer.goal", {"invoice": uuid4().hex})
        task = await ask(client, endless, return_immediately=True)

        async def until_refused() -> str:
            while True:
                try:
                    await ask(client, message("sized.goal", {"size": 1}))
                except A2AError as error:
                    return str(error)

        async def taken(by: Client, sent: Message) -> Task:
            while True:
                with contextlib.suppress(A2AError):
                    return await ask(by, sent)

        async with asyncio.timeout(PATIENCE):
            async with connected(api, ADA, streaming=False) as impatient:
                waiting = asyncio.create_task(taken(impatient, endless))
                assert "maximum" in await until_refused()
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            ended = await taken(client, message("sized.goal", {"size": 1}))
        assert ended.status.state == TaskState.TASK_STATE_COMPLETED
        await client.cancel_task(CancelTaskRequest(id=task.id))


async def test_a_stream_whose_client_does_not_read_ends(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "SEND_SECONDS", 0.05)
    sent = {"messageId": uuid4().hex, "role": "ROLE_USER", "parts": [{"data": {}}], "metadata": {"skill": "form.goal"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": {"message": sent}}
    inbox = [{"type": "http.request", "body": json.dumps(body).encode()}]
    statuses: list[int] = []

    async def receive() -> Any:
        return inbox.pop() if inbox else await asyncio.Event().wait()

    async def send(event: Any) -> None:
        if event["type"] != "http.response.start":
            await asyncio.Event().wait()
        statuses.append(event["status"])

    async with ConsoleServer(desk.bus, desk.settings) as server:
        headers = {"host": "localhost", "authorization": f"Bearer {server.token}", "a2a-version": "1.0"}
        scope = {
            "type": "http", "method": "POST", "path": "/a2a", "raw_path": b"/a2a", "query_string": b"",
            "http_version": "1.1", "scheme": "http", "server": ("localhost", 80), "client": ("127.0.0.1", 1),
            "root_path": "", "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }  # fmt: skip
        async with asyncio.timeout(PATIENCE):
            await server.app(scope, receive, send)
    assert statuses == [200]


async def test_tasks_are_listed_by_context_and_state_in_pages(api: Api) -> None:
    context = uuid4().hex
    async with connected(api, streaming=False) as client:
        sent = [message("sized.goal", {"size": size}, context_id=context) for size in range(3)]
        done = [(await ask(client, each)).id for each in sent]
        open_ = (await ask(client, message("form.goal", {}, context_id=context))).id

        async def listed(**fields: Any) -> list[Task]:
            page = await client.list_tasks(ListTasksRequest(context_id=context, **fields))
            following = page.next_page_token
            return [*page.tasks, *(await listed(**fields | {"page_token": following}) if following else [])]

        async with asyncio.timeout(PATIENCE):
            while len(await listed()) < 4:
                await asyncio.sleep(0.02)
        assert {each.id for each in await listed(page_size=1)} == {open_, *done}
        assert [each.id for each in await listed(status=TaskState.TASK_STATE_INPUT_REQUIRED)] == [open_]
        assert await listed(status=TaskState.TASK_STATE_REJECTED) == []
        completed = await listed(status=TaskState.TASK_STATE_COMPLETED, include_artifacts=True)
        assert {each.id: bool(each.artifacts) for each in completed} == dict.fromkeys(done, True)
        last = completed[0].status.timestamp
        assert done[0] not in {each.id for each in await listed(status_timestamp_after=last)}
        for wrong in ({"page_size": 101}, {"page_token": "?"}):
            with pytest.raises(InvalidParamsError):
                await listed(**wrong)


async def test_an_agent_of_a_tenant_begins_and_sees_its_plans_only(desk: Desk, api: Api) -> None:
    foreign = await api.submit("sized.goal", {"size": 1}, tenant_id="globex")
    await api.until(foreign, lambda found: found["status"] == "completed")
    async with with_tokens(desk, a2a_tenant="acme") as acme, connected(acme, ADA, streaming=False) as client:
        task = await ask(client, message("sized.goal", {"size": 2}))
        assert (await api.get(f"/plans/{task.id}"))["tenant_id"] == "acme"
        assert foreign not in {each.id for each in (await client.list_tasks(ListTasksRequest())).tasks}
        for call in (client.get_task(GetTaskRequest(id=foreign)), client.cancel_task(CancelTaskRequest(id=foreign))):
            with pytest.raises(TaskNotFoundError):
                await call
        with pytest.raises(InvalidParamsError, match="tenant"):
            await client.get_task(GetTaskRequest(id=task.id, tenant="globex"))
    async with connected(api, streaming=False) as client:  # an agent of all tenants takes the one of the request
        assert (await client.get_task(GetTaskRequest(id=foreign, tenant="globex"))).id == foreign
        with pytest.raises(TaskNotFoundError):
            await client.get_task(GetTaskRequest(id=foreign, tenant="acme"))


async def test_each_request_needs_a_token_and_no_other_site_may_send_one(desk: Desk, api: Api) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
    async with httpx.AsyncClient(base_url=api.url, headers={"A2A-Version": "1.0"}) as http:
        assert (await http.post("/a2a", json=body)).status_code == 401
        assert (await http.post("/a2a", json=body, headers={"Authorization": "Bearer no"})).status_code == 401
        token = {"Authorization": api.http.headers["authorization"]}
        assert (await http.post("/a2a", json=body, headers=token)).json()["id"] == 1
        assert (
            await http.post("/a2a", json=body, headers=token | {"Origin": "http://evil.example"})
        ).status_code == 403
        assert (await http.post("/a2a", json=body, headers=token | {"Host": "evil.example"})).status_code == 403
        large = b" " * (2 * desk.settings.bus.max_event_bytes + 1)
        assert (await http.post("/a2a", content=large, headers=token)).status_code == 413
        old = await http.post("/a2a", json=body, headers=token | {"A2A-Version": "0.3"})
        assert old.json()["error"]["code"] == -32009


async def test_strangers_learn_from_the_card_how_to_log_in_and_no_skills(desk: Desk) -> None:
    async with with_tokens(desk) as api, httpx.AsyncClient() as http:
        card: AgentCard = await A2ACardResolver(http, api.url).get_agent_card()
        assert (list(card.skills), list(card.security_schemes)) == ([], ["bearer"])
        http.headers["Authorization"] = f"Bearer {ADA}"
        assert "order.goal" in {each.id for each in (await A2ACardResolver(http, api.url).get_agent_card()).skills}


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Messages of a type of the protocol as JSON, some with values of other types."""
    junk: st.SearchStrategy[Any] = st.none() | st.integers() | st.text(max_size=5) | st.lists(st.none(), max_size=1)
    if kind.full_name.startswith("google.protobuf."):
        return st.dictionaries(st.text(max_size=5), junk, max_size=2) | st.just("2026-01-01T00:00:00Z") | junk
    fields = {}
    for field in kind.fields:
        value: st.SearchStrategy[Any] = st.text(max_size=10) | st.integers() | st.booleans()
        if field.name == "metadata":
            value = st.just({"skill": "sized.goal"}) | value
        elif field.message_type is not None:
            value = of_type(field.message_type)
        elif field.enum_type is not None:
            value = st.sampled_from([each.name for each in field.enum_type.values])
        repeated = st.lists(value, max_size=2)
        fields[field.json_name] = st.one_of(repeated, value) if field.is_repeated else st.one_of(value, value, junk)
    return st.fixed_dictionaries({}, optional=fields)


METHODS = sorted(JsonRpcDispatcher.METHOD_TO_MODEL)


@pytest.mark.parametrize("method", METHODS)
async def test_any_request_is_answered_by_a_result_or_an_error_of_the_protocol(api: Api, method: str) -> None:
    kind: Any = JsonRpcDispatcher.METHOD_TO_MODEL[method]
    loop = asyncio.get_running_loop()
    headers = {"A2A-Version": "1.0", "Authorization": api.http.headers["authorization"]}

    async with httpx.AsyncClient(base_url=api.url, headers=headers, timeout=PATIENCE) as http:

        async def answer(params: Any, cursor: str) -> dict[str, Any]:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            async with http.stream("POST", "/a2a", json=body, headers={CURSOR_HEADER: cursor}) as response:
                assert response.status_code == 200
                if response.headers["content-type"].startswith("text/event-stream"):
                    lines = [each async for each in response.aiter_lines() if each.startswith("data: ")]
                    return dict(json.loads(lines[0].removeprefix("data: ")))
                return dict(json.loads(await response.aread()))

        @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(of_type(kind.DESCRIPTOR) | st.none() | st.text(max_size=3), st.sampled_from(["0", "1.2r", "x", ""]))
        def fuzz(params: Any, cursor: str) -> None:
            answered = asyncio.run_coroutine_threadsafe(answer(params, cursor), loop).result(PATIENCE)
            assert ("result" in answered) != ("error" in answered), answered
            assert answered.get("error", {}).get("code") != -32603, answered

        await asyncio.to_thread(fuzz)
