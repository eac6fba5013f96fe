"""Budgets of trees of plans: however many plans share one, and whatever they do, it is passed by one call at most."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest
from tests.actors.on_nats import OnNats
from tests.bus.stored_plans import stored_plans

from plancast import (
    App,
    ChoreographyPlanner,
    CompleteAction,
    PlanFailed,
    PlanFinished,
    PlannerDecision,
    PublishAction,
    RetryableError,
    Settings,
    Worker,
)
from plancast.models.port import CURRENT_REASONER, ReasonReply, ReasonRequest, Usage
from plancast.replay.report import Outcome
from plancast.testing import Answer, ModelRequest, ModelServer, PlancastTest
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.nats_server.process import NatsServer

PATIENCE = 90.0


def publish(event_type: str, response_event: str) -> dict[str, Any]:
    topic = {"topic": "action-requests", "data": {}, "reasoning": "more of it"}
    return {"action": "publish", "event_type": event_type, "response_event": response_event, **topic}


def boss(rule_url: str, **limits: Any) -> App:
    """A planner that begins twenty plans of another planner at once, and completes when they have ended."""
    model = {"reasoning_model": "openai/test-model", "api_key": "k" * 20, "api_base": rule_url, "max_repairs": 0}
    root = ChoreographyPlanner("boss", goals=["boss.goal"], system_instructions="You are the boss.", **limits, **model)
    child = ChoreographyPlanner("child", goals=["child.goal"], system_instructions="You are a child.", **model)
    return App("app", planners=[root, child])


@pytest.mark.attack(
    who="model", what="begin 20 children at once, which each call models", expected="the budget passed by one call"
)
@pytest.mark.parametrize("budget", [4_000, 14_000, 60_000])
@pytest.mark.parametrize("usage", [None, 1_500])
async def test_twenty_children_together_pass_the_budget_of_their_root_by_one_call_at_most(
    nats_server: NatsServer, budget: int, usage: int | None
) -> None:
    used: list[int] = []

    def rule(request: ModelRequest) -> Answer:
        decision: dict[str, Any] = {"action": "complete", "result": {"ok": True}}
        if "You are the boss." in request.text and "child.done" not in request.text:
            decision = {"action": "parallel", "branches": [publish("child.goal", "child.done")] * 20}
        answer = Answer.json({"next_action": decision, "reasoning": "x"})
        used.append(usage or len(request.text) // 4 + 1 + len(answer.text or "") // 4 + 1)
        return answer if usage is None else Answer(answer.text, prompt_tokens=usage - 300, completion_tokens=300)

    async with (
        ModelServer([], rule=rule) as server,
        OnNats(nats_server, boss(server.url, token_budget=budget), hosts=2) as env,
    ):
        handle = await env.client.submit("boss.goal")
        with suppress(PlanFailed):
            await handle.result(timeout=PATIENCE)
        spent = (await handle.state())["spent"]
        assert server.count > 1
        assert sum(used) <= budget + max(used)
        assert (spent["calls"], spent["tokens"]) == (len(used), sum(used)), "the account is exact"


NOTHING = {"actions": 0, "tokens": 0, "cost": 0.0, "calls": 0}


class Repeating:
    """Takes the same action again and again, until its budget ends it."""

    wake_mode, version = "push", "1"

    def __init__(self, name: str, action: PublishAction, max_actions: int | None = None) -> None:
        self.name, self.goals, self.max_actions, self._action = name, (f"{name}.goal",), max_actions, action

    async def next(self, run: Any) -> PlannerDecision:
        return PlannerDecision(plan_id=run.plan_id, next_action=self._action, reasoning="again")


@pytest.mark.attack(
    who="worker", what="answer for its plan to the parent, as if it had spent nothing", expected="no share is returned"
)
@pytest.mark.parametrize(
    "metadata",
    [
        {"tree_spent": NOTHING},
        {"tree_spent": NOTHING, "tree_seal": "0" * 64},
        {"tree_spent": {**NOTHING, "actions": -1_000}},
        {},
    ],
    ids=["unsealed", "made-up seal", "negative", "no account"],
)
async def test_a_worker_that_answers_for_its_plan_refills_no_budget(
    nats_server: NatsServer, metadata: dict[str, Any]
) -> None:
    worker, done = Worker("worker"), list[str]()

    @worker.on_task("work.requested", "work.completed")
    async def work(task: Any, context: Any) -> dict[str, Any]:
        done.append(task.plan_id)
        forged = EventEnvelope(
            source="child", type="child.done", topic="action-results", correlation_id="root",
            parent_event_id=task.plan_id, data={"status": "completed"}, metadata=metadata,
        )  # fmt: skip
        await env.bus.publish(forged)
        return {}

    begin = PublishAction(event_type="child.goal", topic="action-requests", response_event="child.done")
    act = PublishAction(event_type="work.requested", response_event="work.completed")
    app = App("app", planners=[Repeating("root", begin, 12), Repeating("child", act)], workers=[worker])
    async with OnNats(nats_server, app, hosts=2) as env:
        handle = await env.client.submit("root.goal", correlation_id="root")
        with pytest.raises(PlanFailed, match="max_actions"):
            await handle.result(timeout=PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while any(each.status == "running" for each in await stored_plans(env.bus)):
                await asyncio.sleep(0.05)
        history = await handle.history()
        assert (await handle.replay(app=app)).outcome is Outcome.SAME
    own = sum(bool(entry.get("decisions")) for entry in history)
    assert own + len(done) <= 12
    if metadata.get("tree_spent") == NOTHING:
        assert any("has no seal of this deployment" in str(entry.get("notes")) for entry in history)


class Provider:
    """Models behind a pool that keeps each reply by its key: a repeated request is paid once, a lost one too."""

    def __init__(self, seed: int) -> None:
        self.paid: dict[str, int] = {}
        self._seed = seed

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        key = request.idempotency_key
        chance = random.Random(f"{self._seed}:{key}")
        most = request.parameters.get("max_tokens", 10**9)
        usage = Usage(request.prompt_estimate(), min(chance.choice((20, 200, 3_000)), most), 0.0)
        kept = key in self.paid
        self.paid.setdefault(key, usage.total_tokens)
        await asyncio.sleep(chance.choice((0.0, 0.01, 0.06)))
        return ReasonReply("", usage, "m", cached=kept)


class Wild:
    """Calls a model for each decision, decides at random, and fails at random after the call."""

    wake_mode, version = "push", "1"

    def __init__(self, name: str, seed: int, *, retries: bool, token_budget: int | None = None) -> None:
        self.name, self.goals, self.token_budget = name, (f"{name}.goal",), token_budget
        self._seed, self._retries, self._attempts = seed, retries, 0

    async def next(self, run: Any) -> PlannerDecision:
        reasoner = CURRENT_REASONER.get()
        assert reasoner is not None
        place = f"{run.plan_id}:{len(run.trajectory)}"
        chance = random.Random(f"{self._seed}:{place}")
        prompt = [{"role": "user", "content": "x" * chance.choice((100, 2_000, 8_000))}]
        self._attempts += self._retries
        await reasoner.complete(ReasonRequest(prompt, "m", idempotency_key=f"{place}:{self._attempts}"))
        if self._retries and random.Random(f"{place}:{self._attempts}").random() < 0.2:
            raise RetryableError("again", retry_after=0.001)
        action: Any = CompleteAction(result={})
        if self.token_budget is not None or chance.random() < 0.7:
            goal = publish("node.goal", "node.done")
            branches = [goal] * chance.choice((1, 2, 7))
            action = {"action": "parallel", "branches": branches, "reasoning": "more"}
        return PlannerDecision(plan_id=run.plan_id, next_action=action, reasoning="because")


@pytest.mark.parametrize("happens", ["crashes", "cancellations"])
@pytest.mark.parametrize("seed", range(5))
async def test_a_tree_passes_its_budget_by_one_call_whatever_happens(
    seed: int, happens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts crash, or children are cancelled and turns are retried, while children begin and end in parallel."""
    provider, budget, chance = Provider(seed), random.Random(seed).choice((9_000, 25_000, 90_000)), random.Random(seed)
    monkeypatch.setattr("plancast_actors.plan_actors.parking.in_process_reasoner", lambda: provider)
    settings = Settings()
    settings.dispatchers.ack_wait = 0.2
    settings.plans.max_tree, settings.plans.max_depth = 60, 5
    retries = happens == "cancellations"
    planners = [Wild("root", seed, retries=retries, token_budget=budget), Wild("node", seed, retries=retries)]
    async with PlancastTest(App("app", planners=planners), settings=settings, hosts=2) as env:
        handle = await env.submit("root.goal", {}, correlation_id="root")
        waiting = asyncio.ensure_future(handle.result(timeout=PATIENCE))
        for number in range(8):
            await asyncio.wait((waiting,), timeout=0.03)
            if happens == "crashes":
                await env.crash_host(number % 2)
                continue
            running = [summary.plan_id for summary in await stored_plans(env.bus) if summary.status == "running"]
            if children := [each for each in running if each != "root"]:
                with suppress(PlanFinished):
                    await env.client.plan(chance.choice(children)).cancel("no longer needed")
        await asyncio.wait((waiting,))
        async with asyncio.timeout(PATIENCE):
            while any(each.status == "running" for each in await stored_plans(env.bus)):
                await asyncio.sleep(0.01)
        assert isinstance(waiting.exception(), PlanFailed), "its budget, or the size of the tree, has ended it"
        state = await handle.state()
    paid = list(provider.paid.values())
    assert len(paid) > 1
    assert sum(paid) <= budget + max(paid)
    lent = sum(share.get("tokens", 0) for share in state.get("lent", {}).values())
    assert sum(paid) <= state["spent"]["tokens"] + lent, "the account never says less than what was spent"
