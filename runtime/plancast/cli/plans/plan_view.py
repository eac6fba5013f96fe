"""Output of `plancast plans list` and `plans show`, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from plancast.cli.plans.effects import effect_document, effects_table
from plancast.plan.status import PlanStatus
from plancast.plan_store import timeline
from plancast.plan_store.timeline import Waiting
from plancast.tasks.registry import TaskRegistry
from plancast.terminal.output import (
    cell,
    duration,
    fields,
    iso,
    note,
    out,
    plain,
    plural,
    shorten,
    size,
    status_text,
    table,
    timestamp,
)
from plancast_bus.ports.checkpoints import attribute_text

if TYPE_CHECKING:
    from plancast.plan_store.effects import PlanEffect
    from plancast.plan_store.plan_size import PlanSize
    from plancast_bus.ports.checkpoints import PlanSummary

RESULT_WIDTH = 240
"""Maximum number of characters of a result."""

MAX_ATTRIBUTE_COLUMNS = 4

_History = Sequence[Mapping[str, Any]]


def summary_document(summary: PlanSummary) -> dict[str, Any]:
    """The JSON of a plan in `plans list`."""
    times = {"created_at": iso(summary.created_at), "updated_at": iso(summary.updated_at)}
    fields = asdict(summary) | times | {"attributes": summary.attributes or {}}
    del fields["asks_people"]  # the status says it
    return fields


def show_list(found: Sequence[PlanSummary], now: float, *, following: str | None = None) -> None:
    if not found:
        note("no plans")
        return
    sessions, tenants = any(each.session_id for each in found), any(each.tenant_id for each in found)
    names = list(dict.fromkeys(name for each in found for name in each.attributes or {}))[:MAX_ATTRIBUTE_COLUMNS]
    optional = [name for name, shown in (("session", sessions), ("tenant", tenants)) if shown] + names
    made = table("plan", "status", "state", "goal", "turns", "age", "moved", *optional, right=["turns", "age", "moved"])
    made.columns[0].no_wrap = True
    for plan in found:
        extra = [cell(plan.session_id)] * sessions + [cell(plan.tenant_id)] * tenants
        values = plan.attributes or {}
        extra += [cell(attribute_text(values[name]) if name in values else "") for name in names]
        made.add_row(
            cell(plan.plan_id),
            status_text(plan.status),
            cell(plan.current_state),
            cell(plan.goal_event),
            str(plan.revision),
            _since(plan.created_at, now),
            _since(plan.updated_at, now, " ago"),
            *extra,
        )
    out().print(made)
    if following is not None:
        note(f"the {len(found):,} most recently updated plans; --after {following} shows the next ones, --limit 0 all")


def plan_document(
    state: Mapping[str, Any], history: _History, stored: PlanSize, effects: Sequence[PlanEffect]
) -> dict[str, Any]:
    """The JSON of `plans show`: the plan's fields, open requests, control events, path, effects and size in the store.

    Its effects are as `plancast effects list` gives them.
    """
    return {
        **state,
        "effects": [effect_document(each) for each in effects],
        "revision": history[-1]["revision"] if history else 0,
        "waiting_for": [_waiting_document(each) for each in timeline.waits(state, history)],
        "listens_for": _listened(state),
        "steered_by": [asdict(each) | {"time": iso(each.time)} for each in timeline.controls(history)],
        "way": [asdict(step) | {"time": iso(step.time)} for step in timeline.steps(history)],
        "size": asdict(stored),
    }


def _waiting_document(waiting: Waiting) -> dict[str, Any]:
    times = {"asked_at": iso(waiting.asked_at or 0), "due": iso(waiting.due or 0)}
    return asdict(waiting) | times


def show_plan(
    state: Mapping[str, Any], history: _History, stored: PlanSize, effects: Sequence[PlanEffect], now: float
) -> None:
    console = out()
    console.print(_facts(state, history, stored, now))
    waiting = timeline.waits(state, history)
    if waiting:
        _heading("waits for")
        console.print(_waiting_table(waiting, now))
    if listened := _listened(state):
        _heading("accepts events")
        console.print(cell("  " + ", ".join(listened)))
    if state.get("results"):
        _heading("results")
        console.print(_results(state["results"]))
    if (tasks := state.get("tasks") or {}).get("groups"):
        _heading("task groups")
        console.print(_groups(TaskRegistry.from_state(tasks)))
    if effects:
        _heading("effects")
        console.print(effects_table(effects, indent="  "))
    controls = timeline.controls(history)
    if controls:
        _heading("control events")
        console.print(_steered(controls))
    way = timeline.steps(history)
    if way:
        _heading("path")
        console.print(_way(way, state))


def _listened(state: Mapping[str, Any]) -> list[str]:
    return [] if PlanStatus(state["status"]).finished else timeline.listens_for(state)


def _heading(text: str) -> None:
    console = out()
    console.print()
    console.print(cell(text, "bold"))


def _facts(state: Mapping[str, Any], history: _History, stored: PlanSize, now: float) -> Table:
    made = fields()
    made.add_row("plan", cell(state["plan_id"], "bold"))
    made.add_row("status", status_text(state["status"]))
    if after := (state.get("dependencies") or {}).get("after"):
        made.add_row("begins after", cell(", ".join(after)))
    made.add_row("state", cell(state.get("current_state", "")))
    made.add_row("goal", cell(state.get("goal_event", "")))
    made.add_row("data", cell(shorten(state.get("goal_data") or {}, RESULT_WIDTH)))
    for name, key in (
        ("pause reason", "pause_reason"),
        ("error", "error"),
        ("planner", "planner"),
        ("decided by", "decider"),
        ("version", "planner_version"),
        ("session", "session_id"),
        ("tenant", "tenant_id"),
        ("user", "user_id"),
        ("parent", "parent_plan_id"),
        ("response event", "response_event"),
    ):
        if state.get(key):
            made.add_row(name, cell(state[key], "red" if key == "error" else ""))
    if attributes := state.get("attributes"):
        said = (f"{name}={attribute_text(value)}" for name, value in attributes.items())
        made.add_row("attributes", cell(", ".join(said)))
    if state.get("correlation_id") not in (None, "", state["plan_id"]):
        made.add_row("correlation", cell(state["correlation_id"]))
    if state.get("result") is not None:
        made.add_row("result", cell(shorten(state["result"], RESULT_WIDTH)))
    if state.get("kept"):
        kept = ", ".join(str(event.get("type")) for event in state["kept"])
        made.add_row("early events", cell(kept))
    made.add_row("time", _times(state, history, now))
    parts = f"{size(stored.inline)} in the checkpoint, {size(stored.history)} of history"
    made.add_row("size", cell(f"{parts}, {size(stored.referenced)} of values" if stored.referenced else parts))
    return made


def _times(state: Mapping[str, Any], history: _History, now: float) -> Text:
    first = float(state.get("created_at") or (history[0]["time"] if history else 0))
    last = float(history[-1]["time"]) if history else first
    if not first:
        return cell("–", "dim")
    if PlanStatus(state["status"]).finished:
        text = f"took {duration(last - first)}, {plural(len(history), 'turn')}"
    else:
        text = f"for {duration(now - first)}, {plural(len(history), 'turn')}, the last one {duration(now - last)} ago"
    return Text.assemble(text, (f"  since {timestamp(first)} UTC", "dim"))


def _waiting_table(waiting: Sequence[Waiting], now: float) -> Table:
    made = table("  response", "request", "state", "age", "due", "attempt", right=["age", "attempt"])
    for each in waiting:
        age = _since(each.asked_at or 0, now)
        child = f" (child plan {each.request_id})" if each.child else ""
        made.add_row(
            cell(f"  {each.response_event}", "cyan"),
            cell(each.event_type + child),
            cell(each.state or "–"),
            age,
            _due(each, now),
            str(each.attempt),
        )
    return made


def _due(waiting: Waiting, now: float) -> Text:
    if waiting.due is None:
        return cell("never", "dim")
    what = "retried" if waiting.asking_again else "times out"
    left = waiting.due - now
    return cell(f"{what} in {duration(left)}") if left >= 0 else cell(f"overdue by {duration(-left)}", "red")


def _results(results: Mapping[str, Any]) -> Table:
    made = fields()
    for state, result in results.items():
        made.add_row(cell(f"  {state}"), cell(shorten(result, RESULT_WIDTH)))
    return made


def _groups(tasks: TaskRegistry) -> Table:
    made = fields()
    for group in tasks.groups:
        members = [tasks.task(each) for each in group.members]
        names = (each.spec.event_type if each.spec is not None else each.kind for each in members)
        states = ", ".join(f"{plain(name)} {each.state}" for name, each in zip(names, members, strict=True))
        reason = f"  {group.reason}" if group.reason else ""
        made.add_row(cell(f"  {group.group_id}", "cyan"), Text.assemble(f"{group.state}: ", states, (reason, "dim")))
    return made


def _steered(controls: Sequence[timeline.Control]) -> Table:
    made = fields()
    for each in controls:
        said = each.said if isinstance(each.said, str) else shorten(each.said, RESULT_WIDTH)
        made.add_row(
            cell(f"  {each.event}", "cyan"),
            Text.assemble(cell("" if each.said is None else f"{said}  "), (timestamp(each.time), "dim")),
        )
    return made


def _way(way: Sequence[timeline.Step], state: Mapping[str, Any]) -> Table:
    made = fields()
    for index, step in enumerate(way):
        style = "bold" if index == len(way) - 1 and step.state == state.get("current_state") else ""
        after = f"+{duration(step.time - way[0].time)}" if index else timestamp(step.time)
        made.add_row(
            cell("  " + ("→ " if index else "  ") + step.state, style),
            Text.assemble(cell(step.event, "cyan"), (f"  {after}", "dim")),
        )
    return made


def _since(then: float, now: float, suffix: str = "") -> Text:
    return cell(duration(now - then) + suffix, "dim") if then else cell("–", "dim")
