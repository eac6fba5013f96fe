"""A model that answers with whatever it likes: nothing leaves the schemas, no plan is stuck, every call is counted."""

import asyncio
import re
from collections import Counter
from itertools import cycle
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.hostile.answers import APPROVAL, DONE, EVENTS, GOAL, GOOD, KINDS, SCHEMAS, Kind, decision

from plancast import App, ChoreographyPlanner, Worker
from plancast.models.port import ReasonReply, ReasonRequest, Usage
from plancast.settings import Settings
from plancast.testing import PlancastTest

MAX_ACTIONS = 6
TOKEN_BUDGET = 1_000
AT_ONCE = 40
"""Plans at a time."""
ENDED = {"completed", "failed"}
BLOCKS = 10
"""Blocks of data in a prompt."""
_BLOCK = re.compile(r'<data name="\w+">\n.*?\n</data>', re.DOTALL)


class HostileModel:
    """Answers each plan by a seed: hostile answers of each kind in turn, and valid ones between them."""

    def __init__(self, kinds: dict[str, Kind], seed: int, share: float) -> None:
        self._kinds = kinds
        self._seed = seed
        names = list(kinds)
        Random(seed).shuffle(names)
        self._turn = cycle(names)
        self._share = share
        self._chances: dict[str, Random] = {}
        self.answered: Counter[str] = Counter()
        """Answers by plan."""
        self.used: Counter[str] = Counter()
        """Hostile answers by kind."""
        self.said: dict[str, list[str]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.broken: list[str] = []
        """Prompts in which a block of data does not end where it should."""

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        plan = request.plan_id
        self._check(str(request.messages[1]["content"]))
        chance = self._chances.setdefault(plan, Random(f"{self._seed}:{len(self._chances)}"))
        self.answered[plan] += 1
        name = "a valid one"
        if chance.random() < self._share:
            name = next(self._turn)
            answer = self._kinds[name](chance)
            self.used[name] += 1
        else:
            answer = decision(DONE if chance.random() < 0.2 else GOOD)
        self.said.setdefault(plan, []).append(name)
        reply = answer if isinstance(answer, ReasonReply) else ReasonReply(answer, Usage(100, 10, 0.001), "hostile")
        self.tokens.setdefault(plan, []).append(reply.usage.total_tokens)
        return reply

    def _check(self, prompt: str) -> None:
        outside = _BLOCK.sub("", prompt)
        if len(_BLOCK.findall(prompt)) != BLOCKS or re.search(r"<\s*/?\s*data", outside, re.IGNORECASE):
            self.broken.append(prompt)


class Clerk:
    """The worker, which notes what reaches it."""

    def __init__(self) -> None:
        self.worker = Worker("clerk")
        self.did: list[tuple[str, Any]] = []
        for event in EVENTS:
            self._serve(event.event_type, event.response_event or "")

    def _serve(self, request: str, response: str) -> None:
        definition = next(event for event in EVENTS if event.event_type == request)

        @self.worker.on_task(request, response, schema=definition.payload_schema, description=definition.description)
        async def work(task: Any, context: Any) -> Any:
            self.did.append((request, task.data))
            return {"done": True}


def planner_with(**options: Any) -> ChoreographyPlanner:
    made = ChoreographyPlanner("hostile", "openai/any", api_key="sk-unused-0123456789", goals=[GOAL], **options)
    made.expects(APPROVAL, "a manager's approval")
    return made


async def attacked(model: HostileModel, monkeypatch: pytest.MonkeyPatch, answers: int, **options: Any) -> Counter[str]:
    """Run plans until the model has given so many hostile answers, and check each; returns their number by status."""
    monkeypatch.setattr("plancast_actors.plan_actors.parking.in_process_reasoner", lambda: model)
    monkeypatch.setattr("plancast.models.throttle.PAUSE_SECONDS", 0.0)
    clerk = Clerk()
    allowed = {*SCHEMAS, *(event.response_event for event in EVENTS)}
    app = App("hostile", planners=[planner_with(**options)], workers=[clerk.worker])
    statuses: Counter[str] = Counter()
    async with PlancastTest(app, settings=Settings()) as env:

        async def one() -> None:
            plan = await env.submit(GOAL, {"secret": "hunter2"})
            state = await ended(plan)
            statuses[state["status"]] += 1
            said = model.said.get(plan.plan_id, [])
            sent = {str(kind) for entry in await plan.history() for kind, _ in entry.get("sent") or ()}
            unknown = {kind for kind in sent if kind not in allowed and not kind.startswith(("plan.", GOAL))}
            assert not unknown, f"{unknown} after {said}"
            assert (state.get("spent") or {}).get("actions", 0) <= options["max_actions"], said
            assert state["spent"]["calls"] == model.answered[plan.plan_id], said
            assert state["spent"]["tokens"] == sum(model.tokens[plan.plan_id]), said

        while sum(model.used.values()) < answers:
            await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    for request, data in clerk.did:
        faults = [fault.message for fault in Draft202012Validator(SCHEMAS[request]).iter_errors(data)]
        assert not faults, f"{request} with {data!r:.200}: {faults}"
    assert clerk.did
    assert not model.broken, model.broken[0]
    return statuses


async def ended(plan: Any) -> dict[str, Any]:
    """A plan's state when it has ended; a plan that has not after a minute is stuck."""
    async with asyncio.timeout(60):
        try:
            await plan.result(timeout=60)
        except TimeoutError:
            raise AssertionError(f"plan {plan.plan_id} is stuck") from None
        except Exception:
            pass  # it has failed, which the state says
        state: dict[str, Any] = await plan.state()
    assert state["status"] in ENDED
    return state


async def test_an_answer_of_each_kind_is_repaired_or_ends_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    model = HostileModel(KINDS, 0, 0.5)
    statuses = await attacked(model, monkeypatch, len(KINDS), max_actions=MAX_ACTIONS)
    assert set(model.used) == set(KINDS)
    assert set(statuses) == ENDED


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_1250_hostile_answers_have_no_effect_but_valid_ones(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = HostileModel(KINDS, seed, 0.6)
    statuses = await attacked(model, monkeypatch, 1_250, max_actions=MAX_ACTIONS)
    assert set(model.used) == set(KINDS)
    assert set(statuses) == ENDED


async def test_a_budget_is_passed_by_one_call_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    model = HostileModel({name: kind for name, kind in KINDS.items() if name != "a huge usage"}, 5, 0.2)
    options = {"max_actions": 50, "token_budget": TOKEN_BUDGET}
    await attacked(model, monkeypatch, 60, **options)
    for plan, tokens in model.tokens.items():
        assert sum(tokens[:-1]) < TOKEN_BUDGET, model.said[plan]


def test_there_are_at_least_60_kinds() -> None:
    assert len(KINDS) >= 60
