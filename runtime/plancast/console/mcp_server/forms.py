"""Forms: questions of plans as MCP elicits their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult

from plancast.client.handle import PlanHandle
from plancast.console.service.questions import APPROVED, REASON, Question, give_answer
from plancast.json_values.normalize import plain

ANSWER: Final = "answer"
_PRIMITIVES: Final = frozenset({"string", "number", "integer", "boolean"})
_OF_FORMS: Final = (
    "type", "title", "description", "enum", "default", "minimum", "maximum", "minLength", "maxLength", "format",
)  # fmt: skip
"""Keywords of a property that forms may have."""


def form_of(question: Question) -> ElicitRequest | None:
    """The question as a form; None if the answer does not fit into one."""
    properties = _properties(question)
    if properties is None:
        return None
    required = [name for name in (APPROVED, ANSWER) if name in properties]
    declared = (question.approval.schema or {}).get("required") or ()
    required += [name for name in declared if name in properties and name not in required]
    schema = {"type": "object", "properties": properties, "required": required}
    return ElicitRequest(params=ElicitRequestFormParams(message=question.text, requested_schema=schema))


def _properties(question: Question) -> dict[str, Any] | None:
    schema, found = question.approval.schema or {}, dict[str, Any]()
    if question.decides:
        found[APPROVED] = {"type": "boolean", "title": "Approve?"}
    for name, property_ in question.declared.items():
        if name in (APPROVED, "by") or not isinstance(property_, Mapping):
            continue
        if property_.get("type") in _PRIMITIVES:
            found[name] = {key: plain(property_[key]) for key in _OF_FORMS if key in property_}
        elif name in (schema.get("required") or ()):
            return None
    if question.takes_reason:
        found.setdefault(REASON, {"type": "string", "title": "Why?"})
    if not found:
        found[ANSWER] = {"type": "string"}
    return found


async def answer_form(handle: PlanHandle, question: Question, answer: ElicitResult, user: str) -> bool:
    """Pass on what a person has entered into a form; False if they have entered nothing.

    Raises as :func:`~plancast.console.service.questions.give_answer` does.
    """
    if answer.action != "accept":
        return False
    await give_answer(handle, question, dict(answer.content or {}), user)
    return True
