"""PlanContext: one run of a goal, its state machine and what it has learned so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from plancast.context import PlatformContext
from plancast.errors import ForeignPlan, InvalidStateMachine, PlanFinished
from plancast.plan.event_fields import answered_request, error_text, event_data, event_type_of, event_view
from plancast.plan.requests import WAIT, Request, is_request_of
from plancast.plan.serialization import Origin, StoredFields, read_machine
from plancast.plan.staged_events import StagedEvents
from plancast.plan.status import CANCELLED, COMPLETED, FAILED, PAUSED, PENDING, RUNNING, PlanStatus
from plancast.state_machine.machine import START, Machine
from plancast.state_machine.states import StateConfig
from plancast.tasks.registry import TaskRegistry

if TYPE_CHECKING:
    from plancast.context import GoalContext

WAITING_FOR, WAIT_TIMEOUT = "_waiting_for", "_wait_timeout"
"""Names in the results: the event that a planner's WAIT waits for, and for how many seconds."""
MAX_MOVES = 1_000
"""States that one call may pass through before the machine is taken to run in a circle."""


class _Open:
    """What lets a plan with slots have further attributes all the same."""


@dataclass(kw_only=True, slots=True)  # slots: to read an attribute that has a default costs a fifth
class PlanContext(_Open):
    """One run of a goal.

    It talks to the world through ``context.bus`` and ``context.memory`` alone. Inside a turn those
    calls are staged and take effect when the turn is committed; with doubles it works the same.

    Source: seeds 001 and 003, RF-SDK-006.
    """

    plan_id: str
    state_machine: dict[str, StateConfig] = field(repr=False)
    """States by name. A plan that a planner decides step by step has none."""
    goal_event: str = ""
    """Type of the event that created the plan."""
    goal_data: dict[str, Any] = field(default_factory=dict)
    response_event: str = ""
    """Type of the final response, as the requester asked for it; empty: ``<goal>.completed`` or ``.failed``."""
    status: PlanStatus = PENDING
    current_state: str = START
    results: dict[str, Any] = field(default_factory=dict)
    """What each state has received, by state name."""
    parent_plan_id: str | None = None
    session_id: str | None = None
    user_id: str = ""
    tenant_id: str = ""
    correlation_id: str = ""
    """What the plan's events carry; the plan's id unless said otherwise."""
    pause_reason: str | None = None
    error: str | None = None
    """Why the plan failed or was cancelled."""
    result: Any = None
    """What :meth:`finalize` was given; None: the results are the result."""
    goal_id: str | None = None
    """Id of the goal event; the final response answers it."""
    response_topic: str | None = None
    trace_id: str | None = None
    reply_to: str | None = None
    """Correlation id that the final response carries, for a child plan the parent's."""
    notify: str | None = None
    """Where the client that submitted the goal waits for the final response."""
    root: str = ""
    """Correlation id of the top-level plan that this one has come of; empty for a top-level plan."""
    depth: int = 1
    """1 for a top-level plan, one more for each plan above."""
    planner: str = ""
    """Name of the planner that runs the plan."""
    decider: str = ""
    """Name of who decides the plan step by step; empty when a state machine or handlers move it."""
    planner_version: str = ""
    """Version of the decider, or of the planner whose handlers move the plan; empty when it needs nobody's code."""
    created_at: float = 0.0
    """Seconds since the epoch, UTC."""
    spent: dict[str, float] = field(default_factory=dict)
    """What deciding has taken so far: ``actions``, ``tokens``, ``cost`` (US dollars), ``calls``."""
    trajectory: list[dict[str, Any]] = field(default_factory=list)
    """The newest events and decisions of a plan that a planner decides, oldest first."""
    earlier: dict[str, int] = field(default_factory=dict)
    """What happened before that: how often each event type came and each action was taken."""
    tasks: TaskRegistry | None = None
    """What was started, alone and in groups; None while nothing was."""
    awaiting: str = ""
    """The task or group that a planner's AWAIT waits for."""
    control: dict[str, Any] = field(default_factory=dict)
    """What people have asked of the plan that its planner has not seen: ``pause``, ``injected``, ``redirect_goal``;
    and ``unseen``, when something has come that the planner was not asked about because of such a pause."""
    unmoved: str = ""
    """The state in which the transition handler made no move on an answer, the last time that it made none."""
    aliases: list[str] = field(default_factory=list)
    """Further correlation ids that the plan is found by."""
    requests: dict[str, Request] = field(default_factory=dict)
    """Requests that are not answered yet, by event id."""
    kept: list[dict[str, Any]] = field(default_factory=list)
    """Events that came before anything waited for them, oldest first."""
    _context: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if type(self.status) is not PlanStatus:
            self.status = PlanStatus(self.status)
        self.correlation_id = self.correlation_id or self.plan_id
        self.state_machine, compiled = read_machine(self.state_machine)
        if compiled is not None:
            self.machine = compiled
        self._settled = self.current_state
        self.moves: list[str] = []
        """States entered since the object was made."""
        self._origin: Origin | None = None
        self.hands_over = False
        """Whether a transition handler has its say on every move, so that kept events are the turn's to offer."""

    # Creation and persistence.

    @classmethod
    async def create_from_goal(
        cls,
        goal: GoalContext,
        state_machine: Mapping[str, StateConfig] | Machine,
        *,
        plan_id: str | None = None,
    ) -> Self:
        """A pending plan for a goal. Call :meth:`execute_next` to start it.

        Args:
            goal: What the goal handler was given.
            state_machine: States by name; it must have a state ``start``.
            plan_id: The goal's correlation id unless said otherwise.
        """
        plan = cls(
            plan_id=plan_id or goal.correlation_id,
            correlation_id=goal.correlation_id,
            goal_event=goal.event_type,
            goal_data=goal.data,
            response_event=goal.response_event,
            response_topic=goal.response_topic,
            goal_id=goal.event_id,
            trace_id=goal.trace_id,
            parent_plan_id=goal.parent_plan_id,
            reply_to=goal.reply_to,
            notify=goal.notify,
            root=goal.place.root,
            depth=goal.place.depth,
            session_id=goal.session_id,
            user_id=goal.user_id,
            tenant_id=goal.tenant_id,
            state_machine=state_machine,  # type: ignore[arg-type]
            _context=goal._context,
        )
        turn = plan._turn
        if turn is not None:
            turn.adopt(plan)
        return plan

    async def save(self) -> None:
        """Persist the plan.

        Inside a turn this marks the plan as the turn's own; the turn's commit is what makes it durable.

        Raises:
            ForeignPlan: the turn belongs to another plan.
        """
        turn = self._turn
        if turn is not None:
            turn.adopt(self)
            return
        if isinstance(self._context, PlatformContext) and self._context.read_only:
            raise ForeignPlan(f"plan {self.plan_id} can only be changed in a turn of its own: send it an event instead")
        if self._context is None:
            return
        await self._context.memory.store_plan_context(
            plan_id=self.plan_id,
            session_id=self.session_id,
            goal_event=self.goal_event,
            goal_data=self.goal_data,
            response_event=self.response_event,
            state=self.to_dict(),
            current_state=self.current_state,
            correlation_ids=list(dict.fromkeys([self.correlation_id, self.plan_id])),
        )

    @classmethod
    async def restore(cls, plan_id: str, context: Any) -> Self | None:
        """The plan with this id, or None. Inside a turn the turn's own plan is the live one."""
        live = _live(context, plan_id)
        if live is not None:
            return live  # type: ignore[return-value]
        return cls._restored(await context.memory.get_plan_context(plan_id), context)

    @classmethod
    async def restore_by_correlation(
        cls, correlation_id: str, context: Any, *, tenant_id: str | None = None, user_id: str | None = None
    ) -> Self | None:
        """The plan that events with this correlation id belong to, or None.

        With ``tenant_id`` or ``user_id`` a plan of somebody else counts as unknown.
        """
        plan = _live(context, correlation_id)
        if plan is None:
            plan = cls._restored(await context.memory.get_plan_by_correlation(correlation_id), context)
        if plan is None or (tenant_id is not None and plan.tenant_id != tenant_id):
            return None
        if user_id is not None and plan.user_id != user_id:
            return None
        return plan  # type: ignore[return-value]

    @classmethod
    def _restored(cls, data: Any, context: Any) -> Self | None:
        return None if data is None else cls.from_dict(data, context)

    def to_dict(self) -> dict[str, Any]:
        """Every field as JSON-able values, the state machine included."""
        data = self.to_state()
        data["state_machine"] = {name: state.model_dump(mode="json") for name, state in self.state_machine.items()}
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], context: Any = None) -> Self:
        """The plan that :meth:`to_dict` made a dict of; keys of other versions are passed over.

        What ``store_plan_context`` was given (with the plan under ``state``) is accepted too.
        """
        return cls(**_STORED.read(data), _context=context)

    def to_state(self) -> dict[str, Any]:
        """The fields as plain values without the state machine, fields that hold their default left out."""
        return _STORED.write(self)

    def packed_state(self, machine: str) -> bytes:
        """What :meth:`to_state` gives, in msgpack, with the hash of the state machine (empty: there is none)."""
        return _STORED.pack(self, machine)

    def own_tasks(self) -> TaskRegistry:
        """The registry of the plan's tasks, made when it is first needed."""
        if self.tasks is None:
            self.tasks = TaskRegistry()
        return self.tasks

    @cached_property
    def machine(self) -> Machine:
        """The compiled state machine."""
        return Machine.compile(self.state_machine)

    # Moving.

    def get_next_state(self, event: Any) -> str | None:
        """The state that an event leads to from the current one, or None.

        A late or repeated answer to an earlier request leads nowhere.

        Raises:
            ConditionFailed: a transition's condition cannot be evaluated.
        """
        return None if self.is_stale_answer(event) else self._next_from(self.current_state, event)

    def next_on_current(self, event: Any) -> str | None:
        """What :meth:`get_next_state` tells, of an event that is known to be no late or repeated answer."""
        return self._next_from(self.current_state, event)

    async def execute_next(self, trigger_event: Any = None) -> None:
        """Take the step that the event asks for, or the first one when there is no event.

        The event's data becomes the result of the state that waited for it. An event that no
        transition takes changes nothing. Entering a terminal state finishes the plan.

        Raises:
            PlanFinished: the plan is finished already.
            InterpolationError: an action's data names a path that does not exist.
        """
        self._require_unfinished()
        self._claim()
        target = self._onward() if trigger_event is None else self._accept(trigger_event)
        if target is None:
            return
        await self._enter(target)
        await self.save()

    async def take_transition(self, event: Any, target: str) -> None:
        """Take the transition on an event, which :meth:`get_next_state` has found to lead to this state."""
        if self.set_by_hand:
            await self.execute_next(event)
            return
        self._claim()
        self._keep_result(self.current_state, event)
        await self._enter(target)
        if self._turn is None:  # else it is the turn's own already
            await self.save()

    def is_complete(self) -> bool:
        """Whether the plan is finished or stands in a terminal state."""
        state = self.state_machine.get(self.current_state)
        return self.status.finished or (state is not None and state.is_terminal)

    async def finalize(self, result: Any = None) -> None:
        """Complete the plan and give its final response. A second call changes nothing."""
        if self.status.finished:
            return
        self._claim()
        if result is not None:
            self.result = result
            self.results["final"] = result
        await self._finish(COMPLETED)
        await self.save()

    async def fail(self, error: str | BaseException) -> None:
        """Fail the plan; the requester is told why. A second call changes nothing."""
        if self.status.finished:
            return
        self._claim()
        self.error = error_text(error)
        await self._finish(FAILED)
        await self.save()

    async def cancel(self, reason: str = "cancelled") -> None:
        """Cancel the plan, with its open requests and its children. A second call changes nothing."""
        if self.status.finished:
            return
        self._claim()
        self.error = reason
        await self._finish(CANCELLED)
        await self.save()

    async def pause(self, reason: str = "user_input_required") -> None:
        """Hold the plan until :meth:`resume`, or until an event from outside that the current state waits for.

        Raises:
            PlanFinished: the plan is finished already.
        """
        self._require_unfinished()
        self._claim()
        self.status = PAUSED
        self.pause_reason = reason
        await self.save()

    async def resume(self, input_data: Any = None) -> None:
        """Go on after a pause, with what was waited for as ``results["user_input"]``.

        The plan takes the transition that the resuming event matches, else ``default_next``; kept
        events are offered again. A plan that is not paused stays as it is.

        Raises:
            PlanFinished: the plan is finished already.
        """
        self._require_unfinished()
        if self.status is not PAUSED:
            return
        self._claim()
        self.end_wait()
        self.results["user_input"] = input_data
        target = self._resuming_target()
        if target is None and self._never_asked:
            target = self.current_state
        if target is not None:
            await self._enter(target)
        else:
            await self._drain_kept()
        await self.save()

    @property
    def set_by_hand(self) -> bool:
        """Whether ``current_state`` was assigned, and not entered."""
        return self.current_state != self._settled

    async def enter_assigned(self, event: Any = None) -> None:
        """Enter the state that ``current_state`` was assigned."""
        if event is not None:
            self._keep_result(self._settled, event)
        await self._enter(self.current_state)
        await self.save()

    def halt_in_assigned(self, event: Any = None) -> None:
        """Stand in the state that ``current_state`` was assigned, without its action: the plan was paused there."""
        if event is not None:
            self._keep_result(self._settled, event)
        self.moves.append(self.current_state)
        self._settled = self.current_state
        self._drop_requests_of_states()

    # How a move is made.

    @property
    def _turn(self) -> Any:
        context = self._context
        return context.turn if isinstance(context, PlatformContext) else None

    def _claim(self) -> None:
        """Be the turn's own plan before anything is staged."""
        turn = self._turn
        if turn is not None:
            turn.adopt(self)

    def _require_unfinished(self) -> None:
        if self.status.finished:
            raise PlanFinished(f"plan {self.plan_id} is {self.status} and moves no more")

    def _next_from(self, state: str, event: Any) -> str | None:
        return self.machine.next_state(
            state,
            event_type_of(event),
            event=lambda: event_view(event),
            goal_data=self.goal_data,
            results=self.results,
            plan=self._view,
        )

    def is_stale_answer(self, event: Any) -> bool:
        """Whether an event answers a request of this plan that no longer waits for an answer."""
        parent = answered_request(event)
        return parent is not None and self.is_stale(parent)

    def is_stale(self, request_id: str) -> bool:
        """Whether this is the id of a request of this plan that no longer waits for an answer."""
        return request_id not in self.requests and is_request_of(self.plan_id, request_id)

    def _onward(self) -> str | None:
        """Where a plan goes without an event."""
        state = self.state_machine.get(self.current_state)
        if state is None:
            return None
        begins = self.status is PENDING and self.current_state == START
        if begins and (state.action or state.transitions or state.is_terminal):
            return self.current_state
        return state.default_next

    def _accept(self, event: Any) -> str | None:
        """The state that the event leads to; its data is kept as a result and its request counted as answered.

        A handler may have set ``current_state`` to the target before: the event is looked up
        from the state that the plan had settled in.
        """
        origin = self._settled
        if self.is_stale_answer(event):
            return None
        target = self._next_from(origin, event)
        if target is None or (self.current_state != origin and target != self.current_state):
            origin = self.current_state
            target = self._next_from(origin, event)
        if target is None:
            return None
        self._keep_result(origin, event)
        return target

    def _keep_result(self, state: str, event: Any) -> None:
        data = event_data(event)
        self.results[state] = data
        parent = answered_request(event)
        if parent is not None:
            self.requests.pop(parent, None)

    def _drop_requests_of_states(self) -> None:
        if not self.requests:  # nearly always: an answer has just been taken
            return
        for request_id in [key for key, request in self.requests.items() if request.state is not None]:
            del self.requests[request_id]

    async def _enter(self, target: str) -> None:
        """Enter a state, passing through those with nothing to do, and go on while kept events allow it."""
        next_state: str | None = target
        for _ in range(MAX_MOVES):
            if next_state is None:
                return
            await self._settle(next_state)
            next_state = self._take_kept() if self.kept and not self.status.finished else None
        raise InvalidStateMachine([f"plan {self.plan_id} went through {MAX_MOVES} states without waiting"])

    async def _settle(self, target: str) -> None:
        if target not in self.state_machine:
            raise InvalidStateMachine([f"there is no state {target!r}"])
        path = self.machine.resolve_passthrough(target)
        self.moves.extend(path)
        self.current_state = self._settled = path[-1]
        self.status = RUNNING
        self.pause_reason = None
        self.unmoved = ""
        self._drop_requests_of_states()
        state = self.state_machine[self.current_state]
        if state.is_terminal:
            outcome = state.outcome or ("failed" if self.current_state == "failed" else "completed")
            if outcome == "failed" and self.error is None:
                self.error = self._failure_of_results()
            await self._finish(PlanStatus(outcome))
        elif state.action is not None:
            await self._ask(self.current_state)

    async def _ask(self, state: str, attempt: int = 1) -> None:
        action = self.state_machine[state].action
        if action is None or self._context is None:
            return
        template = self.machine.action_template(state)
        data, bus = template.render(self._scope()) if template is not None else {}, self._context.bus
        if type(bus) is StagedEvents:
            request_id = bus.ask(action.event_type, data, action.response_event, self.correlation_id)
        else:
            request_id = await bus.request(
                event_type=action.event_type,
                data=data,
                response_event=action.response_event,
                correlation_id=self.correlation_id,
            )
        if isinstance(request_id, str):
            request = self.requests.get(request_id)
            if request is None:  # a double has sent it
                request = self.requests[request_id] = Request(action.event_type, action.response_event)
            request.state, request.attempt = state, attempt

    async def ask_in(self, state: str, attempt: int) -> None:
        """Send a state's request, as this attempt at it."""
        await self._ask(state, attempt)

    async def ask_again(self, request_id: str) -> None:
        """Send a state's request once more, under a new id; an answer to the old one comes too late."""
        request = self.requests.pop(request_id)
        if request.state is not None:
            await self._ask(request.state, request.attempt + 1)

    async def _finish(self, status: PlanStatus) -> None:
        self.status = status
        self.pause_reason = None
        self.kept.clear()
        if self._context is None:
            return
        ending = "completed" if status is COMPLETED else "failed"
        await self._context.bus.respond(
            event_type=self.response_event or f"{self.goal_event}.{ending}",
            data=self.response_data(),
            correlation_id=self.reply_to or self.parent_plan_id or self.correlation_id,
        )

    def response_data(self) -> dict[str, Any]:
        """What the final response says: ``plan_id``, ``status``, ``result`` and ``error``."""
        result = self.results if self.result is None else self.result
        if self.status is not COMPLETED:
            result = self.result
        return {"plan_id": self.plan_id, "status": str(self.status), "result": result, "error": self.error}

    def _failure_of_results(self) -> str:
        """Why a state machine reached its failed state: the error of the last answer that carried one."""
        for data in reversed(list(self.results.values())):
            if isinstance(data, Mapping) and data.get("error"):
                return error_text(data["error"])
        return f"the plan reached the state {self.current_state!r}"

    def _resuming_target(self) -> str | None:
        turn = self._turn
        event = turn.event if turn is not None else None
        if event is not None:
            target = self._accept(event)
            if target is not None:
                return target
        state = self.state_machine.get(self.current_state)
        return state.default_next if state is not None else None

    # Events that came early.

    @property
    def _never_asked(self) -> bool:
        """Whether the plan was paused in a state before the state's action was asked for."""
        state = self.state_machine.get(self.current_state)
        if self._turn is None or state is None or state.action is None:
            return False
        return all(request.state != self.current_state for request in self.requests.values())

    def keep(self, event: dict[str, Any], limit: int) -> str | None:
        """Keep an event until something waits for it; returns the type of the one that had to give way, if any.

        Answers to requests that are still open give way last: nobody would send them again.
        """
        self.kept.append(event)
        if len(self.kept) <= limit:
            return None
        unasked = (at for at, each in enumerate(self.kept) if answered_request(each) not in self.requests)
        return str(self.kept.pop(next(unasked, 0)).get("type"))

    def take_answer(self, event: Any) -> None:
        """Keep an answer's data under its type, for plans without a state machine; its request waits no more."""
        self.results[event_type_of(event)] = event_data(event)
        self.requests.pop(answered_request(event) or "", None)

    def end_wait(self) -> None:
        """Run again, and wait no more for what a WAIT has waited for."""
        self.status, self.pause_reason = RUNNING, None
        self.results.pop(WAITING_FOR, None)
        self.results.pop(WAIT_TIMEOUT, None)
        for request_id in [key for key, request in self.requests.items() if request.event_type == WAIT]:
            del self.requests[request_id]

    def take_awaited(self) -> dict[str, Any] | None:
        """The oldest kept event that a WAIT waits for, which is then no longer kept."""
        for index, event in enumerate(self.kept):
            if event.get("type") == self.results.get(WAITING_FOR):
                return self.kept.pop(index)
        return None

    def take_kept_answers(self) -> list[dict[str, Any]]:
        """The kept answers to open requests, oldest first, which are then no longer kept."""
        answers = [event for event in self.kept if answered_request(event) in self.requests]
        self.kept = [event for event in self.kept if event not in answers]
        return answers

    def _take_kept(self) -> str | None:
        """Where the oldest kept event that the current state waits for leads to."""
        if self.hands_over or (found := self.take_kept_for_state()) is None:
            return None
        event, target = found
        self._keep_result(self.current_state, event)
        return target

    def take_kept_for_state(self) -> tuple[dict[str, Any], str] | None:
        """The oldest kept event that the current state waits for, which is then no longer kept, and where it leads."""
        if self.status is PAUSED:
            return None
        for index, event in enumerate(self.kept):
            target = self.get_next_state(event)
            if target is not None:
                del self.kept[index]
                return event, target
        return None

    async def _drain_kept(self) -> None:
        target = self._take_kept()
        if target is not None:
            await self._enter(target)

    # Views for conditions and templates.

    def _scope(self) -> dict[str, Any]:
        return {
            "goal_data": self.goal_data,
            "results": self.results,
            "plan_id": self.plan_id,
            "correlation_id": self.correlation_id,
            "session_id": self.session_id,
            "user_id": self.user_id,
            "tenant_id": self.tenant_id,
        }

    def _view(self) -> dict[str, Any]:
        return {
            "plan_id": self.plan_id,
            "status": str(self.status),
            "current_state": self.current_state,
            "session_id": self.session_id or "",
            "user_id": self.user_id,
            "tenant_id": self.tenant_id,
        }


_STORED = StoredFields(PlanContext)


def _live(context: Any, name: str) -> PlanContext | None:
    turn = context.turn if isinstance(context, PlatformContext) else None
    plan: PlanContext | None = turn.plan if turn is not None else None
    return plan if plan is not None and name in (plan.plan_id, plan.correlation_id) else None
