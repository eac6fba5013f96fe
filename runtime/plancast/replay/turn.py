"""A turn of a plan's history, run again as the code of today would: with its event, time and ids as they were then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from plancast.json_values.diff import Difference, differences
from plancast.plan.context import PlanContext
from plancast.plan.control_events import FORK
from plancast.replay.environment import Script, Unknowable, recorded_failure
from plancast.state_machine.machine import Machine
from plancast.turn.turn import Turn, TurnEnvironment, TurnOutcome
from plancast_bus.events import codec
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.ports.effects import Effect, Publish, Respond

_COMPARED: Final = ("from", "path", "state", "status", "error", "pause_reason", "notes")
_UNSURE: Final = frozenset(("withdraw", "seal_history"))
"""Effects that hang on what a host knew beside the plan: where a request rests, how long the timeline is."""
_ASTRAY: Final = ("from", "path", "state", "status", "sent")
"""Where a turn differs that has left the plan elsewhere: what came afterwards was not meant for it."""
_OUTSIDE_NAMES: Final = frozenset(("PayloadTooLarge", "ModelUnavailable", "ReasonerUnavailable", "InvalidEnvelope"))
_OUTSIDE_TEXTS: Final = (
    "deadline_exceeded: the turn for ",
    "the event could not be handled in ",
    "the process of its plan host ended ",
)
"""By which a failure is known that a turn did not bring about by itself."""


@dataclass
class Rerun:
    """What came of a turn that was run again."""

    differences: list[Difference] = field(default_factory=list)
    why: str = ""
    """Why it cannot be told whether it is the same; empty when it can."""
    plan: PlanContext | None = None
    """The plan after it; None when that is not known."""
    effects: tuple[Effect, ...] = ()
    event: EventEnvelope | None = None


class _Turn(Turn):
    """A turn whose plan begins with a machine that is given, whatever its goal has today."""

    begins_with: Machine | None = None

    def adopt(self, plan: PlanContext) -> None:
        if self.plan is None and self.begins_with is not None:
            plan.state_machine, plan.machine = dict(self.begins_with.states), self.begins_with
        super().adopt(plan)


class _Done(NamedTuple):
    turn: Turn
    verdict: TurnOutcome


async def rerun(
    environment: TurnEnvironment,
    script: Script,
    entry: Mapping[str, Any],
    before: bytes | None,
    machine: Machine | None,
    correlation_id: str,
) -> Rerun:
    """Run a turn again.

    Args:
        environment: What it meets.
        script: Where the environment takes recorded decisions from.
        entry: The turn in the plan's timeline.
        before: The plan's fields before it, packed; None for the first turn.
        machine: The plan's, or the one that it is to begin with (None: the one that its goal has today).
        correlation_id: Under which its events come.
    """
    script.load(entry)
    event = EventEnvelope.model_validate(entry["event"])

    def turn() -> Turn:
        plan = None
        if before is not None:
            plan = PlanContext.from_dict(codec.unpack(before) | {"state_machine": machine or {}})
        made = _Turn(
            environment, correlation_id, event, plan, int(entry["revision"]), float(entry["time"]),
            bool(entry.get("timer")),
        )  # fmt: skip
        made.begins_with = machine if plan is None and event.type != FORK else None
        return made

    try:
        done = first = await _run(turn)
    except Unknowable as unknowable:
        return Rerun(why=str(unknowable), event=event)
    found = _compare(entry, done)
    if not found:
        return _taken(done)
    failure = recorded_failure(entry)
    if failure is not None and _from_outside(failure):
        failed = turn()
        done = _Done(failed, await failed.fail(failure))
        if not _compare(entry, done):
            return _taken(done, why=f"it failed for a reason outside the plan: {failure}")
    if before is None and entry.get("status") == "cancelled":
        cancelled = turn()
        done = _Done(cancelled, await cancelled.cancel(str(entry.get("error") or "")))
        if not _compare(entry, done):
            return _taken(done, why="a cancellation has interrupted the goal's handler")
    differs = _taken(first)
    differs.differences = found
    if first.verdict is not TurnOutcome.COMMIT or any(each.path.startswith(_ASTRAY) for each in found):
        differs.plan = None
    return differs


async def _run(turn: Callable[[], Turn]) -> _Done:
    """Run a turn as a plan actor does: one that raises fails its plan.

    Raises:
        Unknowable: what it does hangs on what the history does not tell.
    """
    first = turn()
    try:
        return _Done(first, await first.run())
    except Exception as error:
        failed = turn()
        return _Done(failed, await failed.fail(error))


def _taken(done: _Done, why: str = "") -> Rerun:
    return Rerun(why=why, plan=done.turn.plan, effects=tuple(done.turn.effects), event=done.turn.event)


def _from_outside(failure: Exception) -> bool:
    return type(failure).__name__ in _OUTSIDE_NAMES or str(failure).startswith(_OUTSIDE_TEXTS)


def _compare(entry: Mapping[str, Any], done: _Done) -> list[Difference]:
    """Where a turn differs from what was recorded of it."""
    if done.verdict is not TurnOutcome.COMMIT:
        return [Difference("turn", "taken", f"not taken: {done.turn.reason or 'the plan does not begin'}")]
    now: dict[str, Any] = codec.unpack(codec.pack(done.turn.entry()))
    found: list[Difference] = []
    for name in _COMPARED:
        found += differences(name, entry.get(name), now.get(name))
    for name, part in (("sent", _types), ("effects", _kinds), ("decisions", _decisions)):
        found += differences(name, part(entry), part(now))
    if not found and "said" in entry:
        found = differences("said", entry["said"], [each.get("data") for each in _sent(done.turn.effects)])
    return found or differences("sent", list(entry.get("sent") or ()), list(now.get("sent") or ()))


def _types(entry: Mapping[str, Any]) -> list[Any]:
    return [event_type for event_type, _ in entry.get("sent") or ()]


def _kinds(entry: Mapping[str, Any]) -> list[Any]:
    return [kind for kind in entry.get("effects") or () if kind not in _UNSURE]


def _decisions(entry: Mapping[str, Any]) -> list[Any]:
    return [
        {"planner": taken.get("planner"), "decision": taken.get("decision")} for taken in entry.get("decisions") or ()
    ]


def sent_events(effects: Sequence[Effect]) -> dict[str, dict[str, Any]]:
    """The events among effects as they are on the wire, by their ids."""
    return {event["id"]: event for event in _sent(effects)}


def _sent(effects: Sequence[Effect]) -> list[dict[str, Any]]:
    return [codec.load(each.payload, each.content_type) for each in effects if isinstance(each, (Publish, Respond))]
