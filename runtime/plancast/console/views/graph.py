"""Draws a plan as a graph: its state machine or its decisions, with the path that it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from plancast.console.schemas.plans import Edge, Graph, Node
from plancast.console.views.layout import place
from plancast.plan.status import PlanStatus
from plancast.plan_store import machine_path
from plancast.plan_store.machine_path import Link
from plancast.state_machine.machine import START

Kind = Literal["start", "state", "end", "decision", "tool", "wait", "fail"]
MAX_DECISIONS = 200
"""Maximum number of decisions that are drawn; older ones are left out."""


def graph_of(state: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> Graph:
    """Lay out the graph of a plan: of its state machine, else of its decisions, else of its path."""
    machine: Mapping[str, Any] = state.get("state_machine") or {}
    if machine or not (state.get("decider") or any(entry.get("decisions") for entry in history)):
        return _of_machine(machine, state, history)
    return _of_decisions(state, history)


def _of_machine(machine: Mapping[str, Any], state: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> Graph:
    visits, moves = machine_path.path(machine, history)
    names = list(dict.fromkeys([*machine_path.state_order(machine), *visits, str(state.get("current_state") or START)]))
    taken: dict[Link, tuple[int, int]] = {}
    links = list(dict.fromkeys(machine_path.links(machine)))
    for order, move in enumerate(moves, 1):
        link = _link_of(links, move)
        times, first = taken.get(link, (0, order))
        taken[link] = (times + 1, first)
    links = list(dict.fromkeys([*links, *taken]))
    places, width, height = place(names, [(link.source, link.target) for link in links])
    nodes = []
    for name in names:
        kind, current = _kind_of_state(name, machine.get(name) or {}), name == state.get("current_state")
        label = _with_branches(name, state) if current else name
        nodes.append(_node(name, label, kind, places[name], visits.count(name), current))
    edges = [
        Edge(source=link.source, target=link.target, label=link.label, taken=times, order=first or None)
        for link, (times, first) in ((link, taken.get(link, (0, 0))) for link in links)
    ]
    return Graph(kind="machine", nodes=nodes, edges=edges, width=width, height=height)


def _with_branches(name: str, state: Mapping[str, Any]) -> str:
    """The label of the current state, with the number of its branches that are answered."""
    branches = state.get("branches")
    return f"{name}: {branches['done']:,} of {branches['count']:,}" if branches else name


def _node(name: str, label: str, kind: Kind, at: tuple[float, float], visited: int, current: bool) -> Node:
    return Node(id=name, label=label, kind=kind, x=at[0], y=at[1], visited=visited, current=current)


def _link_of(links: Sequence[Link], move: Link) -> Link:
    """The machine's link that a move followed; the move itself when the machine has none."""
    between = [link for link in links if link[:2] == move[:2]]
    by_event = [link for link in between if link.event == move.event]
    defaults = [link for link in between if not link.event]
    return next(iter(by_event or defaults or between), move)


def _kind_of_state(name: str, state: Mapping[str, Any]) -> Kind:
    if state.get("is_terminal"):
        failed = state.get("outcome") == "failed" or (state.get("outcome") is None and name == "failed")
        return "fail" if failed else "end"
    if name == START:
        return "start"
    return "state" if state.get("action") or not state.get("transitions") else "wait"


def _of_decisions(state: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> Graph:
    taken = [each for entry in history for each in entry.get("decisions") or ()]
    status = PlanStatus(state["status"])
    names: list[tuple[str, str, Kind]] = [("goal", str(state.get("goal_event") or "goal"), "start")]
    first = max(0, len(taken) - MAX_DECISIONS)
    for number, each in enumerate(taken[first:], first + 1):
        names.append((f"decision-{number}", *_label_of(each["decision"]["next_action"], state)))
    if status.finished and names[-1][2] not in ("end", "fail"):
        names.append(("end", str(status), "end" if status is PlanStatus.COMPLETED else "fail"))
    pairs = list(pairwise(name for name, _, _ in names))
    places, width, height = place([name for name, _, _ in names], pairs)
    nodes = [_node(name, label, kind, places[name], 1, name == names[-1][0]) for name, label, kind in names]
    edges = [
        Edge(source=source, target=target, label="", taken=1, order=order)
        for order, (source, target) in enumerate(pairs, 1)
    ]
    return Graph(kind="decisions", nodes=nodes, edges=edges, width=width, height=height)


def step_of(state: Mapping[str, Any]) -> str:
    """The last decision of a plan that only decisions move, as its graph names it; empty with states or without one."""
    taken = [each for each in state.get("trajectory") or () if each.get("decision") and not each.get("refused")]
    if not taken or state.get("state_machine") or state.get("current_state") not in ("", START):
        return ""
    return _label_of(taken[-1]["decision"]["next_action"], state)[0]


def _label_of(action: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[str, Kind]:
    """Label and kind of a decision's node; names of tasks and groups are without the plan's id."""
    kind = str(action["action"])
    what = action.get("event_type") or action.get("goal_event") or action.get("expected_event") or ""
    if kind == "complete":
        reason = str(action.get("reason") or "goal")
        return f"complete: {reason}", "end" if reason == "goal" else "fail"
    if kind == "parallel":
        branches = action.get("branches") or ()
        return f"parallel: {len(branches)} requests", "tool"
    if kind in ("wait", "await"):
        task = str(action.get("group_id") or action.get("task_id") or "").removeprefix(f"{state.get('plan_id')}/")
        return f"{kind} {what or task}".strip(), "wait"
    return str(what or kind), "tool" if kind in ("publish", "delegate") else "decision"
