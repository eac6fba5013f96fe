"""Packs a plan that code of the app may have changed, and checks that it can be read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from plancast.errors import UnstorablePlan
from plancast.plan.attributes import check_attributes
from plancast.plan.event_fields import words_of
from plancast.plan.record import PlanRecord
from plancast.plan.serialization import pack_state, to_state
from plancast.turn_record.record import TurnRecord, check_response
from plancast.turn_record.timeline_entry import timeline_entry
from plancast_bus.errors import PayloadTooLarge
from plancast_bus.events.codec import fault_of, is_json, pack, unpack

_T = TypeVar("_T")
_DEPTH: Final = 256
"""Depth to which values are searched for a fault."""
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
    (
        dict, "an object",
        ("goal_data", "results", "spent", "limits", "allowance", "lent", "earlier", "control", "dependencies",
         "attributes"),
    ),
    (list, "a list", ("trajectory", "aliases", "kept")),
    ((int, float), "a number", ("created_at", "depth", "call_rate")),
    ((int, float, type(None)), "a number or None", ("deadline",)),
)  # fmt: skip
"""Types of the fields that plans are listed, found, rendered and continued by."""


def packed_and_checked(turn: TurnRecord, machine: str) -> tuple[bytes, bytes]:
    """Pack a turn's plan and its timeline entry in msgpack, as :func:`checked` does.

    Args:
        turn: A turn with a plan.
        machine: The hash of the plan's state machine.
    """

    def packed(plan: PlanRecord) -> tuple[bytes, bool]:
        state = pack_state(plan, machine)
        return state, is_json(state)

    return checked(turn, packed)


def checked(turn: TurnRecord, packing: Callable[[PlanRecord], tuple[_T, bool]]) -> tuple[_T, bytes]:
    """Pack a turn's plan, and its timeline entry in msgpack.

    msgpack writes some values that it cannot read again (keys that are not strings), and some that no event can carry
    (bytes, NaN). Both are refused here, while the plan's last checkpoint is intact.

    Args:
        turn: A turn with a plan.
        packing: Packs the plan; returns also whether all of it is certainly JSON.

    Raises:
        UnstorablePlan: the message names the plan and the path.
        PayloadTooLarge: raised by ``packing``.
    """
    plan = turn.plan
    assert plan is not None
    try:
        _check_types(plan)
        _check_identity(turn, plan)
        check_response(plan.response_event, plan.response_topic)  # else no end of the plan could be sent
        (state, state_is_json), entry = packing(plan), pack(timeline_entry(turn, plan))
        event_as_it_came = bool(turn.packed_event)  # else code may have written into it
        if not (state_is_json and (event_as_it_came or is_json(entry))):
            if fault := _fault(turn):
                raise ValueError(fault)
            unpack(pack_state(plan, "")), unpack(entry)
    except PayloadTooLarge:
        raise
    except BaseException as error:  # values of the app's own classes may panic when they are read
        why = _fault(turn) or words_of(error)
        raise UnstorablePlan(f"plan {turn.correlation_id} cannot be stored: {why}") from error
    return state, entry


def _check_types(plan: PlanRecord) -> None:
    for wanted, expected, names in _TYPES:
        for name in names:
            if not isinstance(value := getattr(plan, name), wanted):
                raise TypeError(f"{name} is a {type(value).__name__}; it must be {expected}")
    if plan.attributes:
        check_attributes(plan.attributes)
    for alias in plan.aliases:
        if not isinstance(alias, str):
            raise TypeError(f"aliases: {alias!r:.40} is of type {type(alias).__name__}; all must be strings")


def _check_identity(turn: TurnRecord, plan: PlanRecord) -> None:
    """Check that a plan is still the one that its events belong to, of the same tenant, at its place in its tree."""
    stays: dict[str, Any] = {"correlation_id": turn.correlation_id}
    if turn.owner_before is not None:
        plan_id, stays["tenant_id"], stays["root"], stays["depth"] = turn.owner_before
        if turn.begins is None:
            stays["plan_id"] = plan_id
    elif turn.goal is not None:
        stays |= {"tenant_id": turn.goal.tenant_id} | turn.goal.place._asdict()
    for name, value in stays.items():
        if getattr(plan, name) != value:
            raise ValueError(f"{name} was changed to {getattr(plan, name)!r:.80}; it stays {value!r:.80}")


def _fault(turn: TurnRecord) -> str:
    """Path of the first value that is not JSON, and why it is not; empty when none is found."""
    plan: Any = turn.plan
    try:
        return fault_of(to_state(plan), depth=_DEPTH) or fault_of(turn.event.to_wire(), path="event")
    except BaseException:  # not even its parts can be read
        return ""
