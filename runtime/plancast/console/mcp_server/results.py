"""Results of calls: what a plan has come to, or what it waits for."""

from __future__ import annotations

from typing import Any, Final

from mcp_types import CallToolResult, TextContent

from plancast.console.service.questions import Question
from plancast.json_values.abbreviate import to_json_within
from plancast.json_values.normalize import plain

PLAN_ID: Final = "plancast/plan_id"
"""Key of a result's ``_meta``: the plan, which can be asked for later."""
STATUS: Final = "plancast/status"
IDEMPOTENCY_KEY: Final = "plancast/idempotency_key"
"""Key of a call's ``_meta``: calls with the same key are one plan."""
_TEXT: Final = 32_000
"""Longest text of a result, in characters; the structured content is whole."""


def result_of(plan_id: str, result: Any) -> CallToolResult:
    """The result of a plan that has completed."""
    value = plain(result)
    return CallToolResult(
        content=[TextContent(text=to_json_within(value, _TEXT))],
        structured_content=value if isinstance(value, dict) else {"result": value},
        _meta={PLAN_ID: plan_id, STATUS: "completed"},
    )


def failure_of(text: str, plan_id: str | None = None, status: str = "failed") -> CallToolResult:
    """The result of a call that has failed, with its plan if one was begun."""
    meta = {PLAN_ID: plan_id, STATUS: status} if plan_id is not None else None
    return CallToolResult(content=[TextContent(text=text)], is_error=True, _meta=meta)


def asked_of(plan_id: str, question: Question, why: str) -> CallToolResult:
    """The result of a call whose plan waits for people, who cannot be asked here."""
    text = f"Plan {plan_id} waits for {'a person' if question.for_people else 'input'}: {question.text}\n{why}"
    asks = {"plan_id": plan_id, "status": "input_required", "asks": question.to_dict()}
    return CallToolResult(
        content=[TextContent(text=text)],
        structured_content=asks,
        _meta={PLAN_ID: plan_id, STATUS: "input_required"},
    )
