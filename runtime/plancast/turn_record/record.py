"""The record of one turn: its input, and what it has staged and noted so far."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from plancast.context import GoalContext, PlatformContext
from plancast.decisions.decision import PlannerDecision
from plancast.errors import ForeignPlan
from plancast.models.decorators import RecordingReasoner
from plancast.models.reservation import Reservation
from plancast.plan.context import PlanContext
from plancast.plan.event_fields import answered_request
from plancast.plan.record import FOLLOWERS, is_held
from plancast.plan.requests import Request
from plancast.plan.staged_events import StagedEvents
from plancast.plan.status import PAUSED
from plancast.plan_tree import read_deadline
from plancast.turn_record.account import read_share
from plancast.turn_record.environment import TurnEnvironment, TurnOutcome
from plancast.turn_record.outbox import Outbox
from plancast.turn_record.recording_memory import RecordingMemory
from plancast_bus.events.codec import pack
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.events.trace_context import trace_id_of
from plancast_bus.ports.values import HeldValues
from plancast_bus.subjects import check_event_type

REQUESTS = EventTopic.ACTION_REQUESTS
MAX_UNWANTED = 16
"""Events that nothing waits for, of one plan, that its timeline shows; further ones are only counted."""


class TurnRecord:
    """Input, effects and notes of one turn; implements :class:`plancast.context.TurnPort`.

    Args:
        environment: Shared by all turns of a host.
        correlation_id: The key under which the plan's events arrive.
        event: The event to handle.
        plan: The plan as last committed; None when there is none.
        revision: Number of the turn, one more than the last committed one.
        now: Seconds since the epoch.
        is_timer: The event is a timer of the plan that has become due.
    """

    answers: list[dict[str, Any] | None] | None = None
    """Replies of models to handlers, where timelines are kept in full; None for a request without a reply."""

    sessions: list[dict[str, Any]] | None = None
    """Shared values that handlers have read, where timelines are kept in full."""
    draft: PlanContext | None = None
    """Collects what decisions have spent in a goal's turn before its handler creates the plan."""
    used: dict[str, dict[str, float]] | None = None
    """Usage of models in this turn, by the idempotency keys of the requests."""
    reserved: list[Reservation] | None = None
    """Calls of models that are under way."""
    unsettled: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    """The same of turns that left no trace: they failed, or were interrupted or repeated."""
    carried: dict[str, float] | None = None
    """The part of it that was added to the plan's spend."""
    planner: Any = None
    """The planner that has decided in this turn, for a plan of its own or for a handler."""
    decided: tuple[PlannerDecision, ...] = ()
    """Decisions that are among ``decisions``."""
    deadline_before: float | None = None
    """The plan's deadline before the turn."""
    is_remembered = False
    """True if the plan's trajectory has the event."""
    begins: PlanContext | None = None
    """The deferred plan whose goal begins in this turn."""

    packed_event: bytes = b""
    """The event in msgpack as it arrived; empty: unknown. Code of the app may change ``event``, not this."""

    held: HeldValues | None = None
    """The values that its data was read from, if they are stored for the plan's tenant."""

    is_unwanted = False
    """Nothing of the plan waits for the event."""
    is_kept = False
    """The event was added to those that the plan keeps for later."""

    is_forged = False
    """The event returns the share of a child plan, but the runtime has not written it."""

    offered: Any = None
    """The event that the plan's handler or machine takes, when it is not ``event``."""

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
        """Why the event was ignored or refused."""
        self.goal: GoalContext | None = None
        self.decisions: list[dict[str, Any]] = []
        """The planner's decisions, with their cost."""
        self.exchange: list[dict[str, Any]] = []
        """Messages of a conversation with a model that ended without a decision."""
        self.has_called = False
        """True if a handler was called: it may have changed the plan and the event."""
        self.apart = False
        """Listeners handle the event apart from its plan, which cannot be changed."""
        self.saves = 0
        """Calls of :meth:`adopt`."""
        self.requests_before: dict[str, tuple[float | None, bool, int, str]] = {}
        """Due time, child flag, sequence and type of each request that was open before the turn."""
        self.open_before: dict[str, Request] = {}
        """The requests themselves."""
        self.answered_before: frozenset[str | None] = frozenset()
        """Those of them that have an early answer."""
        self.state_before = plan.current_state if plan is not None else ""
        self.status_before = plan.status if plan is not None else None
        self.owner_before = (plan.plan_id, plan.tenant_id, plan.root, plan.depth) if plan is not None else None
        """Id, tenant, root and depth of the plan before the turn."""
        self.was_held = plan is not None and plan.status is PAUSED and is_held(plan)
        memory = environment.memory_of(plan.tenant_id if plan is not None else event.tenant_id or "")
        self.context = PlatformContext(
            StagedEvents(self.outbox),
            self._recorded_memory(memory) if environment.in_full else memory,
            environment.registry,
            environment.toolkit,
            self._recorded_reasoner() if environment.in_full else environment.reasoner,
            self,
        )
        if plan is not None:
            plan._context = self.context
            plan._has_handler = environment.transition_handler(plan) is not None
            plan.moves.clear()
            self.deadline_before = plan.deadline
            self.open_before = dict(plan.requests)
            if plan.kept:
                self.answered_before = frozenset(map(answered_request, plan.kept))
            self.requests_before = {
                key: (each.due, each.child, each.sequence, each.event_type) for key, each in plan.requests.items()
            }

    def _recorded_reasoner(self) -> RecordingReasoner:
        recorded = RecordingReasoner(self.environment.reasoner)
        self.answers = recorded.answers
        return recorded

    def _recorded_memory(self, memory: Any) -> RecordingMemory:
        recorded = RecordingMemory(memory)
        self.sessions = recorded.sessions
        return recorded

    def belongs_to(self, trace: str) -> None:
        """Attach the turn and its events to a trace; see :mod:`plancast_bus.events.trace_context`."""
        self.outbox.trace, self.outbox.trace_id = trace, trace_id_of(trace)
        self.event.trace_id = self.outbox.trace_id

    def close(self) -> None:
        """Break the reference cycles through the turn: collecting them would cost more than the turn itself."""
        if self.plan is not None:
            self.plan._context = None
        self.context.turn = None
        del self.context

    @property
    def was_paused(self) -> bool:
        """True if the plan was paused before the turn."""
        return self.status_before is PAUSED

    @property
    def has_ended_before(self) -> bool:
        """True if the plan was finished before the turn, which only tells it of its effects."""
        before = self.status_before
        return before is not None and before.finished and self.plan is not None and self.plan.status is before

    @property
    def is_goal(self) -> bool:
        """True if the event is a goal of one of the app's planners."""
        return self.event.topic == REQUESTS and self.event.type in self.environment.goals

    def foreign(self, event: EventEnvelope) -> str:
        """Why an event may not move this turn's plan, or the plan that this turn is to create; empty: it may."""
        if self.is_timer:
            return ""
        plan, tenant, user = self.plan, event.tenant_id or "", event.user_id or ""
        owner = plan.tenant_id if plan is not None else self.event.tenant_id or ""
        if tenant != owner:
            return f"tenant {tenant!r} may not move a plan of tenant {owner!r}"
        if user and self.environment.settings.check_user:
            owner = plan.user_id if plan is not None else self.event.user_id or ""
            if owner and user != owner:
                return f"user {user!r} may not move a plan of user {owner!r}"
        return ""

    def ignored(self, reason: str) -> TurnOutcome:
        """The outcome of an event that changes nothing."""
        self.reason = reason
        return TurnOutcome.IGNORE

    def unwanted(self, plan: PlanContext, reason: str) -> TurnOutcome:
        """The outcome of an event that nothing waits for: the timeline shows the first ones."""
        self.is_unwanted, self.reason = True, reason
        if plan.unwanted >= MAX_UNWANTED:
            return self.ignored(reason)
        plan.unwanted += 1
        last = "; further ones are only counted" if plan.unwanted == MAX_UNWANTED else ""
        self.notes.append(f"warning: {reason}{last}")
        return TurnOutcome.COMMIT

    def refused(self, reason: str) -> TurnOutcome:
        """The outcome of an event that may not move the plan."""
        self.reason = reason
        return TurnOutcome.REFUSE

    @property
    def deadline(self) -> float | None:
        """The deadline of the turn's plan, also before a goal's turn has created it."""
        if self.plan is not None:
            return self.plan.deadline
        return self.deadline_of(self.event.type, read_deadline(self.event.metadata)) if self.is_goal else None

    def deadline_of(self, goal: str, given: float | None = None) -> float | None:
        """The deadline of a goal's plan: the earliest of the given one and those of its planners."""
        planner = self.environment.goals.get(goal)
        decider = planner.decider(goal) if planner is not None else None
        limits = [getattr(each, "deadline", None) for each in (planner, decider)]
        ends = [round(self.now + seconds, 3) for seconds in limits if seconds is not None]
        return min(ends if given is None else [given, *ends], default=None)

    async def deliberation(self, planner: Any, plan: Any) -> Any:
        """None; :class:`plancast.turn.turn.Turn` has one."""
        return None

    def next_id(self) -> str:
        """The id of the next event that this turn sends."""
        return self.outbox.next_id()

    def keep_event(self) -> None:
        """Keep the event as it came for the timeline, before a handler is called with it."""
        self.has_called = True
        if not self.packed_event:
            self.packed_event = pack(self.event.to_wire())

    def mark(self) -> tuple[tuple[int, int], int]:
        """Return the counts of staged effects and of saves, for :meth:`rewind`."""
        return self.outbox.mark(), self.saves

    def rewind(self, mark: tuple[tuple[int, int], int]) -> None:
        """Drop what was staged and saved after a mark."""
        staged, self.saves = mark
        self.outbox.rewind(staged)

    def adopt(self, plan: PlanContext) -> None:
        """Take a plan as the turn's own.

        Raises:
            ForeignPlan: the turn has another plan.
            InvalidSubject, ValueError: the plan's final response could not be sent.
        """
        self.saves += 1
        if self.plan is plan:
            return
        if self.plan is not None or self.apart or plan.created_at:
            own = f"plan {self.plan.plan_id}" if self.plan is not None else f"correlation id {self.correlation_id}"
            raise ForeignPlan(f"this is a turn of {own}; plan {plan.plan_id} can only be changed in a turn of its own")
        check_response(plan.response_event, plan.response_topic)
        if self.draft is not None and self.draft is not plan:
            plan.spent, plan.trajectory = {**self.draft.spent, **plan.spent}, [*self.draft.trajectory, *plan.trajectory]
            plan.call_rate, plan.limits = self.draft.call_rate, self.draft.limits
        goal = self.goal
        plan._context = self.context
        plan.correlation_id = self.correlation_id
        plan.created_at = self.now
        if self.begins is not None:
            begins = self.begins
            plan.created_at, plan.kept = begins.created_at, begins.kept
            plan.dependencies = {key: each for key, each in begins.dependencies.items() if key == FOLLOWERS}
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
            plan.allowance = read_share(self.event.metadata)
            if not plan.state_machine or goal.deadline is not None or planner.deadline is not None:
                plan.deadline = self.deadline_of(goal.event_type, goal.deadline)
            plan._has_handler = planner.transition_handler is not None
            plan.planner = plan.planner or planner.name
            if planner.transition_handler is not None or not plan.state_machine:
                plan.planner_version = planner.version
        self.outbox.begin(plan)
        self.plan = plan


def check_response(event_type: str, topic: str | None) -> None:
    """Check the event type and topic of a final response.

    Raises:
        InvalidSubject, ValueError: such a response could not be sent.
    """
    if event_type:
        check_event_type(event_type)
    if topic:
        EventTopic(topic)
