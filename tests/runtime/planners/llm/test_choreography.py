"""ChoreographyPlanner against a real HTTP server, through the real litellm."""

import asyncio
import json
import pickle
import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from plancast.agents.definitions import AgentDefinition, EventDefinition
from plancast.context import GoalContext
from plancast.decisions.actions import (
    AwaitAction,
    CompleteAction,
    DelegateAction,
    FinishReason,
    ParallelAction,
    PublishAction,
    WaitAction,
)
from plancast.decisions.decision import PlannerDecision
from plancast.errors import (
    BudgetExhausted,
    InvalidApp,
    InvalidDecision,
    InvalidPlannerConfig,
    InvalidStateMachine,
    ModelUnavailable,
)
from plancast.models.options import PARAMETERS, ModelOptions
from plancast.models.port import CURRENT_REASONER, ReasonReply, ReasonRequest
from plancast.plan.context import PlanContext
from plancast.plan.requests import Request
from plancast.plan.status import PlanStatus
from plancast.planners.contract import RunBudget, RunContext, RunControl, TrajectoryEntry
from plancast.planners.llm.choreography import ChoreographyPlanner
from plancast.planners.planner import Planner
from plancast.tasks.registry import TaskRegistry
from plancast.testing import Answer, ModelRequest, ModelServer
from plancast.worker import Worker

KEY = "sk-test-0123456789abcdef"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SEARCH = EventDefinition(
    "web.search",
    description="Searches the web.",
    payload_schema={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    response_event="web.search.completed",
)
FACT = EventDefinition("order.noted", topic="business-facts")
AGENTS = [
    AgentDefinition("w1", "searcher", ["web.search"], ["web.search.completed"]),
    AgentDefinition("p1", "compliance", ["compliance.goal"], ["compliance.goal.completed", "compliance.goal.failed"]),
]
EXPECTED = {"approval.granted": "a manager's approval"}


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer([]) as running:
        yield running


def planner(server: ModelServer | None = None, **options: Any) -> ChoreographyPlanner:
    base = {"api_base": server.url} if server else {}
    fields: dict[str, Any] = {"name": "advisor", "reasoning_model": "openai/test-model", "api_key": KEY, **base}
    return ChoreographyPlanner(**fields | options)


def run(**fields: Any) -> RunContext:
    known: dict[str, Any] = {
        "tenant_id": "t",
        "user_id": "u",
        "session_id": "s",
        "run_id": "plan-1",
        "goal": {"topic": "tides"},
        "goal_event": "research.goal",
        "response_event": "research.done",
        "current_state": "start",
        "trigger": TrajectoryEntry(revision=3, type="research.goal", data={"topic": "tides"}),
        "events": [SEARCH, FACT],
        "agents": AGENTS,
        "expected": EXPECTED,
        "now": NOON,
    }
    return RunContext(**known | fields)


def answer(action: str = "publish", **fields: Any) -> dict[str, Any]:
    if action == "publish" and not fields:
        fields = {"event_type": "web.search", "data": {"query": "tides"}}
    return {"next_action": {"action": action, **fields}, "reasoning": "because"}


DONE = answer("complete", result={"ok": True})


def context(*events: Any, **fields: Any) -> MagicMock:
    """A context with doubles."""
    made = MagicMock()
    made.toolkit.discover_actionable_events = AsyncMock(return_value=list(events))
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (answer(), PublishAction),
        (answer("publish", event_type="order.noted", topic="business-facts"), PublishAction),
        (DONE, CompleteAction),
        (answer("complete", reason="no_path"), CompleteAction),
        (answer("wait", reason="approval", expected_event="approval.granted"), WaitAction),
        (answer("wait", reason="results", expected_event="web.search.completed"), WaitAction),
        (answer("wait", reason="results", expected_event="web.search.failed"), WaitAction),
        (answer("delegate", target_planner="compliance", goal_event="compliance.goal", goal_data={}), DelegateAction),
        (answer("parallel", branches=[answer()["next_action"]] * 2), ParallelAction),
        (answer("await", group_id="g1"), AwaitAction),
    ],
)
async def test_every_action_can_be_decided(server: ModelServer, said: dict[str, Any], kind: type) -> None:
    server.add({**said, "plan_id": "made-up", "current_state": "made-up"})
    decision = await planner(server).next(run())
    assert isinstance(decision.next_action, kind)
    assert (decision.plan_id, decision.current_state, decision.reasoning) == ("plan-1", "start", "because")
    assert server.count == 1


async def test_a_topic_left_out_is_the_events_own(server: ModelServer) -> None:
    server.add(answer("publish", event_type="order.noted"))
    decision = await planner(server).next(run())
    assert isinstance(decision.next_action, PublishAction)
    assert decision.next_action.topic == "business-facts"


async def test_a_hallucinated_event_is_sent_back_and_the_mended_answer_taken(server: ModelServer) -> None:
    server.add(answer("publish", event_type="web.serach", data={}), answer())
    decision = await planner(server).next(run())
    assert isinstance(decision.next_action, PublishAction)
    assert decision.next_action.event_type == "web.search"
    repair = server.requests[1].messages
    assert [each["role"] for each in repair] == ["system", "user", "assistant", "user"]
    assert "web.serach" in repair[2]["content"]
    assert "Event 'web.serach' not in Registry. Available: ['order.noted', 'web.search']" in repair[3]["content"]


BAD = [
    (answer("publish", event_type="web.search", data={"query": 7}), "next_action.data.query: got 7, allowed: string"),
    (answer("publish", event_type="web.search", data={}), "next_action.data: got no query"),
    (answer("publish", event_type="web.search", topic="plan-events", data={"query": "x"}), "next_action.topic: got"),
    (answer("publish", event_type="plan.completed"), "next_action.event_type: got 'plan.completed'"),
    (
        answer("publish", event_type="web.search", data={"query": "x"}, response_event="plan.failed"),
        "next_action.response_event: got 'plan.failed'",
    ),
    *[
        (
            answer("publish", event_type="web.search", data={"query": "x"}, response_event=name),
            f"next_action.response_event: got '{name}', allowed: other names: it is a result of the plan itself",
        )
        for name in ("user_input", "_waiting_for", "final")
    ],
    (
        answer("publish", event_type="web.search", data={"query": "x"}, response_event="web search"),
        "next_action.response_event: got 'web search', allowed: dot separated tokens",
    ),
    *[
        (
            answer("publish", event_type="web.search", data={"query": "x"}, response_event=name),
            f"next_action.response_event: got '{name}', which a person or another agent sends, "
            "allowed: 'web.search.completed', a name that nothing else has, or nothing",
        )
        for name in (
            "approval.granted",
            "compliance.goal.completed",
            "compliance.goal.asked",  # whose failure is compliance.goal.failed
            "research.goal.completed",
            "research.goal.failed",
            "research.done",
        )
    ],
    (
        answer("parallel", branches=[answer()["next_action"], {**answer()["next_action"], "response_event": "a b"}]),
        "next_action.branches[1].response_event: got 'a b'",
    ),
    (
        answer("delegate", target_planner="compliance", goal_event="compliance goal", goal_data={}),
        "next_action.goal_event: got 'compliance goal', allowed: dot separated tokens",
    ),
    (
        answer("wait", reason="r", expected_event="approval granted"),
        "next_action.expected_event: got 'approval granted'",
    ),
    (
        answer("parallel", branches=[answer()["next_action"], {"action": "publish", "event_type": "no.such"}]),
        "next_action.branches[1].event_type: Event 'no.such' not in Registry",
    ),
    (
        answer("delegate", target_planner="compliance", goal_event="no.goal", goal_data={}),
        "next_action.goal_event: got 'no.goal', which no live agent takes, allowed: ['compliance.goal', 'web.search']",
    ),
    (
        answer("delegate", target_planner="ghost", goal_event="compliance.goal", goal_data={}),
        "next_action.target_planner: got 'ghost', which does not take 'compliance.goal', allowed: ['compliance']",
    ),
    (
        answer("wait", reason="hope", expected_event="a.miracle"),
        "next_action.expected_event: got 'a.miracle', which nothing sends, allowed: ['approval.granted', ",
    ),
    (
        answer("await", task_id="t9"),
        "next_action.task_id: got 't9', which is finished or was never started, allowed: ['t1']",
    ),
    (answer("publsh"), "next_action.action: got 'publsh', allowed: publish"),
    ({"next_action": {"action": "complete", "result": {}}}, "reasoning: got nothing"),
    ("I would search first.", "allowed: one JSON object, whole and valid"),
    ({"thought": "search"}, "next_action: got nothing"),
    ('{"next_action": {"action": "pub', "cut off"),
    ("", "allowed: one JSON object"),
]


@pytest.mark.parametrize(("bad", "fault"), BAD)
async def test_an_answer_that_cannot_be_used_is_sent_back_with_the_fault(
    server: ModelServer, bad: Any, fault: str
) -> None:
    server.add(bad, DONE)
    tasks = TaskRegistry()
    tasks.spawn(task_id="t1")
    decision = await planner(server).next(run(tasks=tasks))
    assert isinstance(decision.next_action, CompleteAction)
    assert fault in server.requests[1].last


@pytest.mark.parametrize("name", ["web.search.completed", "web.search.second", "tides.found", None])
async def test_an_answer_may_have_its_declared_name_or_one_of_its_own(server: ModelServer, name: str | None) -> None:
    searched = answer("publish", event_type="web.search", data={"query": "x"}, response_event=name)
    server.add(searched)
    outstanding = EXPECTED | {"web.search.completed": "the answer to web.search"}
    decision = await planner(server).next(run(expected=outstanding))
    assert isinstance(decision.next_action, PublishAction)
    assert (decision.next_action.response_event, server.count) == (name, 1)


async def test_exhausted_repairs_raise_with_the_whole_exchange(server: ModelServer) -> None:
    server.add(answer("publish", event_type="a.b"), "what?" * 4_000, answer("publish", event_type="c.d"))
    with pytest.raises(InvalidDecision, match=r"'c\.d' not in Registry") as caught:
        await planner(server).next(run())
    assert server.count == 3
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        exchange = error.exchange  # type: ignore[attr-defined]
        assert [each["role"] for each in exchange] == ["system", "user", *["assistant", "user"] * 3]
        said = [each["content"] for each in exchange if each["role"] == "assistant"]
        assert "a.b" in said[0]
        assert "more characters left out]" in said[1]
        assert "c.d" in said[2]
        assert "'c.d' not in Registry" in exchange[-1]["content"]
        assert all(len(each["content"]) < 9_000 for each in exchange)


@pytest.mark.parametrize("repairs", [0, 1, 4])
async def test_it_asks_as_often_as_it_was_told_to(server: ModelServer, repairs: int) -> None:
    server.add(*["no"] * 9)
    with pytest.raises(InvalidDecision):
        await planner(server, max_repairs=repairs).next(run())
    assert server.count == repairs + 1


async def test_an_answer_cut_at_its_token_limit_is_told_so(server: ModelServer) -> None:
    server.add(Answer('{"next_action": {"act', finish_reason="length"), DONE)
    await planner(server).next(run())
    assert "max_tokens" in server.requests[1].last


async def test_alternatives_that_cannot_be_done_are_dropped(server: ModelServer) -> None:
    good = answer()["next_action"]
    server.add({**DONE, "alternative_actions": [good, {"action": "publish", "event_type": "no.such"}]})
    server.add({**DONE, "alternative_actions": [{"action": "dance"}, good]})
    server.add({**DONE, "alternative_actions": "none"})
    kept = [(await planner(server).next(run(run_id=f"p{n}"))).alternative_actions for n in range(3)]
    assert [len(each or ()) for each in kept] == [1, 0, 0]
    assert server.count == 3


async def test_what_is_unknown_is_not_checked(server: ModelServer) -> None:
    server.add(answer("wait", reason="r", expected_event="any.thing"))
    server.add(answer("delegate", target_planner="any", goal_event="any.goal", goal_data={}))
    bare = run(agents=(), expected={})
    assert isinstance((await planner(server).next(bare)).next_action, WaitAction)
    other = run(agents=(), expected={}, run_id="plan-2")
    assert isinstance((await planner(server).next(other)).next_action, DelegateAction)


async def test_a_refusal_is_the_models_failure_and_is_not_repaired(server: ModelServer) -> None:
    server.add(Answer.refused("I will not."))
    with pytest.raises(ModelUnavailable, match="I will not"):
        await planner(server).next(run())
    assert server.count == 1


async def test_a_cancelled_run_completes_without_asking(server: ModelServer) -> None:
    decision = await planner(server).next(run(control=RunControl(cancelled=True)))
    assert isinstance(decision.next_action, CompleteAction)
    assert decision.next_action.reason is FinishReason.CANCELLED
    assert server.count == 0


async def test_when_actions_are_spent_only_completing_is_left(server: ModelServer) -> None:
    spent = run(budget=RunBudget(actions=2))
    server.add(DONE, answer())
    assert isinstance((await planner(server, max_actions=2).next(spent)).next_action, CompleteAction)
    with pytest.raises(BudgetExhausted, match="max_actions: 2 of 2"):
        await planner(server, max_actions=2).next(run(budget=RunBudget(actions=2), results={"again": 1}))
    assert "complete is the only action left" in server.requests[0].text


@pytest.mark.parametrize(
    ("options", "budget", "reason"),
    [
        ({"token_budget": 100}, RunBudget(tokens=100), "max_tokens"),
        ({"cost_budget": 0.5}, RunBudget(cost=0.6), "max_cost"),
        ({}, RunBudget(deadline=NOON - timedelta(seconds=1)), "deadline"),
    ],
)
async def test_when_money_or_time_is_spent_nothing_is_asked(
    server: ModelServer, options: dict[str, Any], budget: RunBudget, reason: str
) -> None:
    with pytest.raises(BudgetExhausted, match=reason):
        await planner(server, **options).next(run(budget=budget))
    assert server.count == 0


@pytest.mark.parametrize(
    ("options", "model", "calls"),
    [({"token_budget": 250}, "openai/test-model", 3), ({"cost_budget": 0.002}, "gpt-4o", 3), ({}, "gpt-4o", 10)],
)
async def test_repairs_end_when_the_budget_is_spent(
    server: ModelServer, options: dict[str, Any], model: str, calls: int
) -> None:
    server.add(*[Answer("no decision", prompt_tokens=60, completion_tokens=60)] * 10)
    with pytest.raises(BudgetExhausted if options else InvalidDecision):
        await planner(server, reasoning_model=model, max_repairs=9, **options).next(run())
    assert server.count == calls


# What reaches the model.


async def test_the_options_reach_the_server(server: ModelServer) -> None:
    server.add(DONE)
    await planner(server, temperature=0.25, max_tokens=77, top_p=0.5, timeout=30).next(run())
    request = server.requests[0]
    assert (request.model, request.key_given, request.key_tail) == ("test-model", True, KEY[-4:])
    wanted = {"temperature": 0.25, "max_tokens": 77, "top_p": 0.5}
    assert {name: request.parameters[name] for name in wanted} == wanted
    assert request.parameters["response_format"]["type"] in ("json_schema", "json_object")
    assert "timeout" not in request.parameters


async def test_fallback_models_are_asked_when_the_first_fails(server: ModelServer) -> None:
    server.add(Answer.error(404, "no such model"), DONE)
    await planner(server, fallback_models=["openai/second"]).next(run())
    assert [each.model for each in server.requests] == ["test-model", "second"]


async def test_instructions_strategy_and_custom_context_reach_the_model(server: ModelServer) -> None:
    async def tier(made: RunContext) -> Mapping[str, Any]:
        return {"tier": f"premium-{made.user_id}", "region": "EU"}

    server.add(DONE)
    made = planner(
        server, system_instructions="RULE-17", planning_strategy="conservative", custom_context=tier, prompt_limit=9_000
    )
    await made.next(run(custom_context={"region": "US"}))
    system, user = (each["content"] for each in server.requests[0].messages)
    assert "RULE-17" in system
    assert "Strategy: conservative" in system
    assert '{"region": "US", "tier": "premium-u"}' in user


async def test_the_key_is_in_no_repr_prompt_or_error(server: ModelServer) -> None:
    made = planner(server, extra_headers={"X-Secret": "hush-hush-hush"})
    server.add(Answer.error(401, f"Incorrect API key provided: {KEY}"), "no", "no", "no")
    with pytest.raises(ModelUnavailable) as refused:
        await made.next(run())
    with pytest.raises(InvalidDecision) as invalid:
        await made.next(run())
    shown = [repr(made), repr(made.options), repr(made.api_key), str(vars(made)), str(refused.value)]
    shown += [str(vars(invalid.value)), *(each.text for each in server.requests)]
    assert not any(KEY in each or "hush-hush" in each for each in shown)
    assert made.api_key is not None
    assert made.api_key.get_secret_value() == KEY


async def test_a_missing_key_says_what_to_set(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ModelUnavailable, match="OPENAI_API_KEY"):
        await planner(server, api_key=None).next(run())


class _Script:
    """Stands at the port, keeps what is asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = [each if isinstance(each, str) else json.dumps(each) for each in answers]
        self.requests: list[ReasonRequest] = []

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        self.requests.append(request)
        return ReasonReply(self.answers.pop(0))


async def _keys(made: ChoreographyPlanner, at: RunContext, *answers: Any) -> list[str]:
    script = _Script(*answers or [DONE])
    token = CURRENT_REASONER.set(script)
    try:
        await made.next(at)
    finally:
        CURRENT_REASONER.reset(token)
    assert {(each.tenant_id, each.plan_id, each.planner) for each in script.requests} == {("t", "plan-1", "advisor")}
    return [each.idempotency_key for each in script.requests]


async def test_equal_questions_have_equal_keys_and_others_have_not() -> None:
    made = planner()
    first, second = await _keys(made, run(), "no", DONE)
    assert re.fullmatch(r"plan-1:3:0:[0-9a-f]{64}", first)
    assert re.fullmatch(r"plan-1:3:1:[0-9a-f]{64}", second)
    assert await _keys(made, run(), "no", DONE) == [first, second]
    assert (await _keys(made, run(), "nein", DONE))[1] != second
    later = TrajectoryEntry(revision=4, type="research.goal", data={"topic": "tides"})
    others = [
        await _keys(made, run(trigger=later)),
        await _keys(made, run(results={"x": 1})),
        await _keys(planner(temperature=0.1), run()),
        await _keys(planner(reasoning_model="openai/other"), run()),
        await _keys(planner(top_p=0.3), run()),
    ]
    assert len({first, *(each[0] for each in others)}) == 6


async def test_a_turn_made_anew_at_another_time_has_the_same_key() -> None:
    def at(now: datetime) -> RunContext:
        came = TrajectoryEntry(revision=3, type="a.b", data={}, time=now)
        budget = RunBudget(deadline=NOON + timedelta(days=9))
        return run(now=now, trigger=came, trajectory=[TrajectoryEntry(revision=1, time=NOON), came], budget=budget)

    assert await _keys(planner(), at(NOON)) == await _keys(planner(), at(NOON + timedelta(minutes=3)))


async def test_sixty_four_runs_at_once_do_not_mix() -> None:
    all_asked = asyncio.Event()

    async def rule(request: ModelRequest) -> Any:
        topic = re.search(r'"topic": "(topic-\d+)"', request.text)
        assert topic is not None
        if "cannot be used" not in request.text:
            if server.count == 64:
                all_asked.set()
            await all_asked.wait()
            return Answer(f"hm, {topic[1]}")
        assert set(re.findall(r"topic-\d+", request.text)) == {topic[1]}
        return answer("complete", result={"topic": topic[1]})

    async with ModelServer(rule=rule) as server:
        made = planner(server)
        runs = [
            run(run_id=f"p{n}", goal={"topic": f"topic-{n}"}, trigger=None, user_id=f"u{n}", custom_context={"n": n})
            for n in range(64)
        ]
        decisions = await asyncio.gather(*(made.next(each) for each in runs))
    assert not server.errors
    assert server.high_water == 64
    for n, decision in enumerate(decisions):
        assert isinstance(decision.next_action, CompleteAction)
        assert (decision.plan_id, decision.next_action.result) == (f"p{n}", {"topic": f"topic-{n}"})


@pytest.mark.parametrize(
    "own",
    [
        answer("delegate", target_planner="advisor", goal_event="research.goal", goal_data={}),
        answer("publish", event_type="research.goal", data={}),
        answer("delegate", target_planner="advisor", goal_event="other.goal", goal_data={}),
    ],
)
async def test_own_goals_are_offered_only_to_a_planner_that_asks_for_them(
    server: ModelServer, own: dict[str, Any]
) -> None:
    agents = [*AGENTS, AgentDefinition("p2", "advisor", ["research.goal", "other.goal"], ["research.goal.completed"])]
    events = [SEARCH, EventDefinition("research.goal"), EventDefinition("other.goal")]
    seen = run(agents=agents, events=events)
    server.add(own, DONE, own)
    decision = await planner(server, goals=["other.goal"]).next(seen)
    assert isinstance(decision.next_action, CompleteAction)
    assert "research.goal.completed" in server.requests[0].text
    assert '"takes": ["compliance.goal"]' in server.requests[0].text
    assert "other.goal" not in server.requests[0].text
    decision = await planner(server, goals=["other.goal"], offers_own_goals=True).next(seen)
    assert isinstance(decision.next_action, (DelegateAction, PublishAction))


# What it is put together of.


def test_goals_need_no_handlers() -> None:
    made = planner(goals=["a.goal", "b.goal"])
    made.on_goal("c.goal")(lambda goal, context: None)
    assert made.goals == {"a.goal", "b.goal", "c.goal"}
    assert set(made.config.events_consumed) == made.goals
    assert made.decider("a.goal") is made
    assert made.decider("c.goal") is None
    assert made.needs_reasoner
    assert made.wake_mode == "push"
    with pytest.raises(InvalidApp, match="twice"):
        made.on_goal("a.goal")


def test_the_constructor_is_the_documented_one() -> None:
    made = ChoreographyPlanner("p")
    assert (made.reasoning_model, made.temperature, made.max_actions) == ("gpt-4o", 0.7, 20)
    assert (made.api_key, made.api_base, made.max_repairs) == (None, None, 2)
    assert (made.planning_strategy, made.system_instructions, made.goals) == ("balanced", None, frozenset())
    copy = pickle.loads(pickle.dumps(planner(goals=["a.goal"], max_tokens=5)))
    assert (copy.llm_kwargs, copy.api_key.get_secret_value()) == ({"max_tokens": 5}, KEY)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"planning_strategy": "bold"}, "planning_strategy"),
        ({"temperature": 3}, "temperature"),
        ({"max_actions": -1}, "max_actions"),
        ({"token_budget": -1}, "token_budget"),
        ({"token_budget": "5"}, "token_budget"),
        ({"max_actions": True}, "max_actions"),
        ({"max_actions": float("inf")}, "max_actions is inf.*None is no limit"),
        ({"token_budget": 10**400}, "token_budget"),
        ({"cost_budget": 1e300}, "cost_budget"),
        ({"max_repairs": -1}, "max_repairs"),
        ({"prompt_limit": 1}, "prompt_limit"),
        ({"goals": "a.goal"}, "goals"),
        ({"fallback_models": "gpt-4o"}, "fallback_models"),
        ({"base_url": "http://x"}, r"base_url \(give it as api_base\)"),
        ({"model_kwargs": {"stream": True}}, "model_kwargs: stream"),
        ({"reasoning_model": ""}, "reasoning_model"),
        ({"max_action": 3}, "no option 'max_action'; did you mean 'max_actions'"),
        ({"cost_limit": 3}, "no option 'cost_limit'; did you mean 'cost_budget'"),
        ({"temprature": 1}, "no option 'temprature'; did you mean 'temperature'"),
        ({"max_token": 9}, "no option 'max_token'; did you mean 'max_tokens'"),
        ({"model": "gpt-4o"}, "no option 'model'; did you mean 'reasoning_model'"),
        ({"descripton": "x"}, "no option 'descripton'; did you mean 'description'"),
        ({"llm_kwargs": {}}, "no option 'llm_kwargs'; did you mean 'model_kwargs'"),
        ({"num_ctx": 1}, r"no option 'num_ctx'.* model_kwargs=\{'num_ctx': \.\.\.\}"),
        ({"model_kwargs": "x"}, "model_kwargs is a dict, not a str"),
        ({"model_kwargs": {"top_p": 1}, "top_p": 1}, "model_kwargs: top_p: give it as an option"),
        ({"model_kwargs": {"temperature": 1}}, "model_kwargs: temperature"),
        (
            {"model_kwargs": {"max_token": 3}},
            "model_kwargs: litellm has no parameter 'max_token'; did you mean 'max_tok",
        ),
        ({"model_kwargs": {"numctx": 3}}, "no parameter 'numctx'; did you mean 'num_ctx'"),
        ({"model_kwargs": {"qqq": 3}}, r"no parameter 'qqq'\. .* model_kwargs=\{'extra_body': \{'qqq': \.\.\.\}\}"),
        ({"model_kwargs": {"base_url": "http://x"}}, r"base_url \(give it as api_base\)"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidPlannerConfig, match=told):
        planner(**options)


async def test_parameters_of_a_provider_reach_the_server_as_model_kwargs(server: ModelServer) -> None:
    server.add(DONE)
    made = planner(server, max_tokens=77, model_kwargs={"seed": 5, "num_ctx": 4096, "extra_body": {"own": 1}})
    assert made.llm_kwargs == {"max_tokens": 77, "seed": 5, "num_ctx": 4096, "extra_body": {"own": 1}}
    await made.next(run())
    sent = server.requests[0].parameters
    assert (sent["max_tokens"], sent["seed"], sent["num_ctx"], sent["own"]) == (77, 5, 4096, 1)


def test_all_parameters_that_litellm_lists_for_chats_are_options() -> None:
    from litellm.constants import OPENAI_CHAT_COMPLETION_PARAMS

    assert set(OPENAI_CHAT_COMPLETION_PARAMS) <= PARAMETERS | ModelOptions.names()


# Asked by handlers, with doubles for contexts.


async def test_reason_next_action_discovers_events(server: ModelServer) -> None:
    server.add(answer("publish", event_type="search.requested", data={"q": 1}, reasoning="search") | {"plan_id": "p1"})
    double = context(MagicMock(event_name="search.requested", description="Searches"))
    decision = await planner(server).reason_next_action("New goal: tides", double, plan_id="p9")
    assert (decision.plan_id, decision.next_action.action) == ("p9", "publish")
    double.toolkit.discover_actionable_events.assert_called_once_with(topic="action-requests")
    assert "New goal: tides" in server.requests[0].text
    assert 'search.requested object "Searches"' in server.requests[0].text


async def test_reason_next_action_refuses_what_is_not_registered(server: ModelServer) -> None:
    server.add(*[answer("publish", event_type="hallucinated.event")] * 3)
    double = context(MagicMock(event_name="real.event"))
    with pytest.raises(ValueError, match="not in Registry") as caught:
        await planner(server).reason_next_action("trigger", double)
    assert "Available: ['real.event']" in str(caught.value)
    double.bus.publish.assert_not_called()


async def test_every_question_of_a_notebook_is_asked_anew(server: ModelServer) -> None:
    server.add(answer("complete", result={"n": 1}), answer("complete", result={"n": 2}))
    first, second = [await planner(server).reason_next_action("same", context()) for _ in range(2)]
    assert first != second


@pytest.mark.parametrize("kind", [MagicMock, AsyncMock])
async def test_doubles_of_any_kind_will_do(server: ModelServer, kind: type) -> None:
    server.add(DONE)
    decision = await planner(server).reason_next_action("trigger", kind(), plan=kind())
    assert isinstance(decision.next_action, CompleteAction)


async def test_custom_context_is_for_one_decision_beside_the_planners(server: ModelServer) -> None:
    server.add(DONE, DONE)
    made = planner(server, custom_context={"region": "EU"})
    await made.reason_next_action("t", context(), custom_context={"tier": "premium"})
    await made.reason_next_action("t", context())
    assert '{"region": "EU", "tier": "premium"}' in server.requests[0].text
    assert "premium" not in server.requests[1].text


async def test_the_plan_and_the_event_are_told(server: ModelServer) -> None:
    plan = PlanContext(
        plan_id="p7",
        state_machine={},
        goal_event="research.goal",
        goal_data={"topic": "MOONS"},
        results={"a": "RESULT"},
    )
    event = SimpleNamespace(type="web.search.completed", data={"hits": ["HIT"]}, topic="action-results", id="e1")
    server.add(DONE)
    decision = await planner(server).reason_next_action(event, context(), plan=plan)
    assert decision.plan_id == "p7"
    for word in ("MOONS", "RESULT", "HIT", "web.search.completed", "research.goal"):
        assert word in server.requests[0].text


async def test_the_registry_of_a_context_is_asked_for_agents(server: ModelServer) -> None:
    async def agents() -> list[AgentDefinition]:
        return AGENTS

    double = context(SEARCH, registry=SimpleNamespace(agents=agents))
    wait = answer("wait", reason="r", expected_event="approval.granted")
    server.add(wait, DONE, wait)
    made = planner(server)
    assert isinstance((await made.reason_next_action("t", double)).next_action, CompleteAction)
    assert "planner.expects" in server.requests[1].last
    made.expects("approval.granted", "a manager approves")
    assert isinstance((await made.reason_next_action("t", double)).next_action, WaitAction)


@pytest.mark.parametrize("event", ["page.fetch.completed", "page.fetch.failed"])
async def test_an_outstanding_answer_can_be_waited_for(server: ModelServer, event: str) -> None:
    async def agents() -> list[AgentDefinition]:
        return AGENTS

    open_requests = {"r1": Request("page.fetch", "page.fetch.completed")}
    plan = PlanContext(plan_id="p7", state_machine={}, requests=open_requests)
    server.add(answer("wait", reason="r", expected_event=event))
    double = context(SEARCH, registry=SimpleNamespace(agents=agents))
    assert isinstance((await planner(server).reason_next_action("t", double, plan=plan)).next_action, WaitAction)
    assert server.count == 1


async def test_a_reasoner_of_the_context_is_used(server: ModelServer) -> None:
    script = _Script(DONE)
    await planner(server).reason_next_action("t", context(reasoner=script))
    assert (len(script.requests), server.count) == (1, 0)


async def test_the_circuit_breaker_of_a_plan(server: ModelServer) -> None:
    plan = PlanContext(plan_id="p7", state_machine={}, spent={"actions": 2})
    server.add(answer(), DONE)
    made = planner(server, max_actions=2)
    with pytest.raises(BudgetExhausted, match="max_actions"):
        await made.reason_next_action("t", context(SEARCH), plan=plan)
    assert isinstance((await made.reason_next_action("t", context(), plan=plan)).next_action, CompleteAction)


async def test_execute_decision_publishes_on_the_contexts_bus(server: ModelServer) -> None:
    server.add(answer())
    double = context(SEARCH)
    double.bus.publish = AsyncMock()
    made = planner(server)
    decision = await made.reason_next_action("t", double)
    await made.execute_decision(decision, double)
    double.bus.publish.assert_called_once()
    assert double.bus.publish.call_args.kwargs["event_type"] == "web.search"
    assert double.bus.publish.call_args.kwargs["response_event"] == "web.search.completed"


# create_plan.

GOAL = GoalContext("research.goal", {"topic": "tides"}, "c-1", response_event="research.done", tenant_id="t")
MACHINE: dict[str, Any] = {
    "start": {"default_next": "search"},
    "search": {
        "action": {
            "event_type": "web.search",
            "response_event": "web.search.completed",
            "data": {"query": "{{goal_data.topic}}"},
        },
        "transitions": [{"on_event": "web.search.completed", "to_state": "done"}],
    },
    "done": {"is_terminal": True},
}


async def test_a_designed_plan_is_pending_with_its_machine(server: ModelServer) -> None:
    server.add("Here it is:\n```json\n" + json.dumps(MACHINE) + "\n```")
    made = Planner("p", reasoning_model="openai/test-model", api_key=KEY, api_base=server.url)
    plan = await made.create_plan(GOAL, AGENTS, context(SEARCH))
    assert plan.status is PlanStatus.PENDING
    assert (plan.plan_id, plan.goal_event, plan.response_event) == ("c-1", "research.goal", "research.done")
    assert set(plan.state_machine) == {"start", "search", "done"}
    assert plan.state_machine["search"].state_name == "search"
    told = server.requests[0].text
    assert '"query": {"type": "string"}' in told
    assert '"topic": "tides"' in told
    assert KEY not in told


async def test_workers_planners_and_events_can_be_agents(server: ModelServer) -> None:
    worker = Worker("searcher")
    worker.on_task("web.search", "web.search.completed", description="WORDS")(lambda task, context: {})
    other = Planner("other")
    other.add_goal("other.goal", {name: {**state, "state_name": name} for name, state in MACHINE.items()})
    server.add({"state_machine": MACHINE})
    await planner(server).create_plan(GOAL, [worker, other, FACT], context())
    assert all(word in server.requests[0].text for word in ("WORDS", "other.goal", "order.noted"))


async def test_the_faults_of_a_design_are_sent_back_verbatim(server: ModelServer) -> None:
    broken = {**MACHINE, "lost": {"is_terminal": True}}
    unknown = json.loads(json.dumps(MACHINE).replace('"event_type": "web.search"', '"event_type": "web.dance"'))
    server.add(broken, unknown, MACHINE)
    plan = await planner(server).create_plan(GOAL, AGENTS, context())
    assert set(plan.state_machine) == set(MACHINE)
    assert "state 'lost' cannot be reached" in server.requests[1].last
    assert "state 'search': action event 'web.dance' is not declared by any agent" in server.requests[2].last
    assert "lost" in server.requests[2].text


async def test_a_hopeless_design_raises_with_the_exchange(server: ModelServer) -> None:
    server.add("no idea", "{}", '{"start": {"action"')
    with pytest.raises(InvalidStateMachine) as caught:
        await planner(server).create_plan(GOAL, AGENTS, context())
    assert server.count == 3
    assert [each["role"] for each in caught.value.exchange][2:] == ["assistant", "user"] * 3  # type: ignore[attr-defined]


async def test_without_a_model_it_says_what_to_set() -> None:
    with pytest.raises(InvalidPlannerConfig, match="reasoning_model="):
        await Planner("p").create_plan(GOAL, AGENTS, context())
    with pytest.raises(InvalidPlannerConfig, match="api_base given, but no reasoning_model"):
        Planner("p", api_base="http://x")


async def test_without_events_there_is_nothing_to_design(server: ModelServer) -> None:
    with pytest.raises(InvalidPlannerConfig, match="no agent declares"):
        await planner(server).create_plan(GOAL, [], context())
    with pytest.raises(InvalidPlannerConfig, match="not a int"):
        await planner(server).create_plan(GOAL, [7], context())


async def test_a_decision_is_checked_again_before_it_is_carried_out() -> None:
    planner = ChoreographyPlanner("p")
    context = MagicMock()
    context.bus.publish = AsyncMock()
    context.toolkit.discover_actionable_events = AsyncMock(
        return_value=[EventDefinition("real.event", "action-requests")]
    )
    forged = PlannerDecision(next_action=PublishAction(event_type="forged.event"), reasoning="r")
    with pytest.raises(InvalidDecision, match="not in Registry"):
        await planner.execute_decision(forged, context)
    context.bus.publish.assert_not_called()
    real = PlannerDecision(next_action=PublishAction(event_type="real.event"), reasoning="r")
    await planner.execute_decision(real, context)
    context.bus.publish.assert_called_once()


async def test_handlers_share_the_circuit_breaker() -> None:
    planner = ChoreographyPlanner("p", max_actions=2)
    context = MagicMock()
    context.bus.publish = AsyncMock()
    plan = PlanContext(plan_id="p-1", state_machine={})
    decision = PlannerDecision(next_action=PublishAction(event_type="real.event"), reasoning="r")
    for _ in range(2):
        await planner.execute_decision(decision, context, plan=plan)
    assert plan.spent == {"actions": 2}
