"""What a decision costs: the tokens of its prompt, and how many of them the decision before has sent already."""

import os
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plancast.agents.definitions import AgentDefinition, EventDefinition
from plancast.decisions.actions import PublishAction
from plancast.decisions.decision import PlannerDecision
from plancast.planner_turn.trajectory import MAX_ENTRIES, add_decision, add_event, read_entry, trigger_entry
from plancast.planners.contract import RunBudget, RunContext, TrajectoryEntry
from plancast.planners.llm.prompt import Prompt
from plancast.planners.llm.prompt_history import BLOCK, NEWEST, History

DECISIONS = 100
SCHEMA = {
    "type": "object",
    "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "minimum": 1}},
    "required": ["query"],
}
NAMES = [f"{thing}.{verb}" for thing in ("order", "stock") for verb in ("find", "check", "make", "close", "report")]
EVENTS = [
    EventDefinition(f"{name}.requested", description=f"Does {name} by number.", payload_schema=SCHEMA) for name in NAMES
]
ANSWERS = [f"{name}.{ending}" for name in NAMES for ending in ("completed", "failed")]
WORKER = AgentDefinition("w", "clerk", [event.event_type for event in EVENTS], ANSWERS)


def tokens(messages: list[dict[str, Any]]) -> list[int]:
    """The tokens of a prompt, by the tokenizer of OpenAI's models, which litellm brings along."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else the import downloads a price list
    import litellm

    return [
        token
        for each in messages
        for token in litellm.encode(model="gpt-4o", text=f"{each['role']}\n{each['content']}")
    ]


def shared(one: Any, other: Any) -> int:
    """The length of the common beginning."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@dataclass
class Cost:
    decision: int
    total: int
    cached: int
    """Tokens that are the beginning of the prompt before."""
    text: str

    @property
    def share(self) -> float:
        return self.cached / self.total


class Walk:
    """A plan of many decisions, each for one answer, stored and read as a turn does it."""

    def __init__(self, size: int, plan_id: str = "p") -> None:
        self.size = size
        self.plan_id = plan_id
        self.plan: Any = SimpleNamespace(trajectory=[], earlier={})
        self.results: dict[str, Any] = {}

    def prompt(self, number: int) -> list[dict[str, Any]]:
        """The prompt of the next decision, which is made, too."""
        now = 1_767_225_600.0 + 60 * number
        event: dict[str, Any] = {"type": "report.goal", "data": {"customer": self.plan_id}}
        if number > 1:
            text = f"row {number} of what was found, "
            event = {
                "type": f"{NAMES[number % 10]}.completed",
                "data": {"number": number, "rows": (text * self.size)[: self.size]},
            }
            self.results[event["type"]] = event["data"]
        add_event(self.plan, number, now, event)
        run = RunContext(
            tenant_id="t",
            user_id="u",
            session_id="s",
            run_id=self.plan_id,
            goal={"customer": self.plan_id},
            goal_event="report.goal",
            trigger=trigger_entry(event, number, now),
            results=self.results,
            trajectory=[read_entry(step) for step in self.plan.trajectory],
            events=EVENTS,
            agents=[WORKER],
            expected={"approval.granted": "a manager's approval"},
            budget=RunBudget(max_actions=200, actions=number - 1, max_tokens=10**6, tokens=number * 2_500),
            now=now,
        )
        action = PublishAction(event_type=f"{NAMES[number % 10]}.requested", data={"query": f"q{number}", "limit": 5})
        decision = PlannerDecision(next_action=action, reasoning=f"Step {number} needs what step {number - 1} found.")
        add_decision(self.plan, number, now, decision, "")
        return Prompt(run, system_instructions="Amounts are in euros.").messages()


@cache
def costs(size: int) -> tuple[Cost, ...]:
    walk, made, before = Walk(size), [], []
    for number in range(1, DECISIONS + 1):
        messages = walk.prompt(number)
        now = tokens(messages)
        made.append(Cost(number, len(now), shared(before, now), str(messages[1]["content"])))
        before = now
    return tuple(made)


@cache
def shared_by_plans() -> int:
    """The tokens that the prompts of two plans have in common."""
    return shared(*(tokens(Walk(30, plan_id).prompt(1)) for plan_id in ("Adler", "Berg")))


SIZES = pytest.mark.parametrize("size", [30, 120, 500])
"""Characters in an answer, besides its frame."""


def is_compaction(decision: int) -> bool:
    """The decision whose prompt shortens a block: two entries a decision, without the last one's action."""
    return decision > 10 and (2 * decision - 1 - NEWEST) % BLOCK < 2


@SIZES
def test_four_fifths_of_a_prompt_are_the_beginning_of_the_one_before(size: int) -> None:
    shares = {cost.decision: cost.share for cost in costs(size) if cost.decision > 2}
    between = {decision: share for decision, share in shares.items() if not is_compaction(decision)}
    assert min(between.values()) >= 0.8
    assert sum(cost.cached for cost in costs(size)[2:]) >= 0.8 * sum(cost.total for cost in costs(size)[2:])


@SIZES
def test_a_compaction_is_every_sixth_decision_and_keeps_all_before_the_history(size: int) -> None:
    compactions = [cost for cost in costs(size) if is_compaction(cost.decision)]
    assert [cost.decision for cost in compactions] == list(range(11, DECISIONS + 1, BLOCK // 2))
    assert all(cost.cached > shared_by_plans() for cost in compactions)


@SIZES
def test_a_late_decision_costs_hardly_more_than_the_tenth(size: int) -> None:
    tenth = costs(size)[9].total
    assert costs(size)[49].total <= 1.3 * tenth
    assert max(cost.total for cost in costs(size)[9:]) <= 1.3 * tenth


def test_what_all_plans_of_a_planner_share_is_under_1500_tokens_for_ten_events() -> None:
    assert 1_000 < shared_by_plans() < 1_500
    assert costs(30)[0].total < 1_700


def test_the_newest_answer_of_every_kind_stays_in_the_prompt() -> None:
    for cost in costs(120)[11:]:
        missing = [
            name for name in range(max(2, cost.decision - 9), cost.decision + 1) if f'"number": {name}' not in cost.text
        ]
        assert not missing, f"decision {cost.decision}"


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 3_000), min_size=1, max_size=60))
def test_a_history_only_grows_at_its_end_until_a_block_is_shortened(sizes: list[int]) -> None:
    entries = [
        TrajectoryEntry(revision=n + 1, type=f"step.{n % 5}", data={"text": "x" * size}) for n, size in enumerate(sizes)
    ]
    whole = RunContext(tenant_id="t", user_id="u", session_id="s", run_id="r", trajectory=entries)
    texts = [History(replace(whole, trajectory=entries[:n]), 11_500, 3_000).text for n in range(1, len(entries) + 1)]
    breaks = sum(not after.startswith(before) for before, after in pairwise(texts))
    by_number = max(0, len(entries) - NEWEST) // BLOCK
    by_size = 2 * sum(sizes) // 5_000 + len(entries) // 8
    assert breaks <= by_number + by_size


def test_a_plan_drops_old_entries_a_block_at_a_time_and_counts_them() -> None:
    plan: Any = SimpleNamespace(trajectory=[], earlier={})
    lengths = []
    for number in range(200):
        add_event(plan, number, float(number), {"type": f"kind.{number % 3}", "data": None})
        lengths.append(len(plan.trajectory))
        assert len(plan.trajectory) + sum(plan.earlier.values()) == number + 1
    assert max(lengths) == MAX_ENTRIES
    assert min(lengths[MAX_ENTRIES:]) == MAX_ENTRIES + 1 - BLOCK
    assert plan.trajectory[0]["note"].startswith("before this: ")
