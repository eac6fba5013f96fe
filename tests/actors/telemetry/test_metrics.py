"""What the parts count while they work, and how it is reported. Ray's part is in ``tests/e2e/test_metrics.py``."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plancast import App, Planner, StateAction, StateConfig, StateTransition, Worker
from plancast.models.port import ReasonReply, ReasonRequest, Usage
from plancast.planners.decision_tree.planner import DeterministicPlanner
from plancast.planners.decision_tree.steps import CallToolStep, FinishStep
from plancast.settings import ReasonerSettings
from plancast.testing import PlancastTest
from plancast.turn_record.record import MAX_UNWANTED
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.maintenance import scheduler
from plancast_actors.plan_actors.protocol import Inbound
from plancast_actors.reasoning import pool as reasoner_pool
from plancast_actors.reasoning.pool import ReasonerPool
from plancast_actors.reasoning.serialization import pack_request
from plancast_actors.reasoning.usage import Ledger
from plancast_actors.telemetry import collectors, metrics, reporter
from plancast_actors.telemetry import samples as sampling
from plancast_actors.telemetry.collectors import Reading
from plancast_actors.telemetry.metrics import METRICS, Metric
from plancast_actors.telemetry.reporter import MAX_SERIES, Reporter
from plancast_actors.telemetry.samples import MOST, UNSAMPLED, Samples
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import connect
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import ConsumerSpec
from plancast_bus.settings import BusSettings, NatsSettings

STEP = {
    "start": StateConfig(state_name="start", default_next="one"),
    "one": StateConfig(
        state_name="one",
        action=StateAction(event_type="echo.requested", response_event="echo.completed"),
        transitions=[StateTransition(on_event="echo.completed", to_state="done")],
    ),
    "done": StateConfig(state_name="done", is_terminal=True),
}
WAITS = {
    "start": StateConfig(state_name="start", transitions=[StateTransition(on_event="go", to_state="done")]),
    "done": StateConfig(state_name="done", is_terminal=True),
}
FAILS = {
    "start": StateConfig(state_name="start", default_next="failed"),
    "failed": StateConfig(state_name="failed", is_terminal=True),
}
tree = DeterministicPlanner(
    [
        CallToolStep("echo.requested", lambda run: {}, when=lambda run: "echo.completed" not in run.results),
        FinishStep("goal"),
    ],
    name="tree",
)
planner = Planner("p")
planner.add_goal("step.goal", STEP)
planner.add_goal("fail.goal", FAILS)
planner.add_goal("wait.goal", WAITS)
planner.add_goal("tree.goal", decided_by=tree)
worker = Worker("echo")


@worker.on_task("echo.requested", "echo.completed")
async def echo(task: Any, context: Any) -> dict[str, Any]:
    return {}


APP = App("app", planners=[planner], workers=[worker])


class Noted:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.counters: Counter[Any] = Counter()
        self.gauges: dict[Any, float] = {}
        self.observed: defaultdict[Any, list[float]] = defaultdict(list)

    def add(self, metric: Metric, labels: tuple[str, ...], amount: float) -> None:
        assert amount > 0
        assert len(labels) == len(metric.labels)
        self.counters[metric, *labels] += amount

    def set(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        self.gauges[metric, *labels] = value

    def observe(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        self.observed[metric, *labels].append(value)


class Watched(PlancastTest):
    """An environment of which everything is measured and reported."""

    def __init__(self, *, measured: bool = True) -> None:
        self.samples = Samples() if measured else None
        self.noted = Noted()
        super().__init__(APP)

    def new_host(self, name: str) -> PlanHost:
        host = super().new_host(name)
        host.samples = self.samples
        return host

    async def start_dispatcher(self) -> None:
        await super().start_dispatcher()
        assert self._dispatcher is not None
        self._dispatcher.samples = self.samples

    async def _start_worker(self) -> None:
        await super()._start_worker()
        assert self._runner is not None
        self._runner.samples = self.samples
        for reader in self._runner._readers:
            reader._executor.samples = self.samples

    async def read(self) -> AsyncIterator[Reading]:
        host, runner, dispatcher = self.hosts[0].host, self._runner, self._dispatcher
        assert host is not None
        assert runner is not None
        assert dispatcher is not None
        for reading in (
            *collectors.of_host(host),
            *collectors.of_dispatcher(dispatcher),
            *collectors.of_runner(runner),
            *collectors.of_process(),
        ):
            yield reading

    async def report(self) -> Noted:
        await Reporter(self.read, self.samples or Samples(), self.noted, 1.0).report()
        return self.noted

    async def run(self, goal: str, plans: int) -> None:
        handles = [await self.submit(goal, {"n": n}) for n in range(plans)]
        for handle in handles:
            async with asyncio.timeout(30):
                while not (await handle.status()).finished:
                    await asyncio.sleep(0.005)
        dispatcher = self._dispatcher
        assert dispatcher is not None
        async with asyncio.timeout(30):
            while dispatcher.in_flight.out or dispatcher._background:
                await asyncio.sleep(0.005)


async def test_plans_turns_events_and_tasks_are_counted() -> None:
    async with Watched() as env:
        await env.run("step.goal", 10)
        await env.run("fail.goal", 3)
        noted = await env.report()
    counters = noted.counters
    assert counters[metrics.PLANS_BEGUN,] == 13
    assert counters[metrics.PLANS_ENDED, "completed"] == 10
    assert counters[metrics.PLANS_ENDED, "failed"] == 3
    assert counters[metrics.TURNS,] == 2 * 10 + 3
    assert counters[metrics.EVENTS_ACKNOWLEDGED,] == 23
    assert counters[metrics.EVENTS_READ,] == 23 + 13  # final responses are no plan's events, but they are read
    assert counters[metrics.TASKS, "answered"] == 10
    assert (metrics.TASKS, "failed") not in counters
    assert noted.gauges[metrics.EVENTS_OUTSTANDING,] == 0
    assert noted.gauges[metrics.PROCESS_MEMORY,] > 1_000_000
    assert counters[metrics.PROCESS_CPU,] > 0


async def test_decisions_are_counted_by_planner_model_and_action() -> None:
    async with Watched() as env:
        await env.run("tree.goal", 4)
        counters = (await env.report()).counters
    assert counters[metrics.DECISIONS, "tree", "", "publish"] == 4
    assert counters[metrics.DECISIONS, "tree", "", "complete"] == 4
    assert counters[metrics.PLANS_ENDED, "completed"] == 4


async def test_one_event_in_64_is_measured_in_every_stage() -> None:
    async with Watched() as env:
        await env.run("step.goal", 64)  # 128 events, and 64 final responses
        noted = await env.report()
    counts = {labels[1]: len(values) for labels, values in noted.observed.items() if labels[0] is metrics.STAGE}
    of_events = dict.fromkeys(("waiting", "host", "whole", "turn", "commit", "emit"), 2)
    assert counts == of_events | {"stored": 3, "task": 1}
    assert all(0 <= value < 30 for values in noted.observed.values() for value in values)


async def test_turns_of_planners_are_measured_too() -> None:
    async with Watched() as env:
        await env.run("tree.goal", 64)
        noted = await env.report()
    assert {len(noted.observed[metrics.STAGE, stage]) for stage in ("turn", "commit", "emit")} == {2}


async def test_nothing_is_measured_when_metrics_are_off() -> None:
    async with Watched(measured=False) as env:
        await env.run("step.goal", 70)
        assert env._dispatcher is not None
        assert not env._dispatcher._dispatched_at
        assert not (await env.report()).observed


@pytest.mark.parametrize("goal", ["step.goal", "tree.goal"], ids=["quick", "by a planner"])
async def test_a_refused_commit_is_counted_whichever_way_the_turn_takes(goal: str) -> None:
    async with Watched() as env:
        # A second host, which knows the state machine, and nothing of the plan: it takes its goal for a new one.
        other = env.new_host("other")

        async def begin(plan: str) -> None:
            event = EventEnvelope(
                id=f"again-{plan}", source="t", type=goal, topic=EventTopic.ACTION_REQUESTS, correlation_id=plan
            )
            payload, content_type = env.bus.encode(event)
            subject = env.bus.subjects.stored(EventTopic.ACTION_REQUESTS, 0, plan, goal)
            batch = [Inbound(1, subject, payload, content_type, None, "S", 1, 1)]
            async with asyncio.timeout(30):
                while not await other.exchange("d", batch, wait=True):
                    batch = []

        await begin("its own")
        handle = await env.submit(goal, {})
        await handle.result(timeout=30)
        assert other.commits_refused == 0
        await begin(handle.plan_id)
        counts = {reading.metric: reading.value for reading in collectors.of_host(other)}
        assert counts[metrics.COMMITS_REFUSED] == 1
        assert counts[metrics.PLANS_BEGUN] == 1
        await other.stop()


async def test_events_that_are_put_aside_are_counted_by_reason() -> None:
    async with Watched() as env:
        await env.run("step.goal", 1)
        host = env.hosts[0].host
        assert host is not None
        subject = env.bus.subjects.stored(EventTopic.ACTION_REQUESTS, 0, "x", "step.goal")
        await host.exchange("d", [Inbound(1, subject, b"\xc1", None, None, "S", 1, 1)], wait=True)
        counters = (await env.report()).counters
    assert counters[metrics.PUT_ASIDE, "undecodable"] == 1


async def test_events_that_nothing_waits_for_are_counted_also_those_that_no_timeline_shows() -> None:
    sent = MAX_UNWANTED + 3
    async with Watched() as env:
        plan = await env.submit("wait.goal")
        for n in range(sent):
            await plan.signal("noise", event_id=f"noise-{n}")
        await plan.signal("go")
        await plan.result(timeout=30)
        counters = (await env.report()).counters
        shown = [entry for entry in await plan.history() if "no state waits for noise" in str(entry.get("notes"))]
    assert counters[metrics.EVENTS_UNWANTED,] == sent
    assert len(shown) == MAX_UNWANTED


def one_reading(metric: Metric, values: Iterator[float]) -> Any:
    async def read() -> AsyncIterator[Reading]:
        yield Reading(metric, next(values))

    return read


@given(st.lists(st.lists(st.integers(0, 1000), min_size=1), min_size=1))
def test_counters_add_up_to_what_was_counted_also_when_counting_begins_anew(lives: list[list[int]]) -> None:
    """Each life counts from 0: what was reported in all is what was counted in all, unless a life passes unseen."""
    values, counted = [], 0
    for life in lives:
        total = 0
        for step in life:
            total += step
            values.append(total)
        counted += total
    # A new life is known by its smaller number alone.
    expected = sum(after - before if after >= before else after for before, after in zip([0, *values], values))  # noqa: B905
    noted = Noted()
    reporter = Reporter(one_reading(metrics.TURNS, iter(values)), Samples(), noted, 1.0)

    async def report() -> None:
        for _ in values:
            await reporter.report()

    asyncio.run(report())
    assert noted.counters[metrics.TURNS,] == expected <= counted
    if len(lives) == 1:
        assert expected == counted


async def test_a_report_that_fails_leaves_the_rest_to_the_next_one() -> None:
    fails = True

    async def read() -> AsyncIterator[Reading]:
        yield Reading(metrics.TURNS, 5)
        if fails:
            raise RuntimeError("the bus is away")
        yield Reading(metrics.ACTIVATIONS, 7)

    noted, samples = Noted(), Samples()
    samples.stage("turn", 0.1)
    reporter = Reporter(read, samples, noted, 1.0)
    await reporter.report()
    assert (dict(noted.counters), len(noted.observed)) == ({(metrics.TURNS,): 5}, 1)
    fails = False
    await reporter.report()
    assert dict(noted.counters) == {(metrics.TURNS,): 5, (metrics.ACTIVATIONS,): 7}


async def test_it_reports_until_it_is_stopped_and_once_more_then() -> None:
    value = 0

    async def read() -> AsyncIterator[Reading]:
        yield Reading(metrics.TURNS, value)

    noted = Noted()
    reporter = Reporter(read, Samples(), noted, 0.01)
    reporter.start()
    value = 1
    async with asyncio.timeout(30):
        while not noted.counters:
            await asyncio.sleep(0.005)
    assert noted.gauges[metrics.LOOP_LAG,] >= 0
    value = 3
    await reporter.stop()
    assert noted.counters[metrics.TURNS,] == 3


async def test_labels_with_endless_values_are_cut_off() -> None:
    async def read() -> AsyncIterator[Reading]:
        for number in range(MAX_SERIES + 100):
            yield Reading(metrics.MODEL_ANSWERS, 1, (f"model-{number}",))

    noted, samples = Noted(), Samples()
    for number in range(MAX_SERIES + 100):
        samples.note(metrics.MODEL_SECONDS, (f"model-{number}",), 1.0)
    reporter = Reporter(read, samples, noted, 1.0)
    await reporter.report()
    await reporter.report()
    assert len(noted.counters) == len(noted.observed) == MAX_SERIES
    assert set(noted.counters.values()) == {1}


def test_samples_are_bounded() -> None:
    samples = Samples()
    for _ in range(MOST + 10):
        samples.stage("turn", 0.1)
    assert [len(values) for values in samples.take().values()] == [MOST]
    assert not samples.take()


class Models:
    """A reasoner that answers at once."""

    name = "reasoner-0"
    recent_keys: tuple[Any, ...] = ()

    async def found(self) -> list[int]:
        return [0]

    async def start(self, number: int) -> Models:
        return self

    async def stop(self, number: int) -> None: ...

    async def forward(self, request: Any) -> ReasonReply:
        return ReasonReply(text="{}", model="m", usage=Usage(100, 20, 0.25, 80), latency_seconds=1.5, attempts=2)


async def test_tokens_cost_and_latency_are_reported_by_model() -> None:
    pool = ReasonerPool(Models(), ReasonerSettings(min=1))
    pool.samples = samples = Samples()
    await pool.start()
    try:
        for _ in range(3):
            await pool.schedule(pack_request(ReasonRequest(messages=[{"role": "user", "content": "?"}], model="asked")))

        async def read() -> AsyncIterator[Reading]:
            for reading in collectors.of_pool(pool):
                yield reading

        noted = Noted()
        await Reporter(read, samples, noted, 1.0).report()
    finally:
        await pool.stop()
    counters = noted.counters
    assert counters[metrics.MODEL_ANSWERS, "m"] == counters[metrics.MODEL_RETRIES, "m"] == 3
    assert counters[metrics.MODEL_TOKENS, "m", "prompt"] == 300
    assert counters[metrics.MODEL_TOKENS, "m", "completion"] == 60
    assert counters[metrics.MODEL_CACHED_TOKENS, "m"] == 240
    assert counters[metrics.MODEL_COST, "m"] == pytest.approx(0.75)
    assert noted.observed[metrics.MODEL_SECONDS, "m"] == [1.5] * 3
    assert noted.gauges[metrics.REASONERS,] == 1


async def test_an_event_tells_its_age(fresh_nats: NatsServer) -> None:
    bus = await connect(NatsSettings(url=fresh_nats.url), BusSettings())
    try:
        await bus.ensure_streams()
        before = time.time()
        await bus.publish(
            EventEnvelope(id="1", source="t", type="a.b", topic=EventTopic.ACTION_RESULTS, correlation_id="c")
        )
        consumer = bus.consume(ConsumerSpec("c", "results", (bus.subjects.stored("*", "*"),)))
        [delivery] = await consumer.fetch(1)
        await asyncio.sleep(0.05)
        age = consumer.age(delivery)
        assert age is not None
        assert 0.05 <= age <= time.time() - before
    finally:
        await bus.close()


async def test_streams_and_consumers_are_reported_with_what_waits_in_them(fresh_nats: NatsServer) -> None:
    bus = await connect(NatsSettings(url=fresh_nats.url), BusSettings(max_stream_bytes=50_000_000))
    try:
        await bus.ensure_streams()
        consumer = bus.consume(ConsumerSpec("plans-results", "results", (bus.subjects.stored("*", "*"),)))
        for each in "123":
            await bus.publish(
                EventEnvelope(id=each, source="t", type="a.b", topic=EventTopic.ACTION_RESULTS, correlation_id="c")
            )
        await consumer.fetch(1)
        found = {
            (each.metric, *each.labels): each.value for each in collectors.of_streams((await bus.health())["streams"])
        }
    finally:
        await bus.close()
    pending = found[metrics.CONSUMER_PENDING, "plans-results"]
    assert pending + found[metrics.CONSUMER_UNACKNOWLEDGED, "plans-results"] == 3
    assert found[metrics.STREAM_MESSAGES, "PLANCAST_RESULTS"] == 3
    assert found[metrics.STREAM_BYTES, "PLANCAST_RESULTS"] > 0
    assert found[metrics.STREAM_LIMIT, "PLANCAST_RESULTS"] == 50_000_000
    assert found[metrics.DEAD_LETTERS,] == 0


def test_names_that_a_ledger_has_summed_up_are_not_counted_twice() -> None:
    ledger = Ledger(max_names=2)
    question = pack_request(ReasonRequest(messages=[{"role": "user", "content": "?"}], model="m"))
    for name in "abc":
        ledger.answered(question, ReasonReply(text="", model=name, usage=Usage(1, 1, None)))

    class Pool:
        def status(self) -> dict[str, Any]:
            return {"waiting": 0, "outstanding": 0, "members": [], "max": 4, "lost": 0, "usage": ledger.to_dict()}

    models = [each.labels[0] for each in collectors.of_pool(Pool()) if each.metric is metrics.MODEL_ANSWERS]  # type: ignore[arg-type]
    assert "(others)" not in models
    assert models


def test_sampled_tokens_are_those_of_one_event_in_64() -> None:
    assert sum(not token & UNSAMPLED for token in range(6400)) == 100


def test_every_metric_is_reported_by_something() -> None:
    reporting = "".join(map(inspect.getsource, (collectors, reporter, reasoner_pool, sampling, scheduler)))
    names = {name for name, value in vars(metrics).items() if isinstance(value, Metric)}
    assert len(names) == len(METRICS)
    assert {name for name in names if name not in reporting} == set()
