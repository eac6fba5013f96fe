"""Hook: a webhook of an app, and the goal or signal that a message by it becomes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, Final

from plancast.errors import InterpolationError, InvalidApp, InvalidCondition
from plancast.state_machine.interpolation import Template, compile_template
from plancast.webhooks.secret import Secret, Secrets
from plancast_bus.subjects import check_event_type

BODY: Final = "{{data}}"
"""The template of a hook's data, where it has none: the body as it is."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Unmapped(InterpolationError):
    """Raised when the expressions of a hook find nothing in a message, or something that cannot be used."""


@dataclass(frozen=True)
class HookMessage:
    """The goal or signal that a message becomes."""

    event_id: str
    """The same for a repetition of the message."""
    plan_id: str
    """The plan that it begins, or signals."""
    data: dict[str, Any]


@dataclass(frozen=True)
class Hook:
    """A webhook.

    Raises:
        InvalidApp: a field has another value than it may have.
    """

    name: str
    """The last part of its path."""
    event_type: str
    """The goal, or the signal, that a message becomes."""
    secret: Secret | Sequence[Secret] = field(repr=False)
    """Where its secrets are; several while they are rotated."""
    correlation: str | None = None
    """Template over the body, such as ``{{data.order_id}}``: the id of the plan. None: each message begins a plan."""
    data: Any = BODY
    """Template over the body of the event's data; the body by default."""
    when: str | None = None
    """Condition in CEL over ``event.data``, the body: other messages are accepted, and count for nothing."""
    tenant_id: str = ""
    """The tenant whose plans it begins and signals; no others."""

    def __post_init__(self) -> None:
        where, name = f"hook {self.name!r:.80}", str(self.name)
        if not _NAME.fullmatch(name):
            raise InvalidApp(f"{where}: a name has 1 to 64 of A-Z a-z 0-9 . _ -, and begins with a letter or a digit")
        try:
            check_event_type(self.event_type)
        except ValueError as error:
            raise InvalidApp(f"{where}: {error}") from None
        _ = self.secrets
        for name, value in (("correlation", self.correlation), ("data", self.data)):
            try:
                template = compile_template(value)
            except InterpolationError as error:
                raise InvalidApp(f"{where}: {name}: {error}") from None
            roots = {each.root for each in template.placeholders} - {"data"}
            fixed = name == "correlation" and value is not None and not template.placeholders
            if roots or template.suspects or fixed:
                raise InvalidApp(f"{where}: {name} is {value!r:.80}, allowed: a template over data, as {{{{data.id}}}}")
        if self.when is not None:
            from plancast.state_machine.conditions import compile_condition

            try:
                compile_condition(self.when)
            except InvalidCondition as error:
                raise InvalidApp(f"{where}: {error}") from None

    @cached_property
    def secrets(self) -> Secrets:
        """Its secrets."""
        return Secrets(f"hook {self.name!r}", self.secret)

    @cached_property
    def _templates(self) -> tuple[Template, Template]:
        return compile_template(self.correlation), compile_template(self.data)

    def takes(self, body: Any) -> bool:
        """True if its condition is met, or there is none.

        Raises:
            ConditionFailed: it cannot be evaluated.
        """
        if self.when is None:
            return True
        from plancast.state_machine.conditions import compile_condition

        event = {"type": self.event_type, "data": body, "topic": ""}
        return compile_condition(self.when).evaluate(event=event, goal_data={}, results={}, plan={})

    def read(self, message_id: str, body: Any) -> HookMessage:
        """Map a message. Pure: a repetition of it gives the same.

        Args:
            message_id: The sender's id of the message.
            body: Its body, JSON.

        Raises:
            Unmapped: an expression finds nothing, or no text, number or object where one is needed.
        """
        correlation, template = self._templates
        short = message_id if _PLAIN_ID.fullmatch(message_id) else sha256(message_id.encode()).hexdigest()[:40]
        event_id = f"hook:{self.name}:{short}"
        try:
            plan, data = correlation.render({"data": body}), template.render({"data": body})
        except InterpolationError as error:
            raise Unmapped(f"hook {self.name!r}: {error}") from None
        if not isinstance(data, dict):
            raise Unmapped(f"hook {self.name!r}: data is a {type(data).__name__}, allowed: an object")
        if self.correlation is None:
            plan = event_id
        if isinstance(plan, bool) or not isinstance(plan, (str, int)) or not str(plan).strip():
            raise Unmapped(f"hook {self.name!r}: correlation is {plan!r:.60}, allowed: a text or a whole number")
        return HookMessage(event_id, str(plan), data)
