"""Questions of plans to people, for the programs of others, and the answers to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from plancast.client.handle import PlanHandle
from plancast.client.signals import SignalOutcome
from plancast.errors import InvalidAnswer, NotAwaited
from plancast.json_values.abbreviate import to_json_within
from plancast.json_values.normalize import plain
from plancast.plan.control_events import RESUME
from plancast.plan_store.approvals import NO, YES, Approval, Fields, People, approval_of

APPROVED, REASON = "approved", "reason"
_LONGEST: Final = 2_000
"""Longest rendering of the data that a question shows, in characters."""


@dataclass(frozen=True)
class Question:
    """An open request of a plan to people."""

    approval: Approval
    decides: bool
    """True for a yes or no; False for data."""
    is_named: bool = False
    """True if its event, its schema or the planner's wait says that it is a decision; else it may be one."""

    @property
    def for_people(self) -> bool:
        """True unless it is known to be no decision: by the schema of its event, which a model may fill in, too."""
        return self.decides or self.approval.schema is None

    @property
    def key(self) -> tuple[str | None, str | None]:
        """Equal for the same question, and different for the next one."""
        return self.approval.request_id, self.approval.expected_event

    @property
    def text(self) -> str:
        """The question, with the data that the plan shows."""
        shown = f"\n{to_json_within(self.approval.payload, _LONGEST)}" if self.approval.payload else ""
        return f"{self.approval.reason}{shown}"

    @property
    def declared(self) -> Fields:
        """The properties in the schema of its event."""
        return (self.approval.schema or {}).get("properties") or {}

    @property
    def takes_reason(self) -> bool:
        """True if the reason of a decision may go with it."""
        closed = (self.approval.schema or {}).get("additionalProperties") is False
        return self.decides and (not closed or REASON in self.declared)

    @property
    def answer_schema(self) -> dict[str, Any]:
        """JSON Schema of what :func:`give_answer` takes."""
        schema: dict[str, Any] = plain(self.approval.schema or {})
        if not self.decides:
            return {**schema, "type": "object"}
        properties = {name: plain(each) for name, each in self.declared.items() if name != "by"}
        properties[APPROVED] = {"type": "boolean"}
        if self.takes_reason:
            properties.setdefault(REASON, {"type": "string"})
        required = [name for name in schema.get("required") or () if name not in (APPROVED, "by")]
        return {**schema, "type": "object", "properties": properties, "required": [APPROVED, *required]}

    def to_dict(self) -> dict[str, Any]:
        """The question for programs."""
        return {
            "question": self.approval.reason,
            "data": plain(self.approval.payload),
            "for_people": self.for_people,
            "schema": plain(self.approval.schema),
        }


def question_of(state: Fields, people: People) -> Question | None:
    """The question that a plan asks people now; None if it asks nothing."""
    approval = approval_of(state, people)
    if approval is None:
        return None
    last = (approval.expected_event or "").rpartition(".")[2]
    names_it = APPROVED in ((approval.schema or {}).get("properties") or {})
    waits_for_input = state.get("pause_reason") == "await_input"
    is_named = last in YES | NO or names_it or approval.refusal_event is not None
    is_named = is_named or (bool(state.get("pause_reason")) and not waits_for_input)
    return Question(approval, is_named or (not waits_for_input and approval.schema is None), is_named)


async def give_answer(
    handle: PlanHandle, question: Question, data: dict[str, Any], user: str, event_id: str | None = None
) -> None:
    """Answer a question: with ``approved`` and perhaps ``reason`` in the data of a decision.

    Args:
        handle: The plan.
        question: What it asks.
        data: The answer.
        user: Who answers.
        event_id: Idempotency key.

    Raises:
        NotAwaited: the plan asks something else by now, or would take a no for a yes.
        InvalidAnswer: the answer breaks the schema of its event.
        PlanFinished, PlanNotFound, BusUnavailable: as `PlanHandle.signal` does.
    """
    if not question.decides:
        await give_input(handle, question, data, user, event_id)
        return
    content = dict(data)
    approved = content.pop(APPROVED, None)
    if not isinstance(approved, bool):
        raise InvalidAnswer(handle.plan_id, question.approval.expected_event or "", ["approved: got no true or false"])
    reason = "" if REASON in question.declared else str(content.pop(REASON, None) or "")
    send = handle.approve if approved else handle.reject
    given = {name: value for name, value in content.items() if value is not None}
    outcome = await send(
        data=given, reason=reason, user_id=user, event_id=event_id, request_id=question.approval.request_id
    )
    _check(handle, outcome)


async def give_input(
    handle: PlanHandle, question: Question, data: dict[str, Any], user: str, event_id: str | None = None
) -> None:
    """Give a plan data that it waits for, which decide nothing; raises as :func:`give_answer` does."""
    if faults := [
        f"data.{name}: allowed: nothing, since it is no decision" for name in (APPROVED, "by") if name in data
    ]:
        raise InvalidAnswer(handle.plan_id, question.approval.expected_event or "", faults)
    if question.approval.expected_event is None:
        # A plan that asks for a decision by now is not resumed by what was said to its last question.
        given = {"input": plain(data), "asked": question.approval.reason}
        await handle.control(RESUME, given, user_id=user, event_id=event_id)
        return
    event, request = question.approval.expected_event, question.approval.request_id
    _check(handle, await handle.signal(event, data, user_id=user, event_id=event_id, request_id=request))


def _check(handle: PlanHandle, outcome: SignalOutcome) -> None:
    if outcome is SignalOutcome.IGNORED:  # such as that of another user, where plans check them
        raise NotAwaited(f"plan {handle.plan_id} has ignored the answer")
