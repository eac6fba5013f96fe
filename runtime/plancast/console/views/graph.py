"""A plan as a graph: its state machine, or its decisions, with the way that it took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from plancast.console.schemas.plans import Edge, Graph, Node
from plancast.console.views.layout import place
from plancast.plan import timeline
from plancast.plan.status import PlanStatus
from plancast.state_machine.machine import START

Kind = Literal["start", "state", "end", "decision", "tool", "wait", "fail"]
MAX_DECISIONS = 200
"""Newest decisions of a plan that are drawn."""


class _Link(NamedTuple):
    source: str
    target: str
    label: str


def graph_of(state: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> Graph:
    """The graph of a plan; one without a state machine gets one of its decisions, or of its way."""
    machine: Mapping[str, Any] = state.get("state_machine") or {}
    if machine or not (state.get("decider") or any(entry.get("decisions") for entry in history)):
        return _of_machine(machine, state, history)
    return _of_decisions(state, history)


def _of_machine(machine: Mapping[str, Any], state: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> Graph:
    way = timeline.steps(history)
    visits = [step.state for step in way]
    if START in machine and visits and visits[0] != START:
        visits.insert(0, START)  # passed through when the plan began
    names = list(dict.fromkeys([*_in_order(machine), *visits, str(state.get("current_state") or START)]))
    taken: dict[_Link, tuple[int, int]] = {}
    links = list(dict.fromkeys(_links(machine)))
    events = [step.event for step in way][1 - len(visits) or None :] if len(visits) > 1 else []
    for order, (source, target, event) in enumerate(zip(visits, visits[1:], events, strict=False), 1):
        link = _taken(links, source, target, event)
        times, first = taken.get(link, (0, order))
        taken[link] = (times + 1, first)
    links = list(dict.fromkeys([*links, *taken]))
    places, width, height = place(names, [(link.source, link.target) for link in links])
    nodes = [
        Node(
            id=name,
            label=name,
            kind=_kind_of_state(name, machine.get(name) or {}),
            x=places[name][0],
            y=places[name][1],
            visited=visits.count(name),
            current=name == state.get("current_state"),
        )
        for name in names
    ]
    edges = [
        Edge(source=link.source, target=link.target, label=link.label, taken=times, order=first or None)
        for link, (times, first) in ((link, taken.get(link, (0, 0))) for link in links)
    ]
    return Graph(kind="machine", nodes=nodes, edges=edges, width=width, height=height)


def _in_order(machine: Mapping[str, Any]) -> list[str]:
    """The states as one comes to them from the start, then those that nothing leads to."""
    found, ahead = dict[str, None](), [START]
    for name in ahead:
        if name in machine and name not in found:
            found[name] = None
            ahead += [link.target for link in _links({name: machine[name]})]
    return list(dict.fromkeys([*found, *machine]))


def _links(machine: Mapping[str, Any]) -> Iterator[_Link]:
    for name, state in machine.items():
        for each in state.get("transitions") or ():
            condition = f" [{each['condition']}]" if each.get("condition") else ""
            yield _Link(name, each["to_state"], f"{each['on_event']}{condition}")
        if state.get("default_next"):
            yield _Link(name, state["default_next"], "")


def _taken(links: Sequence[_Link], source: str, target: str, event: str) -> _Link:
    """The link that a move went along; one of its own where the machine has none."""
    between = [link for link in links if (link.source, link.target) == (source, target)]
    by_event = [link for link in between if link.label == event or link.label.startswith(f"{event} [")]
    passing = [link for link in between if not link.label]
    return next(iter(by_event or passing or between), _Link(source, target, event))


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
        names.append((f"decision-{number}", *_told(each["decision"]["next_action"])))
    if status.finished and names[-1][2] not in ("end", "fail"):
        names.append(("end", str(status), "end" if status is PlanStatus.COMPLETED else "fail"))
    pairs = list(zip([name for name, _, _ in names], [name for name, _, _ in names[1:]], strict=False))
    places, width, height = place([name for name, _, _ in names], pairs)
    nodes = [
        Node(
            id=name,
            label=label,
            kind=kind,
            x=places[name][0],
            y=places[name][1],
            visited=1,
            current=at == len(names) - 1,
        )
        for at, (name, label, kind) in enumerate(names)
    ]
    edges = [
        Edge(source=source, target=target, label="", taken=1, order=order)
        for order, (source, target) in enumerate(pairs, 1)
    ]
    return Graph(kind="decisions", nodes=nodes, edges=edges, width=width, height=height)


def _told(action: Mapping[str, Any]) -> tuple[str, Kind]:
    """What a decision's node says, and which kind it is."""
    kind = str(action["action"])
    what = action.get("event_type") or action.get("goal_event") or action.get("expected_event") or ""
    if kind == "complete":
        reason = str(action.get("reason") or "goal")
        return f"complete: {reason}", "end" if reason == "goal" else "fail"
    if kind == "parallel":
        branches = action.get("branches") or ()
        return f"parallel: {len(branches)} requests", "tool"
    if kind in ("wait", "await"):
        return f"{kind} {what or action.get('group_id') or action.get('task_id') or ''}".strip(), "wait"
    return str(what or kind), "tool" if kind in ("publish", "delegate") else "decision"
