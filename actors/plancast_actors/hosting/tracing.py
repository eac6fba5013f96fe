"""TracedActivation: spans for turns. Hosts use it when traces are on."""

from __future__ import annotations

from contextlib import AbstractContextManager

from cachetools import LRUCache
from opentelemetry.trace import Link, SpanKind

from plancast.telemetry.tracing import Tracing, Work, link_to, processing
from plancast.turn.turn import Turn
from plancast_actors.plan_actors.activation import Activation
from plancast_actors.plan_actors.protocol import Inbound
from plancast_actors.plan_actors.services import HostServices
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.events.trace_context import read_trace, trace_id_of
from plancast_bus.ports.checkpoints import Checkpoint

MAX_PLANS = 10_000
"""Plans per host for which turns to link to are remembered."""
MAX_LINKS = 64
"""Links per span."""


class TurnTraces:
    """Opens and closes the spans of a host's turns."""

    def __init__(self, tracing: Tracing) -> None:
        self.tracing = tracing
        self._joined: LRUCache[str, list[str]] = LRUCache(MAX_PLANS)
        """By plan: traces of the turns since the plan last sent anything; the next turn that does links to them. In
        memory only, so a host that has just taken a plan over has fewer links."""

    def begin(self, host: HostServices, inbound: Inbound, event: EventEnvelope, turn: Turn, before: str) -> Work:
        """Open the span of a turn, in the trace of its event. ``before``: trace of the plan's previous turn."""
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
        """Close the span of a turn with the resulting state of the plan; ``revision`` is 0 if nothing was committed."""
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
            self._joined[key] = [*self._joined.get(key, []), trace][-MAX_LINKS:]

    def _links(self, turn: Turn, trace: str, before: str) -> list[Link]:
        """Link to the joined turns, and to the turn before if the event comes from another trace."""
        joined = self._joined.get(turn.correlation_id, [])
        if before and before not in joined and trace_id_of(before) != trace_id_of(trace):
            joined = [*joined, before]
        links = [link_to(each) for each in joined]
        return [each for each in links if each is not None]


class TracedActivation(Activation):
    """A plan in memory whose turns are spans, from when an event is handled until its effects are acknowledged."""

    __slots__ = ("_before", "_revision", "_span", "_traces", "_turn")

    def __init__(self, host: HostServices, correlation_id: str, traces: TurnTraces) -> None:
        super().__init__(host, correlation_id)
        self._traces = traces
        self._span: Work | None = None
        """The span of the current turn, all attempts included."""
        self._turn: Turn | None = None
        """The current attempt."""
        self._revision = 0
        """The revision that the turn has committed; 0 for none."""
        self._before = ""
        """The trace of the turn before."""

    def turn(self, inbound: Inbound, event: EventEnvelope, is_timer: bool) -> Turn:
        """Create the turn of an event, and open its span at the first attempt."""
        turn = super().turn(inbound, event, is_timer)
        if self._span is None:
            self._span = self._traces.begin(self.host, inbound, event, turn, self._before)
            self._revision = 0
        self._turn = turn
        if self._span.trace:
            turn.belongs_to(self._span.trace)
        return turn

    def scope(self) -> AbstractContextManager[None]:
        assert self._span is not None
        return self._traces.tracing.within(self._span)

    def committed(self, turn: Turn, checkpoint: Checkpoint, version: int) -> None:
        super().committed(turn, checkpoint, version)
        self._revision = checkpoint.revision
        if self._span is not None:
            self._span.span.add_event("commit", {"plancast.revision": checkpoint.revision})

    def turn_failed(self, kind: str) -> None:
        if self._span is not None:
            self._span.fail(kind)

    def turn_ended(self) -> None:
        work, turn = self._span, self._turn
        self._span = self._turn = None
        if work is not None and turn is not None:
            self._traces.end(work, turn, self._revision)
            self._before = work.trace


def _trace_in(event: EventEnvelope) -> str:
    """The trace of a CloudEvent in structured mode, which carries it as attributes."""
    parent, state = event.metadata.get("traceparent"), event.metadata.get("tracestate")
    return read_trace(parent if isinstance(parent, str) else None, state if isinstance(state, str) else None)
