"""Re-runs one turn of a plan's history with the current code, with the recorded event, time and ids."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from plancast.decisions.decision import PlannerDecision
from plancast.json_values.diff import Difference, differences
from plancast.models.port import ReasonerPort
from plancast.plan.context import PlanContext
from plancast.plan.control_events import FORK
from plancast.planner_turn.deliberation import Deliberation, deliberation_of_handler
from plancast.planners.contract import RunContext
from plancast.replay.environment import ModelCallNotRecorded, NotRecorded, Script, recorded_failure
from plancast.state_machine.machine import Machine
from plancast.turn.dependencies import is_deferred
from plancast.turn.turn import Turn, TurnEnvironment, TurnOutcome
from plancast.turn_record.account import lend
from plancast_bus.events import codec
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.ports.effects import Effect, Publish, Respond

_COMPARED: Final = ("from", "path", "state", "status", "error", "pause_reason", "notes")
_HOST_DEPENDENT: Final = frozenset(("withdraw", "seal_history"))
"""Effects that depend on the host beside the plan: a request's sequence, the length of the timeline."""
_DIVERGING: Final = ("from", "path", "state", "status", "sent")
"""Differences in these fields leave the plan in another state, so that later events do not fit it."""
_OUTSIDE_ERRORS: Final = frozenset(("PayloadTooLarge", "ModelUnavailable", "ReasonerUnavailable", "InvalidEnvelope"))
_OUTSIDE_TEXTS: Final = (
    "deadline_exceeded: the turn for ",
    "the event could not be handled in ",
    "the process of its plan host ended ",
)
"""Beginnings of errors that have causes outside the turn."""


_Ask = Callable[[ReasonerPort], Awaitable[PlannerDecision]]


@dataclass
class Rerun:
    """The result of re-running a turn."""

    differences: list[Difference] = field(default_factory=list)
    why: str = ""
    """Why the comparison is impossible; empty when it is not."""
    plan: PlanContext | None = None
    """The plan after the turn; None when unknown."""
    effects: tuple[Effect, ...] = ()
    event: EventEnvelope | None = None


class _Deliberation(Deliberation):
    """Decisions that handlers ask a model for: when its replies are not recorded, the recorded decisions are used."""

    def __init__(self, script: Script, *given: Any) -> None:
        super().__init__(*given)
        self._script = script

    async def ask(self, run: RunContext, ask: _Ask, reasoner: ReasonerPort | None) -> PlannerDecision:
        async def replayed(port: ReasonerPort) -> PlannerDecision:
            recorded = self._script.next
            try:
                return await ask(port)
            except ModelCallNotRecorded:
                if recorded is None and self._script.failure is None:
                    raise
            if recorded is None:
                assert self._script.failure is not None
                raise self._script.failure
            return await self._script.repeat(recorded, port)

        return await super().ask(run, replayed, reasoner)

    def _note(self, decision: PlannerDecision, calls: list[dict[str, Any]], seconds: float) -> None:
        self._script.take()
        super()._note(decision, calls, seconds)


class _Turn(Turn):
    """A turn whose plan begins with a given machine instead of its goal's current one."""

    begins_with: Machine | None = None
    script: Script

    async def deliberation(self, planner: Any, plan: Any) -> Deliberation | None:
        return await deliberation_of_handler(self, planner, plan, partial(_Deliberation, self.script))

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
    """Re-run a turn.

    Args:
        environment: The environment of the replay.
        script: Source of the environment's recorded decisions.
        entry: The turn's entry in the timeline.
        before: The plan's packed fields before the turn; None for the first turn.
        machine: The plan's, or the one to begin with (None: its goal's current one).
        correlation_id: Correlation id of the plan's events.
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
        made.script = script
        made.unsettled = {"recorded": entry["carried"]} if entry.get("carried") else {}
        made.is_forged = bool(entry.get("forged"))
        begins = plan is None or is_deferred(plan)
        made.begins_with = machine if begins and event.type != FORK else None
        return made

    try:
        done = first = await _run(turn)
    except NotRecorded as unknowable:
        return Rerun(why=str(unknowable), event=event)
    if not environment.app.planners:
        _lend_as_recorded(done.turn, entry)
    found = _compare(entry, done)
    if not found:
        return _result(done)
    failure = recorded_failure(entry)
    if failure is not None and (type(failure).__name__ in _OUTSIDE_ERRORS or str(failure).startswith(_OUTSIDE_TEXTS)):
        failed = turn()
        done = _Done(failed, await failed.fail(failure))
        if not _compare(entry, done):
            return _result(done, why=f"it failed for a reason outside the plan: {failure}")
    if before is None and entry.get("status") == "cancelled":
        cancelled = turn()
        done = _Done(cancelled, await cancelled.cancel(str(entry.get("error") or "")))
        if not _compare(entry, done):
            return _result(done, why="a cancellation has interrupted the goal's handler")
    differs = _result(first)
    differs.differences = found
    if first.verdict is not TurnOutcome.COMMIT or any(each.path.startswith(_DIVERGING) for each in found):
        differs.plan = None
    return differs


def _lend_as_recorded(turn: Turn, entry: Mapping[str, Any]) -> None:
    """Lend the recorded shares of a plan's budget: without its planner, the limits are unknown."""
    outbox, lent = turn.outbox, entry.get("lent") or {}
    for index in outbox.goals if turn.plan is not None else ():
        goal_id = outbox.event(index)["id"]
        if turn.plan is not None and goal_id in lent and goal_id not in turn.plan.lent:
            lend(outbox, turn.plan, index, goal_id, lent[goal_id])


async def _run(turn: Callable[[], Turn]) -> _Done:
    """Run a turn as a plan actor does: an error fails the plan.

    Raises:
        NotRecorded: the turn depends on something that the history does not show.
    """
    first = turn()
    try:
        return _Done(first, await first.run())
    except Exception as error:
        failed = turn()
        return _Done(failed, await failed.fail(error))


def _result(done: _Done, why: str = "") -> Rerun:
    return Rerun(why=why, plan=done.turn.plan, effects=tuple(done.turn.effects), event=done.turn.event)


def _compare(entry: Mapping[str, Any], done: _Done) -> list[Difference]:
    """The differences between a turn and its recorded entry."""
    if done.verdict is not TurnOutcome.COMMIT:
        return [Difference("turn", "taken", f"not taken: {done.turn.reason or 'the plan does not begin'}")]
    now: dict[str, Any] = codec.unpack(codec.pack(done.turn.entry()))
    found: list[Difference] = []
    for name in _COMPARED:
        found += differences(name, entry.get(name), now.get(name))
    lists = _lists(now)
    for name, then in _lists(entry).items():
        found += differences(name, then, lists[name])
    if not found and "said" in entry:
        found = differences("said", entry["said"], [each.get("data") for each in _sent(done.turn.effects)])
    return found or differences("sent", list(entry.get("sent") or ()), list(now.get("sent") or ()))


def _lists(entry: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The compared parts of an entry's lists."""
    return {
        "sent": [event_type for event_type, _ in entry.get("sent") or ()],
        "effects": [kind for kind in entry.get("effects") or () if kind not in _HOST_DEPENDENT],
        "decisions": [
            {name: taken.get(name) for name in ("planner", "decision")} for taken in entry.get("decisions") or ()
        ],
    }


def sent_events(effects: Sequence[Effect]) -> dict[str, dict[str, Any]]:
    """The events among effects in wire form, by id."""
    return {event["id"]: event for event in _sent(effects)}


def _sent(effects: Sequence[Effect]) -> list[dict[str, Any]]:
    return [codec.load(each.payload, each.content_type) for each in effects if isinstance(each, (Publish, Respond))]
