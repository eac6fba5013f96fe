"""TracedPlanActor: a plan actor whose turns are spans. Hosts make it where traces are on; others know nothing of it."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from opentelemetry.trace import Link, SpanKind

from plancast.telemetry.tracing import Tracing, Work, link_to, processing
from plancast.turn.turn import Turn, TurnOutcome
from plancast_actors.hosting.activation import Activation
from plancast_actors.hosting.backlog import Backlog
from plancast_actors.hosting.fast_path import QuickTurn
from plancast_actors.hosting.plan_actor import PlanActor
from plancast_actors.hosting.protocol import Inbound, Outcome
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.events.trace_context import read_trace, trace_id_of
from plancast_bus.ports.checkpoints import Checkpoint

if TYPE_CHECKING:
    from plancast_actors.hosting.plan_host import PlanHost

MAX_PLANS = 10_000
"""Plans of which a host remembers which of their turns are to be linked to."""
MAX_LINKS = 64
"""Turns that one turn is linked to at most."""


class TurnTraces:
    """Makes the spans of a host's turns.

    Args:
        tracing: Makes spans.
    """

    def __init__(self, tracing: Tracing) -> None:
        self.tracing = tracing
        self._joined: OrderedDict[str, list[str]] = OrderedDict()
        """By plan: the turns, as traces, that have sent nothing since the plan last did. The next one that does joins
        them. In memory only: a host that has just taken a plan over links to fewer."""

    def begin(self, host: PlanHost, inbound: Inbound, event: EventEnvelope, turn: Turn, before: str) -> Work:
        """Open the span of a turn, below the trace of its event; ``before`` is that of the plan's turn before."""
        environment, plan = host.environment, turn.plan
        planner = plan.planner if plan is not None else ""
        if not planner and event.type in environment.goals:
            planner = environment.goals[event.type].name
        about = processing(event, environment.subjects, inbound.payload)
        about["plancast.plan_id"] = plan.plan_id if plan is not None else turn.correlation_id
        if planner:
            about["plancast.planner"] = planner
        if inbound.attempt > 1:
            about["plancast.attempt"] = inbound.attempt
        trace = inbound.trace or _trace_in(event)
        return self.tracing.begin(
            f"plan turn {planner}" if planner else "plan turn",
            SpanKind.CONSUMER,
            about,
            trace,
            self._links(turn, trace, before),
        )

    def end(self, work: Work, turn: Turn, revision: int) -> None:
        """Close the span of a turn, with what has become of the plan; ``revision`` is 0 when nothing was committed."""
        plan = turn.plan
        if plan is not None and revision:
            work.note(
                revision=revision,
                plan_id=plan.plan_id,
                state__from=turn.state_before,
                state__to=plan.current_state,
                plan__status=str(plan.status),
                effects=len(turn.effects),
                parent_plan_id=plan.parent_plan_id,
            )
            if str(plan.status) == "failed":
                work.fail("plan_failed")
            self._remember(turn, work.trace, plan.status.finished)
        work.end()

    def _remember(self, turn: Turn, trace: str, finished: bool) -> None:
        key = turn.correlation_id
        if turn.outbox.sent or finished:
            self._joined.pop(key, None)
        elif trace:
            joined = self._joined.setdefault(key, [])
            joined.append(trace)
            del joined[:-MAX_LINKS]
            self._joined.move_to_end(key)
            if len(self._joined) > MAX_PLANS:
                self._joined.popitem(last=False)

    def _links(self, turn: Turn, trace: str, before: str) -> list[Link]:
        """To the turns that waited for this one; to the turn before, when the event comes from another trace."""
        joined = self._joined.get(turn.correlation_id, [])
        if before and before not in joined and trace_id_of(before) != trace_id_of(trace):
            joined = [*joined, before]
        links = [link_to(each) for each in joined]
        return [each for each in links if each is not None]


class TracedActivation(Activation):
    """Notes commits in the span of the turn."""

    __slots__ = ("revision_made", "work")

    def __init__(self, host: PlanHost, correlation_id: str) -> None:
        self.work: Work | None = None
        self.revision_made = 0
        """What the turn has committed; 0 for nothing."""
        super().__init__(host, correlation_id)

    def committed(self, turn: Turn, checkpoint: Checkpoint, version: int) -> None:
        """See :class:`Activation`."""
        super().committed(turn, checkpoint, version)
        self.revision_made = checkpoint.revision
        if self.work is not None:
            self.work.span.add_event("commit", {"plancast.revision": checkpoint.revision})


class TracedPlanActor(PlanActor):
    """A plan actor whose turns are spans, from when an event is handled until what came of it is out."""

    __slots__ = ("_before", "_span", "_traces", "_turn")

    state: TracedActivation

    def __init__(self, host: PlanHost, correlation_id: str, traces: TurnTraces) -> None:
        super().__init__(host, correlation_id)
        self.state = TracedActivation(host, correlation_id)
        self._traces = traces
        self._span: Work | None = None
        """Of the turn that is taken, at the first attempt or a later one."""
        self._turn: Turn | None = None
        """The attempt."""
        self._before = ""
        """The trace of the turn before."""

    def turn(self, inbound: Inbound, event: EventEnvelope, is_timer: bool) -> Turn:
        """The turn that an event is to have; several attempts at it are one span."""
        turn = super().turn(inbound, event, is_timer)
        work = self._span
        if work is None:
            work = self._span = self.state.work = self._traces.begin(self.host, inbound, event, turn, self._before)
            self.state.revision_made = 0
        self._turn = turn
        if work.trace:
            turn.belongs_to(work.trace)
        return turn

    def took(self, quick: QuickTurn) -> None:
        """See :class:`PlanActor`."""
        self._end()
        super().took(quick)

    async def _take(self, inbound: Inbound) -> Outcome:
        try:
            outcome = await super()._take(inbound)
            if outcome.kind == "retry":
                self._fail("retry")
            return outcome
        except BaseException as error:
            self._fail(type(error).__name__)
            raise
        finally:
            self._end()

    async def _run(self, turn: Turn) -> TurnOutcome:
        assert self._span is not None
        with self._traces.tracing.within(self._span):
            return await super()._run(turn)

    async def _take_backlog(self, backlog: Backlog, timer: EventEnvelope, inbound: Inbound) -> Outcome | None:
        self._end()  # the span of a timer's turn that was discarded: what came before the timer has its own
        return await super()._take_backlog(backlog, timer, inbound)

    async def _failed(
        self, inbound: Inbound, event: EventEnvelope, is_timer: bool, error: BaseException
    ) -> tuple[Turn, TurnOutcome]:
        self._fail(type(error).__name__)
        return await super()._failed(inbound, event, is_timer, error)

    async def _put_aside(self, inbound: Inbound, reason: str, detail: str) -> None:
        self._fail(reason)
        await super()._put_aside(inbound, reason, detail)

    def _fail(self, kind: str) -> None:
        if self._span is not None:
            self._span.fail(kind)

    def _end(self) -> None:
        work, turn = self._span, self._turn
        self._span = self.state.work = self._turn = None
        if work is not None and turn is not None:
            self._traces.end(work, turn, self.state.revision_made)
            self._before = work.trace


def _trace_in(event: EventEnvelope) -> str:
    """Of a CloudEvent in structured mode, which has its trace in itself."""
    parent, state = event.metadata.get("traceparent"), event.metadata.get("tracestate")
    return read_trace(parent if isinstance(parent, str) else None, state if isinstance(state, str) else None)
