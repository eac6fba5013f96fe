"""The history checker finds every kind of broken promise: one of each is planted into the record of a good run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from simulation.history import (
    ActFact,
    Called,
    ClientResult,
    Committed,
    Emitted,
    Entry,
    Recorded,
    ResponseSeen,
    Submitted,
)

from plancast_bus.events.codec import pack, unpack
from plancast_bus.ports.effects import Publish, Respond
from simulation import History, PlanSpec, Step, Workload, check_history, simulate

CHILD = PlanSpec("p0-c", "machine", (Step("ask", 5),))
WORKLOAD = Workload(
    seed=1,
    plans=(
        PlanSpec("p0", "machine", (Step("ask", 3), Step("child", child=CHILD), Step("retry", 4, times=1))),
        PlanSpec("p1", "script", (Step("group", members=(Step("ask", 1), Step("ask", 2, "fail"))),)),
    ),
    chaos_seconds=1.0,
)


@cache
def _run() -> History:
    return simulate(WORKLOAD).history


def _copy() -> History:
    found = _run()
    return History(list(found.entries), dict(found.stored), dict(found.timelines))


def _at(history: History, kind: type, plan: str = "p0", number: int = 0) -> int:
    """Where the record tells something of this kind of a plan."""
    places = [
        place
        for place, entry in enumerate(history.entries)
        if isinstance(entry.fact, kind) and getattr(entry.fact, "plan", plan) == plan
    ]
    return places[number]


def _committed(history: History, number: int, plan: str = "p0") -> tuple[int, Committed]:
    place = _at(history, Committed, plan, number)
    fact = history.entries[place].fact
    assert isinstance(fact, Committed)
    return place, fact


def _swap(history: History, place: int, fact: object) -> None:
    history.entries[place] = replace(history.entries[place], fact=fact)  # type: ignore[arg-type]


def test_a_good_run_breaks_no_promise() -> None:
    assert check_history(_run(), WORKLOAD) == []


def _no_plan(history: History) -> None:
    history.entries.append(Entry(9.0, "people", Submitted("p9", "goal.p0")))


def _two_plans(history: History) -> None:
    place, first = _committed(history, 0)
    checkpoint = replace(first.checkpoint, correlation_id="p0-again", outbox=())
    history.entries.insert(place + 1, Entry(9.0, "host-0.1", replace(first, plan="p0-again", checkpoint=checkpoint)))


def _another_id(history: History) -> None:
    place, second = _committed(history, 1)
    summary = replace(second.checkpoint.summary, plan_id="another")
    _swap(history, place, replace(second, checkpoint=replace(second.checkpoint, summary=summary)))


def _two_responses(history: History) -> None:
    place, last = _committed(history, -1)
    (said,) = [each for each in last.checkpoint.outbox if isinstance(each, Respond)]
    outbox = (*last.checkpoint.outbox, replace(said, message_id="second"))
    _swap(history, place, replace(last, checkpoint=replace(last.checkpoint, outbox=outbox)))
    history.entries.append(Entry(9.0, "host-0.1", Emitted(outbox[-1])))


def _heard_twice(history: History) -> None:
    history.entries.append(history.entries[_at(history, ResponseSeen)])


def _never_heard(history: History) -> None:
    del history.entries[_at(history, ResponseSeen)]


def _never_told(history: History) -> None:
    del history.entries[_at(history, ClientResult)]


def _told_otherwise(history: History) -> None:
    _swap(history, _at(history, ClientResult), ClientResult("p0", "failed", None))


def _unexplained(history: History) -> None:
    history.entries.append(Entry(9.0, "host-1.2", Emitted(Publish("plancast.a.p0.b", b"", "ghost", "x"))))


def _too_early(history: History) -> None:
    place, first = _committed(history, 0)
    history.entries.insert(place, Entry(0.0, "host-0.1", Emitted(first.checkpoint.outbox[0])))


def _never_emitted(history: History) -> None:
    _, first = _committed(history, 0)
    history.entries[:] = [
        each
        for each in history.entries
        if not (isinstance(each.fact, Emitted) and each.fact.effect == first.checkpoint.outbox[0])
    ]


def _called_for_nothing(history: History) -> None:
    history.entries.append(Entry(9.0, "worker-0.1", Called("p0", "p0:77-0", 1)))


def _gap(history: History) -> None:
    del history.entries[_committed(history, 1)[0]]


def _out_of_order(history: History) -> None:
    (one, first), (other, second) = _committed(history, 0), _committed(history, 1)
    _swap(history, one, second)
    _swap(history, other, first)


def _applied_twice(history: History) -> None:
    (_, first), (place, second) = _committed(history, 0), _committed(history, 1)
    timeline = (*second.checkpoint.timeline[:-1], first.checkpoint.timeline[-1])
    _swap(history, place, replace(second, checkpoint=replace(second.checkpoint, timeline=timeline)))


def _timed_out_although_answered(history: History) -> None:
    place, second = _committed(history, 1)
    entry = unpack(second.checkpoint.timeline[-1])
    said = entry["event"] | {"id": "p0:1-0:due:1:timeout", "time": "2100-01-01T00:00:00+00:00"}
    timeline = (*second.checkpoint.timeline[:-1], pack(entry | {"event": said, "timer": True}))
    _swap(history, place, replace(second, checkpoint=replace(second.checkpoint, timeline=timeline)))


def _history_rewritten(history: History) -> None:
    entries = [unpack(each) for each in history.timelines["p0"]]
    history.timelines["p0"] = [pack(each | {"state": "elsewhere"}) for each in entries]


def _written_past_the_fence(history: History) -> None:
    stored = history.stored["p0"]
    history.stored["p0"] = replace(stored, state=b"")


def _left_waiting(history: History) -> None:
    place, _ = _committed(history, -1)
    del history.entries[place]


def _wrong_result(history: History) -> None:
    place = _at(history, ResponseSeen)
    fact = history.entries[place].fact
    assert isinstance(fact, ResponseSeen)
    wrong = fact.data["result"] | {"start": {"key": "p0/start", "n": 77}}
    _swap(history, place, ResponseSeen("p0", fact.data | {"result": wrong}))


def _wrong_status(history: History) -> None:
    _swap(history, _at(history, ResponseSeen, "p1"), ResponseSeen("p1", {"status": "cancelled", "result": None}))


def _lost_letter(history: History) -> None:
    history.dead_letters.append(("plancast.action-results.0.p0.work.completed", "no-plan"))


def _undelivered(history: History) -> None:
    history.undelivered.append("plancast.action-results.0.p0.work.completed")


def _recorded(history: History, state: str) -> None:
    history.entries.append(Entry(9.0, "work-0.1", ActFact("p1", "k", "never", "begins")))
    history.entries.append(Entry(9.0, "work-0.1", ActFact("p1", "k", "never", "acts")))
    history.records.append(Recorded("p1", "a", "k", state))
    summary = replace(history.stored["p1"].summary, status="cancelled")
    history.stored["p1"] = replace(history.stored["p1"], summary=summary)


def _begun_for_ever(history: History) -> None:
    _recorded(history, "begun")


def _done_although_withdrawn(history: History) -> None:
    _recorded(history, "withdrawn")


def _done_unheard_of(history: History) -> None:
    _recorded(history, "done")


def _logged(history: History) -> None:
    history.errors.append("host-0.1: turn crashed")


PLANTED: list[tuple[Callable[[History], None], str]] = [
    (_no_plan, "each goal one plan"),
    (_two_plans, "each goal one plan"),
    (_another_id, "each goal one plan"),
    (_two_responses, "each plan one final response"),
    (_heard_twice, "each plan one final response"),
    (_never_heard, "each plan one final response"),
    (_never_told, "each plan one final response"),
    (_told_otherwise, "each plan one final response"),
    (_unexplained, "effects are explained"),
    (_too_early, "effects are explained"),
    (_never_emitted, "committed effects are delivered"),
    (_called_for_nothing, "effects are explained"),
    (_gap, "turns come in one order"),
    (_out_of_order, "turns come in one order"),
    (_applied_twice, "events are applied once"),
    (_timed_out_although_answered, "answers come before timeouts"),
    (_history_rewritten, "turns come in one order"),
    (_written_past_the_fence, "turns come in one order"),
    (_left_waiting, "no plan is left waiting"),
    (_wrong_result, "results are right"),
    (_wrong_status, "results are right"),
    (_lost_letter, "nothing is lost"),
    (_undelivered, "nothing is lost"),
    (_begun_for_ever, "outcomes are known"),
    (_done_although_withdrawn, "outcomes are known"),
    (_done_unheard_of, "outcomes are known"),
    (_logged, "no defect"),
]


@pytest.mark.parametrize(("plant", "promise"), PLANTED, ids=[plant.__name__.strip("_") for plant, _ in PLANTED])
def test_a_planted_violation_is_found(plant: Callable[[History], None], promise: str) -> None:
    history = _copy()
    plant(history)
    assert promise in {each.promise for each in check_history(history, WORKLOAD)}


def test_a_withdrawn_request_that_was_not_begun_breaks_no_promise() -> None:
    history = _copy()
    history.records.append(Recorded("p1", "a", "k", "withdrawn"))
    assert check_history(history, WORKLOAD) == []


def test_a_violation_names_the_plan_and_the_event() -> None:
    history = _copy()
    _applied_twice(history)
    (said,) = [str(each) for each in check_history(history, WORKLOAD) if each.promise == "events are applied once"]
    assert said.startswith("[events are applied once] plan p0: event goal:")
    assert "was applied in turn 1 and again in turn 2" in said
