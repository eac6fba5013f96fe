"""What a turn in which code of the app has run leaves in its plan: packed, and sure to be read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plancast.errors import UnstorablePlan
from plancast.plan.event_fields import words_of
from plancast.plan.serialization import pack_state, to_state
from plancast_bus.events.codec import fault_of, is_json, unpack

if TYPE_CHECKING:
    from plancast.plan.context import PlanContext
    from plancast.turn.turn import Turn

_DEPTH: Final = 256
"""Nesting down to which a fault is looked for."""
_TYPES: Final = (
    (
        str, "a string",
        ("plan_id", "goal_event", "response_event", "current_state", "user_id", "tenant_id", "correlation_id", "root",
         "planner", "decider", "awaiting", "unmoved"),
    ),
    (
        (str, type(None)), "a string or None",
        ("parent_plan_id", "session_id", "goal_id", "response_topic", "trace_id", "reply_to", "notify"),
    ),
    (dict, "an object", ("goal_data", "results", "spent", "earlier", "control")),
    (list, "a list", ("trajectory", "aliases", "kept")),
    ((int, float), "a number", ("created_at", "depth")),
)  # fmt: skip
"""What a plan is listed, found, told of and gone on with by, and of which types it is read."""


def packed_and_checked(turn: Turn, machine: str) -> tuple[bytes, bytes]:
    """A turn's plan, and its entry of the timeline, in msgpack.

    msgpack writes more than it reads again (keys that are no strings), and keeps what no event can carry (bytes, NaN).
    Both are refused here, while the plan's last checkpoint is as it was.

    Args:
        turn: Its plan is packed as :func:`plancast.plan.serialization.pack_state` does.
        machine: The hash of the plan's state machine.

    Raises:
        UnstorablePlan: the message names the plan and the path.
    """
    plan = turn.plan
    assert plan is not None
    try:
        _check_types(plan)
        state, entry = pack_state(plan, machine), turn.packed_entry()
        event_as_it_came = bool(turn.packed_event)  # else code may have written into it
        if not (is_json(state) and (event_as_it_came or is_json(entry))):
            if fault := _fault(turn):
                raise ValueError(fault)
            unpack(state), unpack(entry)
    except BaseException as error:  # values of a class of the app's may panic when they are looked at
        why = _fault(turn) or words_of(error)
        raise UnstorablePlan(f"plan {turn.correlation_id} cannot be stored: {why}") from error
    return state, entry


def _check_types(plan: PlanContext) -> None:
    for wanted, said, names in _TYPES:
        for name in names:
            if not isinstance(value := getattr(plan, name), wanted):
                raise TypeError(f"{name} is a {type(value).__name__}; it must be {said}")
    for alias in plan.aliases:
        if not isinstance(alias, str):
            raise TypeError(f"aliases: {alias!r:.40} is of type {type(alias).__name__}; all must be strings")


def _fault(turn: Turn) -> str:
    """The path of what is no JSON, and why it is none; empty when nothing is found."""
    plan: Any = turn.plan
    try:
        return fault_of(to_state(plan), depth=_DEPTH) or fault_of(turn.event.to_wire(), path="event")
    except BaseException:  # it cannot even be put together
        return ""
