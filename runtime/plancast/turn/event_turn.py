"""EventTurn: the part of a turn in which an event moves a plan, by its planner, its handlers or its machine.

An event is classified first (:mod:`plancast.turn.classification`), and then carried out by what moves the plan.
"""

from __future__ import annotations

from typing import Any

from plancast.context import TransitionContext
from plancast.errors import PlanFinished
from plancast.plan.context import PlanContext
from plancast.plan.control_events import RESUME
from plancast.plan.effects.entries import HELD, held_for, hold, waits_for_effects
from plancast.plan.effects.undo_list import is_rolling_back
from plancast.plan.event_fields import answered_request
from plancast.plan.moves import early_events, state_moves
from plancast.plan.record import HOLD, is_held
from plancast.plan.requests import Request
from plancast.plan.status import PAUSED, PENDING, RUNNING
from plancast.plan.task_responses import close_request
from plancast.planner_turn.autonomous import autonomous_turn
from plancast.planner_turn.deliberation import Deliberation, deliberation_of_handler
from plancast.planners.planner import Handler, call_handler, wants_four
from plancast.tasks.registry import TaskRegistry
from plancast.turn.classification import (
    ANSWERS,
    ASKS_AGAIN,
    EXPIRES,
    FAILS,
    GOES_ON,
    IGNORED,
    JOINS,
    KEPT,
    MOVES,
    RESUMES,
    RETRIES,
    UNSETTLED,
    UNWANTED,
    Meaning,
    classify,
    is_for_listener,
)
from plancast.turn.foreign_answers import as_failure, is_foreign_answer
from plancast.turn.retries import explain, is_failure, says_unknown, schedule_retry
from plancast.turn_record.environment import TurnOutcome
from plancast.turn_record.record import TurnRecord
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.topics import SOURCES

COMMIT, PLAN_EVENTS = TurnOutcome.COMMIT, EventTopic.PLAN_EVENTS


class EventTurn(TurnRecord):
    """Offers the event of a turn to the app's listeners and to what moves the plan."""

    async def _offer(self, plan: PlanContext) -> TurnOutcome:
        """Offer the event to the listeners, then to what moves the plan."""
        handler = self.environment.transition_handler(plan) if plan._has_handler else None
        meaning = self._classify(plan, self.event, handler)
        request = meaning.request
        if request is not None and meaning.event.type != request.response_event:
            meaning = await self._own_answer(plan, meaning, request, handler)
        if meaning.kind is MOVES and handler is None and not self.environment.listeners:
            await self._move(plan, meaning.event, meaning.target)
            return COMMIT
        if meaning.kind is RETRIES:
            assert meaning.request is not None
            schedule_retry(plan, meaning.request, meaning.event, self.now, self.notes)
            return COMMIT
        if meaning.kind is IGNORED:
            return self.ignored(meaning.reason)
        if not self.environment.listeners or self.is_timer:
            return await self._carry_out(plan, meaning, handler)
        before = _position(plan)
        called = await self._call_listeners(plan)
        if not called:
            return await self._carry_out(plan, meaning, handler)
        if _position(plan) != before or is_rolling_back(plan):
            await self._enter_assigned(plan, self.event)
            return COMMIT
        meaning = self._classify(plan, meaning.event, handler)
        if not is_for_listener(plan, meaning):
            await self._carry_out(plan, meaning, handler)
        elif meaning.request is not None:
            close_request(plan, self.event.parent_event_id, meaning.event)
        return COMMIT

    async def _own_answer(
        self, plan: PlanContext, meaning: Meaning, request: Request, handler: Handler | None
    ) -> Meaning:
        """The meaning of an answer; one under the name of an event that others send is a failure of its request."""
        if self.is_timer or not await is_foreign_answer(self.environment, plan, request, meaning.event):
            return meaning
        failure = as_failure(request, meaning.event)
        self.notes.append(f"warning: {failure.data['error']}; it counts as {failure.type}")
        return self._classify(plan, failure, handler)

    def _classify(self, plan: PlanContext, event: Any, handler: Handler | None) -> Meaning:
        # A handler that requires a next state is called where there is one.
        free = handler is not None and not (plan.state_machine and wants_four(handler))
        is_timer = self.is_timer and event is self.event
        return classify(plan, event, is_timer=is_timer, free_handler=free, people=self.environment.expected)

    async def _carry_out(self, plan: PlanContext, meaning: Meaning, handler: Handler | None) -> TurnOutcome:
        """Let the plan's planner, handler or machine do what an event means for it."""
        kind, event, request, target, reason = meaning
        if kind is KEPT:
            return self._keep(plan, event)
        if kind is UNWANTED or kind is IGNORED:
            return self.unwanted(plan, reason) if kind is UNWANTED else self.ignored(reason)
        autonomous = autonomous_turn(self, plan) if plan.decider else None
        if autonomous is not None and self.is_timer:
            assert request is not None
            await autonomous.on_timer(event, event.parent_event_id, request)
        elif autonomous is not None:
            await autonomous.on_event(event, request)
        elif kind is ASKS_AGAIN:
            await state_moves.retry_request(plan, event.parent_event_id)
        elif kind is JOINS:
            await state_moves.take_branch(plan, event)
        elif kind is GOES_ON:
            await state_moves.end_delay(plan, event.parent_event_id)
        elif kind is FAILS:
            assert request is not None
            await plan.fail(explain(request, event, plan.current_state))
        elif kind is EXPIRES:
            await self._expire(plan, meaning, handler)
        elif kind is UNSETTLED:
            assert request is not None
            hold(plan, event.parent_event_id, request)
        elif handler is not None and request is not None and says_unknown(plan, request, event):
            await self._hand_over_unknown(plan, event, handler, target, request)
        elif handler is not None:
            moved = await self._hand_over(plan, event, handler, target)
            if (
                not moved
                and request is not None
                and target is None
                and plan.state_machine
                and is_failure(request, event)
            ):
                await plan.fail(explain(request, event, plan.current_state))
        elif kind is MOVES:
            await self._move(plan, event, target)
        else:
            await plan.resume(event.data)
        return COMMIT

    async def _expire(self, plan: PlanContext, meaning: Meaning, handler: Handler | None) -> None:
        """End a WAIT whose event did not come: a transition or the handler takes its timeout, or the plan fails."""
        request, request_id = meaning.request, meaning.event.parent_event_id
        assert request is not None
        state_moves.end_wait(plan)
        plan.requests[request_id] = request  # else the event would be late for the handler's move
        if handler is not None:
            moved = await self._hand_over(plan, meaning.event, handler, meaning.target)
        elif moved := meaning.target is not None:
            await self._move(plan, meaning.event, meaning.target)
        plan.requests.pop(request_id, None)
        if not moved:
            limit = f"in {request.timeout:g} s" if request.timeout is not None else "in time"
            await plan.fail(f"deadline_exceeded: {request.response_event} did not come {limit}")

    async def _move(self, plan: PlanContext, event: Any, target: str | None) -> None:
        """Take a transition of the state machine."""
        assert target is not None
        if state_moves.is_assigned(plan):
            await plan.execute_next(event)
        else:
            state_moves.store_result(plan, plan.current_state, event)
            await state_moves.enter(plan, target)

    def _keep(self, plan: PlanContext, event: Any) -> TurnOutcome:
        self.is_kept = True
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

    async def _call_listeners(self, plan: PlanContext | None = None, *, of_topic: bool = False) -> bool:
        called = False
        for planner in self.environment.listeners:
            for handler in planner.event_handlers(self.event.type, self.event.topic, of_topic=of_topic):
                called = True
                self.keep_event()
                await call_handler(handler, self.event, self.context)
        if called and plan is not None:
            plan.read_status()
        return called

    async def _hand_over(self, plan: PlanContext, event: Any, handler: Handler, target: str | None = None) -> bool:
        """Let the transition handler move the plan; False when it did nothing."""
        if target is None and event.type != RESUME:
            state_moves.store_result(plan, event.type, event)
        before, pauses, was_paused = self._mark(plan), plan._pauses, plan.status is PAUSED
        self.keep_event()
        self.offered, plan._in_handler = event, True
        try:
            if wants_four(handler):
                await call_handler(handler, event, self.context, plan, target)
            else:
                await call_handler(handler, TransitionContext(event, plan, target), self.context)
        finally:
            plan._in_handler = False
        plan.read_status()
        await plan._go_on_undecided()
        await self._enter_assigned(plan, event, is_paused=plan._pauses > pauses or not was_paused)
        if self._mark(plan) != before:
            return True
        self.notes.append(f"the transition handler made no move on {event.type}")
        self._close_answered(plan, event)
        return False

    async def _hand_over_unknown(
        self, plan: PlanContext, event: Any, handler: Handler, target: str | None, request: Request
    ) -> None:
        """Let the transition handler take an unknown outcome; when it does nothing, a person has to."""
        tasks = plan.tasks.to_state() if plan.tasks is not None else None
        if not await self._hand_over(plan, event, handler, target):
            plan.tasks = TaskRegistry.from_state(tasks) if tasks is not None else None
            hold(plan, event.parent_event_id, request)

    async def _go_on_after_effects(self, plan: PlanContext) -> None:
        """End a plan's pause once all outcomes that it waits for are known; it goes on with their answers."""
        if not waits_for_effects(plan):
            del plan.control[HELD]
        elif held_for(plan):
            return
        elif is_held(plan):
            plan.pause_reason = plan.control[HOLD]  # what is left to wait for is a resume
        else:
            state_moves.end_wait(plan)
            self.notes.append("the outcomes that the plan waited for are known")
            if (autonomous := autonomous_turn(self, plan)) is not None:
                await autonomous.on_resume(waited=True, data=None)
            else:
                await state_moves.drain_early(plan)

    async def _hand_over_resume(self, plan: PlanContext) -> None:
        """Let the transition handler go on with a resumed plan that has no machine and waits for nothing."""
        handler = self.environment.transition_handler(plan)
        under_way = plan.requests or plan.state_machine or plan.decider or plan.rollback or plan.status is not RUNNING
        if handler is not None and not under_way:
            await self._hand_over(plan, self.event, handler)

    def _close_answered(self, plan: PlanContext, event: Any) -> None:
        """Close the request that an event has answered although the handler made no move on it."""
        answered = None if self.is_timer else answered_request(event)
        if answered not in plan.requests:
            return
        close_request(plan, answered, event)
        plan.unmoved = plan.current_state
        if answered in self.requests_before:
            due, _, _, task = self.requests_before[answered]
            self.requests_before[answered] = (due, False, 0, task)  # its timer ends; there is nothing left to withdraw

    async def _offer_kept(self, plan: PlanContext) -> None:
        """Offer early events to the transition handler; a machine without one has taken them in its moves."""
        handler = self.environment.transition_handler(plan)
        for _ in range(state_moves.MAX_MOVES):
            if plan.status is not PAUSED and (plan.status is not RUNNING or handler is None):
                return
            awaited = early_events.awaited(plan)
            meanings = (self._classify(plan, EventEnvelope.model_validate(plan.kept[at]), handler) for at in awaited)
            found = next(
                ((at, each) for at, each in zip(awaited, meanings, strict=True) if each.kind in _OFFERED), None
            )
            if found is None:
                return
            at, meaning = found
            del plan.kept[at]
            self.offered = meaning.event
            await self._carry_out(plan, meaning, handler)
            self.offered = None

    async def _enter_assigned(self, plan: PlanContext, event: Any = None, *, is_paused: bool = True) -> None:
        """Make what a handler has assigned to ``status`` and ``current_state`` true.

        A running plan enters the state, a paused one stays in it without its action, a finished one sends its response.

        Raises:
            PlanFinished: the plan has ended in this turn, and its status was set to another one afterwards.
        """
        if is_rolling_back(plan):
            return
        status, is_assigned = plan.read_status(), state_moves.is_assigned(plan)
        if self.outbox.response is not None and not status.finished:
            raise PlanFinished(f"plan {plan.plan_id} has ended in this turn: its status cannot become {status}")
        if is_assigned and (status is RUNNING or (status is PAUSED and not is_paused)):
            await state_moves.enter_assigned(plan, event)
        elif is_assigned and status is not PENDING:
            state_moves.stay_in_assigned(plan, event)
        if status.finished and self.outbox.response is None:
            await state_moves.finish(plan, status)

    def _mark(self, plan: PlanContext) -> tuple[Any, ...]:
        return *_position(plan), plan._pauses, len(self.effects), self.saves


_OFFERED = frozenset((MOVES, RESUMES, ANSWERS))
"""Meanings with which early events are offered to a handler."""


def _position(plan: PlanContext) -> tuple[Any, ...]:
    return plan.status, plan.current_state, len(plan.moves)
