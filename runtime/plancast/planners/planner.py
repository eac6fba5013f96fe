"""Planner: registers goals with the handlers and state machines that run their plans."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from plancast.declarations import caller, collect, declaration
from plancast.errors import InvalidApp, InvalidPlannerConfig, InvalidStateMachine
from plancast.models.options import PARAMETERS, ModelOptions, elsewhere
from plancast.planners.contract import AutonomousPlanner, checked_deadline, resolve_wake_mode
from plancast.state_machine.machine import Machine, faults_of
from plancast.state_machine.states import StateConfig
from plancast_bus.events.envelope import EventTopic
from plancast_bus.spelling import nearest
from plancast_bus.subjects import check_event_type

if TYPE_CHECKING:
    from plancast.context import GoalContext
    from plancast.json_values.schemas import Schema
    from plancast.plan.context import PlanContext

Handler = Callable[..., Any]
_H = TypeVar("_H", bound=Handler)
Placement = Literal["shared", "dedicated"]
StateMachineLike = Mapping[str, StateConfig | Mapping[str, Any]]


@dataclass
class PlannerConfig:
    """A planner's declaration: event types with handlers, no topics and no ``*``."""

    name: str
    capabilities: tuple[Any, ...] = ()
    """For discovery only."""
    events_consumed: list[str] = field(default_factory=list)
    events_produced: list[str] = field(default_factory=list)
    placement: Placement | None = None
    """Placement of its plans; None: the app's."""
    agent_type: str = "planner"


@dataclass(frozen=True)
class EventHandler:
    """A handler for events of a type (``*``: any) on a topic (None: any)."""

    event_type: str
    topic: str | None
    call: Handler

    def takes(self, event_type: str, topic: str, *, of_topic: bool = False) -> bool:
        """True if it is called for an event; with ``of_topic`` only if it is registered for that very topic."""
        return self.event_type in (event_type, "*") and (self.topic == topic or not (of_topic or self.topic))


class Planner:
    """Starts plans for goals.

    A goal has a state machine (:meth:`add_goal`), a handler (:meth:`on_goal`), or both.

    Args:
        name: Unique in the app.
        capabilities: For discovery.
        placement: ``shared`` or ``dedicated`` plan hosts; None: the app's.
        description: The purpose of its goals, by which other planners choose them.
        version: Of its handlers; change it when running plans must be finished by the old ones.
        deadline: Seconds in which its plans have to end, else they fail with ``deadline_exceeded``; None: no deadline.
        reasoning_model: A litellm model string, for :meth:`create_plan`.
        model_options: The fields of :class:`ModelOptions`, and parameters of the model that litellm lists. Those of a
            single provider are given as ``model_kwargs``, a dict, and what litellm does not know in its ``extra_body``.

    Raises:
        InvalidPlannerConfig: an option does not exist, or one of the model is wrong, or given without a model.
    """

    def __init__(
        self,
        name: str,
        *,
        capabilities: Any = (),
        placement: Placement | None = None,
        description: str = "",
        version: str = "1",
        deadline: float | None = None,
        reasoning_model: str | None = None,
        **model_options: Any,
    ) -> None:
        if not name:
            raise InvalidApp("a planner needs a name")
        if placement not in (None, "shared", "dedicated"):
            raise InvalidApp(f"planner {name!r}: placement is 'shared' or 'dedicated', not {placement!r}")
        self.name = name
        self.deadline: float | None = checked_deadline(name, deadline)
        self.description = description
        self.version = version
        self.model_options: ModelOptions | None = _model_options(self, reasoning_model, model_options)
        self.needs_reasoner: bool = self.model_options is not None
        self.config: PlannerConfig = PlannerConfig(name, tuple(capabilities), placement=placement)
        self._goal_handlers: dict[str, Handler] = {}
        self._machines: dict[str, Machine] = {}
        self._deciders: dict[str, AutonomousPlanner] = {}
        self._places: dict[str, str] = {}
        self._schemas: dict[str, dict[str, Any]] = {}
        self._transition_handler: Handler | None = None
        self._event_handlers: list[EventHandler] = []
        self._expected: dict[str, str] = {}
        self._expected_schemas: dict[str, dict[str, Any]] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, goals={sorted(self.goals)})"

    def decider(self, event_type: str) -> AutonomousPlanner | None:
        """The planner that decides each step of a goal's plans; None: a machine or handlers do."""
        return self._deciders.get(event_type)

    @property
    def goals(self) -> frozenset[str]:
        """Event types of the planner's goals."""
        return frozenset(self._goal_handlers) | frozenset(self._machines) | frozenset(self._deciders)

    @property
    def transition_handler(self) -> Handler | None:
        """The handler that :meth:`on_transition` registered."""
        return self._transition_handler

    @property
    def expected(self) -> Mapping[str, str]:
        """The events that :meth:`expects` declared, with their descriptions."""
        return self._expected

    def expected_schema(self, event_type: str) -> Mapping[str, Any] | None:
        """The JSON Schema of the data of an event that :meth:`expects` declared; None: any data."""
        return self._expected_schemas.get(event_type)

    def goal_handler(self, event_type: str) -> Handler | None:
        """The handler that :meth:`on_goal` registered for a goal."""
        return self._goal_handlers.get(event_type)

    def machine(self, event_type: str) -> Machine | None:
        """The state machine of a goal."""
        return self._machines.get(event_type)

    def goal_schema(self, event_type: str) -> Mapping[str, Any] | None:
        """The JSON Schema of a goal's data; None: any data."""
        return self._schemas.get(event_type)

    def place(self, event_type: str) -> str:
        """File and line of the declaration of a goal."""
        return self._places.get(event_type, "")

    @property
    def all_event_handlers(self) -> tuple[Handler, ...]:
        """The handlers that :meth:`on_event` registered."""
        return tuple(each.call for each in self._event_handlers)

    def event_handlers(self, event_type: str, topic: str, *, of_topic: bool = False) -> list[Handler]:
        """The handlers that :meth:`on_event` registered for an event, or for an event of that very topic."""
        return [each.call for each in self._event_handlers if each.takes(event_type, topic, of_topic=of_topic)]

    @property
    def handles_events(self) -> bool:
        """True when an event handler is registered."""
        return bool(self._event_handlers)

    @property
    def listens_to(self) -> frozenset[tuple[str, str | None]]:
        """Event types (``*``: any) and topics (None: any) of the event handlers."""
        return frozenset((each.event_type, each.topic) for each in self._event_handlers)

    @declaration
    def add_goal(
        self,
        event_type: str,
        state_machine: StateMachineLike | None = None,
        *,
        decided_by: AutonomousPlanner | None = None,
        schema: Schema | None = None,
    ) -> None:
        """Register a goal with a state machine that needs no handler, or with a planner that decides each step.

        The machine as a whole is validated with the app (``plancast validate``, ``run``, ``deploy``).

        Args:
            event_type: The goal.
            state_machine: States by name.
            decided_by: In place of a machine: an LLM planner, a decision tree, or a planner of your own.
            schema: A JSON Schema or pydantic model of the goal's data. Other data are refused: `Client.submit` raises
                `InvalidGoal`, a decision that delegates them is invalid, and a plan with them fails before it begins.

        Raises:
            InvalidStateMachine: a state cannot be read, or a condition does not compile.
            InvalidPlannerConfig: the planner declares a wake mode that does not exist.
            InvalidApp: the goal is registered already, neither or both of machine and planner are given, or the schema
                is no JSON Schema.
        """
        if (state_machine is None) == (decided_by is None):
            raise InvalidApp(f"planner {self.name!r}: goal {event_type!r} takes either a state machine or decided_by")
        self._claim(event_type, {**self._machines, **self._deciders})
        self._constrain(event_type, schema)
        if decided_by is not None:
            self._register_decider(decided_by, event_type)
            return
        try:
            machine = Machine.compile(state_machine)  # type: ignore[arg-type]
        except InvalidStateMachine as error:
            faults = faults_of(state_machine) or error.faults  # type: ignore[arg-type]
            if collect(*(f"planner {self.name!r}, goal {event_type!r}: {fault}" for fault in faults)):
                return
            raise InvalidStateMachine(faults) from None
        self._machines[event_type] = machine
        self._consume(event_type)
        for state in machine.states.values():
            if state.action and state.action.event_type not in self.config.events_produced:
                self.config.events_produced.append(state.action.event_type)

    @declaration
    def on_goal(
        self, event_type: str, state_machine: StateMachineLike | None = None, *, schema: Schema | None = None
    ) -> Callable[[_H], _H]:
        """Register ``handler(goal, context)`` for a goal.

        With a state machine the handler need not create a plan: if it created none, a plan with this machine starts.

        Args:
            event_type: The goal.
            state_machine: States by name.
            schema: Of the goal's data, as for :meth:`add_goal`.
        """
        self._claim(event_type, {**self._goal_handlers, **self._deciders})
        self._constrain(event_type, schema)
        if state_machine is not None:
            self.add_goal(event_type, state_machine)

        def register(handler: _H) -> _H:
            self._goal_handlers[event_type] = handler
            self._consume(event_type)
            return handler

        return register

    @declaration
    def on_transition(self) -> Callable[[_H], _H]:
        """Register ``handler(transition, context)`` for the events that move this planner's plans.

        It is called when the plan's state machine has a transition for the event, also while the plan is paused by its
        own; when a WAIT ends; and, with None as the next state, for answers to requests that handlers have sent, and
        for the ``plan.resume`` of a plan without a machine that waits for nothing else. A handler with four required
        parameters is called with ``(event, context, plan, next_state)``, over a machine only where there is a next
        state.
        """

        if self._transition_handler is not None:
            raise InvalidApp(f"planner {self.name!r} has a transition handler already")

        def register(handler: _H) -> _H:
            self._transition_handler = handler
            return handler

        return register

    @declaration
    def on_event(self, event_type: str, topic: str | None = None) -> Callable[[_H], _H]:
        """Register ``handler(event, context)`` for events of a type (``*``: any), on a topic or on all.

        An event of a running plan is handled in that plan's turn. Apart from plans it hears facts, also those of
        finished plans, and system events, whose handlers act on a plan by sending it events. Final responses are heard
        by handlers that are registered for their topic (``action-results``, unless the goal names another one).
        """
        if event_type != "*":
            check_event_type(event_type)
        known = EventTopic(topic) if topic is not None else None

        def register(handler: _H) -> _H:
            self._event_handlers.append(EventHandler(event_type, known, handler))
            if event_type != "*":
                self._consume(event_type)
            return handler

        return register

    @declaration
    def expects(self, event_type: str, description: str = "", *, schema: Schema | None = None) -> None:
        """Declare an event that people or webhooks send, so that plans may wait for it.

        Args:
            event_type: The event.
            description: What it says, for people and for models.
            schema: A JSON Schema or pydantic model of its data. Answers (`PlanHandle.approve` and `reject`, console,
                command line, HTTP API) that break it are refused before they are sent; the console makes a form of it.

        Raises:
            InvalidApp: the schema is no JSON Schema.
        """
        self._expected[check_event_type(event_type)] = description
        if schema is not None:
            from plancast.json_values.schemas import checked_schema  # needs the libraries for schemas

            checked = checked_schema(schema, f"planner {self.name!r} expects {event_type!r}: schema")
            self._expected_schemas[event_type] = checked or {}

    async def create_plan(self, goal: GoalContext, agents: Iterable[Any], context: Any) -> PlanContext:
        """Create a pending plan with a state machine that the model designs from the agents' events.

        Faults of the machine are sent back to the model, `max_repairs` times.

        Args:
            goal: The goal of the handler.
            agents: Agent and event definitions, workers or planners; empty: the registered ones.
            context: The context of the handler.

        Raises:
            InvalidPlannerConfig: the planner has no model, or no event is declared.
            InvalidStateMachine: no answer is a valid machine; `exchange` holds all messages.
            ModelUnavailable: the model has failed for good.
        """
        from plancast.planners.machine_design import design_plan

        return await design_plan(self, goal, agents, context)

    def _register_decider(self, decider: AutonomousPlanner, event_type: str) -> None:
        if event_type in self._goal_handlers:
            raise InvalidApp(f"planner {self.name!r} takes the goal {event_type!r} twice: it has a handler")
        resolve_wake_mode(decider)
        self._deciders[event_type] = decider
        self.needs_reasoner = self.needs_reasoner or bool(getattr(decider, "needs_reasoner", False))
        self._consume(event_type)

    def _claim(self, event_type: str, taken: Mapping[str, Any]) -> None:
        check_event_type(event_type)
        check_event_type(f"{event_type}.completed")  # the response of its plans
        if event_type in taken:
            raise InvalidApp(f"planner {self.name!r} takes the goal {event_type!r} twice")
        self._places[event_type] = caller()

    def _constrain(self, event_type: str, schema: Schema | None) -> None:
        from plancast.json_values.schemas import checked_schema  # needs the libraries for schemas

        checked = checked_schema(schema, f"planner {self.name!r}, goal {event_type!r}: schema")
        if checked is not None:
            self._schemas[event_type] = checked

    def _consume(self, event_type: str) -> None:
        if event_type not in self.config.events_consumed:
            self.config.events_consumed.append(event_type)


_MEANT: Final = {"cost_limit": "cost_budget", "max_cost": "cost_budget", "model": "reasoning_model"}
"""Options whose right name is not the one with the most similar spelling."""


def _model_options(planner: Planner, model: str | None, options: Mapping[str, Any]) -> ModelOptions | None:
    for name in options.keys() - {*ModelOptions.names(), *PARAMETERS, "model_kwargs"}:
        own = {each for kind in type(planner).__mro__ for each in _keywords(kind)}
        near = nearest(_MEANT.get(name, name), own | ModelOptions.names() | PARAMETERS)
        raise InvalidPlannerConfig(f"planner {planner.name!r} has no option {name!r}{near or '.'} {elsewhere(name)}")
    if model is None:
        if options:
            raise InvalidPlannerConfig(f"planner {planner.name!r}: {', '.join(options)} given, but no reasoning_model")
        return None
    return ModelOptions.of(model, **options)


def _keywords(function: Callable[..., Any]) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}


async def call_handler(handler: Handler, *args: Any) -> Any:
    """Call a plain or async handler."""
    result = handler(*args)
    if inspect.isawaitable(result):
        awaitable: Awaitable[Any] = result
        return await awaitable
    return result


def wants_four(handler: Handler) -> bool:
    """Check for a transition handler with the signature ``(event, context, plan, next_state)``."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return len([each for each in positional if each.default is each.empty]) == 4
