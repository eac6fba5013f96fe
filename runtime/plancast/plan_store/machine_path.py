"""The stored state machine of a plan as a graph: order of states, links, and the path that the plan took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from plancast.plan_store import timeline
from plancast.state_machine.machine import START


class Link(NamedTuple):
    """A transition, or a default next state."""

    source: str
    target: str
    event: str
    """Empty for a default next state."""
    condition: str = ""

    @property
    def label(self) -> str:
        """Event and condition: ``order.paid [data.amount > 10]``."""
        return f"{self.event} [{self.condition}]" if self.condition else self.event


def links(machine: Mapping[str, Any]) -> Iterator[Link]:
    """Yield the links of a stored machine, state by state."""
    for name, state in machine.items():
        for each in state.get("transitions") or ():
            yield Link(name, each["to_state"], each["on_event"], each.get("condition") or "")
        if state.get("default_next"):
            yield Link(name, state["default_next"], "")


def state_order(machine: Mapping[str, Any]) -> list[str]:
    """State names breadth first from the start, then the unreachable ones."""
    queue = [START]
    found: dict[str, None] = {}
    for name in queue:
        if name in machine and name not in found:
            found[name] = None
            queue += [link.target for link in links({name: machine[name]})]
    return list(dict.fromkeys([*found, *machine]))


def path(machine: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[Link]]:
    """The states that a plan has entered, in order, and its moves between them."""
    steps = timeline.steps(history)
    visited = [step.state for step in steps]
    if visited and START in machine and visited[0] != START:
        visited.insert(0, START)  # a default next state is passed through when the plan begins
    else:
        steps = steps[1:]
    return visited, [Link(*each) for each in zip(visited, visited[1:], (step.event for step in steps), strict=False)]
