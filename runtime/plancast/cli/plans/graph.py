"""A plan's state machine as a Mermaid diagram, with the way that the plan took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plancast.plan import timeline
from plancast.state_machine.machine import START

TAKEN = "✓ "
"""Stands before the label of a transition that the plan took."""

_UNSAFE = str.maketrans({":": "∶", ";": ",", '"': "'", "\n": " ", "\r": " ", "#": "＃", "<": "‹", ">": "›"})


def mermaid(state: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> str:
    """A ``stateDiagram-v2``. The taken way is marked, the current state stands out.

    A plan without a state machine gets a diagram of its way alone.
    """
    machine: Mapping[str, Any] = state.get("state_machine") or {}
    way = timeline.steps(history)
    visited = [step.state for step in way]
    if visited and START in machine and visited[0] != START:
        visited.insert(0, START)  # passed through when the plan began
    names = list(dict.fromkeys([*_in_order(machine), *visited])) or [str(state["current_state"])]
    ids = {name: f"s{index}" for index, name in enumerate(names)}
    moves = zip(visited, visited[1:], way[1 - len(visited) :], strict=False)
    taken = {(source, target): step.event for source, target, step in moves}
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{_safe(name)}" as {ids[name]}' for name in names]
    lines.append(f"    [*] --> {ids.get(START, ids[names[0]])}")
    lines += [f"    {line}" for line in _edges(machine, ids, taken)]
    lines += _marks(state, visited, ids)
    return "\n".join(lines)


def _in_order(machine: Mapping[str, Any]) -> list[str]:
    """The states as one comes to them from the start, then those that nothing leads to."""
    ahead, found = [START], dict[str, None]()
    while ahead:
        name = ahead.pop(0)
        if name in found or name not in machine:
            continue
        found[name] = None
        ahead += [each["to_state"] for each in machine[name].get("transitions") or ()]
        ahead += [machine[name]["default_next"]] if machine[name].get("default_next") else []
    return [*found, *(name for name in machine if name not in found)]


def _edges(machine: Mapping[str, Any], ids: Mapping[str, str], taken: Mapping[tuple[str, str], str]) -> Iterator[str]:
    drawn: set[tuple[str, str]] = set()
    for name in _in_order(machine):
        state = machine[name]
        for transition in state.get("transitions") or ():
            target, kind = transition["to_state"], transition["on_event"]
            went = taken.get((name, target)) == kind
            drawn |= {(name, target)} if went else set()
            condition = f" [{transition['condition']}]" if transition.get("condition") else ""
            yield _edge(ids[name], ids.get(target, target), f"{kind}{condition}", went)
        target = state.get("default_next")
        if target is not None:
            went = (name, target) in taken and (name, target) not in drawn
            drawn |= {(name, target)} if went else set()
            yield _edge(ids[name], ids.get(target, target), "", went)
        if state.get("is_terminal"):
            yield f"{ids[name]} --> [*]"
    for (name, target), kind in taken.items():
        if (name, target) not in drawn:
            yield _edge(ids[name], ids[target], kind, True)


def _edge(source: str, target: str, label: str, went: bool) -> str:
    text = f"{TAKEN if went else ''}{_safe(label)}".strip()
    return f"{source} --> {target} : {text}" if text else f"{source} --> {target}"


def _marks(state: Mapping[str, Any], visited: Sequence[str], ids: Mapping[str, str]) -> Iterator[str]:
    current = str(state["current_state"])
    through = [ids[name] for name in dict.fromkeys(visited) if name != current]
    yield "    classDef taken fill:#d5f0dd,stroke:#2e7d4f,color:#111"
    yield "    classDef current fill:#2e7d4f,stroke:#17402a,color:#fff,font-weight:bold"
    if through:
        yield f"    class {','.join(through)} taken"
    if current in ids:
        yield f"    class {ids[current]} current"


def _safe(text: str) -> str:
    """Text that cannot end a Mermaid label."""
    return text.translate(_UNSAFE)
