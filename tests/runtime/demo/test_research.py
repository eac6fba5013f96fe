"""The research example: its workers, its state machine, and every case of the demo walked with doubles."""

from __future__ import annotations

import importlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from plancast.app import load_app
from plancast.demo.apps.research import PLAN, analyze, app, find
from plancast.demo.driver import choose
from plancast.demo.research import CASES, HOPELESS, KINDS, Case
from plancast.plan.context import PlanContext
from plancast.plan.requests import effect_id
from plancast.plan.status import PlanStatus
from plancast.state_machine.machine import failed_event, validate_state_machine
from plancast.worker import TaskContext
from plancast_bus.events.envelope import EventEnvelope, EventTopic

ROOT = Path(__file__).parents[3]
SEARCH, ANALYZE = "web.search.requested", "content.analyze.requested"
STATES = {state.state_name: state for state in PLAN}


def task(event_type: str, data: dict[str, Any]) -> TaskContext:
    return TaskContext(
        EventEnvelope(
            source="test", type=event_type, topic=EventTopic.ACTION_REQUESTS, correlation_id="plan-1", data=data
        )
    )


def search_task(topic: str, *, so_far: dict[str, Any] | None = None, broad: bool = False) -> TaskContext:
    said = {"topic": topic, "so_far": so_far or {}}
    return task(SEARCH, said | {"broad": True} if broad else said)


async def found(topic: str, *, broad: bool = False) -> dict[str, Any]:
    result: dict[str, Any] | None = await find(search_task(topic, broad=broad), None)
    assert result is not None
    return result


async def analyzed(topic: str) -> dict[str, Any]:
    result: dict[str, Any] = await analyze(task(ANALYZE, {"so_far": {"searching": await found(topic)}}), None)
    return result


# The search worker.


async def test_a_search_finds_passages_of_the_topic_first() -> None:
    result = await found("lambda")
    assert result["query"] == "lambda"
    assert result["hits"][0]["source"].startswith("lambda: ")
    assert "lambda" in result["hits"][0]["text"].lower()
    assert 1 <= len(result["hits"]) <= 8


async def test_a_passage_that_several_topics_share_is_found_once() -> None:
    for topic in ("coroutines", "exceptions", "descriptors"):
        texts = [hit["text"] for hit in (await found(topic))["hits"]]
        assert len(texts) == len(set(texts))


async def test_a_search_knows_word_forms() -> None:
    assert (await found("coroutine"))["hits"] == (await found("coroutines"))["hits"]


async def test_a_topic_is_a_query_with_operators_of_its_own() -> None:
    assert all("class" not in hit["text"].lower() for hit in (await found("lambda NOT class"))["hits"])


async def test_a_search_that_finds_nothing_says_so_by_another_event() -> None:
    asked = search_task("hashmap")
    assert await find(asked, None) is None
    assert asked.answer == ("web.search.no_results", {"query": "hashmap"})


async def test_a_clarification_is_searched_for_instead_of_the_topic() -> None:
    asked = search_task("hashmap", so_far={"ask_user": {"text": "dictionaries"}})
    assert (await find(asked, None)) == await found("dictionaries")


@pytest.mark.parametrize(
    "topic", ["what is a decorator?", "with AND", '"with statement', "async/await", "yield: x", ""]
)
async def test_a_strict_search_fails_for_what_is_no_query(topic: str) -> None:
    with pytest.raises(sqlite3.OperationalError):
        await find(search_task(topic), None)


@pytest.mark.parametrize("topic", ["what is a decorator?", "with AND", '"with statement', "async/await"])
async def test_a_broad_search_goes_by_the_words(topic: str) -> None:
    assert (await found(topic, broad=True))["hits"]


async def test_a_broad_search_without_any_word_fails_for_good() -> None:
    with pytest.raises(ValueError, match="no word"):
        await find(search_task("???", broad=True), None)


# The analyst.


async def test_an_answer_is_made_of_sentences_with_their_sources() -> None:
    result = await analyzed("coroutines")
    hits = (await found("coroutines"))["hits"]
    assert 1 <= len(result["sentences"]) <= 3
    assert result["answer"] == " ".join(sentence["text"] for sentence in result["sentences"])
    for sentence in result["sentences"]:
        assert any(sentence["text"] in hit["text"] and sentence["source"] == hit["source"] for hit in hits)
    assert set(result["sources"]) == {sentence["source"] for sentence in result["sentences"]}


async def test_the_first_sentence_of_an_answer_is_about_the_topic() -> None:
    for topic in ("coroutines", "slicing", "lambda", "metaclasses", "exceptions"):
        first = (await analyzed(topic))["sentences"][0]["text"]
        assert topic.rstrip("s") in first.lower()


async def test_an_answer_is_the_same_every_time() -> None:
    assert await analyzed("descriptors") == await analyzed("descriptors")


async def test_a_query_of_nothing_but_small_words_has_an_answer() -> None:
    assert (await analyzed("what"))["sentences"]


# The plan.


def test_the_state_machine_is_valid_and_has_the_states_of_the_design() -> None:
    validate_state_machine(STATES)
    app.validate()
    assert set(STATES) == {"start", "searching", "retry_search", "ask_user", "analyzing", "done", "failed"}


def test_the_example_is_the_app_of_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.path", [str(ROOT)])
    example = load_app("examples.research:app")
    assert sorted(example.goals) == sorted(app.goals) == ["research.goal"]
    assert example is importlib.import_module("plancast.demo.apps.research").app


class Desk:
    """A bus that keeps what a plan asks and answers, and hands requests to the app's workers."""

    def __init__(self, plan_id: str) -> None:
        self.asked: list[EventEnvelope] = []
        self.responses: list[dict[str, Any]] = []
        self._plan_id = plan_id

    async def request(self, *, event_type: str, data: Any, response_event: str, correlation_id: str) -> str:
        request_id = effect_id(self._plan_id, len(self.asked) + 1, 0)
        self.asked.append(
            EventEnvelope(
                id=request_id, source="test", type=event_type, topic=EventTopic.ACTION_REQUESTS, data=data,
                response_event=response_event, correlation_id=correlation_id,
            )
        )  # fmt: skip
        return request_id

    async def respond(self, **said: Any) -> None:
        self.responses.append(said)

    async def answer(self, request: EventEnvelope, case: Case) -> EventEnvelope:
        """What a worker answers, or the person."""
        if request.type not in app.tasks:
            assert request.type == "notification.human_input"
            assert case.topic in request.data["question"]
            return _event(request, "user.clarification.provided", {"text": case.clarification}, parent=None)
        asked = TaskContext(request)
        try:
            result = await app.tasks[request.type][1].handler(asked, None)
        except Exception as error:
            failed = failed_event(request.response_event or "")
            return _event(request, failed, {"success": False, "error": str(error)}, parent=request.id)
        event_type, data = asked.answer or (request.response_event or "", result)
        return _event(request, event_type, data, parent=request.id)


def _event(request: EventEnvelope, event_type: str, data: Any, *, parent: str | None) -> EventEnvelope:
    return EventEnvelope(
        source="test", type=event_type, topic=EventTopic.ACTION_RESULTS, data=data, parent_event_id=parent,
        correlation_id=request.correlation_id,
    )  # fmt: skip


class World:
    """A context of doubles."""

    def __init__(self, plan_id: str) -> None:
        self.bus = Desk(plan_id)
        self.memory = self

    async def store_plan_context(self, **fields: Any) -> None: ...


async def walk(case: Case) -> tuple[PlanContext, Desk]:
    world = World("plan-1")
    plan = PlanContext(
        plan_id="plan-1", goal_event="research.goal", goal_data={"topic": case.topic}, state_machine=STATES,
        response_event="research.answered", _context=world,
    )  # fmt: skip
    await plan.execute_next()
    answered = 0
    while not plan.is_complete():
        assert len(world.bus.asked) == answered + 1, f"the plan stands in {plan.current_state} and asks nothing"
        answered += 1
        await plan.execute_next(await world.bus.answer(world.bus.asked[-1], case))
    return plan, world.bus


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.topic)
async def test_every_case_of_the_demo_goes_its_way(case: Case) -> None:
    plan, desk = await walk(case)
    assert tuple(plan.moves) == case.path
    assert len(desk.responses) == 1
    if case in HOPELESS:
        assert plan.status is PlanStatus.FAILED
        assert plan.error is not None
        assert "no word" in plan.error
    else:
        assert plan.status is PlanStatus.COMPLETED
        assert plan.results["analyzing"]["sources"]
        assert case.query in [result.get("query") for result in plan.results.values() if result.get("hits")]


# The cases.


def test_there_are_forty_different_cases_and_the_first_few_are_of_every_kind() -> None:
    assert len(CASES) == len({case.topic for case in CASES}) == 40
    assert all(set(kind) & set(CASES[: len(KINDS)]) for kind in KINDS)
    assert len(HOPELESS) == 1


def test_the_order_of_the_cases_follows_from_the_seed() -> None:
    assert choose(CASES, 40, 7) == choose(CASES, 40, 7)
    assert choose(CASES, 40, 7) != choose(CASES, 40, 8)
    assert sorted(map(hash, choose(CASES, 40, 7))) == sorted(map(hash, CASES))
    assert len(choose(CASES, 95, 1)) == 95
