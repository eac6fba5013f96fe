"""Effect and Outcome: the declaration of what a task does outside, and the answer of a look-up."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from inspect import iscoroutinefunction
from typing import Any, Final, Literal, Protocol

from plancast.errors import InterpolationError, InvalidApp, TerminalError
from plancast.json_values.normalize import plain
from plancast.plan_tree import place_of_cause
from plancast.state_machine.interpolation import Template, compile_template
from plancast_bus.events.codec import pack
from plancast_bus.events.envelope import EventEnvelope

MAX_KEY: Final = 500
"""Longest key of an effect, in characters."""
ATTEMPT_OF: Final = "attempt_of"
"""Key of a request's metadata: the id of the plan's first request for the same task."""


class KeyedTask(Protocol):
    """The part of a task that keys are made of."""

    @property
    def event(self) -> EventEnvelope: ...

    @property
    def data(self) -> Any: ...

    @property
    def idempotency_key(self) -> str: ...


Key = str | Callable[[Any], str] | None


@dataclass(frozen=True)
class Effect:
    """Declaration of the effect of a task outside: it charges a card, sends a mail, books a seat.

    Two tasks of one type, one scope and one key are one effect: the second one does not run, and is answered with the
    first one's outcome. The key of a failed effect is free again for further attempts at the same task only.

    Raises:
        InvalidApp: a field has another value than its type allows, or the key is no template.
    """

    key: Key = None
    """Template over the task's data, such as ``{{data.invoice}}``, or a function of the task that returns text. None:
    every task is an effect of its own."""
    repeat: Literal["safe", "never"] = "safe"
    """``never``: an attempt whose end is not known is looked up, or left to a person, and not repeated blindly."""
    scope: Literal["plan", "tree", "tenant"] = "plan"
    """Tasks among which keys are compared: those of a plan, of a plan with its parents and children, or of a tenant."""

    def __post_init__(self) -> None:
        if self.repeat not in ("safe", "never"):
            raise InvalidApp(f"Effect: repeat is {self.repeat!r:.60}, allowed: 'safe', 'never'")
        if self.scope not in ("plan", "tree", "tenant"):
            raise InvalidApp(f"Effect: scope is {self.scope!r:.60}, allowed: 'plan', 'tree', 'tenant'")
        key: Any = self.key
        if iscoroutinefunction(key):
            raise InvalidApp("Effect: the function of the key is async, allowed: one that returns text")
        if key is None or callable(key):
            return
        if not isinstance(key, str) or not key:
            raise InvalidApp(f"Effect: key is {self.key!r:.60}, allowed: a template, a function of the task, or None")
        try:
            template = _template(key)
        except InterpolationError as error:
            raise InvalidApp(f"Effect: {error}") from None
        roots = {each.root for each in template.placeholders}
        if roots - {"data"}:
            raise InvalidApp(f"Effect: the key {self.key!r:.80} uses {sorted(roots)}, allowed: data")
        if template.suspects or not roots:
            raise InvalidApp(
                f"Effect: the key {self.key!r:.80} names no field of the task's data, as in {{{{data.id}}}}"
            )

    def key_of(self, task: KeyedTask) -> str:
        """The key of a task's effect.

        Raises:
            TerminalError: the task's data have no such field, or the key is empty or too long.
        """
        if self.key is None:
            return task.idempotency_key
        try:
            value = self.key(task) if callable(self.key) else _template(self.key).render({"data": task.data})
        except InterpolationError as error:
            raise TerminalError(f"the task has no key: {error}") from error
        text = value if isinstance(value, str) else json.dumps(plain(value), sort_keys=True, ensure_ascii=False)
        if value is None or not 0 < len(text) <= MAX_KEY:
            raise TerminalError(f"the task's key is {text!r:.80}, allowed: 1 to {MAX_KEY} characters")
        return text

    def fields_of(self, task: KeyedTask) -> list[str]:
        """The fields that a template joins to a key, since ``a/b`` and ``c`` make the same text as ``a`` and ``b/c``.

        Empty where the key is one field or made by a function.
        """
        joined = _fields(self.key) if isinstance(self.key, str) else None
        return joined.render({"data": task.data}) if joined is not None else []


@dataclass(frozen=True)
class Outcome:
    """Finding of a look-up about an attempt: :meth:`done`, :meth:`not_done` or :meth:`unknown`."""

    kind: Literal["done", "not_done", "unknown"]
    result: Any = None
    """The value that the task's handler would have returned, if it is done."""
    reason: str = ""
    """Why it is unknown, for people."""

    @classmethod
    def done(cls, result: Any = None) -> Outcome:
        """It was done, with the result that the task's handler would have returned."""
        return cls("done", result)

    @classmethod
    def not_done(cls) -> Outcome:
        """It was not done, and may be begun again."""
        return cls("not_done")

    @classmethod
    def unknown(cls, reason: str = "") -> Outcome:
        """It cannot be told; a person has to."""
        return cls("unknown", reason=reason)


def idempotency_key(request: EventEnvelope) -> str:
    """The key of a task: the same for all attempts at it in all processes, different for different tasks."""
    first = request.metadata.get(ATTEMPT_OF)
    plan, _, number = request.id.rpartition(":")
    own = isinstance(first, str) and bool(number) and first.rpartition(":")[0] == plan
    return _digest(request.tenant_id or "", request.goal_id or "", first if own else request.id)


def scope_of(effect: Effect, request: EventEnvelope) -> str:
    """Name of the scope in which the key of a request's effect is compared; tenants never share one."""
    if effect.scope == "tenant":
        return ""
    plan = request.correlation_id
    if effect.scope == "plan":
        return f"plan:{request.plan_id or plan}"
    place = place_of_cause(request.metadata) if request.metadata else None
    return f"tree:{plan if place is None else place.root}"


def address_of(effect: Effect, request: EventEnvelope, key: str, fields: Sequence[str] = ()) -> str:
    """Key of an effect's record in the ledger of its task type.

    Args:
        effect: Its declaration.
        request: The task's request.
        key: As :meth:`Effect.key_of` makes it.
        fields: As :meth:`Effect.fields_of` does.
    """
    return _digest(request.tenant_id or "", scope_of(effect, request), key, *fields)


@lru_cache(maxsize=64)  # a worker makes the key of a task several times
def _digest(*parts: str) -> str:
    return sha256(pack(parts)).hexdigest()[:40]


@lru_cache(maxsize=256)
def _template(key: str) -> Template:
    return compile_template(key)


@lru_cache(maxsize=256)
def _fields(key: str) -> Template | None:
    """The placeholders of a template one by one, each rendered as a text; None for a single one."""
    paths = [f"{each.path}?" if each.optional else each.path for each in _template(key).placeholders]
    return compile_template([f"{{{{{path}}}}} " for path in paths]) if len(paths) > 1 else None
