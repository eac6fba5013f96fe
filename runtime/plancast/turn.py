"""A turn: one event handled by one plan, everything it does staged until it is committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from plancast.app import App
from plancast.context import PlanMemory, PlatformContext
from plancast.deciding import Deciding
from plancast.errors import ForeignPlan, InvalidApp, TerminalError
from plancast.goal import GoalContext, TransitionContext
from plancast.machine import base_of, failed_event, timeout_event, validate_state_machine
from plancast.plan import WAITING_FOR, PlanContext, answered_request
from plancast.planner import Handler, Planner, call_handler, wants_four
from plancast.requests import WAIT, Request, effect_id
from plancast.run import AutonomousPlanner
from plancast.settings import PlanSettings
from plancast.staging import StagedEvents
from plancast.status import PlanStatus
from plancast_bus.effects import (
    CancelTimer,
    Effect,
    NoteAlias,
    Publish,
    Respond,
    SetTimer,
    Withdraw,
    effect_kind,
)
from plancast_bus.envelope import EventEnvelope, EventTopic, WireEvent
from plancast_bus.errors import PayloadTooLarge
from plancast_bus.subjects import Subjects, check_event_type, encode_token

CANCEL, PAUSE, RESUME = "plan.cancel", "plan.pause", "plan.resume"
"""Control events, on the topic ``plan-events``."""


class Verdict(StrEnum):
    """What becomes of an event after its turn."""

    COMMIT = "commit"
    """The plan has changed: commit, emit, then acknowledge."""
    EMIT = "emit"
    """No plan was involved, but a handler has sent something: emit, then acknowledge."""
    IGNORE = "ignore"
    """Nothing has changed: acknowledge."""
    UNKNOWN = "unknown"
    """No plan has this correlation id (yet)."""
    REFUSE = "refuse"
    """The event may not move this plan: put it aside with the reason."""


@dataclass(frozen=True)
class TurnEnvironment:
    """What all turns of a host share."""

    app: App
    subjects: Subjects
    encode: Callable[[EventEnvelope | WireEvent], tuple[bytes, str]]
    memory: PlanMemory
    settings: PlanSettings = field(default_factory=PlanSettings)
    max_event_bytes: int = 1_048_576
    registry: Any = None
    toolkit: Any = None
    reasoner: Any = None
    goals: Mapping[str, Planner] = field(init=False)
    planners: Mapping[str, Planner] = field(init=False)
    listeners: tuple[Planner, ...] = field(init=False)
    checked: set[str] = field(init=False, default_factory=set)
    """Hashes of state machines that were found valid."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "goals", self.app.goals)
        object.__setattr__(self, "planners", {planner.name: planner for planner in self.app.planners})
        object.__setattr__(self, "listeners", tuple(each for each in self.app.planners if each.handles_events))


class Turn:
    """One turn. Make it, ``await run()``, and take ``plan``, ``effects`` and ``entry()`` when the verdict is COMMIT.

    Args:
        environment: What all turns of a host share.
        correlation_id: The key under which the plan's events come.
        event: What is handled.
        plan: The plan as last committed; None when there is none.
        revision: Number of the turn, one more than what is committed.
        now: Seconds since the epoch.
        is_timer: The event is a timer of the plan that has become due.
    """

    def __init__(
        self,
        environment: TurnEnvironment,
        correlation_id: str,
        event: EventEnvelope,
        plan: PlanContext | None,
        revision: int,
        now: float,
        *,
        is_timer: bool = False,
    ) -> None:
        self.environment = environment
        self.correlation_id = correlation_id
        self.event: Any = event
        self.plan = plan
        self.revision = revision
        self.now = now
        self._time = datetime.fromtimestamp(now, UTC).isoformat()
        self.is_timer = is_timer
        self.effects: list[Effect] = []
        self.notes: list[str] = []
        self.reason = ""
        """Why an event was ignored or refused."""
        self.goal: GoalContext | None = None
        self._index = 0
        self.decisions: list[dict[str, Any]] = []
        """What a planner has decided, and what it took."""
        self.calls: list[dict[str, Any]] = []
        """The questions that were put to models."""
        self.exchange: list[dict[str, Any]] = []
        """What was said and answered, when no decision came of it."""
        self._responded = False
        self._saves = 0
        self._sent: list[list[str]] = []
        self._asked_before: dict[str, tuple[float | None, bool, int, str]] = {}
        self._before_plan: dict[str, Request] = {}
        """Requests that a goal's handler has sent before it made the plan."""
        self._from = plan.current_state if plan is not None else ""
        self._was_paused = plan is not None and plan.status is PlanStatus.PAUSED
        self.context = PlatformContext(
            bus=StagedEvents(self),
            memory=environment.memory,
            registry=environment.registry,
            toolkit=environment.toolkit,
            reasoner=environment.reasoner,
            turn=self,
        )
        if plan is not None:
            plan._context = self.context
            plan.moves.clear()
            self._asked_before = {
                key: (each.due, each.child, each.sequence, each.event_type) for key, each in plan.requests.items()
            }

    def close(self) -> None:
        """Let go of what knows the turn: cycles, left to the garbage collector, cost more than the turn itself."""
        if self.plan is not None:
            self.plan._context = None
        self.context.turn = None
        del self.context

    # What happens in a turn.

    async def run(self) -> Verdict:
        """Handle the event."""
        if self.plan is None:
            verdict = await self._without_plan()
        elif not self.same_tenant(self.event):
            verdict = self._refused(
                f"tenant {self.event.tenant_id or ''!r} may not move a plan of tenant {self.plan.tenant_id!r}"
            )
        elif self._is_goal:
            verdict = self._repeated_goal(self.plan)
        elif self.plan.status.finished:
            verdict = self._ignored(f"the plan is {self.plan.status}")
        elif self.is_timer:
            verdict = await self._timer(self.plan)
        elif self.event.topic == EventTopic.PLAN_EVENTS and self.event.type in _CONTROLS:
            verdict = await _CONTROLS[self.event.type](self, self.plan)
        else:
            verdict = await self._offer(self.plan)
        if verdict is Verdict.COMMIT:
            await self._settle_kept()
            self._settle_requests()
        return verdict

    async def cancel(self, reason: str) -> Verdict:
        """Instead of :meth:`run`, when a cancellation has stopped a goal's handler: the plan ends before it began."""
        self.goal = GoalContext.from_event(self.event, self.context)
        self.plan = await PlanContext.create_from_goal(self.goal, {})
        await self.plan.cancel(reason)
        return Verdict.COMMIT

    async def fail(self, error: BaseException) -> Verdict:
        """Instead of :meth:`run`, when that has raised: the plan fails with the error, and the requester hears it."""
        if self.plan is None:
            if not self._is_goal:
                return self._refused(f"a handler failed: {type(error).__name__}: {error}")
            self.goal = GoalContext.from_event(self.event, self.context)
            self.plan = await PlanContext.create_from_goal(self.goal, {})
        self.notes.append(f"the turn failed: {type(error).__name__}")
        self.exchange = list(getattr(error, "exchange", ()))
        if isinstance(error, PayloadTooLarge):
            self.plan.results = {}
            self.notes.append("the results were dropped, for the plan to fit into its checkpoint")
        await self.plan.fail(str(error) if isinstance(error, TerminalError) else error)
        self._settle_requests()
        return Verdict.COMMIT

    @property
    def _is_goal(self) -> bool:
        return self.event.topic == EventTopic.ACTION_REQUESTS and self.event.type in self.environment.goals

    async def _without_plan(self) -> Verdict:
        if self._is_goal:
            return await self._begin(self.environment.goals[self.event.type])
        handled = await self._call_listeners()
        if self.plan is not None:
            return Verdict.COMMIT
        if handled:
            return Verdict.EMIT if self.effects else Verdict.IGNORE
        self.reason = "no plan has this correlation id"
        return Verdict.UNKNOWN

    async def _begin(self, planner: Planner) -> Verdict:
        goal = self.goal = GoalContext.from_event(self.event, self.context)
        try:
            _check_response(goal.response_event, goal.response_topic)
        except ValueError as error:
            return self._refused(f"the goal cannot be answered: {error}")
        handler, machine = planner.goal_handler(goal.event_type), planner.machine(goal.event_type)
        if handler is not None:
            await call_handler(handler, goal, self.context)
        if self.plan is None and machine is not None:
            await PlanContext.create_from_goal(goal, machine)
        decider = planner.decider(goal.event_type)
        if self.plan is None and decider is not None:
            decided = await PlanContext.create_from_goal(goal, {})
            await Deciding(self, decided, decider).on_goal()
            return Verdict.COMMIT
        if self.plan is None:
            await PlanContext.create_from_goal(goal, {})
        plan = self.plan
        assert plan is not None
        if plan.state_machine:
            self._check_machine(plan)
            if plan.status is PlanStatus.PENDING:
                await plan.execute_next()
        elif plan.status is PlanStatus.PENDING:
            if not self._sent:
                raise InvalidApp(f"the handler of goal {goal.event_type!r} made no plan and sent nothing")
            plan.status = PlanStatus.RUNNING
        await self._settle_by_hand(plan)
        return Verdict.COMMIT

    def _check_machine(self, plan: PlanContext) -> None:
        digest = plan.machine.hash
        if digest not in self.environment.checked:
            validate_state_machine(plan.machine.states)
            self.environment.checked.add(digest)

    def _repeated_goal(self, plan: PlanContext) -> Verdict:
        """A goal for a plan that exists: submitted twice, or a step of the plan itself that is a goal meanwhile."""
        request = plan.requests.get(self.event.id)
        if request is None or request.child:
            return self._ignored("the goal has its plan already")
        fields = self.event.model_dump(exclude={"correlation_id", "metadata", "topic", "type", "id", "time"})
        # Under its own id the stream would drop it as a repetition of the request.
        message_id = f"{self.event.id}:adopted"
        self._send_child_goal(
            self.event.id, self.event.type, fields | {"metadata": self.event.metadata}, message_id=message_id
        )
        request.child = True
        return Verdict.COMMIT

    async def _offer(self, plan: PlanContext) -> Verdict:
        """Let the event move the plan, in the order: retry, listeners, machine or transition handler, keep."""
        parent = answered_request(self.event)
        if plan.is_stale_answer(self.event):
            return self._ignored("an answer that came too late, or twice")
        request = plan.requests.get(parent) if parent else None
        event = self._as_failure_of_child(plan, request)
        if request is not None and self._is_failure(request, event) and self._ask_later(plan, request, event):
            return Verdict.COMMIT
        before = self._position(plan)
        called = await self._call_listeners()
        if self._position(plan) != before:
            await self._settle_by_hand(plan)
            return Verdict.COMMIT
        if plan.status is PlanStatus.PAUSED and not (request is None and self._waits_for(plan, event)):
            return self._keep(plan, event)
        handler = self._transition_handler(plan)
        if handler is not None and not plan.state_machine and (request is not None or self._waits_for(plan, event)):
            await self._hand_over(plan, event, handler)
            return Verdict.COMMIT
        if plan.status is PlanStatus.PAUSED and not self._is_decided(plan):
            await plan.resume(event.data)
            return Verdict.COMMIT
        deciding = self._deciding(plan)
        if deciding is not None:
            return Verdict.COMMIT if await deciding.on_event(event, request) else self._keep(plan, event)
        target = plan.get_next_state(event)
        if target is not None:
            await self._move(plan, event, target)
            return Verdict.COMMIT
        if called and (request is None or request.state is None) and event.type not in plan.machine.event_types:
            if parent:
                plan.requests.pop(parent, None)
            return Verdict.COMMIT
        verdict = await self._not_taken(plan, request, event)
        return Verdict.COMMIT if called else verdict

    async def _move(self, plan: PlanContext, event: Any, target: str) -> None:
        handler = self._transition_handler(plan)
        if handler is None:
            await plan.execute_next(event)
        else:
            await self._hand_over(plan, event, handler, target)

    def _transition_handler(self, plan: PlanContext) -> Handler | None:
        planner = self.environment.planners.get(plan.planner)
        return planner.transition_handler if planner is not None else None

    async def _hand_over(self, plan: PlanContext, event: Any, handler: Handler, target: str | None = None) -> bool:
        """Let the planner's handler move the plan; False when it did nothing."""
        if not plan.state_machine:
            plan.take_answer(event)
        before = self._mark(plan)
        if wants_four(handler):
            await call_handler(handler, event, self.context, plan, target)
        else:
            await call_handler(handler, TransitionContext(event, plan, target), self.context)
        await self._settle_by_hand(plan)
        moved = self._mark(plan) != before
        if not moved:
            self.notes.append(f"the transition handler made no move on {event.type}")
        return moved

    async def _settle_by_hand(self, plan: PlanContext) -> None:
        """A state that a handler has set, and neither entered nor paused in, is entered now."""
        if not plan.set_by_hand:
            return
        event = None if self._is_goal else self.event
        if plan.status is PlanStatus.RUNNING:
            await plan.enter_assigned(event)
        elif plan.status is PlanStatus.PAUSED:
            plan.halt_in_assigned(event)

    async def _not_taken(self, plan: PlanContext, request: Request | None, event: Any) -> Verdict:
        if request is not None and self._ends_request(plan, request, event):
            await plan.fail(_explain(request, event, plan.current_state))
            return Verdict.COMMIT
        if plan.state_machine and event.type not in plan.machine.event_types:
            return self._ignored(f"no state waits for {event.type}")
        return self._keep(plan, event)

    def _ends_request(self, plan: PlanContext, request: Request, event: Any) -> bool:
        """Whether an answer that no transition takes is the last that will be heard of its request."""
        if self._is_failure(request, event) or plan.machine.transition(plan.current_state, event.type):
            return True
        return request.state == plan.current_state and base_of(event.type) == base_of(request.response_event)

    def _keep(self, plan: PlanContext, event: Any) -> Verdict:
        dropped = plan.keep(event.to_wire(), self.environment.settings.max_kept_events)
        self.notes.append(f"{event.type} is kept until a state waits for it")
        if dropped is not None:
            self.notes.append(f"warning: too many kept events, the oldest ({dropped}) was dropped")
        return Verdict.COMMIT

    async def _timer(self, plan: PlanContext) -> Verdict:
        request_id = self.event.parent_event_id
        request = plan.requests.get(request_id)
        if request is None or request.due is None:
            return self._ignored("a timer of a request that is settled")
        deciding = self._deciding(plan)
        if plan.status is PlanStatus.PAUSED and request.event_type != WAIT:
            return self._ignored("the plan is paused; the timer is set again when it goes on")
        if deciding is not None:
            await deciding.on_timer(self.event, request_id, request)
            return Verdict.COMMIT
        if request.event_type == WAIT:
            plan.end_wait()
            handler = self._transition_handler(plan)
            if handler is not None and await self._hand_over(plan, self.event, handler):
                return Verdict.COMMIT
            await plan.fail(f"deadline_exceeded: {request.response_event} did not come in {request.timeout:g} s")
            return Verdict.COMMIT
        if request.asking_again:
            await plan.ask_again(request_id)
            return Verdict.COMMIT
        if self._ask_later(plan, request, self.event):
            return Verdict.COMMIT
        target = plan.get_next_state(self.event)
        if target is None:
            return await self._not_taken(plan, request, self.event)
        await self._move(plan, self.event, target)
        return Verdict.COMMIT

    def _ask_later(self, plan: PlanContext, request: Request, event: Any) -> bool:
        """Have a failed request asked again after its backoff, if its action allows one more attempt."""
        state = plan.state_machine.get(request.state) if request.state is not None else None
        retry = state.action.retry if state is not None and state.action is not None else None
        if retry is None or request.attempt >= retry.attempts:
            return False
        if request.asking_again:
            return True
        delay = retry.delay(request.attempt)
        request.asking_again, request.due = True, self.now + delay
        self.notes.append(
            f"{event.type}: {request.event_type} is asked again in {delay:g} s "
            f"(attempt {request.attempt + 1} of {retry.attempts})"
        )
        return True

    def _is_failure(self, request: Request, event: Any) -> bool:
        expected = request.response_event
        return event.type != expected and event.type in (failed_event(expected), timeout_event(expected))

    def _as_failure_of_child(self, plan: PlanContext, request: Request | None) -> Any:
        """The event, as a failure when it is the answer of a child plan that did not complete.

        Such a child answers on the same event type; a machine that tells by a condition is left to it.
        """
        event = self.event
        if request is None or not request.child or not isinstance(event.data, dict):
            return event
        if event.type != request.response_event or event.data.get("status") in (None, "completed"):
            return event
        waiting = plan.machine.transition(plan.current_state, event.type)
        if any(transition.condition is not None for transition in waiting):
            return event
        return event.model_copy(update={"type": failed_event(request.response_event)})

    async def _call_listeners(self) -> bool:
        called = False
        for planner in self.environment.listeners:
            for handler in planner.event_handlers(self.event.type, self.event.topic):
                called = True
                await call_handler(handler, self.event, self.context)
        return called

    async def _cancel(self, plan: PlanContext) -> Verdict:
        await plan.cancel(cancel_reason(self.event))
        return Verdict.COMMIT

    async def _pause(self, plan: PlanContext) -> Verdict:
        if plan.status is PlanStatus.PAUSED:
            return self._ignored("the plan is paused already")
        await plan.pause(str(_said(self.event, "reason") or "paused"))
        return Verdict.COMMIT

    async def _resume(self, plan: PlanContext) -> Verdict:
        if plan.status is not PlanStatus.PAUSED:
            return self._ignored("the plan is not paused")
        data = self.event.data
        await plan.resume(data["input"] if isinstance(data, dict) and "input" in data else data)
        deciding = self._deciding(plan)
        if deciding is not None:
            await deciding.on_resume()
        return Verdict.COMMIT

    def _decider(self, plan: PlanContext) -> AutonomousPlanner | None:
        planner = self.environment.planners.get(plan.planner)
        return planner.decider(plan.goal_event) if planner is not None and not plan.state_machine else None

    def _is_decided(self, plan: PlanContext) -> bool:
        return self._decider(plan) is not None

    def _deciding(self, plan: PlanContext) -> Deciding | None:
        decider = self._decider(plan)
        return Deciding(self, plan, decider) if decider is not None else None

    def _waits_for(self, plan: PlanContext, event: Any) -> bool:
        """Whether an event from outside is what a paused plan waits for."""
        return plan.get_next_state(event) is not None or event.type == plan.results.get(WAITING_FOR)

    def _ignored(self, reason: str) -> Verdict:
        self.reason = reason
        return Verdict.IGNORE

    def _refused(self, reason: str) -> Verdict:
        self.reason = reason
        return Verdict.REFUSE

    def same_tenant(self, event: EventEnvelope) -> bool:
        """Whether an event may touch the plan of this turn, or the one that this turn is to make."""
        owner = self.plan.tenant_id if self.plan is not None else self.event.tenant_id or ""
        return self.is_timer or (event.tenant_id or "") == owner

    def _position(self, plan: PlanContext) -> tuple[Any, ...]:
        return plan.status, plan.current_state, len(plan.moves)

    def _mark(self, plan: PlanContext) -> tuple[Any, ...]:
        return *self._position(plan), len(self.effects), self._saves

    # What the plan and its handlers stage.

    def adopt(self, plan: PlanContext) -> None:
        """Take a plan as the turn's own; see :class:`plancast.context.TurnPort`."""
        self._saves += 1
        if self.plan is plan:
            return
        if self.plan is not None or plan.created_at:
            own = f"plan {self.plan.plan_id}" if self.plan is not None else f"correlation id {self.correlation_id}"
            raise ForeignPlan(f"this is a turn of {own}; plan {plan.plan_id} can only be changed in a turn of its own")
        _check_response(plan.response_event, plan.response_topic)
        goal = self.goal
        plan._context = self.context
        plan.correlation_id = self.correlation_id
        plan.created_at = self.now
        plan.requests = self._before_plan | plan.requests
        if goal is not None:
            plan.goal_id = plan.goal_id or goal.event_id
            plan.reply_to = plan.reply_to or goal.reply_to
            plan.parent_plan_id = plan.parent_plan_id or goal.parent_plan_id
            plan.response_topic = plan.response_topic or goal.response_topic
            plan.response_event = plan.response_event or goal.response_event
            plan.trace_id = plan.trace_id or goal.trace_id or self.event.id
            plan.notify = plan.notify or goal.notify
            plan.goal_event = plan.goal_event or goal.event_type
            plan.tenant_id, plan.user_id = goal.tenant_id, goal.user_id
            plan.session_id = plan.session_id or goal.session_id
            plan.planner = plan.planner or self.environment.goals[goal.event_type].name
        if plan.plan_id != self.correlation_id:
            self._note_alias(plan, plan.plan_id)
        self.plan = plan

    def send(self, fields: dict[str, Any], *, final: bool = False, message_id: str = "") -> str:
        """Stage an event; returns its id, by which a stream knows repetitions unless ``message_id`` is given.

        Raises:
            InvalidEnvelope, InvalidSubject, PayloadTooLarge: it could not be sent.
        """
        event_id: str = fields.pop("id", None) or self.next_id()
        said = self._inherited() | fields
        said["id"], said["time"] = event_id, self._time
        topic, correlation_id, event_type = str(said["topic"]), said["correlation_id"], said["type"]
        payload, content_type = self.environment.encode(WireEvent(said))
        if len(payload) > self.environment.max_event_bytes:
            raise PayloadTooLarge(
                f"{event_type} of plan {said.get('plan_id')} has {len(payload)} bytes; "
                f"the limit is {self.environment.max_event_bytes} (PLANCAST_BUS__MAX_EVENT_BYTES)"
            )
        message_id = message_id or event_id
        if not message_id.isascii() or " " in message_id:
            message_id = encode_token(message_id)
        subject = self.environment.subjects.event(topic, correlation_id, event_type)
        if final and self.plan is not None:
            self.effects.append(
                Respond(
                    topic,
                    correlation_id,
                    event_type,
                    payload,
                    message_id,
                    content_type,
                    self.plan.notify or "",
                )
            )
        else:
            self.effects.append(Publish(subject, payload, message_id, content_type))
        self._sent.append([event_type, event_id])
        return event_id

    def _note_alias(self, plan: PlanContext | None, correlation_id: str) -> None:
        self.effects.append(NoteAlias(correlation_id, self.correlation_id))
        if plan is not None and correlation_id not in plan.aliases:
            plan.aliases.append(correlation_id)

    def next_id(self) -> str:
        """The id of the next event that this turn sends."""
        owner = self.plan.plan_id if self.plan is not None else self.correlation_id
        revision = self.revision
        if self.plan is None and self.goal is None:
            owner, revision = self.event.id, 0
        event_id = effect_id(owner, revision, self._index)
        self._index += 1
        return event_id

    def request(self, fields: dict[str, Any]) -> str:
        """Stage a request, as a task or as the goal of a child plan; it is outstanding until it is answered."""
        fields["response_event"] = fields.get("response_event") or None
        request_id = self.next_id()
        begun = self.plan is not None or self.goal is not None
        child = begun and fields["topic"] == EventTopic.ACTION_REQUESTS and fields["type"] in self.environment.goals
        if child:
            self._send_child_goal(request_id, fields["type"], fields)
        else:
            own = self.plan.correlation_id if self.plan is not None else self.correlation_id
            if begun and fields.get("correlation_id") not in (None, own):
                self._note_alias(self.plan, fields["correlation_id"])
            self.send(fields | {"id": request_id})
        if begun and fields["response_event"]:
            outstanding = self._before_plan if self.plan is None else self.plan.requests
            outstanding[request_id] = Request(fields["type"], fields["response_event"], child=child)
        return request_id

    def respond(self, fields: dict[str, Any]) -> str:
        """Stage an answer; a plan that finishes gives its final response, once."""
        plan = self.plan
        if plan is None or not plan.status.finished or self._responded:
            return self.send(fields)
        self._responded = True
        fields["parent_event_id"] = plan.goal_id
        if plan.response_topic:
            fields["topic"] = plan.response_topic
        return self.send(fields, final=plan.parent_plan_id is None)

    def _send_child_goal(
        self, request_id: str, event_type: str, fields: dict[str, Any], *, message_id: str = ""
    ) -> None:
        parent = self.plan.plan_id if self.plan is not None else self.correlation_id
        metadata = dict(fields.get("metadata") or {})
        metadata |= {"parent_plan_id": parent, "reply_to": self.correlation_id}
        metadata.pop("notify", None)
        sent = {key: value for key, value in fields.items() if key in EventEnvelope.model_fields}
        self.send(
            sent
            | {
                "id": request_id,
                "type": event_type,
                "topic": EventTopic.ACTION_REQUESTS,
                "correlation_id": request_id,
                "metadata": metadata,
            },
            message_id=message_id,
        )

    def _inherited(self) -> dict[str, Any]:
        plan, event = self.plan, self.event
        if plan is None:
            return {
                "source": self.environment.app.name,
                "correlation_id": self.correlation_id,
                "tenant_id": event.tenant_id,
                "user_id": event.user_id,
                "session_id": event.session_id,
                "trace_id": event.trace_id or event.id,
                "parent_event_id": event.id,
            }
        return {
            "source": plan.planner or self.environment.app.name,
            "correlation_id": plan.correlation_id,
            "plan_id": plan.plan_id,
            "goal_id": plan.goal_id,
            "tenant_id": plan.tenant_id or None,
            "user_id": plan.user_id or None,
            "session_id": plan.session_id,
            "trace_id": plan.trace_id,
            "parent_event_id": event.id,
        }

    # What follows from how the plan was left.

    async def _settle_kept(self) -> None:
        """After a pause: kept answers that no transition takes count as they would have when they came."""
        plan = self.plan
        assert plan is not None
        for fields in list(plan.kept) if self._was_paused else ():
            request_id = answered_request(fields)
            request = plan.requests.get(request_id) if request_id else None
            if plan.status is not PlanStatus.RUNNING or request is None or fields not in plan.kept:
                continue
            event = EventEnvelope.model_validate(fields)
            if self._ends_request(plan, request, event):
                await plan.fail(_explain(request, event, plan.current_state))

    def _settle_requests(self) -> None:
        """Timers for the requests that wait, and an end to those that no longer do."""
        plan = self.plan
        assert plan is not None
        if plan.status.finished:
            plan.requests.clear()
        resumed = self._was_paused and plan.status is PlanStatus.RUNNING
        for request_id, request in plan.requests.items():
            due_before = self._asked_before.get(request_id, (None,))[0]
            if request.due is None and request.timeout is not None:
                request.due = self.now + request.timeout
            if request.due is None and request.state is not None:
                action = plan.state_machine[request.state].action
                if action is not None and action.timeout_seconds is not None:
                    request.due = self.now + action.timeout_seconds
            missed = resumed and request.due is not None and request.due <= self.now
            if request.due is not None and (request.due != due_before or missed):
                self._set_timer(plan, request_id, request)
        for request_id, (due, child, sequence, event_type) in self._asked_before.items():
            if request_id in plan.requests:
                continue
            if due is not None and not (self.is_timer and self.event.parent_event_id == request_id):
                self.effects.append(CancelTimer(plan.correlation_id, _timer_name(request_id)))
            if request_id != self.event.parent_event_id or self.is_timer:
                self._take_back(request_id, child, sequence, event_type)

    def _take_back(self, request_id: str, child: bool, sequence: int, event_type: str) -> None:
        if child:
            self.send(
                {
                    "type": CANCEL,
                    "topic": EventTopic.PLAN_EVENTS,
                    "correlation_id": request_id,
                    "data": {"reason": f"plan {self.plan.plan_id if self.plan else ''} no longer waits for it"},
                }
            )
        elif sequence:
            self.effects.append(Withdraw(sequence))

    def _set_timer(self, plan: PlanContext, request_id: str, request: Request) -> None:
        assert request.due is not None
        name = _timer_name(request_id)
        event = EventEnvelope(
            id=f"{request_id}:due:{request.attempt}:{'again' if request.asking_again else 'timeout'}",
            source="plancast",
            type=timeout_event(request.response_event),
            topic=EventTopic.PLAN_EVENTS,
            time=datetime.fromtimestamp(request.due, UTC),
            data={"error": f"{request.event_type} was not answered in time", "request": request.event_type},
            correlation_id=plan.correlation_id,
            parent_event_id=request_id,
            plan_id=plan.plan_id,
            tenant_id=plan.tenant_id or None,
        )
        payload, content_type = self.environment.encode(event)
        self.effects.append(SetTimer(plan.correlation_id, name, request.due, payload, content_type))

    def entry(self) -> dict[str, Any]:
        """The turn as an entry of the plan's timeline."""
        plan = self.plan
        assert plan is not None
        entry: dict[str, Any] = {
            "revision": self.revision,
            "time": self.now,
            "event": self.event.to_wire(),
            "from": self._from,
            "path": list(plan.moves),
            "state": plan.current_state,
            "status": str(plan.status),
            "sent": self._sent,
        }
        others = [effect_kind(each) for each in self.effects if not isinstance(each, (Publish, Respond))]
        if others:
            entry["effects"] = others
        if self.decisions:
            entry["decisions"] = self.decisions
        if self.exchange:
            entry["exchange"] = self.exchange
        if self.is_timer:
            entry["timer"] = True
        if self.notes:
            entry["notes"] = self.notes
        if plan.error is not None:
            entry["error"] = plan.error
        if plan.pause_reason is not None:
            entry["pause_reason"] = plan.pause_reason
        return entry


_CONTROLS = {CANCEL: Turn._cancel, PAUSE: Turn._pause, RESUME: Turn._resume}


def _check_response(event_type: str, topic: str | None) -> None:
    """
    Raises:
        InvalidSubject, ValueError: a final response of this type, on this topic, could not be sent.
    """
    if event_type:
        check_event_type(event_type)
    if topic:
        EventTopic(topic)


def _timer_name(request_id: str) -> str:
    return request_id.rpartition(":")[2]


def cancel_reason(event: EventEnvelope) -> str:
    """Why a cancellation cancels."""
    return str(_said(event, "reason") or "cancelled")


def _said(event: Any, name: str) -> Any:
    return event.data.get(name) if isinstance(event.data, dict) else None


def _explain(request: Request, event: Any, state: str) -> str:
    error = _said(event, "error")
    if event.type not in (failed_event(request.response_event), timeout_event(request.response_event)):
        return f"{event.type} came, but no transition of state {state!r} takes it"
    return f"{event.type}: {error}" if error else f"{event.type} (asked with {request.event_type} in state {state!r})"
