"""Replays and forks of stored plans: reads the history from the stores, and sends the event of a fork."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from plancast.agents.registry import AgentRegistry
from plancast.errors import CannotReplay, ForeignPlan
from plancast.json_values.normalize import plain
from plancast.plan.control_events import FORK
from plancast.replay.replay import RecordedPlan, ReplayOptions, Step, diverging_turn, entry_of, walk
from plancast.replay.report import ReplayedTurn, Which
from plancast.settings import Settings
from plancast.state_machine.machine import Machine
from plancast.turn.fork import fork_event, require_unfinished
from plancast_bus.errors import AccessDenied
from plancast_bus.event_data import in_full
from plancast_bus.events.codec import unpack
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.ports.effects import Effect, Publish, Respond, SetTimer
from plancast_bus.subjects import encode_token

if TYPE_CHECKING:
    from plancast.app import App
    from plancast_bus.ports.bus import Bus

_AT_ONCE: Final = 0.0
"""Due time of a fork: in the past for every clock."""
_SHOWN: Final = 3
"""Differences that an error lists."""


async def recorded_plan(bus: Bus, checkpoint: Checkpoint) -> RecordedPlan:
    """Load a plan and its history from the stores.

    Raises:
        CannotReplay: its state machine is gone from the store.
        BusUnavailable: the stores cannot be reached.
    """
    key = checkpoint.correlation_id
    history = [unpack(entry) for entry in await bus.checkpoints.history(key)]
    history = [entry for entry in history if entry["revision"] <= checkpoint.revision]  # the plan may have moved since
    state: dict[str, Any] = unpack(checkpoint.state)
    digest, machine = state.pop("machine", None), None
    if digest:
        encoded = await bus.checkpoints.get_machine(digest)
        if encoded is None:
            raise CannotReplay(checkpoint.summary.plan_id, checkpoint.revision, "its state machine is gone")
        machine = Machine.decode(encoded)
    sent = [await _in_full(bus, effect, checkpoint.summary.tenant_id) for effect in checkpoint.outbox]
    return RecordedPlan(key, state, history, machine, tuple(sent))


async def _in_full(bus: Bus, effect: Effect, tenant: str) -> Effect:
    """The effect of a tenant's plan, with the data of its event."""
    if not isinstance(effect, (Publish, Respond)):
        return effect
    payload, content_type = await in_full(bus, effect.payload, effect.content_type, tenant=tenant)
    return replace(effect, payload=payload, content_type=content_type or effect.content_type)


async def options_of(bus: Bus, app: App | None = None, *, machine: Which = "then") -> ReplayOptions:
    """Options for a replay of stored plans; with the events and agents of the current registry.

    Raises:
        BusUnavailable: the registry cannot be reached.
    """
    settings = Settings.load(app.settings if app is not None else None)
    registry = AgentRegistry(bus.registry)
    try:
        events, agents = await registry.discover(), await registry.agents()
        apps = await bus.registry.list("app")
    except AccessDenied:
        events, agents, apps = [], [], {}
    goals = sorted({goal for each in apps.values() for goal in each.get("goals", ())})
    return ReplayOptions(app, machine, settings.plans, events, agents, goals)


async def send_fork(
    bus: Bus,
    checkpoint: Checkpoint,
    revision: int,
    options: ReplayOptions,
    *,
    data: Mapping[str, Any] | None = None,
    correlation_id: str | None = None,
    notify: str = "",
) -> str:
    """Start a fork of a plan; returns the new plan's id when the event is durable.

    Raises:
        UnknownRevision, PlanFinished, CannotReplay, ForeignPlan, PayloadTooLarge, BusUnavailable: see
            :meth:`plancast.Client.fork`.
    """
    plan = await recorded_plan(bus, checkpoint)
    entry = entry_of(plan, revision)
    require_unfinished(plan.plan_id, revision, str(entry["status"]))
    fork_id = uuid4().hex if correlation_id is None else correlation_id
    encode_token(fork_id)
    if correlation_id is not None and await _is_forked(bus, fork_id, plan.plan_id, revision):
        return fork_id
    state, step = await _plan_at(plan, revision, options)
    given = None if data is None else plain(dict(data))
    event = fork_event(fork_id, revision, state, step.asked if step else {}, data=given, notify=notify)
    payload, content_type = await bus.prepare(event)
    await bus.emit((SetTimer(fork_id, "fork", _AT_ONCE, payload, content_type),))
    return fork_id


async def _plan_at(plan: RecordedPlan, revision: int, options: ReplayOptions) -> tuple[dict[str, Any], Step | None]:
    """The plan's fields at a revision, and the step of the replay there."""
    newest = revision == plan.revision
    try:
        steps = [step async for step in walk(plan, options)]
    except CannotReplay:
        if newest:
            return dict(plan.state), None
        raise
    step, doubt = steps[revision - 1], diverging_turn(steps, revision)
    if newest:
        return dict(plan.state), step
    if doubt is not None:
        raise CannotReplay(plan.plan_id, revision, _differing(doubt))
    if step.state is None:
        hint = "" if options.app is not None else "; name the app to run its code"
        raise CannotReplay(plan.plan_id, revision, f"{step.turn.why}{hint}")
    return unpack(step.state), step


def _differing(turn: ReplayedTurn) -> str:
    found = [f"{each.path} was {each.then!r:.100}, is {each.now!r:.100}" for each in turn.differences[:_SHOWN]]
    return f"the current code differs at revision {turn.revision}: {'; '.join(found)}"


async def _is_forked(bus: Bus, fork_id: str, plan_id: str, revision: int) -> bool:
    """Check whether the same fork was started already.

    Raises:
        ForeignPlan: another plan has the correlation id.
    """
    entries = await bus.checkpoints.history(fork_id)
    if not entries:
        return False
    event = unpack(entries[0]).get("event") or {}
    data = event.get("data") if event.get("type") == FORK else None
    if isinstance(data, dict) and (data.get("plan_id"), data.get("revision")) == (plan_id, revision):
        return True
    raise ForeignPlan(f"another plan has the correlation id {fork_id!r}; a fork of plan {plan_id} needs its own")
