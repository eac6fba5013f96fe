"""Renders a plan's state machine as a Mermaid diagram with the path that the plan took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plancast.plan_store import machine_path
from plancast.state_machine.machine import START

TAKEN = "✓ "
"""Prefixes the label of a transition that the plan took."""

_UNSAFE = str.maketrans({":": "∶", ";": ",", '"': "'", "\n": " ", "\r": " ", "#": "＃", "<": "‹", ">": "›"})


def mermaid(state: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> str:
    """Render a ``stateDiagram-v2`` in which the path taken is marked and the current state highlighted.

    A plan without a state machine gets a diagram of its path alone.
    """
    machine: Mapping[str, Any] = state.get("state_machine") or {}
    visited, moves = machine_path.path(machine, history)
    names = list(dict.fromkeys([*machine_path.state_order(machine), *visited])) or [str(state["current_state"])]
    ids = {name: f"s{index}" for index, name in enumerate(names)}
    taken = {(move.source, move.target): move.event for move in moves}
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{_safe(name)}" as {ids[name]}' for name in names]
    lines.append(f"    [*] --> {ids.get(START, ids[names[0]])}")
    lines += [f"    {line}" for line in _edges(machine, ids, taken)]
    lines += _marks(state, visited, ids)
    return "\n".join(lines)


def _edges(machine: Mapping[str, Any], ids: Mapping[str, str], taken: Mapping[tuple[str, str], str]) -> Iterator[str]:
    drawn: set[tuple[str, str]] = set()
    for name in machine_path.state_order(machine):
        for link in machine_path.links({name: machine[name]}):
            move = (name, link.target)
            went = taken.get(move) == link.event if link.event else move in taken and move not in drawn
            drawn |= {move} if went else set()
            yield _edge(ids[name], ids.get(link.target, link.target), link.label, went)
        if machine[name].get("is_terminal"):
            yield f"{ids[name]} --> [*]"
    for (source, target), event in taken.items():
        if (source, target) not in drawn:
            yield _edge(ids[source], ids[target], event, True)


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
    """Replace the characters that would end a Mermaid label."""
    return text.translate(_UNSAFE)
