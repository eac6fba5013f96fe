"""Validates and compiles state machines.

`validate_state_machine` reports every fault at once. `Machine` is the compiled form: immutable, identified by the hash
of its content, compiled once per process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from plancast.errors import InterpolationError, InvalidCondition, InvalidStateMachine
from plancast.state_machine.interpolation import BRANCH_ROOTS, ROOTS, Template, compile_template
from plancast.state_machine.states import StateConfig, encode_states, read_states

if TYPE_CHECKING:
    from plancast.state_machine.conditions import Condition

START: Final = "start"
"""The state in which every plan begins."""

View = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""A value of a condition's names, or a function that computes it for the first condition."""


def base_of(response_event: str) -> str:
    """An event type without its last token: `web.search` for `web.search.completed`, nothing for `done`."""
    return response_event.rpartition(".")[0]


def failed_event(response_event: str) -> str:
    """The event of a failed request: `web.search.failed` for `web.search.completed`."""
    return _sibling(response_event, "failed")


def timeout_event(response_event: str) -> str:
    """The event of a request that timed out: `web.search.timeout` for `web.search.completed`."""
    return _sibling(response_event, "timeout")


def unknown_event(response_event: str) -> str:
    """The event of a request whose outcome is not known: `card.charge.unknown` for `card.charge.completed`."""
    return _sibling(response_event, "unknown")


def _sibling(event_type: str, token: str) -> str:
    base = base_of(event_type)
    return f"{base}.{token}" if base else token


@dataclass(frozen=True, slots=True)
class CompiledTransition:
    """A transition with its condition compiled."""

    on_event: str
    to_state: str
    condition: Condition | None


class Machine:
    """A compiled state machine. Immutable, and independent of the states that it was compiled from."""

    __slots__ = ("_lists", "_templates", "_transitions", "_ways", "encoded", "event_types", "hash", "states")

    states: Mapping[str, StateConfig]
    """State name to state; read-only."""
    encoded: bytes
    """Canonical JSON of the states, independent of their order."""
    hash: str
    """The first 32 hexadecimal digits of the SHA-256 of `encoded`."""
    event_types: frozenset[str]
    """Event types of all transitions."""

    def __init__(self, encoded: bytes) -> None:
        """Use `Machine.compile` or `Machine.decode`, which cache."""
        faults: list[str] = []
        states = read_states(_decoded(encoded), faults)
        self.encoded = encoded
        self.hash = hashlib.sha256(encoded).hexdigest()[:32]
        self.states = MappingProxyType(states)
        self.event_types = frozenset(t.on_event for state in states.values() for t in state.transitions)
        self._transitions = {name: _transitions_of(name, state, faults) for name, state in states.items()}
        self._templates = {name: _template_of(name, state, faults) for name, state in states.items() if state.action}
        self._lists = {
            name: _list_of(name, state, faults)
            for name, state in states.items()
            if state.action is not None and state.action.for_each is not None
        }
        self._ways: dict[str, list[str]] = {}
        if faults:
            raise InvalidStateMachine(faults)

    @classmethod
    def compile(cls, states: Mapping[str, StateConfig]) -> Machine:
        """Compile states, without validating the graph, as `validate_state_machine` does.

        Raises:
            InvalidStateMachine: a state is invalid, a condition does not compile, or data is not JSON.
        """
        faults: list[str] = []
        read = read_states(states, faults)
        if faults:
            raise InvalidStateMachine(faults)
        return _compiled(encode_states(read))

    @classmethod
    def decode(cls, encoded: bytes) -> Machine:
        """Compile the `encoded` form of a machine."""
        return _compiled(encoded)

    def __repr__(self) -> str:
        return f"Machine({self.hash}, {len(self.states)} states)"

    def __reduce__(self) -> tuple[Callable[[bytes], Machine], tuple[bytes]]:
        return Machine.decode, (self.encoded,)

    def transition(self, state_name: str, event_type: str) -> tuple[CompiledTransition, ...]:
        """The transitions of a state on an event type, in order."""
        return self._transitions.get(state_name, {}).get(event_type, ())

    def next_state(
        self, state_name: str, event_type: str, *, event: View, goal_data: View, results: View, plan: View
    ) -> str | None:
        """The next state after an event, by the first transition that matches; None: none matches.

        The views are the values of the names in conditions; functions among them are called once, if a condition is.

        Raises:
            ConditionFailed: a condition cannot be evaluated.
        """
        views: dict[str, Mapping[str, Any]] | None = None
        for transition in self.transition(state_name, event_type):
            if transition.condition is None:
                return transition.to_state
            if views is None:
                given = {"event": event, "goal_data": goal_data, "results": results, "plan": plan}
                views = {name: view() if callable(view) else view for name, view in given.items()}
            if transition.condition.evaluate(**views):
                return transition.to_state
        return None

    def awaited(self, state_name: str) -> frozenset[str]:
        """The event types of a state's transitions."""
        return frozenset(self._transitions.get(state_name, ()))

    def action_template(self, state_name: str) -> Template | None:
        """The compiled data of a state's action; None for a state without an action."""
        return self._templates.get(state_name)

    def list_template(self, state_name: str) -> Template | None:
        """The compiled `for_each` of a state's action; None for an action without one."""
        return self._lists.get(state_name)

    def resolve_passthrough(self, state_name: str) -> list[str]:
        """The states that a plan enters when it moves to `state_name`, itself first.

        States with neither action nor transitions nor delay are left at once along `default_next`; the plan stays in
        the last.

        Raises:
            InvalidStateMachine: the path is endless or leads to an unknown state.
        """
        way = self._ways.get(state_name)
        if way is None:
            way = self._ways[state_name] = self._way(state_name)
        return list(way)

    def _way(self, state_name: str) -> list[str]:
        way: list[str] = []
        name = state_name
        while name not in way:
            if (state := self.states.get(name)) is None:
                source = f", to which {way[-1]!r} leads" if way else ""
                raise InvalidStateMachine([f"there is no state {name!r}{source}"])
            way.append(name)
            if not _is_passed_through(state) or state.default_next is None:
                return way
            name = state.default_next
        raise InvalidStateMachine([_loop_fault(way[way.index(name) :])])


def validate_state_machine(machine: Mapping[str, StateConfig | Mapping[str, Any]]) -> None:
    """Validate a state machine as a whole; its states may be dicts.

    Faults: no `start`; an invalid state, or one whose name is not its key; an unknown target; an unreachable state; a
    dead end; a terminal state with a way out or an action; an outcome on a state that is not terminal; an endless
    `default_next` loop; a condition that does not compile; an unknown placeholder root; text that looks like a
    placeholder and is none; an action without a transition
    on its `response_event` or another event of the same base (`web.search.failed` for `web.search.completed`); a
    `for_each` that is no single placeholder, or whose response event no transition takes; an option of it without it.

    Raises:
        InvalidStateMachine: with every fault.
    """
    if faults := faults_of(machine):
        raise InvalidStateMachine(faults)


def faults_of(machine: Mapping[str, StateConfig | Mapping[str, Any]]) -> list[str]:
    """Every fault of a state machine, as :func:`validate_state_machine` lists them."""
    faults: list[str] = []
    states = read_states(machine, faults)
    names = set(machine)
    if START not in names:
        faults.append(f"there is no state {START!r}, in which every plan begins")
    for name, state in states.items():
        faults.extend(f"state {name!r}: {fault}" for fault in _faults_of(name, state, names))
        _transitions_of(name, state, faults)
        template, items = _template_of(name, state, faults), _list_of(name, state, faults)
        known = ROOTS if items is None else ROOTS | BRANCH_ROOTS
        for each, roots in ((template, known), (items, ROOTS)):
            for placeholder in each.placeholders if each else ():
                if placeholder.root not in roots:
                    faults.append(
                        f"state {name!r}: unknown placeholder root {placeholder.root!r} in {placeholder.where} "
                        f"({placeholder.path!r}; roots are {', '.join(sorted(roots))})"
                    )
        for suspect in template.suspects if template else ():
            faults.append(
                f"state {name!r}: {suspect} looks like a placeholder and is none; write {{{{goal_data.name}}}}, "
                "{{results.state.items[0]}} or, where there may be no value, {{path?}}"
            )
    faults.extend(_loop_fault(loop) for loop in _endless_loops(states))
    if START in states and len(states) == len(names):  # an invalid state may lead anywhere
        reached = _reached(states)
        faults.extend(f"state {name!r} cannot be reached" for name in states if name not in reached)
    try:
        encode_states(states)
    except InvalidStateMachine as invalid:
        faults.extend(invalid.faults)
    return faults


def _faults_of(name: str, state: StateConfig, names: set[str]) -> Iterator[str]:
    if state.state_name != name:
        yield f"its state_name is {state.state_name!r}"
    for transition in state.transitions:
        if transition.to_state not in names:
            yield f"its transition on {transition.on_event!r} leads to unknown state {transition.to_state!r}"
    if state.default_next is not None and state.default_next not in names:
        yield f"its default_next leads to unknown state {state.default_next!r}"
    if state.is_terminal:
        if state.action or state.transitions or state.default_next is not None:
            yield "it is terminal, so it has no action, no transitions and no default_next"
        if state.delay_seconds is not None:
            yield "it is terminal, so it has no delay_seconds: delay the state before it"
        return
    if state.outcome is not None:
        yield "it has an outcome but is not terminal"
    if not state.transitions and state.default_next is None:
        yield "it is a dead end: not terminal, and neither transitions nor default_next"
    if state.action:
        response = state.action.response_event
        if not any(t.on_event == response or base_of(t.on_event) == base_of(response) for t in state.transitions):
            yield f"no transition could answer its action, which is answered by {response!r}"
        elif state.action.for_each is not None and all(t.on_event != response for t in state.transitions):
            yield f"no transition takes {response!r}, which comes when all requests of its for_each are answered"
        if state.action.for_each is None:
            for option in ("max_parallel", "join_timeout_seconds"):
                if getattr(state.action, option) is not None:
                    yield f"its action has {option}, but no for_each"


def _is_passed_through(state: StateConfig) -> bool:
    return not (state.is_terminal or state.action or state.transitions or state.delay_seconds)


def _endless_loops(states: Mapping[str, StateConfig]) -> Iterator[list[str]]:
    onward = {
        name: state.default_next
        for name, state in states.items()
        if state.default_next is not None and _is_passed_through(state)
    }
    settled: set[str] = set()
    for first in onward:
        way: list[str] = []
        name = first
        while name in onward and name not in settled:
            settled.add(name)
            way.append(name)
            name = onward[name]
        if name in way:
            yield way[way.index(name) :]


def _loop_fault(loop: list[str]) -> str:
    return f"endless default_next loop: {' -> '.join([*loop, loop[0]])}"


def _reached(states: Mapping[str, StateConfig]) -> set[str]:
    reached: set[str] = set()
    ahead = [START]
    while ahead:
        name = ahead.pop()
        if name in reached or name not in states:
            continue
        reached.add(name)
        state = states[name]
        ahead.extend(t.to_state for t in state.transitions)
        if state.default_next is not None:
            ahead.append(state.default_next)
    return reached


def _transitions_of(name: str, state: StateConfig, faults: list[str]) -> dict[str, tuple[CompiledTransition, ...]]:
    by_event: dict[str, tuple[CompiledTransition, ...]] = {}
    for transition in state.transitions:
        condition = None
        if transition.condition is not None:
            from plancast.state_machine.conditions import (
                compile_condition,  # loads the evaluator, which few programs need
            )

            try:
                condition = compile_condition(transition.condition)
            except InvalidCondition as error:
                faults.append(f"state {name!r}: {error}")
        compiled = CompiledTransition(transition.on_event, transition.to_state, condition)
        by_event[transition.on_event] = (*by_event.get(transition.on_event, ()), compiled)
    return by_event


def _template_of(name: str, state: StateConfig, faults: list[str]) -> Template | None:
    if state.action is None:
        return None
    try:
        return compile_template(state.action.data or {})
    except InterpolationError as error:
        faults.append(f"state {name!r}: {error}")
        return None


def _list_of(name: str, state: StateConfig, faults: list[str]) -> Template | None:
    """The compiled `for_each` of a state's action, which is a single placeholder."""
    if state.action is None or state.action.for_each is None:
        return None
    template = compile_template(state.action.for_each, "for_each")
    if not template.is_value:
        faults.append(
            f"state {name!r}: for_each is {state.action.for_each!r:.80}; it is a placeholder of a list and nothing "
            "else, such as '{{results.search.hits}}'"
        )
    return template


def _decoded(encoded: bytes) -> Any:
    try:
        return json.loads(encoded)
    except (ValueError, RecursionError):
        raise InvalidStateMachine(["what is stored of it is not JSON"]) from None


@lru_cache(maxsize=256)
def _compiled(encoded: bytes) -> Machine:
    return Machine(encoded)
