"""A turn: one event handled by one plan, everything it does staged until it is committed."""

from __future__ import annotations

from typing import Any

from plancast.context import GoalContext, PlatformContext, TransitionContext
from plancast.errors import ForeignPlan, InvalidApp, InvalidDecision, InvalidStateMachine, TerminalError
from plancast.models.decorators import RecordedAnswers
from plancast.plan import early_events, state_moves
from plancast.plan.context import PlanContext
from plancast.plan.control_events import FORK
from plancast.plan.event_fields import answered_request, error_text
from plancast.plan.record import WAITING_FOR
from plancast.plan.requests import WAIT, Request
from plancast.plan.staged_events import StagedEvents
from plancast.plan.status import PAUSED, PENDING, RUNNING
from plancast.plan.transitions import is_stale, target_of
from plancast.plan_tree import TOP, Place, read_place
from plancast.planners.contract import version_of
from plancast.planners.planner import Handler, Planner, call_handler, wants_four
from plancast.state_machine.machine import validate_state_machine
from plancast.turn.autonomous import Deciding
from plancast.turn.controls import CONTROLS
from plancast.turn.environment import TurnEnvironment, Verdict
from plancast.turn.outbox import Outbox
from plancast.turn.retries import as_failure_of_child, ask_later, ends_request, explain, is_failure
from plancast.turn.timeline_entry import packed_entry, timeline_entry
from plancast.turn.timers import due_name, settle_kept, settle_requests
from plancast_bus.errors import PayloadTooLarge
from plancast_bus.events.codec import pack
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.events.trace_context import trace_id_of
from plancast_bus.subjects import check_event_type

__all__ = ["Turn", "TurnEnvironment", "Verdict"]

COMMIT, REQUESTS, PLAN_EVENTS = Verdict.COMMIT, EventTopic.ACTION_REQUESTS, EventTopic.PLAN_EVENTS


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

    answers: list[dict[str, Any] | None] | None = None
    """What models have answered handlers, where timelines are kept in full; None for a question without an answer."""

    packed_event: bytes = b""
    """The event in msgpack, where it came so; empty: not known. Code of the app may change the event, and not this."""

    def __init__(
        self,
        environment: TurnEnvironment,
        correlation_id: str,
        event: EventEnvelope,
        plan: PlanContext | None,
        revision: int,
        now: float,
        is_timer: bool = False,
    ) -> None:
        self.environment = environment
        self.correlation_id = correlation_id
        self.event: Any = event
        self.plan = plan
        self.revision = revision
        self.now = now
        self.is_timer = is_timer
        self.outbox = Outbox(environment, correlation_id, event, plan, revision, now)
        self.effects = self.outbox.effects
        self.notes: list[str] = []
        self.reason = ""
        """Why an event was ignored or refused."""
        self.goal: GoalContext | None = None
        self.decisions: list[dict[str, Any]] = []
        """What a planner has decided, and what it took."""
        self.calls: list[dict[str, Any]] = []
        """The questions that were put to models."""
        self.exchange: list[dict[str, Any]] = []
        """What was said and answered, when no decision came of it."""
        self.too_large = False
        """The plan did not fit into its checkpoint; the event's data is left out of the timeline, too."""
        self.has_run = False
        """Whether code of the app may have changed the plan."""
        self._saves = 0
        self.asked_before: dict[str, tuple[float | None, bool, int]] = {}
        """The requests that were open before, each as when it is due, whether it is a child, and its sequence."""
        self.state_before = plan.current_state if plan is not None else ""
        self.was_paused = plan is not None and plan.status is PAUSED
        self.context = PlatformContext(
            StagedEvents(self.outbox),
            environment.memory_of(plan.tenant_id if plan is not None else event.tenant_id or ""),
            environment.registry,
            environment.toolkit,
            self._recorded_reasoner() if environment.in_full else environment.reasoner,
            self,
        )
        if plan is not None:
            plan._context = self.context
            plan._has_handler = self._transition_handler(plan) is not None
            plan.moves.clear()
            self.asked_before = {key: (each.due, each.child, each.sequence) for key, each in plan.requests.items()}

    def belongs_to(self, trace: str) -> None:
        """Have the turn, and what it sends, belong to a trace; see :mod:`plancast_bus.events.trace_context`."""
        self.outbox.trace, self.outbox.trace_id = trace, trace_id_of(trace)
        self.event.trace_id = self.outbox.trace_id

    def _recorded_reasoner(self) -> RecordedAnswers:
        recorded = RecordedAnswers(self.environment.reasoner)
        self.answers = recorded.answers
        return recorded

    def close(self) -> None:
        """Let go of what knows the turn: cycles, left to the garbage collector, cost more than the turn itself."""
        if self.plan is not None:
            self.plan._context = None
        self.context.turn = None
        del self.context

    # What happens in a turn.

    async def run(self) -> Verdict:
        """Handle the event."""
        self.has_run = True
        if self.plan is None:
            verdict = await self._without_plan()
        elif not self.same_tenant(self.event):
            verdict = self.refused(
                f"tenant {self.event.tenant_id or ''!r} may not move a plan of tenant {self.plan.tenant_id!r}"
            )
        elif self._is_goal:
            verdict = self._repeated_goal(self.plan)
        elif self.plan.status.finished:
            verdict = self.ignored(f"the plan is {self.plan.status}")
        elif self.event.topic == PLAN_EVENTS and self.event.type in CONTROLS:
            verdict = await CONTROLS[self.event.type](self, self.plan)
        elif (missing := self.environment.missing_code(self.plan)) is not None:
            await self.plan.fail(missing)
            verdict = COMMIT
        elif self.is_timer:
            verdict = await self._timer(self.plan)
        else:
            verdict = await self._offer(self.plan)
        if verdict is COMMIT:
            assert self.plan is not None
            if self.plan.kept and self.plan.state_machine:
                await self._hand_over_kept(self.plan)
            if self.was_paused:
                await settle_kept(self.plan)
            settle_requests(self, self.plan)
        return verdict

    async def cancel(self, reason: str) -> Verdict:
        """Instead of :meth:`run`, when a cancellation has stopped a goal's handler: the plan ends before it began."""
        self.plan = await PlanContext.create_from_goal(self._read_goal(), {})
        await self.plan.cancel(reason)
        return COMMIT

    async def fail(self, error: BaseException) -> Verdict:
        """Instead of :meth:`run`, when that has raised: the plan fails with the error, and the requester hears it."""
        if self.plan is None and self.is_timer and self.event.type == FORK:
            from plancast.turn.fork import ForkedFrom, begin

            begin(self, ForkedFrom.model_validate(self.event.data), {})
        if self.plan is None:
            if not self._is_goal:
                return self.refused(f"a handler failed: {error_text(error)}")
            try:
                self.plan = await PlanContext.create_from_goal(self._read_goal(), {})
            except ValueError as fault:
                return self.refused(f"the goal cannot be answered: {fault}")
        self.notes.append(f"the turn failed: {type(error).__name__}")
        if isinstance(error, (InvalidDecision, InvalidStateMachine)):
            self.exchange = list(getattr(error, "exchange", ()))
        if isinstance(error, PayloadTooLarge):
            self._make_room(self.plan)
        await self.plan.fail(str(error) if isinstance(error, TerminalError) else error)
        settle_requests(self, self.plan)
        return COMMIT

    def _make_room(self, plan: PlanContext) -> None:
        """Drop what may have made the plan too large for its checkpoint; else its failure would not fit in either."""
        plan.results, plan.result, plan.kept, plan.trajectory, plan.control = {}, None, [], [], {}
        self.too_large = True
        self.notes.append("the results were dropped, for the plan to fit into its checkpoint")
        if len(pack(plan.goal_data)) > self.environment.max_event_bytes // 4:
            plan.goal_data = {}
            self.notes.append("what the goal said was dropped, too")

    @property
    def new_child(self) -> Place | None:
        """Where the plan stands that this turn begins; None for a top-level plan, and where there is a plan."""
        event = self.event
        place = read_place(event.metadata) if self.plan is None and event.metadata and self._is_goal else TOP
        return place if place.root else None

    @property
    def _is_goal(self) -> bool:
        return self.event.topic == REQUESTS and self.event.type in self.environment.goals

    async def _without_plan(self) -> Verdict:
        if self._is_goal:
            return await self._begin(self.environment.goals[self.event.type])
        if self.is_timer and self.event.type == FORK:
            from plancast.turn.fork import fork

            return await fork(self)
        handled = await self._call_listeners()
        if self.plan is not None:
            return COMMIT
        if handled:
            return Verdict.EMIT if self.effects else Verdict.IGNORE
        self.reason = "no plan has this correlation id"
        return Verdict.UNKNOWN

    async def _begin(self, planner: Planner) -> Verdict:
        goal = self._read_goal()
        try:
            _check_response(goal.response_event, goal.response_topic)
        except ValueError as error:
            return self.refused(f"the goal cannot be answered: {error}")
        handler, machine = planner.goal_handler(goal.event_type), planner.machine(goal.event_type)
        if handler is not None:
            await call_handler(handler, goal, self.context)
        if self.plan is None and machine is not None:
            await PlanContext.create_from_goal(goal, machine)
        decider = planner.decider(goal.event_type)
        if self.plan is None and decider is not None:
            decided = await PlanContext.create_from_goal(goal, {})
            decided.decider, decided.planner_version = decider.name, version_of(decider)
            await Deciding(self, decided, decider).on_goal()
            return COMMIT
        if self.plan is None:
            await PlanContext.create_from_goal(goal, {})
        plan = self.plan
        assert plan is not None
        if plan.state_machine:
            self._check_machine(plan)
            if plan.status is PENDING:
                await plan.execute_next()
        elif plan.status is PENDING:
            if not self.outbox.sent:
                raise InvalidApp(f"the handler of goal {goal.event_type!r} made no plan and sent nothing")
            plan.status = RUNNING
        await self._settle_by_hand(plan)
        return COMMIT

    def _read_goal(self) -> GoalContext:
        """The event as a goal; what is sent from now on is a plan's."""
        self.goal = GoalContext.from_event(self.event, self.context)
        self.outbox.begun = True
        return self.goal

    def _check_machine(self, plan: PlanContext) -> None:
        digest = plan.machine.hash
        if digest not in self.environment.checked:
            validate_state_machine(plan.machine.states)
            self.environment.checked.add(digest)

    def _repeated_goal(self, plan: PlanContext) -> Verdict:
        """A goal for a plan that exists: submitted twice, or a step of the plan itself that is a goal meanwhile."""
        request = plan.requests.get(self.event.id)
        if request is None or request.child:
            return self.ignored("the goal has its plan already")
        fields = self.event.model_dump(exclude={"correlation_id", "metadata", "topic", "type", "id", "time"})
        # Under its own id the stream would drop it as a repetition of the request.
        message_id = f"{self.event.id}:adopted"
        self.outbox.send_child_goal(
            self.event.id, self.event.type, fields | {"metadata": self.event.metadata}, message_id=message_id
        )
        request.child = True
        return COMMIT

    async def _offer(self, plan: PlanContext) -> Verdict:
        """Let the event move the plan, in the order: retry, listeners, machine or transition handler, keep."""
        parent = answered_request(self.event)
        if parent is not None and is_stale(plan, parent):
            return self.ignored("an answer that came too late, or twice")
        request = plan.requests.get(parent) if parent else None
        event = as_failure_of_child(plan, request, self.event)
        if request is not None and is_failure(request, event) and ask_later(self, plan, request, event):
            return COMMIT
        called = False
        if self.environment.listeners:
            before = self._position(plan)
            called = await self._call_listeners()
            if self._position(plan) != before:
                await self._settle_by_hand(plan)
                return COMMIT
        deciding = self.deciding(plan)
        if deciding is not None:
            return COMMIT if await deciding.on_event(event, request) else self._keep(plan, event)
        if plan.status is PAUSED and not (request is None and self._waits_for(plan, event)):
            return self._keep(plan, event)
        handler = self._transition_handler(plan) if plan._has_handler else None
        if handler is not None and not plan.state_machine and (request is not None or self._waits_for(plan, event)):
            await self._hand_over(plan, event, handler)
            return COMMIT
        if plan.status is PAUSED:
            await plan.resume(event.data)
            return COMMIT
        target = plan.get_next_state(event) if called else target_of(plan, plan.current_state, event)
        if target is not None:
            await self._move(plan, event, target, handler)
            return COMMIT
        if called and (request is None or request.state is None) and event.type not in plan.machine.event_types:
            if parent:
                plan.requests.pop(parent, None)
            return COMMIT
        verdict = await self._not_taken(plan, request, event)
        return COMMIT if called else verdict

    async def _move(self, plan: PlanContext, event: Any, target: str, handler: Handler | None) -> None:
        if handler is None:
            await _take_transition(plan, event, target)
        else:
            await self._hand_over(plan, event, handler, target)

    def _transition_handler(self, plan: PlanContext) -> Handler | None:
        planner = self.environment.planner_of(plan)
        return planner.transition_handler if planner is not None else None

    async def _hand_over(self, plan: PlanContext, event: Any, handler: Handler, target: str | None = None) -> bool:
        """Let the planner's handler move the plan; False when it did nothing."""
        if not plan.state_machine:
            state_moves.store_result(plan, event.type, event)
        before = self._mark(plan)
        if wants_four(handler):
            await call_handler(handler, event, self.context, plan, target)
        else:
            await call_handler(handler, TransitionContext(event, plan, target), self.context)
        await self._settle_by_hand(plan)
        if self._mark(plan) != before:
            return True
        self.notes.append(f"the transition handler made no move on {event.type}")
        self._close_answered(plan, event)
        return False

    def _close_answered(self, plan: PlanContext, event: Any) -> None:
        """The request that an event has answered is open no more, also when nothing came of the answer."""
        answered = None if self.is_timer else answered_request(event)
        if answered is None or plan.requests.pop(answered, None) is None:
            return
        plan.unmoved = plan.current_state
        if answered in self.asked_before:
            due, _, _ = self.asked_before[answered]
            self.asked_before[answered] = (due, False, 0)  # its timer ends; there is nothing left to take back

    async def _hand_over_kept(self, plan: PlanContext) -> None:
        """Offer the handler what came before the plan's state waited for it, as if it came now."""
        handler = self._transition_handler(plan)
        for _ in range(state_moves.MAX_MOVES):
            if handler is None or plan.status is not RUNNING:
                return
            if (found := early_events.take_for_state(plan)) is None:
                return
            fields, target = found
            await self._hand_over(plan, EventEnvelope.model_validate(fields), handler, target)

    async def _settle_by_hand(self, plan: PlanContext) -> None:
        """A state that a handler has set, and neither entered nor paused in, is entered now."""
        if not state_moves.is_assigned(plan):
            return
        event = None if self._is_goal else self.event
        if plan.status is RUNNING:
            await state_moves.enter_assigned(plan, event)
        elif plan.status is PAUSED:
            state_moves.stay_in_assigned(plan, event)

    async def _not_taken(self, plan: PlanContext, request: Request | None, event: Any) -> Verdict:
        if request is not None and ends_request(plan, request, event):
            await plan.fail(explain(request, event, plan.current_state))
            return COMMIT
        if plan.state_machine and event.type not in plan.machine.event_types:
            return self.ignored(f"no state waits for {event.type}")
        return self._keep(plan, event)

    def _keep(self, plan: PlanContext, event: Any) -> Verdict:
        dropped = early_events.keep(plan, event.to_wire(), self.environment.settings.max_kept_events)
        self.notes.append(f"{event.type} is kept until a state waits for it")
        if dropped is not None:
            self.notes.append(f"warning: too many kept events, the oldest ({dropped}) was dropped")
        return COMMIT

    async def _timer(self, plan: PlanContext) -> Verdict:
        request_id = self.event.parent_event_id
        request = plan.requests.get(request_id)
        if request is None or request.due is None:
            return self.ignored("a timer of a request that is settled")
        if not self.event.id.endswith(f":{due_name(request)}"):
            return self.ignored("a timer of an earlier attempt")
        deciding = self.deciding(plan)
        if plan.status is PAUSED and request.event_type != WAIT:
            return self.ignored("the plan is paused; the timer is set again when it goes on")
        if deciding is not None:
            await deciding.on_timer(self.event, request_id, request)
            return COMMIT
        if request.event_type == WAIT:
            state_moves.end_wait(plan)
            handler = self._transition_handler(plan)
            if handler is not None and await self._hand_over(plan, self.event, handler):
                return COMMIT
            await plan.fail(f"deadline_exceeded: {request.response_event} did not come in {request.timeout:g} s")
            return COMMIT
        if request.asking_again:
            await state_moves.retry_request(plan, request_id)
            return COMMIT
        if ask_later(self, plan, request, self.event):
            return COMMIT
        target = plan.get_next_state(self.event)
        if target is None:
            return await self._not_taken(plan, request, self.event)
        await self._move(plan, self.event, target, self._transition_handler(plan))
        return COMMIT

    async def _call_listeners(self) -> bool:
        called = False
        for planner in self.environment.listeners:
            for handler in planner.event_handlers(self.event.type, self.event.topic):
                called = True
                await call_handler(handler, self.event, self.context)
        return called

    async def decide_anew(self, plan: PlanContext) -> bool:
        """Ask the planner of a plan that it decides, as after a pause; False when it has none."""
        deciding = self.deciding(plan)
        if deciding is not None:
            plan.status = RUNNING
            await deciding.on_resume(waited=False, said=None)
        return deciding is not None

    def may_be_moved_by_code(self, plan: PlanContext) -> bool:
        """Whether a handler of the app's could still move a plan out of a state that has no way out."""
        return bool(self.environment.listeners) or self._transition_handler(plan) is not None

    def hands_over(self, plan: PlanContext) -> bool:
        """Whether a transition handler has its say on the plan's moves."""
        return self._transition_handler(plan) is not None

    def deciding(self, plan: PlanContext) -> Deciding | None:
        """How a plan goes on that a planner decides; None for others."""
        decider = self.environment.decider_of(plan)
        return Deciding(self, plan, decider) if decider is not None else None

    def _waits_for(self, plan: PlanContext, event: Any) -> bool:
        """Whether an event from outside is what a paused plan waits for."""
        return plan.get_next_state(event) is not None or event.type == plan.results.get(WAITING_FOR)

    def ignored(self, reason: str) -> Verdict:
        """The verdict on an event that changes nothing."""
        self.reason = reason
        return Verdict.IGNORE

    def refused(self, reason: str) -> Verdict:
        """The verdict on an event that may not move the plan."""
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
        if goal is not None:
            plan.goal_id = plan.goal_id or goal.event_id
            plan.reply_to = plan.reply_to or goal.reply_to
            plan.parent_plan_id = plan.parent_plan_id or goal.parent_plan_id
            plan.response_topic = plan.response_topic or goal.response_topic
            plan.response_event = plan.response_event or goal.response_event
            plan.trace_id = plan.trace_id or goal.trace_id or self.event.id
            plan.notify = plan.notify or goal.notify
            plan.root, plan.depth = goal.place
            plan.goal_event = plan.goal_event or goal.event_type
            plan.tenant_id, plan.user_id = goal.tenant_id, goal.user_id
            plan.session_id = plan.session_id or goal.session_id
            planner = self.environment.goals[goal.event_type]
            plan._has_handler = planner.transition_handler is not None
            plan.planner = plan.planner or planner.name
            if planner.transition_handler is not None or not plan.state_machine:
                plan.planner_version = planner.version
        self.outbox.begin(plan)
        self.plan = plan

    def next_id(self) -> str:
        """The id of the next event that this turn sends."""
        return self.outbox.next_id()

    def entry(self) -> dict[str, Any]:
        """The turn as an entry of the plan's timeline."""
        assert self.plan is not None
        return timeline_entry(self, self.plan)

    def packed_entry(self) -> bytes:
        """The same in msgpack."""
        assert self.plan is not None
        return packed_entry(self, self.plan)


async def _take_transition(plan: PlanContext, event: Any, target: str) -> None:
    if state_moves.is_assigned(plan):
        await plan.execute_next(event)
        return
    state_moves.store_result(plan, plan.current_state, event)
    await state_moves.enter(plan, target)


def _check_response(event_type: str, topic: str | None) -> None:
    """
    Raises:
        InvalidSubject, ValueError: a final response of this type, on this topic, could not be sent.
    """
    if event_type:
        check_event_type(event_type)
    if topic:
        EventTopic(topic)
