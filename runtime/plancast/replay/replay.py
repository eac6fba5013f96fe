"""Replays a plan's history with the current code, and rebuilds the plan at any revision."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from plancast.agents.definitions import AgentDefinition, EventDefinition
from plancast.app import App
from plancast.decisions.executor import WAITING_EVENT
from plancast.errors import CannotReplay, UnknownRevision
from plancast.json_values.diff import Difference, differences
from plancast.plan.control_events import FORK
from plancast.plan.record import WAITING_FOR
from plancast.plan.requests import Request
from plancast.plan.serialization import to_state
from plancast.plan.status import PAUSED
from plancast.replay.environment import ReplayEnvironments, Script
from plancast.replay.report import Outcome, PlanAt, Replay, ReplayedTurn, Which
from plancast.replay.turn import Rerun, rerun, sent_events
from plancast.settings import PlanSettings
from plancast.state_machine.machine import Machine, failed_event, unknown_event
from plancast.turn_record.environment import TurnEnvironment
from plancast_bus.events import codec
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.effects import Effect

__all__ = ["Outcome", "PlanAt", "RecordedPlan", "Replay", "ReplayOptions", "ReplayedTurn", "replay", "state_at", "walk"]

STORED = "plan"
"""First part of the paths of differences from the stored plan."""


@dataclass(frozen=True)
class RecordedPlan:
    """The stored parts of a plan that a replay needs."""

    correlation_id: str
    state: Mapping[str, Any]
    """Its fields as last committed, as ``plancast.plan.serialization.to_state`` writes them."""
    history: Sequence[Mapping[str, Any]]
    """Its timeline, oldest first."""
    machine: Machine | None = None
    """The state machine that it began with; None when it has none."""
    outbox: tuple[Effect, ...] | None = None
    """Effects of its last turn; None: unknown."""

    @property
    def plan_id(self) -> str:
        """The plan's id."""
        return str(self.state.get("plan_id") or self.correlation_id)

    @property
    def revision(self) -> int:
        """The newest revision."""
        return int(self.history[-1]["revision"]) if self.history else 0


@dataclass(frozen=True)
class ReplayOptions:
    """Code, settings and registry of a replay."""

    app: App | None = None
    """The current code. None: only the plan's own machine and its recorded decisions; then moves that a handler made
    otherwise than the machine are unknown."""
    machine: Which = "then"
    """The state machine that the plan began with, or the one that its goal has now."""
    settings: PlanSettings = field(default_factory=PlanSettings)
    """As in the deployment: the limit of early events."""
    events: Sequence[EventDefinition] = ()
    """Events that agents outside the app handle, with their response events."""
    agents: Sequence[AgentDefinition] = ()
    goals: Sequence[str] = ()
    """Without an app: event types that start child plans."""


@dataclass(frozen=True)
class Step:
    """One turn of a replay."""

    turn: ReplayedTurn
    entry: Mapping[str, Any]
    state: bytes | None
    """The plan's packed fields after the turn; None when unknown."""
    machine: Machine | None
    """The plan's state machine after the turn."""
    asked: Mapping[str, Mapping[str, Any]]
    """Events that sent the open requests, by request id; a WAIT's event under ``plan.waiting_for_input``."""


async def replay(plan: RecordedPlan, options: ReplayOptions | None = None) -> Replay:
    """Re-run a plan's history. Handlers of the app are run: side effects of their own happen again.

    Raises:
        CannotReplay: the beginning of the history is gone.
    """
    options = options or ReplayOptions()
    turns = [step.turn async for step in walk(plan, options)]
    return Replay(plan.plan_id, options.machine, tuple(turns))


async def state_at(plan: RecordedPlan, revision: int, options: ReplayOptions | None = None) -> PlanAt:
    """The plan after one of its turns.

    Raises:
        UnknownRevision: there was no such turn, or it is gone from the history.
    """
    entry = entry_of(plan, revision)
    event = entry.get("event") or {}
    at = PlanAt(
        revision, float(entry["time"]), str(event.get("type", "")), str(entry.get("status", "")),
        str(entry.get("state", "")), tuple(entry.get("path") or ()), known=False,
    )  # fmt: skip
    if revision == plan.revision:
        return _known(at, dict(plan.state))
    try:
        steps = [step async for step in walk(plan, options)]
    except CannotReplay as error:
        return replace(at, why=str(error))
    step = steps[revision - 1]
    if step.state is None:
        return replace(at, why=step.turn.why or f"the current code does not lead to revision {revision}")
    if (doubt := diverging_turn(steps, revision)) is not None:
        return replace(at, why=f"the current code differs at revision {doubt.revision}")
    return _known(at, codec.unpack(step.state))


def diverging_turn(steps: Sequence[Step], revision: int) -> ReplayedTurn | None:
    """The turn that makes the state of a replay at this revision doubtful; None when it is reliable.

    That is the first turn that differs, up to the revision; or the last turn, when all entries are the same but the
    stored plan has other fields: then the first deviation is unknown.
    """
    for step in steps:
        stored = step is steps[-1] and any(each.path.startswith(STORED) for each in step.turn.differences)
        if step.turn.outcome is Outcome.DIFFERS:
            return step.turn if step.turn.revision <= revision or stored else None
    return None


def _known(at: PlanAt, state: dict[str, Any]) -> PlanAt:
    state.pop("machine", None)
    results, goal_data = dict(state.get("results") or {}), dict(state.get("goal_data") or {})
    return replace(at, known=True, results=results, goal_data=goal_data, state=state)


def entry_of(plan: RecordedPlan, revision: int) -> Mapping[str, Any]:
    """The entry of a turn in a plan's timeline.

    Raises:
        UnknownRevision: there was no such turn, or it is gone.
    """
    for entry in plan.history:
        if entry["revision"] == revision:
            return entry
    first = int(plan.history[0]["revision"]) if plan.history else 0
    if not plan.history:
        raise UnknownRevision(f"plan {plan.plan_id} has no history")
    if 0 < revision < first:
        raise UnknownRevision(
            f"revision {revision} of plan {plan.plan_id} is gone: its history begins with revision {first}"
        )
    raise UnknownRevision(
        f"plan {plan.plan_id} has no revision {revision!r}: its revisions are {first} to {plan.revision}"
    )


async def walk(plan: RecordedPlan, options: ReplayOptions | None = None) -> AsyncIterator[Step]:
    """Re-run a plan's history, turn by turn. Turns after one that leads to another state are unknown.

    Raises:
        CannotReplay: the beginning of the history is gone.
    """
    _require_beginning(plan)
    walk_state = _Walk(plan, options or ReplayOptions())
    for entry in plan.history:
        yield await walk_state.take(entry, compare=entry is plan.history[-1])


def _require_beginning(plan: RecordedPlan) -> None:
    revisions = [int(entry["revision"]) for entry in plan.history]
    if revisions[:1] != [1]:
        raise CannotReplay(plan.plan_id, 1, "the beginning of its history is gone")
    if revisions != list(range(1, len(revisions) + 1)):
        raise CannotReplay(plan.plan_id, 1, "a part of its history is gone")


class _Walk:
    """State of a replay between two turns."""

    def __init__(self, plan: RecordedPlan, options: ReplayOptions) -> None:
        self._plan = plan
        self._options = options
        self._script = Script()
        self._environments = ReplayEnvironments(
            self._script, options.settings, [*_observed_events(plan), *options.events], self._forked_from()
        )
        self._state: bytes | None = None
        self._machine = plan.machine if options.machine == "then" or options.app is None else None
        self._asked: dict[str, Mapping[str, Any]] = {}
        self._diverged = ""
        """Why the remaining turns are unknown; empty while they are not."""
        if options.app is None:
            self._environment = self._without_app(plan.state)
        else:
            began = str(plan.state.get("decider") or plan.state.get("planner") or "")
            version = str(plan.state.get("planner_version") or "1")
            self._environment = self._environments.with_app(options.app, options.agents, (began, version))

    async def take(self, entry: Mapping[str, Any], *, compare: bool) -> Step:
        """Re-run the next turn."""
        if self._diverged:
            return self._step(entry, Outcome.UNKNOWN, self._diverged)
        done = await self._rerun(self._environment, entry)
        outcome, why = Outcome.SAME, done.why
        if why and done.plan is None and self._options.app is not None:
            done = await self._as_recorded(entry, why)
        if done.why:
            outcome, why = Outcome.UNKNOWN, done.why
        elif done.differences and self._options.app is None:
            outcome, why = Outcome.UNKNOWN, "the plan's machine alone does not lead here; the replay needs the app"
            done = Rerun(why=why)
        elif done.differences:
            outcome, why = Outcome.DIFFERS, ""
        found = list(done.differences)
        self._advance(entry, done)
        if compare and self._state is not None and outcome is Outcome.SAME:
            found = self._compare_stored(done)
            outcome = Outcome.DIFFERS if found else outcome
            if found and self._options.app is None:
                outcome, why, found = Outcome.UNKNOWN, "the stored plan can only be compared with the app", []
        return self._step(entry, outcome, why, found)

    def _advance(self, entry: Mapping[str, Any], done: Rerun) -> None:
        plan = done.plan
        if plan is None:
            self._state, self._asked = None, {}
            why = "where the current code leads elsewhere" if done.differences else "which is unknown"
            self._diverged = f"it follows revision {entry['revision']}, {why}"
            return
        self._machine = plan.machine if plan.state_machine else None
        self._state = codec.pack(to_state(plan))
        sent = sent_events(done.effects)
        asked = {**self._asked, **sent}
        waiting = [event for event in sent.values() if event["type"] == WAITING_EVENT]
        self._asked = {key: asked[key] for key in plan.requests if key in asked}
        if plan.status is PAUSED and WAITING_FOR in plan.results and (waiting or WAITING_EVENT in asked):
            self._asked[WAITING_EVENT] = waiting[-1] if waiting else asked[WAITING_EVENT]

    def _step(self, entry: Mapping[str, Any], outcome: Outcome, why: str, found: Sequence[Difference] = ()) -> Step:
        event_type = str((entry.get("event") or {}).get("type", ""))
        turn = ReplayedTurn(int(entry["revision"]), float(entry["time"]), event_type, outcome, why, tuple(found))
        return Step(turn, entry, self._state, self._machine, self._asked)

    async def _rerun(self, environment: TurnEnvironment, entry: Mapping[str, Any]) -> Rerun:
        return await rerun(environment, self._script, entry, self._state, self._machine, self._plan.correlation_id)

    async def _as_recorded(self, entry: Mapping[str, Any], why: str) -> Rerun:
        """Re-run a turn that the app cannot, by the plan's machine alone; known if that leads to the recorded state."""
        before = codec.unpack(self._state) if self._state is not None else None
        machine, self._machine = self._machine, self._machine or self._plan.machine
        done = await self._rerun(self._without_app(before or self._plan.state), entry)
        if done.plan is None or done.differences:
            self._machine = machine
            return Rerun(why=why)
        done.why = f"{why}; it is taken as recorded"
        planner = self._environment.goals.get(done.plan.goal_event) if before is None else None
        if planner is not None and planner.transition_handler is not None:
            done.plan.planner_version = planner.version
        return done

    def _without_app(self, plan: Mapping[str, Any]) -> TurnEnvironment:
        app = self._options.app
        goals = [*self._options.goals, *(app.goals if app is not None else ())]
        return self._environments.without_app(plan, self._plan.machine, goals)

    def _forked_from(self) -> dict[str, Any] | None:
        """The machine of the forked plan, which the fork's first event does not hold."""
        event = self._plan.history[0].get("event") or {}
        if event.get("type") != FORK:
            return None
        machine, app = self._plan.machine, self._options.app
        if self._options.machine == "now" and app is not None:
            goal = str(self._plan.state.get("goal_event"))
            planner = app.goals.get(goal)
            machine = planner.machine(goal) if planner is not None else None
        return {"plan_id": event["data"]["plan_id"], "state_machine": dict(machine.states) if machine else {}}

    def _compare_stored(self, done: Rerun) -> list[Difference]:
        """Differences of the plan and its last turn's events from the stored ones."""
        assert self._state is not None
        found = differences(STORED, _comparable(self._plan.state), _comparable(codec.unpack(self._state)))
        if self._plan.outbox is not None:
            found += differences("sent", _comparable_events(self._plan.outbox), _comparable_events(done.effects))
        return found


def _observed_events(plan: RecordedPlan) -> list[EventDefinition]:
    """Definitions of events outside the app, from the answers to the plan's requests."""
    asked = {event_id: event_type for entry in plan.history for event_type, event_id in entry.get("sent") or ()}
    answers: dict[str, str] = {}
    for event in (entry.get("event") or {} for entry in plan.history):
        request, answer = asked.get(event.get("parent_event_id", "")), str(event.get("type", ""))
        success = event.get("topic") == EventTopic.ACTION_RESULTS and answer not in (
            failed_event(answer),
            unknown_event(answer),
        )
        if request is not None and success:
            answers.setdefault(request, answer)
    return [EventDefinition(each, EventTopic.ACTION_REQUESTS, response_event=answers[each]) for each in answers]


def _comparable(state: Mapping[str, Any]) -> dict[str, Any]:
    """A plan's fields without those that depend on the host or do not affect behaviour.

    Plans of earlier versions lack the child plans and requests that a rollback has to know.
    """
    left_out = (
        "machine",
        "state_machine",
        "planner_version",
        "requests",
        "trace_id",
        "children",
        "unanswered",
        "unlisted",
    )
    fields: dict[str, Any] = {name: value for name, value in state.items() if name not in left_out}
    requests = {key: Request(*value) for key, value in (state.get("requests") or {}).items()}
    for request in requests.values():
        request.sequence = 0
    return fields | {"requests": {key: request.to_list() for key, request in requests.items()}}


def _comparable_events(effects: Sequence[Effect]) -> dict[str, dict[str, Any]]:
    """The events among effects by id, without trace ids."""
    return {
        event_id: {name: value for name, value in event.items() if name != "trace_id"}
        for event_id, event in sent_events(effects).items()
    }
