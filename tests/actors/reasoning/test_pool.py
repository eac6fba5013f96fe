"""The pool gives each question to the right reasoner, once; with reasoners that do what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import SecretStr

from plancast.errors import ModelUnavailable, ReasonerUnavailable
from plancast.models.port import ReasonReply, ReasonRequest, Usage
from plancast.models.response_cache import Key
from plancast.settings import ModelLimit, ReasonerSettings, Settings
from plancast_actors.reasoning import autoscaler
from plancast_actors.reasoning.pool import ReasonerPool
from plancast_actors.reasoning.response_store import KIND, ResponseStore
from plancast_actors.reasoning.serialization import AnyRequest, CallLost
from plancast_actors.reasoning.usage import Ledger
from plancast_actors.telemetry.metrics import OTHERS
from plancast_bus.clock import ManualClock
from plancast_bus.memory import MemoryBus, MemoryWorld

PATIENCE = 10.0


class Asked:
    """A question in the hands of a scripted reasoner."""

    def __init__(self, reasoner: ScriptedReasoner, request: ReasonRequest) -> None:
        self.reasoner = reasoner
        self.request = request
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.cancelled = False

    @property
    def text(self) -> str:
        return str(self.request.messages[0]["content"])


class ScriptedReasoner:
    """Answers when the test says so."""

    def __init__(self, stage: Stage, number: int, recent_keys: list[Key]) -> None:
        self.stage = stage
        self.number = number
        self.name = f"reasoner-{number}"
        self.recent_keys = recent_keys

    async def forward(self, request: AnyRequest) -> ReasonReply:
        assert isinstance(request, ReasonRequest)
        asked = Asked(self, request)
        self.stage.asked.append(asked)
        try:
            text = await asked.answer
        except asyncio.CancelledError:
            asked.cancelled = True
            raise
        return ReasonReply(text, Usage(10, 5, 0.25), request.model, latency_seconds=2.0, attempts=2)


class Stage:
    """Starts scripted reasoners, and sees all that they are asked."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.running: dict[int, ScriptedReasoner] = {}
        self.starts: list[int] = []
        self.asked_before: dict[int, list[Key]] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None

    async def found(self) -> list[int]:
        return list(self.running)

    async def start(self, number: int) -> ScriptedReasoner:
        self.starts.append(number)
        await self.gate.wait()
        if self.failure:
            raise self.failure
        self.running[number] = ScriptedReasoner(self, number, self.asked_before.get(number, []))
        return self.running[number]

    async def stop(self, number: int) -> None:
        del self.running[number]

    @property
    def open(self) -> list[Asked]:
        return [asked for asked in self.asked if not asked.answer.done()]

    async def until_asked(self, count: int) -> list[Asked]:
        await until(lambda: len(self.asked) >= count)
        await settle()
        assert len(self.asked) == count
        return self.asked


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0)


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@asynccontextmanager
async def pool_on(
    stage: Stage, store: ResponseStore | None = None, clock: ManualClock | None = None, **settings: Any
) -> AsyncIterator[ReasonerPool]:
    pool = ReasonerPool(stage, ReasonerSettings(**settings), store, clock=clock)
    await pool.start()
    try:
        yield pool
    finally:
        await pool.stop()


def question(text: str = "?", **fields: Any) -> ReasonRequest:
    return ReasonRequest(**{"messages": [{"role": "user", "content": text}], "model": "m", **fields})


def ask(pool: ReasonerPool, text: str = "?", **fields: Any) -> asyncio.Task[ReasonReply]:
    return asyncio.create_task(pool.schedule(question(text, **fields)))


def kept_in_memory(world: MemoryWorld) -> ResponseStore:
    return ResponseStore(MemoryBus(world), 60.0)


# Whose turn it is, and who answers.


async def test_the_reasoner_with_the_least_in_hand_is_asked_up_to_its_cap() -> None:
    stage = Stage()
    async with pool_on(stage, min=3, max=3, concurrency=2) as pool:
        await until(lambda: len(stage.running) == 3)
        tasks = [ask(pool) for _ in range(4)]
        asked = await stage.until_asked(4)
        assert [each.reasoner.number for each in asked] == [0, 1, 2, 0]
        asked[1].answer.set_result("early")
        assert (await tasks[1]).text == "early"
        tasks += [ask(pool) for _ in range(4)]
        asked = await stage.until_asked(7)
        assert [each.reasoner.number for each in asked[4:]] == [1, 1, 2]
        assert pool.status()["waiting"] == 1
        asked[0].answer.set_result("")
        assert (await stage.until_asked(8))[7].reasoner.number == 0
        for each in stage.open:
            each.answer.set_result("")
        await asyncio.gather(*tasks)
        assert pool.status()["in_hand"] == pool.status()["outstanding"] == 0


async def test_a_tenant_with_many_questions_does_not_keep_others_waiting() -> None:
    stage = Stage()
    async with pool_on(stage, min=1, max=1, concurrency=1) as pool:
        tasks = [ask(pool, f"a{n}", tenant_id="a") for n in range(20)]
        await stage.until_asked(1)
        tasks += [ask(pool, f"{tenant}{n}", tenant_id=tenant) for tenant in "bc" for n in range(2)]
        await settle()
        assert pool.status()["waiting_by_tenant"] == {"a": 19, "b": 2, "c": 2}
        for n in range(1, 25):
            (await stage.until_asked(n))[-1].answer.set_result("")
        await asyncio.gather(*tasks)
        order = [each.text for each in stage.asked]
        assert order[:8] == ["a0", "a1", "b0", "c0", "a2", "b1", "c1", "a3"]
        assert [text for text in order if text[0] == "a"] == [f"a{n}" for n in range(20)]


async def test_a_model_at_its_limit_waits_and_holds_up_no_other_model() -> None:
    stage, clock = Stage(), ManualClock()
    async with pool_on(stage, clock=clock, min=1, max=4, concurrency=1_000, limits={"m": ModelLimit(rpm=2)}) as pool:
        tasks = [ask(pool, f"m{n}") for n in range(3)] + [ask(pool, "other", model="free")]
        await stage.until_asked(3)
        assert [each.text for each in stage.asked] == ["m0", "m1", "other"]
        assert stage.starts == [0]  # more reasoners would be of no use
        await clock.advance(59.0)
        await stage.until_asked(3)
        await clock.advance(1.5)
        assert (await stage.until_asked(4))[3].text == "m2"
        for each in stage.open:
            each.answer.set_result("")
        await asyncio.gather(*tasks)


async def test_tokens_are_limited_by_what_was_spent() -> None:
    stage, clock = Stage(), ManualClock()
    async with pool_on(stage, clock=clock, limits={"m": ModelLimit(tpm=20)}) as pool:
        first = ask(pool, "x" * 40)  # some 10 tokens; it takes 15
        (await stage.until_asked(1))[0].answer.set_result("")
        await first
        second = ask(pool, "x" * 40)
        await stage.until_asked(1)
        await clock.advance(61.0)
        (await stage.until_asked(2))[1].answer.set_result("")
        await second


async def test_a_retry_waits_for_the_same_limit_and_a_pause_is_for_all() -> None:
    stage, clock = Stage(), ManualClock()
    async with pool_on(stage, clock=clock, limits={"m": ModelLimit(rpm=1)}) as pool:
        await pool.acquire("m", 1)
        retry = asyncio.create_task(pool.acquire("m", 1))
        await clock.advance(59.0)
        assert not retry.done()
        await clock.advance(2.0)
        await retry
        pool.pause("m", 300.0)
        task = ask(pool)
        await clock.advance(290.0)
        await stage.until_asked(0)
        await clock.advance(11.0)
        (await stage.until_asked(1))[0].answer.set_result("")
        await task


# How many reasoners there are.


async def test_reasoners_come_when_all_are_busy_and_go_when_they_idle() -> None:
    stage, clock = Stage(), ManualClock()
    async with pool_on(stage, clock=clock, min=1, max=3, concurrency=2, idle_seconds=20.0) as pool:
        tasks = [ask(pool) for _ in range(2)]
        await stage.until_asked(2)
        assert stage.starts == [0]
        tasks.append(ask(pool))
        await stage.until_asked(3)
        assert stage.starts == [0, 1]
        tasks += [ask(pool) for _ in range(9)]
        await stage.until_asked(6)
        assert stage.starts == [0, 1, 2]
        assert pool.status()["waiting"] == 6
        for count in range(6, 13):
            (await stage.until_asked(count))[count - 6].answer.set_result("")
        held, *others = stage.open
        for each in others:
            each.answer.set_result("")
        await settle()
        await clock.advance(15.0)
        assert sorted(stage.running) == [0, 1, 2]
        await clock.advance(50.0)  # one at a time; the one call that is left needs no more than one
        assert len([each for each in pool.status()["members"] if not each["leaving"]]) == 1
        assert not held.cancelled
        held.answer.set_result("")
        await asyncio.gather(*tasks)
        await settle()
        assert list(stage.running) == [0]


async def test_other_bounds_start_reasoners_and_let_surplus_ones_finish() -> None:
    stage = Stage()
    async with pool_on(stage, clock=ManualClock(), min=1, max=1, concurrency=1) as pool:
        pool.resize(ReasonerSettings(min=3, max=3, concurrency=1))
        tasks = [ask(pool) for _ in range(4)]
        await stage.until_asked(3)
        assert sorted(stage.running) == [0, 1, 2]
        shown = pool.status()
        assert (shown["reasoners"], shown["min"], shown["max"], shown["slots"], shown["waiting"]) == (3, 3, 3, 3, 1)
        pool.resize(ReasonerSettings(min=0, max=1, concurrency=1))
        await settle()
        assert sorted(stage.running) == [0, 1, 2], "their calls are paid for"
        for each in stage.open:
            each.answer.set_result("")
        (await stage.until_asked(4))[-1].answer.set_result("")
        await asyncio.gather(*tasks)
        await settle()
        assert list(stage.running) == [0]


async def test_a_reasoner_that_leaves_finishes_what_it_has_and_gets_nothing_new() -> None:
    stage, clock = Stage(), ManualClock()
    async with pool_on(stage, clock=clock, min=1, max=2, concurrency=1, idle_seconds=20.0) as pool:
        tasks = [ask(pool), ask(pool)]
        first, second = await stage.until_asked(2)
        assert (first.reasoner.number, second.reasoner.number) == (0, 1)
        first.answer.set_result("")
        await tasks[0]
        await clock.advance(30.0)
        assert pool.status()["members"][1] == {"name": "reasoner-1", "outstanding": 1, "leaving": True}
        tasks.append(ask(pool))
        assert (await stage.until_asked(3))[2].reasoner.number == 0
        second.answer.set_result("")
        stage.asked[2].answer.set_result("")
        await asyncio.gather(*tasks)
        await settle()
        assert list(stage.running) == [0]


async def test_a_reasoner_that_moves_ends_its_calls_while_another_takes_the_next() -> None:
    stage = Stage()
    async with pool_on(stage, min=1, max=1, concurrency=2) as pool:
        held = ask(pool, "held")
        await stage.until_asked(1)
        stage.gate.clear()
        moving = asyncio.create_task(pool.move("reasoner-0", PATIENCE))
        await until(lambda: stage.starts == [0, 1])
        during = ask(pool, "while the next one starts")
        await stage.until_asked(2)
        stage.gate.set()
        await until(lambda: 1 in stage.running)
        await settle()
        after = ask(pool, "after")
        asked = await stage.until_asked(3)
        assert [each.reasoner.number for each in asked] == [0, 0, 1]
        assert not moving.done()
        for each in asked:
            each.answer.set_result("yes")
        assert await moving
        assert [(await each).text for each in (held, during, after)] == ["yes"] * 3
        await until(lambda: list(stage.running) == [1])
        assert not await pool.move("reasoner-1", 0.0), "that takes longer"


async def test_with_a_minimum_of_none_the_first_question_brings_a_reasoner_and_the_last_lets_it_go() -> None:
    stage, clock = Stage(), ManualClock()
    async with pool_on(stage, clock=clock, min=0, max=2, idle_seconds=20.0) as pool:
        await settle()
        assert stage.starts == []
        task = ask(pool)
        (await stage.until_asked(1))[0].answer.set_result("")
        await task
        await clock.advance(30.0)
        assert stage.running == {}


async def test_those_who_wait_are_told_when_no_reasoner_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscaler, "START_PAUSE", 0.0)
    stage = Stage()
    stage.failure = RuntimeError("no litellm here")
    async with pool_on(stage) as pool:
        with pytest.raises(ReasonerUnavailable, match="no litellm here"):
            await asyncio.wait_for(pool.schedule(question()), PATIENCE)
        assert "no litellm here" in pool.status()["error"]
        stage.failure = None
        task = ask(pool)
        (await stage.until_asked(1))[0].answer.set_result("back")
        assert (await task).text == "back"


# Cancelled, lost, failed.


async def test_a_cancelled_caller_cancels_its_call_and_frees_the_place() -> None:
    stage = Stage()
    async with pool_on(stage, min=1, max=1, concurrency=1) as pool:
        first, waiting, third = ask(pool), ask(pool, "never asked"), ask(pool, "third", idempotency_key="k")
        await stage.until_asked(1)
        waiting.cancel()
        first.cancel()
        asked = await stage.until_asked(2)
        assert asked[0].cancelled
        assert asked[1].text == "third"
        third.cancel()
        await asyncio.gather(first, waiting, third, return_exceptions=True)
        await settle()
        assert asked[1].cancelled
        assert pool.status()["in_hand"] == pool.status()["outstanding"] == pool.status()["waiting"] == 0


@pytest.mark.parametrize("rounds", range(8))
async def test_cancelling_at_any_moment_leaks_no_place(rounds: int) -> None:
    stage = Stage()
    async with pool_on(stage, min=1, max=1, concurrency=2) as pool:
        await until(lambda: bool(stage.running))
        tasks = [ask(pool) for _ in range(6)]
        for _ in range(rounds):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        last = [ask(pool, "last") for _ in range(2)]
        await until(lambda: [each.text for each in stage.open].count("last") == 2)
        for each in stage.open:
            each.answer.set_result("")
        await asyncio.gather(*last)


async def test_what_a_lost_reasoner_had_in_hand_is_asked_elsewhere_once() -> None:
    stage = Stage()
    async with pool_on(stage, min=2, max=2) as pool:
        await until(lambda: len(stage.running) == 2)
        stage.gate.clear()  # whoever is lost does not come back
        task = ask(pool)
        first = (await stage.until_asked(1))[0]
        first.answer.set_exception(CallLost("killed"))
        second = (await stage.until_asked(2))[1]
        assert (first.reasoner.number, second.reasoner.number) == (0, 1)
        second.answer.set_result("here")
        assert (await task).text == "here"
        status = pool.status()
        assert (status["repeated"], status["lost"], status["starting"]) == (1, 1, 1)


async def test_what_is_repeated_does_not_queue_up_again() -> None:
    stage = Stage()
    async with pool_on(stage, min=1, max=1, concurrency=1) as pool:
        tasks = [ask(pool, text) for text in ("first", "second", "third")]
        (await stage.until_asked(1))[0].answer.set_exception(CallLost("killed"))
        for count in (2, 3, 4):
            (await stage.until_asked(count))[-1].answer.set_result("")
        await asyncio.gather(*tasks)
        assert [each.text for each in stage.asked] == ["first", "first", "second", "third"]


async def test_a_request_that_costs_two_reasoners_is_given_back() -> None:
    stage = Stage()
    async with pool_on(stage, min=1, max=1) as pool:
        task = ask(pool)
        (await stage.until_asked(1))[0].answer.set_exception(CallLost("killed"))
        (await stage.until_asked(2))[1].answer.set_exception(CallLost("killed"))
        with pytest.raises(ReasonerUnavailable):
            await task
        assert pool.status()["lost"] == 2


async def test_a_model_that_fails_is_not_asked_again() -> None:
    stage = Stage()
    async with pool_on(stage) as pool:
        task = ask(pool, tenant_id="t")
        (await stage.until_asked(1))[0].answer.set_exception(ModelUnavailable("m", "no such model", 404))
        with pytest.raises(ModelUnavailable, match="no such model"):
            await task
        await stage.until_asked(1)
        assert pool.status()["usage"]["tenants"]["t"]["failures"] == 1


# Once, and kept.


async def test_the_same_key_is_asked_once_while_tenants_share_nothing() -> None:
    stage = Stage()
    async with pool_on(stage) as pool:
        tasks = [ask(pool, idempotency_key="k", tenant_id=tenant) for tenant in ("a", "a", "b")]
        for each in await stage.until_asked(2):
            each.answer.set_result(each.request.tenant_id)
        replies = await asyncio.gather(*tasks)
        assert [reply.text for reply in replies] == ["a", "a", "b"]
        assert [reply.cached for reply in replies] == [False, True, False]


async def test_a_call_goes_on_while_one_of_its_callers_waits() -> None:
    stage = Stage()
    async with pool_on(stage) as pool:
        first, second = ask(pool, idempotency_key="k"), ask(pool, idempotency_key="k")
        await stage.until_asked(1)
        first.cancel()
        await settle()
        stage.asked[0].answer.set_result("mine")
        assert (await second).text == "mine"
        assert pool.status()["usage"]["total"]["answers"] == 1


async def test_a_kept_answer_outlives_the_pool_and_holds_no_question_and_no_key() -> None:
    clock, stage = ManualClock(), Stage()
    world = MemoryWorld(clock=clock)
    fields: dict[str, Any] = {"idempotency_key": "plan-1/7", "tenant_id": "t", "api_key": SecretStr("sk-secret")}
    async with pool_on(stage, kept_in_memory(world)) as pool:
        task = ask(pool, "a private question", **fields)
        (await stage.until_asked(1))[0].answer.set_result("42")
        assert not (await task).cached
    kept = await MemoryBus(world).registry.list(KIND)
    for private in ("private question", "sk-secret", "plan-1"):
        assert private not in repr(kept)
    async with pool_on(stage, kept_in_memory(world)) as pool:
        reply = await pool.schedule(question("a private question", **fields))
        assert (reply.text, reply.cached, reply.usage) == ("42", True, Usage(10, 5, 0.25))
        assert pool.status()["usage"]["tenants"]["t"]["kept"] == 1
        other = ask(pool, **{**fields, "tenant_id": "u"})
        (await stage.until_asked(2))[1].answer.set_result("theirs")
        assert (await other).text == "theirs"
        await clock.advance(61.0)
        anew = ask(pool, **fields)
        (await stage.until_asked(3))[2].answer.set_result("43")
        assert (await anew).text == "43"


async def test_an_answer_is_durable_before_anyone_has_it() -> None:
    class SlowStore:
        def __init__(self) -> None:
            self.may_put = asyncio.Event()
            self.kept: dict[Key, ReasonReply] = {}

        async def get(self, key: Key) -> ReasonReply | None:
            return self.kept.get(key)

        async def put(self, key: Key, reply: ReasonReply) -> None:
            await self.may_put.wait()
            self.kept[key] = reply

    stage, store = Stage(), SlowStore()
    async with pool_on(stage, store) as pool:
        task = ask(pool, idempotency_key="k")
        (await stage.until_asked(1))[0].answer.set_result("paid for")
        await settle()
        assert not task.done()
        task.cancel()  # too late to save the money: the answer is kept all the same
        await asyncio.gather(task, return_exceptions=True)
        store.may_put.set()
        await until(lambda: bool(store.kept))
        assert (await pool.schedule(question(idempotency_key="k"))).text == "paid for"
        await stage.until_asked(1)


async def test_a_new_pool_takes_over_the_reasoners_and_what_they_were_asked() -> None:
    stage = Stage()
    for number in (0, 1, 5):
        stage.running[number] = ScriptedReasoner(stage, number, [])
    stage.asked_before[1] = [("t", "k")]
    async with pool_on(stage, min=1, max=3) as pool:
        await settle()
        assert sorted(stage.running) == [0, 1]
        task = ask(pool, tenant_id="t", idempotency_key="k")
        asked = (await stage.until_asked(1))[0]
        assert asked.reasoner.number == 1
        asked.answer.set_result("")
        await task


# What it took.


async def test_usage_is_summed_by_model_planner_and_tenant() -> None:
    stage = Stage()
    async with pool_on(stage) as pool:
        tasks = [ask(pool, tenant_id="t", planner=planner) for planner in "pq"]
        for each in await stage.until_asked(2):
            each.answer.set_result("")
        await asyncio.gather(*tasks)
        usage = pool.status()["usage"]
        assert usage["tenants"]["t"] == usage["models"]["m"] == usage["total"]
        assert usage["total"] == {
            "answers": 2,
            "failures": 0,
            "kept": 0,
            "calls": 4,
            "retries": 2,
            "prompt_tokens": 20,
            "completion_tokens": 10,
            "cached_tokens": 0,
            "cost": 0.5,
            "latency_seconds": 4.0,
            "max_latency_seconds": 2.0,
        }
        assert sorted(usage["planners"]) == ["p", "q"]


def test_usage_is_bounded_and_loses_no_sum() -> None:
    ledger = Ledger(max_names=3)
    for n in range(10):
        ledger.failed(question(tenant_id=f"t{n}"))
    tenants = ledger.to_dict()["tenants"]
    assert len(tenants) == 3
    assert OTHERS in tenants
    assert sum(tally["failures"] for tally in tenants.values()) == 10


def test_settings_say_how_many_reasoners_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANCAST_REASONERS__MAX", "2")
    monkeypatch.setenv("PLANCAST_REASONERS__LIMITS", '{"gpt-4o": {"rpm": 5}}')
    settings = Settings.load()
    assert settings.reasoners.max == 2
    assert settings.reasoners.limits["gpt-4o"].rpm == 5
    with pytest.raises(ValueError, match="more than max"):
        ReasonerSettings(min=3, max=2)
