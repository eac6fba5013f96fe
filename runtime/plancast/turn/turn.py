"""A turn: one plan handles one event; its effects are staged until they are committed."""

from __future__ import annotations

from typing import Any

from plancast.context import GoalContext
from plancast.errors import InvalidApp, InvalidDecision, InvalidStateMachine, TerminalError
from plancast.plan.context import PlanContext
from plancast.plan.control_events import (
    BEGIN_AFTER,
    CANCEL,
    DEADLINE,
    FORK,
    REJECT,
    RESOLVE_EFFECT,
    RESUME,
    ROLLED_BACK,
)
from plancast.plan.effects.entries import HELD, hold_for_others
from plancast.plan.effects.undo_list import is_rolling_back
from plancast.plan.event_fields import error_text, words_of
from plancast.plan.moves.state_moves import send_branches
from plancast.plan.status import PENDING, RUNNING
from plancast.plan_tree import SHARE, TOP, Place, read_place
from plancast.planner_turn.autonomous import AutonomousTurn
from plancast.planners.contract import version_of
from plancast.planners.planner import Planner, call_handler
from plancast.state_machine.machine import validate_state_machine
from plancast.turn.controls import CONTROLS
from plancast.turn.dependencies import UNKNOWN as UNKNOWN_PLAN
from plancast.turn.dependencies import answer_follower, defer, goal_of, is_deferred, is_follow, take_deferred
from plancast.turn.effects import record_effect
from plancast.turn.event_turn import EventTurn
from plancast.turn.fork import ForkData, create_fork, start_fork
from plancast.turn.rollback import (
    fail_in_rollback,
    go_on,
    is_rollback,
    start_rollback,
    take_in_rollback,
    take_report,
    undo_late,
)
from plancast.turn.timers import deadline_error, fail_on_early_answers, note_requests, reconcile_requests
from plancast.turn_record.account import read_return, take_back
from plancast.turn_record.environment import TurnEnvironment, TurnOutcome
from plancast.turn_record.record import check_response
from plancast.turn_record.timeline_entry import timeline_entry
from plancast_bus.events.codec import pack
from plancast_bus.events.envelope import EventTopic

__all__ = ["Turn", "TurnEnvironment", "TurnOutcome"]

COMMIT, PLAN_EVENTS = TurnOutcome.COMMIT, EventTopic.PLAN_EVENTS
TOLERANCE = 0.001
"""Seconds by which the time of a timer may differ from the deadline, by rounding."""


class Turn(EventTurn):
    """One turn. ``await run()``, and use ``plan``, ``effects`` and ``entry()`` when the outcome is COMMIT."""

    async def run(self) -> TurnOutcome:
        """Handle the event."""
        plan = self.plan
        returned = plan is not None and bool(plan.lent) and self._takes_back(plan)
        recorded = plan is not None and bool(self.event.metadata or plan.effects) and record_effect(self, plan)
        if self.plan is None:
            outcome = await self._without_plan()
        elif reason := self.foreign(self.event):
            outcome = self.refused(reason) if not is_follow(self.event) else answer_follower(self, UNKNOWN_PLAN)
        elif self.plan.status.finished and recorded:
            if not undo_late(self, self.plan):
                return COMMIT
            outcome = COMMIT
        elif is_rollback(self.event):
            outcome = await start_rollback(self, self.plan)
        elif is_rolling_back(self.plan):
            taken = await take_in_rollback(self, self.plan)
            if taken is None:
                taken = COMMIT if recorded or returned else await self._offer_apart(self.plan)
            outcome = taken
        elif self.is_goal:
            outcome = self._repeated_goal(self.plan)
        elif self._concerns_listeners(self.plan):
            outcome = await self._offer_apart(self.plan)
        elif self.plan.status.finished and self.event.topic == PLAN_EVENTS and self.event.type == RESOLVE_EFFECT:
            return await CONTROLS[RESOLVE_EFFECT](self, self.plan)
        elif self.plan.status.finished and self.event.topic == PLAN_EVENTS and self.event.type == ROLLED_BACK:
            outcome = take_report(self, self.plan)
        elif self.plan.status.finished:
            follows = is_follow(self.event)
            ended = str(self.plan.status)
            outcome = answer_follower(self, ended) if follows else self.ignored(f"the plan is {ended}")
        elif self.plan.deadline is not None and self._has_reached(self.plan.deadline):
            await self.plan.fail(deadline_error(self.plan.deadline))
            outcome = COMMIT
        elif self.plan.dependencies and is_deferred(self.plan):
            outcome = await self._take_deferred(self.plan)
        elif self.event.topic == PLAN_EVENTS and self.event.type in CONTROLS:
            outcome = await CONTROLS[self.event.type](self, self.plan)
            if outcome is COMMIT and self.event.type == RESUME:
                await self._hand_over_resume(self.plan)
        elif (missing := self.environment.missing_code(self.plan)) is not None:
            await self.plan.fail(missing)
            outcome = COMMIT
        else:
            outcome = await self._offer(self.plan)
        if returned and outcome is TurnOutcome.IGNORE:
            self.notes.append(f"{self.reason}; what it has not spent is taken back")
            outcome = COMMIT
        if recorded and outcome is TurnOutcome.IGNORE:
            self.notes.append(self.reason)
            outcome = COMMIT
        if outcome is COMMIT:
            assert self.plan is not None
            if self.plan.control and HELD in self.plan.control:
                await self._go_on_after_effects(self.plan)
            if self.plan.decider and self.plan.effects:
                hold_for_others(self.plan)
            if self.plan.kept and not self.plan.decider and not self.plan.rollback:
                await self._offer_kept(self.plan)
            if self.was_paused and not self.plan.rollback:
                await fail_on_early_answers(self.plan)
            if is_rolling_back(self.plan):
                note_requests(self, self.plan)
                await go_on(self, self.plan)
            elif self.plan.branches is not None:  # the plan may run again, or have fewer open requests
                await send_branches(self.plan)
            reconcile_requests(self, self.plan)
            if self.plan.shared:
                self.outbox.share(self.plan)
        return outcome

    async def cancel(self, reason: str) -> TurnOutcome:
        """Cancel the plan before it begins: a cancellation has interrupted the goal's handler. Replaces :meth:`run`."""
        self.plan = PlanContext.create_from_goal(self._read_goal(), {})
        await self.plan.cancel(reason)
        reconcile_requests(self, self.plan)
        return COMMIT

    async def fail(self, error: BaseException) -> TurnOutcome:
        """Fail the plan with an error that :meth:`run` has raised. Called on a new turn for the same event."""
        if self.plan is None and self.is_timer and self.event.type == FORK:
            create_fork(self, ForkData.model_validate(self.event.data), {})
        if self.plan is None:
            if not self.is_goal:
                return self.refused(f"a handler failed: {error_text(error)}")
            try:
                self.plan = PlanContext.create_from_goal(self._read_goal(), {})
            except ValueError as fault:
                return self.refused(f"the goal cannot be answered: {fault}")
        if self._concerns_listeners(self.plan):
            return self.refused(f"a handler failed: {error_text(error)}")
        if self.plan.lent:
            self._takes_back(self.plan)
        if self.event.metadata or self.plan.effects:
            record_effect(self, self.plan)
        self.notes.append(f"the turn failed: {type(error).__name__}")
        if isinstance(error, (InvalidDecision, InvalidStateMachine)):
            self.exchange = list(getattr(error, "exchange", ()))
        said = words_of(error) if isinstance(error, TerminalError) else error
        if is_rolling_back(self.plan):
            fail_in_rollback(self, self.plan, error_text(said))
            await go_on(self, self.plan)
        await self.plan.fail(said)
        reconcile_requests(self, self.plan)
        return COMMIT

    def entry(self) -> dict[str, Any]:
        """The turn as an entry of the plan's timeline."""
        assert self.plan is not None
        return timeline_entry(self, self.plan)

    def packed_entry(self) -> bytes:
        """The result of :meth:`entry` in msgpack."""
        assert self.plan is not None
        return pack(timeline_entry(self, self.plan))

    # Events without a plan: goals, forks, and events for listeners.

    @property
    def needs_seals(self) -> bool:
        """True if the turn may have to seal or verify what a child plan returns."""
        if self.plan is None:
            return SHARE in self.event.metadata
        return bool(self.plan.lent or self.plan.allowance)

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
        self.environment.check_goal(goal.event_type, goal.data)
        if goal.deadline is not None and self._has_reached(goal.deadline):
            await (await PlanContext.create_from_goal(goal, {})).fail(deadline_error(goal.deadline))
            return COMMIT
        if BEGIN_AFTER in self.event.metadata and self.begins is None:
            await defer(self, goal, self.event.metadata[BEGIN_AFTER])
            return COMMIT
        handler, machine = planner.goal_handler(goal.event_type), planner.machine(goal.event_type)
        if handler is not None:
            self.keep_event()
            await call_handler(handler, goal, self.context)
            if self.plan is not None:
                self.plan.read_status()
        if self.plan is None:
            decider = planner.decider(goal.event_type) if machine is None else None
            plan = PlanContext.create_from_goal(goal, machine if machine is not None else {})
            if decider is not None:
                plan.decider, plan.planner_version = decider.name, version_of(decider)
                await AutonomousTurn(self, plan, decider).on_goal()
                return COMMIT
        assert self.plan is not None
        plan = self.plan
        if plan.state_machine:
            self._check_machine(plan)
            if plan.status is PENDING:
                await plan._advance()
        elif plan.status is PENDING:
            if not self.outbox.sent:
                raise InvalidApp(f"the handler of goal {goal.event_type!r} made no plan and sent nothing")
            plan.status = RUNNING
        if handler is not None:
            await self._enter_assigned(plan)
        return COMMIT

    def _takes_back(self, plan: PlanContext) -> bool:
        """Take back the share of a child plan that has ended, if the runtime has written its response."""
        if plan.status.finished or self.foreign(self.event):
            return False
        returned = read_return(plan, self.event)
        if returned is None:
            return False
        seals = self.environment.seals
        self.is_forged = self.is_forged if seals is None else not seals.verify(returned.text, returned.seal)
        if self.is_forged:
            self.notes.append("warning: the response returns no share: it has no seal of this deployment")
            return False
        take_back(plan, returned)
        return True

    def _has_reached(self, deadline: float) -> bool:
        """True if the plan has to end now; a cancellation or rejection still says why by itself."""
        timer = self.is_timer and self.event.type == DEADLINE
        # The server's clock may be ahead; a timer of an earlier deadline has an earlier time.
        due = self.now >= deadline or (timer and self.event.time.timestamp() >= deadline - TOLERANCE)
        return due and self.event.type not in (CANCEL, REJECT, RESOLVE_EFFECT)

    async def _take_deferred(self, plan: PlanContext) -> TurnOutcome:
        """Take an event of a plan that waits for other plans to end; the last end begins its goal."""
        outcome = await take_deferred(self, plan)
        if outcome is None:
            return await self._begin_deferred(plan)
        if outcome is not TurnOutcome.UNKNOWN:
            return outcome
        if self.event.topic == PLAN_EVENTS and self.event.type in CONTROLS:
            return await CONTROLS[self.event.type](self, plan)
        await self._call_listeners()
        return COMMIT if plan.status.finished else self._keep(plan, self.event)

    async def _begin_deferred(self, plan: PlanContext) -> TurnOutcome:
        goal, arrived = goal_of(plan), self.event
        planner = self.environment.goals.get(goal.type)
        if planner is None:
            await plan.fail(f"no planner takes the goal {goal.type!r} any more")
            return COMMIT
        self.begins, self.plan, self.event = plan, None, goal
        self.outbox.begin_goal(goal)
        try:
            return await self._begin(planner)
        finally:
            self.event = arrived

    def _read_goal(self) -> GoalContext:
        """Read the event as a goal; events that are sent from now on belong to a plan."""
        self.goal = GoalContext.from_event(self.event, self.context)
        self.outbox.begun, self.outbox.deadline = True, self.deadline
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
