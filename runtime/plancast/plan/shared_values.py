"""Values that a plan shares with later plans of its session."""

from __future__ import annotations

from typing import Any, Final

from plancast.json_values.normalize import plain
from plancast.plan.record import PlanRecord
from plancast_bus.events.codec import fault_of, pack, unpack

MAX_SHARED_KEY: Final = 200
"""Longest key of a shared value, in characters."""


def shared_value(plan: PlanRecord, key: str, value: Any) -> Any:
    """A copy of a value that a plan shares under this key.

    Raises:
        ValueError: the plan has no session, the key is no such name, or the value is not JSON.
        TypeError: the value has no JSON form.
    """
    if not plan.session_id:
        raise ValueError(f"plan {plan.plan_id} shares {key!r:.80}, but has no session: submit it with session_id=")
    if type(key) is not str or not 0 < len(key) <= MAX_SHARED_KEY:
        raise ValueError(f"plan {plan.plan_id} shares {key!r:.80}: a key has 1 to {MAX_SHARED_KEY} characters")
    copied = plain(value)
    if fault := fault_of({key: copied}):
        raise ValueError(f"plan {plan.plan_id} cannot share {fault}")
    return unpack(pack(copied))
