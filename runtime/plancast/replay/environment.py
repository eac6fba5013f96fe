"""The environment of a replay: the current app, with recorded decisions, models, plans and registry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from plancast.agents.definitions import AgentDefinition, EventDefinition
from plancast.agents.registry import Toolkit
from plancast.app import App
from plancast.decisions.decision import PlannerDecision, stored_decision
from plancast.errors import TerminalError
from plancast.models.port import CURRENT_REASONER, ReasonerPort, ReasonReply, ReasonRequest, Usage
from plancast.planners.contract import AutonomousPlanner, RunContext, WakeMode, version_of
from plancast.planners.planner import Planner
from plancast.settings import PlanSettings
from plancast.state_machine.machine import Machine, failed_event
from plancast.turn_record.environment import TurnEnvironment
from plancast_bus.errors import PayloadTooLarge
from plancast_bus.events import codec
from plancast_bus.events.envelope import EventTopic
from plancast_bus.subjects import Subjects

_OTHER_PLAN: Final = "a handler reads another plan, whose state is not in the history"
_SESSION: Final = "a handler reads what plans of its session have shared, which only full histories hold"
MAX_EVENT_BYTES: Final = 1 << 40
"""No limit: the events are not sent."""


class NotRecorded(BaseException):
    """A turn needs a value that the history does not hold. Not an ``Exception``, so that no handler catches it."""


class ModelCallNotRecorded(NotRecorded):
    """A model is called whose answer is not recorded."""


class UnexpectedDecision(Exception):
    """A planner makes a decision that the recorded turn does not have."""


class Script:
    """Recorded decisions, answers of models and failure of the turn that is re-run."""

    def __init__(self) -> None:
        self.decisions: list[Mapping[str, Any]] = []
        self.answers: list[Mapping[str, Any] | None] = []
        """Answers of models to handlers, if the timeline holds them."""
        self.sessions: list[dict[str, Any]] = []
        """Shared values that handlers have read, if the timeline holds them."""
        self.failure: Exception | None = None
        self.taken = 0
        """Number of decisions taken so far."""
        self.reply: ReasonReply | None = None
        """Reply to the next model request, so that its cost counts as the plan's spend."""

    def load(self, entry: Mapping[str, Any]) -> None:
        """Switch to another turn."""
        self.decisions = list(entry.get("decisions") or ())
        self.answers = list(entry.get("answers") or ())
        self.sessions = list(entry.get("sessions") or ())
        self.failure = recorded_failure(entry)
        self.taken = 0

    @property
    def next(self) -> Mapping[str, Any] | None:
        """The next recorded decision, or None."""
        return self.decisions[self.taken] if self.taken < len(self.decisions) else None

    def take(self) -> Mapping[str, Any] | None:
        """Return the next recorded decision, or None, and go on to the one after it."""
        recorded = self.next
        self.taken += 1
        return recorded

    async def repeat(self, recorded: Mapping[str, Any], metered: ReasonerPort | None) -> PlannerDecision:
        """A recorded decision; the cost of its model calls is added to the plan's spend."""
        for call in (recorded.get("calls") or ()) if metered is not None else ():
            assert metered is not None
            names = ("prompt_tokens", "completion_tokens", "cached_tokens")
            usage = Usage(cost=call.get("cost"), **{name: call.get(name, 0) for name in names})
            self.reply = ReasonReply("", usage, str(call.get("model", "")), call.get("seconds", 0.0))
            await metered.complete(ReasonRequest((), "recorded"))
        return stored_decision(recorded["decision"])


class ReplayedPlanner:
    """A planner that decides; when it calls a model, the recorded decision is used instead.

    Args:
        planner: The current code; None: every decision is the recorded one.
        name: Its name.
        version: Its version.
        script: The recorded decisions.
    """

    def __init__(self, planner: AutonomousPlanner | None, name: str, version: str, script: Script) -> None:
        self.name = name
        self.version = version
        self.wake_mode = getattr(planner, "wake_mode", None) or WakeMode.PUSH
        self.max_actions = getattr(planner, "max_actions", None)
        self.token_budget = getattr(planner, "token_budget", None)
        self.cost_budget = getattr(planner, "cost_budget", None)
        self.deadline = getattr(planner, "deadline", None)
        self.counts_steps = getattr(planner, "counts_steps", False)
        self._planner = planner
        self._script = script

    async def next(self, run: RunContext) -> PlannerDecision:
        """The decision of the current code, or the recorded one."""
        recorded = self._script.take()
        if self._planner is not None:
            try:
                return await self._planner.next(run)
            except ModelCallNotRecorded:
                pass
        if recorded is None:
            raise self._script.failure or UnexpectedDecision(
                f"planner {self.name!r} makes a decision that was not made then"
            )
        return await self._script.repeat(recorded, CURRENT_REASONER.get())


class _ReplayedHandlers:
    """A planner of the app whose deciders are replaced by replayed ones."""

    def __init__(self, planner: Planner, deciders: Mapping[int, ReplayedPlanner]) -> None:
        self._planner = planner
        self._deciders = deciders

    def __getattr__(self, name: str) -> Any:
        return getattr(self._planner, name)

    def decider(self, event_type: str) -> Any:
        real = self._planner.decider(event_type)
        return None if real is None else self._deciders[id(real)]


class RecordedReasoner:
    """``context.reasoner`` that answers from the record and calls no model."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        reply, self._script.reply = self._script.reply, None
        if reply is not None:
            return reply
        answer = self._script.answers.pop(0) if self._script.answers else None
        if answer is not None and CURRENT_REASONER.get() is None:
            return ReasonReply.from_dict(answer)
        raise ModelCallNotRecorded("a handler calls a model, and its answer is not in the history")


class RecordedMemory:
    """``context.memory`` that only knows the forked plan, and the shared values that were recorded.

    Args:
        source: Id and machine of the plan that this one was forked from.
        script: The recorded values.
    """

    def __init__(self, source: Mapping[str, Any] | None = None, script: Script | None = None) -> None:
        self._source = source
        self._script = script or Script()

    async def get_plan_context(self, plan_id: str) -> Any:
        if self._source is None or self._source["plan_id"] != plan_id:
            raise NotRecorded(_OTHER_PLAN)
        return self._source

    async def get_plan_by_correlation(self, correlation_id: str) -> Any:
        raise NotRecorded(_OTHER_PLAN)

    async def store_plan_context(self, *args: Any, **fields: Any) -> Any:
        raise NotRecorded(_OTHER_PLAN)

    async def session(self, session_id: str | None) -> Any:
        if not self._script.sessions:
            raise NotRecorded(_SESSION)
        return self._script.sessions.pop(0)


class RecordedRegistry:
    """``context.registry`` with the definitions of the app and further ones."""

    def __init__(self, app: App | None, more: Iterable[EventDefinition], agents: Iterable[AgentDefinition]) -> None:
        declared = [] if app is None else list(_declared(app))
        known = {(each.topic, each.event_type): each for each in [*more, *(event for event, _ in declared)]}
        self._events = sorted(known.values(), key=lambda each: (each.event_type, each.topic))
        found = {each.agent_id: each for each in [*(agent for _, agent in declared), *agents]}
        consumed = {event_type for agent in found.values() for event_type in agent.consumes}
        others = [each.event_type for each in self._events if each.event_type not in consumed]
        if others:  # represents agents that are gone
            found["unknown"] = AgentDefinition("unknown", "unknown", others)
        self._agents = sorted(found.values(), key=lambda each: each.agent_id)

    async def discover(self, topic: str | None = None) -> list[EventDefinition]:
        return [each for each in self._events if topic is None or each.topic == topic]

    async def agents(self, consuming: str | None = None) -> list[AgentDefinition]:
        return [each for each in self._agents if consuming is None or consuming in each.consumes]


def _declared(app: App) -> Iterable[tuple[EventDefinition, AgentDefinition]]:
    for worker in app.workers:
        for task in worker.offered.values():
            answers = [task.response_event, failed_event(task.response_event)] if task.response_event else []
            yield (
                EventDefinition(
                    task.event_type, EventTopic.ACTION_REQUESTS, task.description, task.schema, task.response_event
                ),
                AgentDefinition(f"{worker.name}:{task.event_type}", worker.name, [task.event_type], answers),
            )
    for goal, planner in app.goals.items():
        answer = f"{goal}.completed"
        yield (
            EventDefinition(goal, EventTopic.ACTION_REQUESTS, planner.description, response_event=answer),
            AgentDefinition(f"{planner.name}:{goal}", planner.name, [goal], [answer]),
        )


@dataclass(frozen=True)
class ReplayEnvironments:
    """Creates the environments of a replay."""

    script: Script
    settings: PlanSettings
    events: Sequence[EventDefinition]
    """Events that agents outside the app handle."""
    source: Mapping[str, Any] | None
    """Id and machine of the plan that the replayed one was forked from."""

    def with_app(self, app: App, agents: Iterable[AgentDefinition], began: tuple[str, str]) -> TurnEnvironment:
        """The environment with the current code.

        Args:
            app: The current code.
            agents: Agents outside the app.
            began: Name and version of the planner that began the plan; if it is retiring, it gets its goal back.
        """
        environment = self._environment(app, RecordedRegistry(app, self.events, agents))
        deciders = {
            id(each): ReplayedPlanner(each, each.name, version_of(each), self.script) for each in app.deciders()
        }
        planners: dict[str, Any] = dict(environment.goals)
        for planner in app.retiring:
            if began in ((planner.name, planner.version), *_decided_by(planner)):
                planners |= dict.fromkeys(planner.goals, planner)
        goals = {goal: _ReplayedHandlers(planner, deciders) for goal, planner in planners.items()}
        _set_fields(environment, goals=goals, deciders={(each.name, each.version): each for each in deciders.values()})
        return environment

    def without_app(self, plan: Mapping[str, Any], machine: Machine | None, goals: Iterable[str]) -> TurnEnvironment:
        """The environment without code: the plan's machine or its recorded decisions move it.

        Args:
            plan: The plan's fields.
            machine: The machine that it began with.
            goals: Event types that begin child plans.
        """
        environment = self._environment(App("unknown"), RecordedRegistry(None, self.events, ()))
        version = str(plan.get("planner_version") or "1")
        planner = Planner(str(plan.get("planner") or "unknown"), version=version, deadline=_seconds_to_end(plan))
        goal, decider = str(plan.get("goal_event") or ""), str(plan.get("decider") or "")
        decides: dict[tuple[str, str], Any] = {}
        if decider:
            decides[decider, version] = ReplayedPlanner(None, decider, version, self.script)
            planner.add_goal(goal, decided_by=decides[decider, version])
        elif goal and machine is not None:
            planner.add_goal(goal, machine.states)
        _set_fields(
            environment,
            goals=dict.fromkeys((*goals, *planner.goals), planner),
            planners={(planner.name, version): planner},
            current={planner.name: planner},
            deciders=decides,
        )
        return environment

    def _environment(self, app: App, registry: RecordedRegistry) -> TurnEnvironment:
        return TurnEnvironment(
            app=app,
            subjects=Subjects(),
            encode=lambda event: (codec.encode(event), codec.MSGPACK_TYPE),
            memory=RecordedMemory(self.source, self.script),
            settings=self.settings,
            max_event_bytes=MAX_EVENT_BYTES,
            registry=registry,
            toolkit=Toolkit(registry),
            reasoner=RecordedReasoner(self.script),
        )


def _decided_by(planner: Planner) -> list[tuple[str, str]]:
    deciders = [planner.decider(goal) for goal in planner.goals]
    return [(each.name, version_of(each)) for each in deciders if each is not None]


def _seconds_to_end(plan: Mapping[str, Any]) -> float | None:
    """The deadline of a plan's planner: what the goal has said comes besides, and is no later."""
    end = plan.get("deadline")
    return None if end is None else max(float(end) - float(plan.get("created_at") or 0.0), 1e-3)


def _set_fields(environment: TurnEnvironment, **fields: Any) -> None:
    for name, value in fields.items():
        object.__setattr__(environment, name, value)


def recorded_failure(entry: Mapping[str, Any]) -> Exception | None:
    """The error of a failed turn, rebuilt from its entry; None when it did not fail."""
    prefix = "the turn failed: "
    name = next((note.removeprefix(prefix) for note in entry.get("notes") or () if note.startswith(prefix)), None)
    if name is None:
        return None
    base: type[Exception] = PayloadTooLarge if name == PayloadTooLarge.__name__ else TerminalError
    text = str(entry.get("error") or "")
    failure: Exception = type(name, (base,), {})(text.removeprefix(f"{name}: ") if base is PayloadTooLarge else text)
    return failure
