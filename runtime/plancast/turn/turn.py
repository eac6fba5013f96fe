"""A turn: one plan handles one event; its effects are staged until they are committed."""

from __future__ import annotations

from typing import Any

from plancast.context import GoalContext, TransitionContext
from plancast.errors import InvalidApp, InvalidDecision, InvalidGoal, InvalidStateMachine, TerminalError
from plancast.json_values.schemas import faults_at
from plancast.plan import early_events, state_moves
from plancast.plan.context import PlanContext
from plancast.plan.control_events import CANCEL, DEADLINE, FORK, REJECT
from plancast.plan.event_fields import answered_request, error_text
from plancast.plan.record import WAITING_FOR
from plancast.plan.requests import WAIT, Request
from plancast.plan.status import PAUSED, PENDING, RUNNING
from plancast.plan.transitions import is_stale, target_of
from plancast.plan_tree import TOP, Place, read_place
from plancast.planners.contract import version_of
from plancast.planners.planner import Handler, Planner, call_handler, wants_four
from plancast.state_machine.machine import validate_state_machine
from plancast.turn.autonomous import AutonomousTurn, autonomous_turn
from plancast.turn.controls import CONTROLS
from plancast.turn.deliberation import Deliberation, deliberation_of_handler
from plancast.turn.environment import TurnEnvironment, TurnOutcome
from plancast.turn.fork import ForkData, create_fork, start_fork
from plancast.turn.record import TurnRecord, check_response
from plancast.turn.retries import as_failure_of_child, ends_request, explain, is_failure, schedule_retry
from plancast.turn.task_responses import take_answer
from plancast.turn.timeline_entry import packed_entry, timeline_entry
from plancast.turn.timers import deadline_error, fail_on_early_answers, reconcile_requests, timer_name
from plancast_bus.errors import PayloadTooLarge
from plancast_bus.events.codec import pack
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.topics import SOURCES

__all__ = ["Turn", "TurnEnvironment", "TurnOutcome"]

COMMIT, PLAN_EVENTS = TurnOutcome.COMMIT, EventTopic.PLAN_EVENTS


class Turn(TurnRecord):
    """One turn. ``await run()``, and use ``plan``, ``effects`` and ``entry()`` when the outcome is COMMIT."""

    async def run(self) -> TurnOutcome:
        """Handle the event."""
        self.has_run = True
        if self.plan is None:
            outcome = await self._without_plan()
        elif reason := self.foreign(self.event):
            outcome = self.refused(reason)
        elif self.is_goal:
            outcome = self._repeated_goal(self.plan)
        elif self._concerns_listeners(self.plan):
            outcome = await self._offer_apart(self.plan)
        elif self.plan.status.finished:
            outcome = self.ignored(f"the plan is {self.plan.status}")
        elif self.plan.deadline is not None and self._has_reached(self.plan.deadline):
            await self.plan.fail(deadline_error(self.plan.deadline))
            outcome = COMMIT
        elif self.event.topic == PLAN_EVENTS and self.event.type in CONTROLS:
            outcome = await CONTROLS[self.event.type](self, self.plan)
        elif (missing := self.environment.missing_code(self.plan)) is not None:
            await self.plan.fail(missing)
            outcome = COMMIT
        elif self.is_timer:
            outcome = await self._timer(self.plan)
        else:
            outcome = await self._offer(self.plan)
        if outcome is COMMIT:
            assert self.plan is not None
            if self.plan.kept and self.plan.state_machine:
                await self._hand_over_early(self.plan)
            if self.was_paused:
                await fail_on_early_answers(self.plan)
            reconcile_requests(self, self.plan)
        return outcome

    async def cancel(self, reason: str) -> TurnOutcome:
        """Cancel the plan before it begins: a cancellation has interrupted the goal's handler. Replaces :meth:`run`."""
        self.plan = await PlanContext.create_from_goal(self._read_goal(), {})
        await self.plan.cancel(reason)
        return COMMIT

    async def fail(self, error: BaseException) -> TurnOutcome:
        """Fail the plan with an error that :meth:`run` has raised. Called on a new turn for the same event."""
        if self.plan is None and self.is_timer and self.event.type == FORK:
            create_fork(self, ForkData.model_validate(self.event.data), {})
        if self.plan is None:
            if not self.is_goal:
                return self.refused(f"a handler failed: {error_text(error)}")
            try:
                self.plan = await PlanContext.create_from_goal(self._read_goal(), {})
            except ValueError as fault:
                return self.refused(f"the goal cannot be answered: {fault}")
        if self._concerns_listeners(self.plan):
            return self.refused(f"a handler failed: {error_text(error)}")
        self.notes.append(f"the turn failed: {type(error).__name__}")
        if isinstance(error, (InvalidDecision, InvalidStateMachine)):
            self.exchange = list(getattr(error, "exchange", ()))
        if isinstance(error, PayloadTooLarge):
            self._make_room(self.plan)
        await self.plan.fail(str(error) if isinstance(error, TerminalError) else error)
        reconcile_requests(self, self.plan)
        return COMMIT

    def _make_room(self, plan: PlanContext) -> None:
        """Drop what may have made the plan too large for its checkpoint, so that at least its failure fits."""
        plan.results, plan.result, plan.kept, plan.trajectory, plan.control = {}, None, [], [], {}
        self.too_large = True
        self.notes.append("the results were dropped, for the plan to fit into its checkpoint")
        if len(pack(plan.goal_data)) > self.environment.max_event_bytes // 4:
            plan.goal_data = {}
            self.notes.append("what the goal said was dropped, too")

    def entry(self) -> dict[str, Any]:
        """The turn as an entry of the plan's timeline."""
        assert self.plan is not None
        return timeline_entry(self, self.plan)

    def packed_entry(self) -> bytes:
        """The result of :meth:`entry` in msgpack."""
        assert self.plan is not None
        return packed_entry(self, self.plan)

    # Events without a plan: goals, forks, and events for listeners.

    @property
    def new_child(self) -> Place | None:
        """Place of the child plan that this turn begins in its tree; None when it begins none."""
        event = self.event
        place = read_place(event.metadata) if self.plan is None and event.metadata and self.is_goal else TOP
        return place if place.root else None

    async def _without_plan(self) -> TurnOutcome:
        if self.is_goal:
            return await self._begin(self.environment.goals[self.event.type])
        if self.is_timer and self.event.type == FORK:
            return await start_fork(self)
        handled = await self._call_listeners()
        if self.plan is not None:
            return COMMIT
        if handled:
            return TurnOutcome.EMIT if self.effects else TurnOutcome.IGNORE
        self.reason = "no plan has this correlation id"
        return TurnOutcome.UNKNOWN

    async def _begin(self, planner: Planner) -> TurnOutcome:
        """Create and start the plan of a goal, by its handler, its state machine or its decider."""
        goal = self._read_goal()
        try:
            check_response(goal.response_event, goal.response_topic)
        except ValueError as error:
            return self.refused(f"the goal cannot be answered: {error}")
        if faults := faults_at("goal_data", planner.goal_schema(goal.event_type), goal.data):
            raise InvalidGoal(goal.event_type, faults)
        if goal.deadline is not None and self._has_reached(goal.deadline):
            await (await PlanContext.create_from_goal(goal, {})).fail(deadline_error(goal.deadline))
            return COMMIT
        handler, machine = planner.goal_handler(goal.event_type), planner.machine(goal.event_type)
        if handler is not None:
            await call_handler(handler, goal, self.context)
        if self.plan is None:
            decider = planner.decider(goal.event_type) if machine is None else None
            plan = await PlanContext.create_from_goal(goal, machine if machine is not None else {})
            if decider is not None:
                plan.decider, plan.planner_version = decider.name, version_of(decider)
                await AutonomousTurn(self, plan, decider).on_goal()
                return COMMIT
        assert self.plan is not None
        plan = self.plan
        if plan.state_machine:
            self._check_machine(plan)
            if plan.status is PENDING:
                await plan.execute_next()
        elif plan.status is PENDING:
            if not self.outbox.sent:
                raise InvalidApp(f"the handler of goal {goal.event_type!r} made no plan and sent nothing")
            plan.status = RUNNING
        await self._enter_assigned(plan)
        return COMMIT

    def _has_reached(self, deadline: float) -> bool:
        """True if the plan has to end now; a cancellation or rejection still says why by itself."""
        due = self.now >= deadline or (self.is_timer and self.event.type == DEADLINE)
        return due and self.event.type not in (CANCEL, REJECT)

    def _read_goal(self) -> GoalContext:
        """Read the event as a goal; events that are sent from now on belong to a plan."""
        self.goal = GoalContext.from_event(self.event, self.context)
        self.outbox.begun = True
        return self.goal

    def _check_machine(self, plan: PlanContext) -> None:
        digest = plan.machine.hash
        if digest not in self.environment.checked:
            validate_state_machine(plan.machine.states)
            self.environment.checked.add(digest)

    def _repeated_goal(self, plan: PlanContext) -> TurnOutcome:
        """Handle a goal for a plan that exists: a repetition, or a request of the plan that has become a goal since."""
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

    # Events of a plan.

    async def _offer(self, plan: PlanContext) -> TurnOutcome:
        """Offer the event to the plan, in this order: retry, listeners, machine or transition handler, buffer."""
        parent = answered_request(self.event)
        if parent is not None and is_stale(plan, parent):
            return self.ignored("an answer that came too late, or twice")
        request = plan.requests.get(parent) if parent else None
        event = as_failure_of_child(plan, request, self.event)
        if (
            request is not None
            and is_failure(request, event)
            and schedule_retry(plan, request, event, self.now, self.notes)
        ):
            return COMMIT
        called = False
        if self.environment.listeners:
            before = _position(plan)
            called = await self._call_listeners()
            if _position(plan) != before:
                await self._enter_assigned(plan)
                return COMMIT
        autonomous = autonomous_turn(self, plan)
        if autonomous is not None:
            return COMMIT if await autonomous.on_event(event, request) else self._keep(plan, event)
        if plan.status is PAUSED and not (request is None and _waits_for(plan, event)):
            return self._keep(plan, event)
        handler = self.environment.transition_handler(plan) if plan._has_handler else None
        if handler is not None and not plan.state_machine and (request is not None or _waits_for(plan, event)):
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
        outcome = await self._not_taken(plan, request, event)
        return COMMIT if called else outcome

    async def _timer(self, plan: PlanContext) -> TurnOutcome:
        """Handle a due timer: a retry, a timeout, or the end of a WAIT."""
        request_id = self.event.parent_event_id
        request = plan.requests.get(request_id)
        if request is None or request.due is None:
            return self.ignored("a timer of a request that is settled")
        if not self.event.id.endswith(f":{timer_name(request)}"):
            return self.ignored("a timer of an earlier attempt")
        if plan.status is PAUSED and request.event_type != WAIT:
            return self.ignored("the plan is paused; the timer is set again when it goes on")
        autonomous = autonomous_turn(self, plan)
        if autonomous is not None:
            await autonomous.on_timer(self.event, request_id, request)
            return COMMIT
        handler = self.environment.transition_handler(plan)
        if request.event_type == WAIT:
            state_moves.end_wait(plan)
            if handler is None or not await self._hand_over(plan, self.event, handler):
                await plan.fail(f"deadline_exceeded: {request.response_event} did not come in {request.timeout:g} s")
            return COMMIT
        if handler is not None and not plan.state_machine:
            await self._hand_over(plan, self.event, handler)
            return COMMIT
        if request.asking_again:
            await state_moves.retry_request(plan, request_id)
            return COMMIT
        if schedule_retry(plan, request, self.event, self.now, self.notes):
            return COMMIT
        target = plan.get_next_state(self.event)
        if target is None:
            return await self._not_taken(plan, request, self.event)
        await self._move(plan, self.event, target, handler)
        return COMMIT

    async def _move(self, plan: PlanContext, event: Any, target: str, handler: Handler | None) -> None:
        """Take a transition that the event was found to lead to, by the handler if there is one."""
        if handler is not None:
            await self._hand_over(plan, event, handler, target)
        elif state_moves.is_assigned(plan):
            await plan.execute_next(event)
        else:
            state_moves.store_result(plan, plan.current_state, event)
            await state_moves.enter(plan, target)

    async def _not_taken(self, plan: PlanContext, request: Request | None, event: Any) -> TurnOutcome:
        """Handle an event without a transition: fail the plan, ignore the event, or keep it for a later state."""
        if request is not None and ends_request(plan, request, event):
            await plan.fail(explain(request, event, plan.current_state))
            return COMMIT
        if plan.state_machine and event.type not in plan.machine.event_types:
            return self.ignored(f"no state waits for {event.type}")
        return self._keep(plan, event)

    def _keep(self, plan: PlanContext, event: Any) -> TurnOutcome:
        dropped = early_events.keep(plan, event.to_wire(), self.environment.settings.max_kept_events)
        self.notes.append(f"{event.type} is kept until a state waits for it")
        if dropped is not None:
            self.notes.append(f"warning: too many kept events, the oldest ({dropped}) was dropped")
        return COMMIT

    # Code of the app.

    async def deliberation(self, planner: Any, plan: Any) -> Deliberation | None:
        """The deliberation of a planner that a handler calls; None where it is not about the turn's own plan."""
        return await deliberation_of_handler(self, planner, plan)

    def _concerns_listeners(self, plan: PlanContext) -> bool:
        """True if the event moves no plan, but may be heard: a system event, or one that a finished plan gets."""
        if self.is_timer:
            return False
        topic = self.event.topic
        return topic == EventTopic.SYSTEM_EVENTS or (plan.status.finished and topic != PLAN_EVENTS)

    async def _offer_apart(self, plan: PlanContext) -> TurnOutcome:
        """Call listeners apart from the plan, which does not change; what they send is no plan's."""
        self.plan, self.apart = None, True
        self.outbox.leave()
        # Final responses come on topics of answers: they are for those who asked, and for who listens there by name.
        if await self._call_listeners(of_topic=SOURCES[self.event.topic] == "results") and self.effects:
            return TurnOutcome.EMIT
        return self.ignored(f"the plan is {plan.status}" if plan.status.finished else "a system event moves no plan")

    async def _call_listeners(self, *, of_topic: bool = False) -> bool:
        called = False
        for planner in self.environment.listeners:
            for handler in planner.event_handlers(self.event.type, self.event.topic, of_topic=of_topic):
                called = True
                await call_handler(handler, self.event, self.context)
        return called

    async def _hand_over(self, plan: PlanContext, event: Any, handler: Handler, target: str | None = None) -> bool:
        """Let the transition handler move the plan; False when it did nothing."""
        if not plan.state_machine and answered_request(event) in plan.requests:
            take_answer(plan, event.to_wire())
        elif not plan.state_machine:
            state_moves.store_result(plan, event.type, event)
        before = self._mark(plan)
        if wants_four(handler):
            await call_handler(handler, event, self.context, plan, target)
        else:
            await call_handler(handler, TransitionContext(event, plan, target), self.context)
        await self._enter_assigned(plan)
        if self._mark(plan) != before:
            return True
        self.notes.append(f"the transition handler made no move on {event.type}")
        self._close_answered(plan, event)
        return False

    def _close_answered(self, plan: PlanContext, event: Any) -> None:
        """Close the request that an event has answered although the handler made no move on it."""
        answered = None if self.is_timer else answered_request(event)
        if answered is None or plan.requests.pop(answered, None) is None:
            return
        plan.unmoved = plan.current_state
        if answered in self.requests_before:
            due, _, _ = self.requests_before[answered]
            self.requests_before[answered] = (due, False, 0)  # its timer ends; there is nothing left to withdraw

    async def _hand_over_early(self, plan: PlanContext) -> None:
        """Offer early events that the plan's state now waits for to the transition handler."""
        handler = self.environment.transition_handler(plan)
        for _ in range(state_moves.MAX_MOVES):
            if handler is None or plan.status is not RUNNING:
                return
            if (found := early_events.take_for_state(plan)) is None:
                return
            fields, target = found
            await self._hand_over(plan, EventEnvelope.model_validate(fields), handler, target)

    async def _enter_assigned(self, plan: PlanContext) -> None:
        """Enter a state that a handler has assigned; stay in it without its action when the plan is paused."""
        if not state_moves.is_assigned(plan):
            return
        event = None if self.is_goal else self.event
        if plan.status is RUNNING:
            await state_moves.enter_assigned(plan, event)
        elif plan.status is PAUSED:
            state_moves.stay_in_assigned(plan, event)

    def _mark(self, plan: PlanContext) -> tuple[Any, ...]:
        return *_position(plan), len(self.effects), self.saves


def _position(plan: PlanContext) -> tuple[Any, ...]:
    return plan.status, plan.current_state, len(plan.moves)


def _waits_for(plan: PlanContext, event: Any) -> bool:
    """True if a paused plan waits for this event from outside."""
    return plan.get_next_state(event) is not None or event.type == plan.results.get(WAITING_FOR)
