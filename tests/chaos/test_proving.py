"""The checks of a chaos record find each violated guarantee, and none in a correct record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from simulation.history import ClientResult, Entry, Submitted
from simulation.workload import PlanSpec, Step
from tests.chaos.proving import prove
from tests.chaos.recorder import Record, Seen, Stored

from plancast_bus.events import codec
from plancast_bus.events.codec import pack
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary
from plancast_bus.ports.effects import Effect, Publish, Respond

SPEC = PlanSpec("p0", "machine", (Step("ask", 1),))
KIND = "application/msgpack"
RESULT = {"start": {"key": "p0/start", "n": 1}}


def event(event_id: str, event_type: str, data: dict[str, object]) -> bytes:
    return codec.encode(
        EventEnvelope(
            id=event_id,
            source="test",
            type=event_type,
            topic=EventTopic.ACTION_RESULTS,
            correlation_id="c1",
            data=data,
        )
    )


ASKED = Publish("plancast.action-requests.c1.work.requested", event("c1:1-0", "work.requested", {}), "c1:1-0", KIND)
FINAL = event("c1:2-0", "done.p0", {"status": "completed", "result": RESULT})
GIVEN = Respond("action-results", "c1", "done.p0", FINAL, "c1:2-0", KIND)


def turn(revision: int, status: str, cause: str, *effects: Effect) -> tuple[Stored, Checkpoint]:
    summary = PlanSummary("c1", status, SPEC.goal, "", revision)
    entry = pack({"revision": revision, "event": {"id": cause}})
    made = Checkpoint(
        "c1", revision, "e", pack({"status": status}), summary, effects, timeline=(entry,), version=revision
    )
    return Stored(float(revision), revision, "plancast-store.checkpoints.c1", made.encode(), {}), made


def seen(at: float, subject: str, payload: bytes, **headers: str) -> Seen:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Seen(at, subject, payload, {"Content-Type": KIND, **named})


def good() -> Record:
    first, last = turn(1, "running", "goal:c1", ASKED), turn(2, "completed", "answer:c1:1-0", GIVEN)
    respond = "plancast-store.responses.action-results.c1.done.p0"
    return Record(
        facts=[
            Entry(0.5, "people", Submitted("c1", SPEC.goal)),
            Entry(2.5, "people", ClientResult("c1", "completed", RESULT)),
        ],
        seen=[
            seen(1.0, first[0].subject, first[0].payload),
            seen(1.1, ASKED.subject, ASKED.payload, Nats_Msg_Id="c1:1-0"),
            seen(2.0, last[0].subject, last[0].payload),
            seen(2.1, respond, FINAL, Nats_Msg_Id="c1:2-0"),
            seen(2.2, "plancast.action-results.c1.done.p0", FINAL, Nats_Stream="PLANCAST_RESPONSES"),
        ],
        versions=[first, last],
        left={kind: [] for kind in ("results", "timers", "requests", "responses", "dead_letters")},
        notes=[[1.2, "c1", "c1:1-0", 1, ""], [1.3, "c1", "c1:1-0", 1, "completed"]],
    )


def broken(record: Record) -> set[str]:
    return {each.promise for each in prove(record, {"c1": SPEC}, {}).violations}


def test_a_plan_that_went_well_breaks_nothing() -> None:
    assert broken(good()) == set()


def _unsent(record: Record) -> None:
    record.seen[3:] = []


def _heard_twice(record: Record) -> None:
    record.seen.append(replace(record.seen[-1], time=2.3))


def _before_its_turn(record: Record) -> None:
    record.seen[0], record.seen[1] = record.seen[1], record.seen[0]


def _of_no_turn(record: Record) -> None:
    record.seen.append(seen(1.5, ASKED.subject, ASKED.payload, Nats_Msg_Id="c1:7-0"))


def _another_payload(record: Record) -> None:
    record.seen.append(replace(record.seen[1], payload=b"else"))


def _applied_twice(record: Record) -> None:
    record.versions[1] = turn(2, "completed", "goal:c1", GIVEN)


def _after_the_end(record: Record) -> None:
    record.versions.append(turn(3, "completed", "late"))


def _never_ends(record: Record) -> None:
    record.versions[1:] = []
    record.seen[2:] = []
    record.facts[1:] = []


def _no_plan(record: Record) -> None:
    record.versions, record.notes, record.facts, record.seen = [], [], record.facts[:1], []


def _wrong_result(record: Record) -> None:
    record.facts[1] = Entry(2.5, "people", ClientResult("c1", "completed", {"start": {"key": "p0/start", "n": 2}}))


def _called_for_nothing(record: Record) -> None:
    record.notes.append([1.5, "c1", "c1:9-9", 1, ""])


def _left_behind(record: Record) -> None:
    record.left["results"] = [Stored(0.0, 1, "plancast.action-results.3.c1.work.completed", b"", {})]


def _put_aside(record: Record) -> None:
    letter = '{"reason": "poison", "subject": "plancast.action-results.c1.work.completed"}'
    record.left["dead_letters"] = [Stored(2.0, 1, "deadletters.poison", b"", {"Plancast-Dead-Letter": letter})]


@pytest.mark.parametrize(
    ("spoil", "promise"),
    [
        (_unsent, "committed effects are delivered"),
        (_heard_twice, "each plan one final response"),
        (_before_its_turn, "effects are explained"),
        (_of_no_turn, "effects are explained"),
        (_another_payload, "effects are explained"),
        (_applied_twice, "events are applied once"),
        (_after_the_end, "turns come in one order"),
        (_never_ends, "no plan is left waiting"),
        (_no_plan, "each goal one plan"),
        (_wrong_result, "results are right"),
        (_called_for_nothing, "effects are explained"),
        (_left_behind, "nothing is lost"),
        (_put_aside, "nothing is lost"),
    ],
)
def test_a_broken_promise_is_seen(spoil: Callable[[Record], None], promise: str) -> None:
    record = good()
    spoil(record)
    assert promise in broken(record)


def test_an_answer_that_a_worker_gives_when_all_plans_have_ended_is_not_lost() -> None:
    record = good()
    _left_behind(record)
    record.rested_at = record.left["results"][0].time - 0.1
    assert broken(record) == set()
    record.rested_at = record.left["results"][0].time + 0.1
    assert broken(record) == {"nothing is lost"}


def test_what_was_not_seen_while_the_recorder_was_cut_off_is_counted_and_not_held_against_anybody() -> None:
    record = good()
    del record.seen[1]
    record.notes.clear()
    record.gaps = [(0.9, 1.5)]
    proof = prove(record, {"c1": SPEC}, {})
    assert (proof.violations, proof.unseen) == ([], 1)
