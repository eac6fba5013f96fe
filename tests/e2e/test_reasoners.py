"""The reasoner pool on real Ray and a real nats-server, asking a real HTTP server through litellm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import ray
from pydantic import SecretStr

from plancast import Client
from plancast.errors import ModelUnavailable
from plancast.models.port import ReasonReply, ReasonRequest
from plancast.settings import ModelLimit, ReasonerSettings, Settings
from plancast.testing import Answer, ModelServer
from plancast_actors.deployment.deployment import Deployment
from plancast_actors.deployment.local import LocalRuntime
from plancast_actors.deployment.replacement import Replacement
from plancast_actors.ray.pool import outdated
from plancast_actors.ray.process import Blueprint, names_of
from plancast_actors.reasoning.actors import REASONER_PREFIX, start_pool
from plancast_actors.reasoning.client import POOL, ActorClient, RayReasoner
from plancast_actors.release import RECORD
from plancast_actors.scale import WANTED, Scale
from plancast_bus.jetstream import connect

pytestmark = [pytest.mark.asyncio(loop_scope="session")]
APPS = Path(__file__).parent.parent / "apps"
PATIENCE = 60.0
KEY = "sk-not-to-be-seen-anywhere"


class Pool:
    """A pool of its own on the Ray and NATS that the other tests use."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.namespace = settings.ray.namespace
        self.deployment = Deployment("", settings)
        self.reasoner = RayReasoner(self.namespace)

    def start(self) -> Any:
        return start_pool(Blueprint("", self.settings), POOL, self.namespace)

    async def up(self) -> None:
        await asyncio.to_thread(ray.get, self.start().ready.remote())
        await self.until(lambda status: len(status["members"]) == 2)

    async def status(self) -> dict[str, Any]:
        reports = (await self.deployment.status())["reasoners"]
        return next((report for report in reports if report["name"] == POOL and report["alive"]), {})

    async def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            while not (status := await self.status()) or not condition(status):
                await asyncio.sleep(0.05)
            return status


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pool(runtime: LocalRuntime) -> AsyncIterator[Pool]:
    settings = runtime.settings.model_copy(deep=True)
    settings.ray.namespace = "reasoners-e2e"
    settings.reasoners.min, settings.reasoners.max, settings.reasoners.concurrency = 2, 3, 80
    settings.reasoners.limits = {"openai/limited": ModelLimit(rpm=2)}
    pool = Pool(settings)
    await pool.up()
    yield pool
    await pool.deployment.down()
    await asyncio.sleep(0)


@pytest_asyncio.fixture(loop_scope="session")
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


def ask(
    pool: Pool, model: ModelServer, text: str = "?", key: str = "", name: str = "openai/any"
) -> asyncio.Task[ReasonReply]:
    request = ReasonRequest(
        [{"role": "user", "content": text}],
        name,
        idempotency_key=key,
        tenant_id="t",
        api_base=model.url,
        api_key=SecretStr(KEY),
    )
    return asyncio.create_task(pool.reasoner.complete(request))


async def holder_of_the_call(pool: Pool) -> str:
    status = await pool.until(lambda status: any(member["outstanding"] for member in status["members"]))
    return next(str(member["name"]) for member in status["members"] if member["outstanding"])


@pytest.mark.slow
async def test_a_question_is_answered_and_the_answer_kept_for_whoever_asks_again(
    pool: Pool, model: ModelServer
) -> None:
    model.add("yes")
    first = await ask(pool, model, key="kept-1")
    again = await ask(pool, model, key="kept-1")
    assert (first.text, first.cached, again.text, again.cached) == ("yes", False, "yes", True)
    assert model.count == 1
    assert model.requests[0].key_tail == KEY[-4:]
    assert KEY not in repr(await pool.deployment.status())


async def test_questions_go_by_a_line(pool: Pool, model: ModelServer) -> None:
    model.add("yes", "no")
    pool.reasoner._pool = None  # one that has lost its connection lately goes through Ray for a while
    await ask(pool, model)
    found: ActorClient | None = pool.reasoner._pool
    assert found is not None
    assert found.connected
    found._actor = None  # Ray has no part in it
    try:
        assert (await ask(pool, model)).text == "no"
    finally:
        pool.reasoner._pool = None


async def test_requests_and_errors_go_through_ray_alike_where_there_is_no_connection(
    pool: Pool, model: ModelServer
) -> None:
    client = ActorClient(ray.get_actor(POOL, pool.namespace), POOL, "schedule")
    client._connect_at = float("inf")
    request = ReasonRequest(
        [{"role": "user", "content": "?"}], "openai/any", api_base=model.url, api_key=SecretStr(KEY)
    )
    model.add("yes", Answer.error(401, "no"))
    assert (await client.forward(request)).text == "yes"
    with pytest.raises(ModelUnavailable) as refused:
        await client.forward(request)
    assert refused.value.status == 401
    assert not client.connected


async def test_a_model_that_refuses_is_told_with_its_reason_and_without_the_key(pool: Pool, model: ModelServer) -> None:
    model.add(Answer.error(401, f"Incorrect API key provided: {KEY}"))
    with pytest.raises(ModelUnavailable) as refused:
        await ask(pool, model)
    assert type(refused.value) is ModelUnavailable
    assert refused.value.status == 401
    assert KEY not in f"{refused.value!s} {refused.value!r} {refused.value.__cause__!r}"


async def test_cancelling_reaches_the_http_call(pool: Pool, model: ModelServer) -> None:
    model.add(Answer.hang(), Answer.hang())
    tasks = [ask(pool, model), ask(pool, model, key="cancelled")]
    await model.wait_for(count=2, timeout=PATIENCE)
    for task in tasks:
        task.cancel()
    await model.wait_for(cancelled=2, timeout=PATIENCE)
    await pool.until(lambda status: status["in_hand"] == status["outstanding"] == 0)
    model.add("now")
    assert (await ask(pool, model, key="cancelled")).text == "now"


async def test_two_hundred_are_asked_at_once(pool: Pool) -> None:
    all_asked = asyncio.Event()

    async def hold(request: object) -> str:
        await all_asked.wait()
        return "ok"

    async with ModelServer(rule=hold) as slow:
        tasks = [ask(pool, slow, f"question {n}", f"many-{n}") for n in range(200)]
        await slow.wait_for(count=200, timeout=PATIENCE)
        assert slow.in_flight == 200
        all_asked.set()
        replies = await asyncio.gather(*tasks)
    assert [reply.text for reply in replies] == ["ok"] * 200
    assert slow.count == 200
    assert len((await pool.status())["members"]) == 3, "two could not take them all"


async def test_a_retry_counts_against_the_limit_that_all_reasoners_share(pool: Pool, model: ModelServer) -> None:
    model.add(Answer.error(500), "at the second attempt", "too early")
    assert (await ask(pool, model, name="openai/limited")).attempts == 2
    third = ask(pool, model, name="openai/limited")
    await pool.until(lambda status: status["waiting"] == 1)
    assert (await ask(pool, model)).text == "too early"  # other models are not held up
    third.cancel()
    await pool.until(lambda status: status["waiting"] == 0)
    assert model.count == 3


@pytest.mark.slow
async def test_what_a_killed_reasoner_had_in_hand_is_asked_elsewhere_once(pool: Pool, model: ModelServer) -> None:
    before = (await pool.status())["repeated"]
    model.add(Answer.hang(), "after all")
    task = ask(pool, model, key="killed-1")
    await model.wait_for(count=1, timeout=PATIENCE)
    await pool.deployment.kill(await holder_of_the_call(pool))
    assert (await asyncio.wait_for(task, PATIENCE)).text == "after all"
    assert model.count == 2
    assert (await pool.status())["repeated"] == before + 1
    await pool.until(lambda status: len(status["members"]) >= 2)  # it comes back


async def test_a_killed_pool_is_found_again_and_nothing_is_paid_for_twice(pool: Pool, model: ModelServer) -> None:
    answer = asyncio.Event()

    async def hold(request: object) -> str:
        await answer.wait()
        return "once"

    async with ModelServer(rule=hold) as slow:
        model.add("before")
        await ask(pool, model, key="before-the-kill")
        first = ask(pool, slow, key="has-the-first-reasoner")
        await slow.wait_for(count=1, timeout=PATIENCE)
        task = ask(pool, slow, key="during-the-kill")
        await slow.wait_for(count=2, timeout=PATIENCE)
        first.cancel()  # so that a pool that knew nothing would choose another reasoner than the one that asks
        await slow.wait_for(cancelled=1, timeout=PATIENCE)
        await pool.deployment.kill(POOL)
        await pool.until(lambda status: status["in_hand"] == 1)  # asked again, of the new pool
        answer.set()
        assert (await asyncio.wait_for(task, PATIENCE)).text == "once"
        assert slow.count == 2
    kept = await ask(pool, model, key="before-the-kill")
    assert (kept.text, kept.cached) == ("before", True)


async def test_bounds_in_the_deployments_record_hold_also_for_a_restarted_pool(pool: Pool) -> None:
    bus = await connect(pool.settings.nats, pool.settings.bus)

    async def scale(least: int, most: int) -> ReasonerSettings:
        wanted = Scale(reasoners=(least, most))
        await bus.registry.put(RECORD, pool.namespace, {WANTED: wanted.to_record()})
        await pool.deployment.call(POOL, "follow", seconds=PATIENCE)
        return wanted.applied(pool.settings).reasoners

    try:
        settings = await scale(1, 1)
        await pool.until(lambda status: len(status["members"]) == 1)
        assert await outdated(pool.namespace, POOL, REASONER_PREFIX, settings) == []
        killed = await pool.deployment.kill(POOL)
        await pool.until(lambda status: status["pid"] != killed and len(status["members"]) == 1)
        assert await outdated(pool.namespace, POOL, REASONER_PREFIX, settings) == []
    finally:
        await scale(2, 3)
        await pool.until(lambda status: len(status["members"]) == 2)
        await bus.close()


async def test_a_pool_that_is_replaced_ends_its_calls_and_others_wait_for_the_next(pool: Pool) -> None:
    answer = asyncio.Event()

    async def hold(request: object) -> str:
        await answer.wait()
        return "once"

    async with ModelServer(rule=hold) as slow:
        early = ask(pool, slow, key="before-the-replacement")
        await slow.wait_for(count=1, timeout=PATIENCE)
        assert await pool.deployment.call(POOL, "refuse", seconds=PATIENCE)
        late = ask(pool, slow, key="during-the-replacement")
        names = await pool.deployment.names("reasoners")
        ending = asyncio.create_task(Replacement(pool.deployment, PATIENCE, print).end(names, PATIENCE))
        await pool.status()
        assert not ending.done()
        answer.set()
        assert (await asyncio.wait_for(early, PATIENCE)).text == "once"
        assert await ending, "all calls have ended"
        assert slow.count == 1
        await pool.up()
        assert (await asyncio.wait_for(late, PATIENCE)).text == "once"
        assert slow.count == 2


async def test_a_pool_that_is_set_up_otherwise_or_not_wanted_has_to_go(pool: Pool) -> None:
    ours = pool.settings.reasoners
    everything = await asyncio.to_thread(names_of, pool.namespace, ["reasoner"])
    assert await outdated(pool.namespace, POOL, REASONER_PREFIX, ours.model_copy()) == []
    assert await outdated(pool.namespace, POOL, REASONER_PREFIX, ours.model_copy(update={"max": 9})) == everything
    assert await outdated(pool.namespace, POOL, REASONER_PREFIX, None) == everything
    await pool.deployment.down()
    async with asyncio.timeout(PATIENCE):
        while await asyncio.to_thread(names_of, pool.namespace, ["reasoner"]):
            await asyncio.sleep(0.05)
    await pool.up()  # the other tests use it


@pytest.mark.slow
async def test_a_host_killed_after_the_model_answered_does_not_pay_for_the_answer_twice(
    runtime: LocalRuntime, model: ModelServer, tmp_path: Path
) -> None:
    settings = runtime.settings.model_copy(deep=True)
    settings.ray.namespace = settings.bus.prefix = "asking"
    settings.hosts.count = settings.reasoners.min = 1
    deployment = await Deployment.up("asking_app:app", settings, import_paths=[str(APPS)])
    try:
        gate = tmp_path / "gate"
        gate.touch()
        model.add("an answer", "another answer")
        async with Client.connect(settings=settings) as client:
            data = {"question": "?", "api_base": model.url, "gate": str(gate)}
            handle = await client.submit("asking.goal", data)
            kept = await until_answered(deployment)
            await deployment.kill_host(0)
            await deployment.kill("reasoner-0")  # and with it whatever it remembers
            gate.unlink()
            assert await handle.result(timeout=PATIENCE) == {"answer": {"text": "an answer", "cached": True}}
        assert kept["planners"]["asker"]["answers"] == model.count == 1
        await deployment.kill("reasoner-0")
        assert await deployment.drain(PATIENCE), "what Ray is just starting again is waited for"
    finally:
        await deployment.down()
    assert await asyncio.to_thread(names_of, "asking", ["reasoner"]) == []


async def until_answered(deployment: Deployment) -> dict[str, Any]:
    """The pool's usage, once it has given an answer out."""
    async with asyncio.timeout(PATIENCE):
        while True:
            for report in (await deployment.status())["reasoners"]:
                if report["name"] == POOL and report["usage"]["total"]["answers"] and not report["in_hand"]:
                    return dict(report["usage"])
            await asyncio.sleep(0.05)
