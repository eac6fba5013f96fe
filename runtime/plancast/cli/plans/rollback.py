"""The end of a rollback: what was undone, what is left and why, and what it waits for."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from plancast.plan.effects.undo_list import ENDED, UNDOS
from plancast.plan.status import PlanStatus
from plancast.terminal.output import cell, out, plural, report_line, table
from plancast.terminal.progress import working

if TYPE_CHECKING:
    from plancast.client.handle import PlanHandle

AGAIN_SECONDS = 0.5
"""Seconds after which a plan that has not begun its rollback yet is looked at again."""


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A rollback that has ended, or waits for a person."""

    undone: list[dict[str, str]]
    """``plan``, ``task``, ``event_type`` and ``key`` of each effect; ``plan`` alone of a child."""
    left: list[dict[str, str]]
    """The same of what is left, with a ``reason``."""
    waits_for: str = ""
    """The decisions that a person has to make; empty when it has ended."""

    @property
    def is_incomplete(self) -> bool:
        """True if something is left, or has to be decided."""
        return bool(self.left or self.waits_for)

    def document(self) -> dict[str, Any]:
        """The JSON of it."""
        return asdict(self)


async def end_of(handle: PlanHandle) -> RolledBack:
    """Wait until the rollback of a plan has ended, or waits for a person."""
    with working("rolling back"):
        while True:
            async for _ in handle.watch():
                if (found := _read(await handle.state())) is not None:
                    return found
            await asyncio.sleep(AGAIN_SECONDS)  # the plan has ended, and its rollback is still to begin


def show(plan: str, ended: RolledBack) -> None:
    """Print what was undone and what is left."""
    undone = sum("task" in each for each in ended.undone)
    done = f"plan {plan}: {plural(undone, 'effect')} undone"
    if ended.waits_for:
        report_line(f"{done}; it waits for a person: {ended.waits_for}", good=False)
    else:
        report_line(f"{done}, {len(ended.left)} left" if ended.left else done, good=not ended.left)
    if ended.left:
        made = table("left", "key", "plan", "why")
        for each in ended.left:
            made.add_row(*(cell(each.get(name, "")) for name in ("event_type", "key", "plan", "reason")))
        out().print(made)


def _read(state: dict[str, Any]) -> RolledBack | None:
    """The end of a plan's rollback; None while it is under way."""
    rollback, result = state.get("rollback") or {}, state.get("result")
    if ENDED in rollback:
        said = result if isinstance(result, dict) else {}
        return RolledBack(said.get("undone") or [], said.get("left") or [])
    if rollback and state["status"] == PlanStatus.PAUSED and not rollback.get(UNDOS):
        undone = [
            {"plan": state["plan_id"], "task": task, "event_type": each["event_type"], "key": each["key"]}
            for task, each in (state.get("effects") or {}).items()
            if each["outcome"] == "undone"
        ]
        return RolledBack(undone, [], str(state.get("pause_reason") or "paused"))
    return None
