"""Traces of whole plans in memory: client, turns, tasks, children and questions to a model in one connected trace."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from plancast import (
    App,
    ChoreographyPlanner,
    PlanFailed,
    Planner,
    RetryableError,
    StateAction,
    StateConfig,
    StateTransition,
    Worker,
)
from plancast.settings import Settings, TelemetrySettings
from plancast.telemetry.tracing import Tracing
from plancast.testing import Answer, MemoryWorld, ModelServer, PlancastTest
from plancast_bus.events.codec import decode
from plancast_bus.events.trace_context import read_trace
from plancast_bus.memory import MemoryBus
from plancast_bus.ports.bus import ConsumerSpec
from plancast_bus.ports.effects import Publish
from plancast_bus.topics import Source

SECRET = "what-the-goal-says"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"
OFF = Settings(telemetry=TelemetrySettings(traces="off"))


def asking(event_type: str, **action: Any) -> StateConfig:
    """A state that waits for one answer."""
    answer = f"{event_type.removesuffix('.requested')}.completed"
    return StateConfig(
        state_name="asking",
        action=StateAction(event_type=event_type, response_event=answer, data={"text": SECRET}, **action),
        transitions=[StateTransition(on_event=answer, to_state="done")],
    )


def machine(*states: StateConfig) -> dict[str, StateConfig]:
    """From start through these states to the end."""
    first = StateConfig(state_name="start", default_next=states[0].state_name)
    done = StateConfig(state_name="done", is_terminal=True)
    return {each.state_name: each for each in (first, *states, done)}


def greeting(handler: Any = None) -> App:
    planner, worker = Planner("greeter"), Worker("greeter")
    planner.add_goal("greet.goal", machine(asking("greet.requested")))

    @worker.on_task("greet.requested", "greet.completed")
    async def greet(task: Any, context: Any) -> dict[str, Any]:
        if handler is not None:
            await handler(task, context)
        return {"text": SECRET}

    return App("greetings", planners=[planner], workers=[worker])


class Traced:
    """What was exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(self.provider)

    def spans(self, name: str = "") -> list[ReadableSpan]:
        found = [each for each in self.exporter.get_finished_spans() if each.name.startswith(name)]
        return sorted(found, key=lambda each: each.start_time or 0)

    def path(self, span: ReadableSpan) -> list[str]:
        """The names from the root to a span."""
        by_id = {each.context.span_id: each for each in self.spans()}
        names = [span.name]
        while span.parent is not None and span.parent.span_id in by_id:
            span = by_id[span.parent.span_id]
            names.insert(0, span.name)
        return names

    @property
    def trace_ids(self) -> set[int]:
        return {each.context.trace_id for each in self.spans()}


@pytest.fixture
def traced() -> Iterator[Traced]:
    made = Traced()
    yield made
    made.provider.shutdown()


ACTION = {"action": "delegate", "target_planner": "greeter", "goal_event": "greet.goal", "goal_data": {}}
ANSWERS = (
    Answer.json({"next_action": ACTION, "reasoning": SECRET}),
    Answer.json({"next_action": {"action": "complete", "result": {"said": SECRET}}, "reasoning": "done"}),
)
"""A model that delegates at first, and completes when that has come back."""


async def test_client_plan_model_child_and_worker_are_one_trace_with_the_right_parents(traced: Traced) -> None:
    app = greeting()
    with ModelServer(ANSWERS) as model:
        chooser = ChoreographyPlanner(
            "chooser", "openai/any", goals=["choose.goal"], api_base=model.url, api_key="sk-x", temperature=0.2
        )
        whole = App("whole", planners=[*app.planners, chooser], workers=app.workers)
        async with PlancastTest(whole, tracing=traced.tracing) as env:
            with traced.provider.get_tracer("program").start_as_current_span("program"):
                handle = await env.submit("choose.goal", {"text": SECRET})
            assert await handle.result(timeout=20) == {"said": SECRET}
            state = await handle.state()
    assert len(traced.trace_ids) == 1
    first = ["program", "publish choose.goal", "plan turn chooser"]
    child = [*first, "plan turn greeter"]
    assert [traced.path(each) for each in traced.spans("plan turn")] == [
        first,
        child,
        [*child, "task greet.requested", "plan turn greeter"],
        [*child, "task greet.requested", "plan turn greeter", "plan turn chooser"],
    ]
    chats = traced.spans("chat")
    assert [traced.path(each)[:-1] for each in chats] == [
        first,
        [*child, *(["task greet.requested"]), "plan turn greeter", "plan turn chooser"],
    ]
    about = dict(chats[0].attributes or {})
    assert chats[0].kind is SpanKind.CLIENT
    assert about["gen_ai.operation.name"] == "chat"
    assert about["gen_ai.request.model"] == "openai/any"
    assert about["gen_ai.provider.name"] == "openai"
    assert about["gen_ai.request.temperature"] == 0.2
    assert about["gen_ai.usage.input_tokens"]
    assert about["gen_ai.usage.output_tokens"]
    assert f"{next(iter(traced.trace_ids)):032x}" == state["trace_id"]
    told = "".join(each.to_json() for each in traced.spans())
    assert SECRET not in told
    assert "sk-x" not in told


async def test_spans_say_what_messaging_conventions_and_plans_ask_for(traced: Traced) -> None:
    async with PlancastTest(greeting(), tracing=traced.tracing) as env:
        handle = await env.submit("greet.goal", tenant_id="acme")
        await handle.result(timeout=10)
    publish, begin, task, end = traced.spans()
    assert [each.kind for each in (publish, begin, task, end)] == [
        SpanKind.PRODUCER,
        SpanKind.CONSUMER,
        SpanKind.CONSUMER,
        SpanKind.CONSUMER,
    ]
    said = dict(publish.attributes or {})
    assert said["messaging.system"] == "nats"
    assert said["messaging.operation.type"] == "send"
    assert said["messaging.destination.name"] == f"plancast.action-requests.{handle.plan_id}.greet.goal"
    assert said["messaging.destination.template"] == "plancast.action-requests.{correlation_id}.greet.goal"
    said = dict(begin.attributes or {})
    assert (said["plancast.plan_id"], said["plancast.revision"]) == (handle.plan_id, 1)
    assert said["plancast.state.to"] == "asking"
    assert "plancast.state.from" not in said
    assert said["plancast.tenant_id"] == "acme"
    assert [each.name for each in begin.events] == ["commit"]
    said = dict(task.attributes or {})
    assert (said["messaging.operation.type"], said["plancast.worker"]) == ("process", "greeter")
    said = dict(end.attributes or {})
    assert (said["plancast.state.to"], said["plancast.plan.status"]) == ("done", "completed")
    assert (said["plancast.state.from"], said["plancast.event.type"]) == ("asking", "greet.completed")


async def test_no_span_is_made_unless_traces_are_on(traced: Traced) -> None:
    async with PlancastTest(greeting(), settings=OFF) as env:
        handle = await env.submit("greet.goal")
        await handle.result(timeout=10)
        assert env.tracing is None
        assert env.client.tracing is None
    assert traced.spans() == []


async def test_a_trace_from_outside_is_passed_along_unchanged_while_traces_are_off() -> None:
    async def tell(task: Any, context: Any) -> None:
        await context.bus.announce("greeted", {})

    world = MemoryWorld()
    async with PlancastTest(greeting(tell), settings=OFF, world=world) as env:
        facts = listen(world, "facts", "business-facts")
        goal = env.bus.subjects.event("action-requests", "p1", "greet.goal")
        world.publish(goal, b'{"data": {}}', None, None, trace=read_trace(TRACEPARENT, "vendor=1"))
        handle = env.client.plan("p1")
        await asyncio.wait_for(_finished(handle), 10)
        (fact,) = await asyncio.wait_for(facts.fetch(10), 10)
        state = await handle.state()
    assert fact.trace == f"{TRACEPARENT} vendor=1"
    assert decode(fact.payload, fact.content_type).trace_id == TRACE_ID
    assert state["trace_id"] == TRACE_ID


def listen(world: MemoryWorld, source: Source, topic: str) -> Any:
    bus = MemoryBus(world)
    return bus.consume(ConsumerSpec("listener", source, (bus.subjects.stored(topic, "*", "*", ">"),)))


async def _finished(handle: Any) -> None:
    from plancast.errors import PlanNotFound

    while True:
        try:
            if (await handle.status()).finished:
                return
        except PlanNotFound:
            pass
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "hostile",
    [
        "nonsense",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"ff-{TRACE_ID}-b7ad6b7169203331-01",
        TRACEPARENT.upper(),
        TRACEPARENT + "-more",
        "x" * 50_000,
    ],
)
async def test_a_malformed_traceparent_is_ignored_and_the_plan_has_a_trace_of_its_own(
    traced: Traced, hostile: str
) -> None:
    world = MemoryWorld()
    async with PlancastTest(greeting(), tracing=traced.tracing, world=world) as env:
        subject = env.bus.subjects.event("action-requests", "p1", "greet.goal")
        world.publish(subject, b'{"data": {}}', None, None, trace=read_trace(hostile))
        await asyncio.wait_for(_finished(env.client.plan("p1")), 10)
    (root, *_) = traced.spans()
    assert (root.name, root.parent) == ("plan turn greeter", None)
    assert len(traced.trace_ids) == 1
    assert int(TRACE_ID, 16) not in traced.trace_ids


async def test_what_a_committed_turn_sends_keeps_its_trace_when_the_host_dies_before_it_is_out(traced: Traced) -> None:
    world = MemoryWorld()
    lost: list[Publish] = []

    class Losing(MemoryBus):
        def begin_emit(self, effects: Any) -> asyncio.Future[list[int]]:
            lost.extend(each for each in effects if isinstance(each, Publish))
            return asyncio.get_running_loop().create_future()  # its acknowledgement never comes

        async def emit(self, effects: Any) -> list[int]:
            return await self.begin_emit(effects)

    async with PlancastTest(greeting(), tracing=traced.tracing, world=world) as env:
        whole = env.hosts[0].host
        assert whole is not None
        whole.bus.__class__ = Losing
        handle = await env.submit("greet.goal")
        while not lost:
            await asyncio.sleep(0.01)
        await env.crash_host()
        assert await handle.result(timeout=20)
    assert len(traced.trace_ids) == 1
    (task,) = traced.spans("task")
    assert task.parent is not None
    assert f"{task.parent.span_id:016x}" == lost[0].trace.split("-")[2]


async def test_a_task_that_is_given_to_another_worker_stays_in_its_trace(traced: Traced) -> None:
    begun: list[int] = []

    async def hang(task: Any, context: Any) -> None:
        begun.append(task.attempt)
        if len(begun) == 1:
            await asyncio.sleep(60)

    settings = Settings()
    settings.workers.ack_wait = 0.3
    async with PlancastTest(greeting(hang), settings=settings, tracing=traced.tracing) as env:
        handle = await env.submit("greet.goal")
        while not begun:
            await asyncio.sleep(0.01)
        await env.crash_worker()
        await handle.result(timeout=20)
    (turn, last) = traced.spans("plan turn")
    tasks = traced.spans("task")
    assert {each.parent.span_id for each in tasks if each.parent} == {turn.context.span_id}
    assert dict(tasks[-1].attributes or {})["plancast.attempt"] == 2
    assert last.parent is not None
    assert last.parent.span_id == tasks[-1].context.span_id


async def test_failures_set_the_status_of_their_spans_and_tell_no_message(traced: Traced) -> None:
    async def fail(task: Any, context: Any) -> None:
        if task.attempt == 1:
            raise RetryableError("not yet", retry_after=0)
        raise ValueError(SECRET)

    async with PlancastTest(greeting(fail), tracing=traced.tracing) as env:
        handle = await env.submit("greet.goal")
        with pytest.raises(Exception, match="what-the-goal-says"):
            await handle.result(timeout=20)
    tasks = traced.spans("task")
    assert [(each.status.status_code, (each.attributes or {})["error.type"]) for each in tasks] == [
        (StatusCode.ERROR, "RetryableError"),
        (StatusCode.ERROR, "ValueError"),
    ]
    last = traced.spans("plan turn")[-1]
    assert (last.status.status_code, (last.attributes or {})["error.type"]) == (StatusCode.ERROR, "plan_failed")
    assert SECRET not in "".join(each.to_json() for each in traced.spans())


async def test_each_call_to_a_model_is_a_span_and_one_that_fails_says_how_and_no_more(traced: Traced) -> None:
    with ModelServer(rule=lambda request: Answer.error(401, SECRET)) as model:
        chooser = ChoreographyPlanner(
            "chooser",
            "openai/first",
            goals=["choose.goal"],
            api_base=model.url,
            api_key="sk-x",
            fallback_models=("openai/second",),
        )
        async with PlancastTest(App("choosing", planners=[chooser]), tracing=traced.tracing) as env:
            handle = await env.submit("choose.goal")
            with pytest.raises(PlanFailed):
                await handle.result(timeout=20)
    chats = traced.spans("chat")
    assert [each.name for each in chats] == ["chat openai/first", "chat openai/second"]
    assert {(each.status.status_code, (each.attributes or {})["error.type"]) for each in chats} == {
        (StatusCode.ERROR, "401")
    }
    assert {traced.path(each)[-2] for each in chats} == {"plan turn chooser"}
    assert SECRET not in "".join(each.to_json() for each in traced.spans())


async def test_a_turn_that_joins_branches_is_linked_to_the_turns_that_waited_for_it(traced: Traced) -> None:
    planner, worker = Planner("fan"), Worker("leaf")

    @planner.on_goal("fan.goal")
    async def begin(goal: Any, context: Any) -> None:
        for _ in range(3):
            await context.bus.request("leaf.requested", {}, "leaf.completed")

    @planner.on_transition()
    async def joined(transition: Any, context: Any) -> None:
        plan = transition.plan
        plan.results["count"] = plan.results.get("count", 0) + 1
        if plan.results["count"] == 3:
            await plan.finalize({"count": 3})
        else:
            await plan.save()

    @worker.on_task("leaf.requested", "leaf.completed")
    async def leaf(task: Any, context: Any) -> dict[str, Any]:
        return {}

    app = App("fanning", planners=[planner], workers=[worker])
    async with PlancastTest(app, tracing=traced.tracing) as env:
        handle = await env.submit("fan.goal")
        assert await handle.result(timeout=10) == {"count": 3}
    first, one, two, last = traced.spans("plan turn")
    assert [each.context.span_id for each in last.links] == [one.context.span_id, two.context.span_id]
    assert [traced.path(each)[-2] for each in (one, two, last)] == ["task leaf.requested"] * 3
    assert not first.links


async def test_a_signal_from_another_trace_is_linked_to_the_plans_own(traced: Traced) -> None:
    planner = Planner("asker")
    planner.add_goal(
        "ask.goal",
        machine(
            StateConfig(state_name="asking", transitions=[StateTransition(on_event="person.answered", to_state="done")])
        ),
    )
    async with PlancastTest(App("asking", planners=[planner]), tracing=traced.tracing) as env:
        handle = await env.submit("ask.goal")
        while not traced.spans("plan turn"):
            await asyncio.sleep(0.01)
        await handle.signal("person.answered", {})
        await handle.result(timeout=10)
    begun, moved = traced.spans("plan turn")
    assert len(traced.trace_ids) == 2
    assert traced.path(moved) == ["publish person.answered", "plan turn asker"]
    assert [each.context.span_id for each in moved.links] == [begun.context.span_id]


async def test_a_timer_belongs_to_the_turn_that_set_it(traced: Traced) -> None:
    planner = Planner("patient")
    state = asking("nobody.requested", timeout_seconds=0.05)
    state.transitions.append(StateTransition(on_event="nobody.timeout", to_state="done"))
    planner.add_goal("wait.goal", machine(state))
    async with PlancastTest(App("waiting", planners=[planner]), tracing=traced.tracing) as env:
        handle = await env.submit("wait.goal")
        await handle.result(timeout=10)
    begun, fired = traced.spans("plan turn")
    assert fired.parent is not None
    assert fired.parent.span_id == begun.context.span_id


async def test_spans_of_a_handlers_own_stand_below_its_turn(traced: Traced) -> None:
    planner = Planner("own")
    tracer = traced.provider.get_tracer("app")

    @planner.on_goal("own.goal")
    async def begin(goal: Any, context: Any) -> None:
        from plancast import PlanContext

        with tracer.start_as_current_span("look up"):
            plan = await PlanContext.create_from_goal(goal, {})
        await plan.finalize({"trace_id": goal.trace_id})

    async with PlancastTest(App("owning", planners=[planner]), tracing=traced.tracing) as env:
        result = await (await env.submit("own.goal")).result(timeout=10)
    (own,) = traced.spans("look up")
    assert traced.path(own) == ["publish own.goal", "plan turn own", "look up"]
    assert result == {"trace_id": f"{own.context.trace_id:032x}"}


def test_importing_plancast_loads_nothing_of_opentelemetry() -> None:
    import subprocess
    import sys

    code = (
        "import plancast, plancast_actors.hosting.plan_host, sys\n"
        "print([m for m in sys.modules if 'opentelemetry' in m])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"
