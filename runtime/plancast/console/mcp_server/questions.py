"""Questions of plans to people: as a form, as text, and the answer to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult

from plancast.client.handle import PlanHandle
from plancast.client.signals import SignalOutcome
from plancast.errors import InvalidAnswer, NotAwaited
from plancast.json_values.abbreviate import to_json_within
from plancast.json_values.normalize import plain
from plancast.plan_store.approvals import NO, YES, Approval, Fields, People, approval_of

APPROVED, REASON, ANSWER = "approved", "reason", "answer"
_LONGEST: Final = 2_000
"""Longest rendering of the data that a question shows, in characters."""
_PRIMITIVES: Final = frozenset({"string", "number", "integer", "boolean"})
_OF_FORMS: Final = (
    "type", "title", "description", "enum", "default", "minimum", "maximum", "minLength", "maxLength", "format",
)  # fmt: skip
"""Keywords of a property that forms may have."""


@dataclass(frozen=True)
class Question:
    """An open request of a plan to people."""

    approval: Approval
    decides: bool
    """True for a yes or no; False for data."""

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
    def form(self) -> ElicitRequest | None:
        """The question as a form; None if the answer does not fit into one."""
        properties = self._properties()
        if properties is None:
            return None
        required = [name for name in (APPROVED, ANSWER) if name in properties]
        required += [name for name in self._schema.get("required") or () if name in properties and name not in required]
        schema = {"type": "object", "properties": properties, "required": required}
        return ElicitRequest(params=ElicitRequestFormParams(message=self.text, requested_schema=schema))

    @property
    def _schema(self) -> Fields:
        return self.approval.schema or {}

    def _properties(self) -> dict[str, Any] | None:
        found: dict[str, Any] = {}
        if self.decides:
            found[APPROVED] = {"type": "boolean", "title": "Approve?"}
        declared = self._schema.get("properties") or {}
        for name, property_ in declared.items():
            if name in (APPROVED, "by") or not isinstance(property_, Mapping):
                continue
            if property_.get("type") in _PRIMITIVES:
                found[name] = {key: plain(property_[key]) for key in _OF_FORMS if key in property_}
            elif name in (self._schema.get("required") or ()):
                return None
        if self.decides and (self._schema.get("additionalProperties") is not False or REASON in declared):
            found.setdefault(REASON, {"type": "string", "title": "Why?"})
        if not found:
            found[ANSWER] = {"type": "string"}
        return found

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
    return Question(approval, _decides(approval, state)) if approval is not None else None


def _decides(approval: Approval, state: Fields) -> bool:
    """False where the plan waits for data: its event has a schema without ``approved``, or it waits for input."""
    last = (approval.expected_event or "").rpartition(".")[2]
    names_it = APPROVED in ((approval.schema or {}).get("properties") or {})
    if last in YES | NO or names_it or approval.refusal_event is not None:
        return True
    waits_for_input = state.get("pause_reason") == "await_input"
    return not waits_for_input and (approval.schema is None or bool(state.get("pause_reason")))


async def answer_form(handle: PlanHandle, question: Question, answer: ElicitResult, user: str) -> bool:
    """Pass on what a person has entered into a form; False if they have entered nothing.

    Raises:
        NotAwaited: the plan asks something else by now, or would take a no for a yes.
        InvalidAnswer: the answer breaks the schema of its event.
        PlanFinished, PlanNotFound, BusUnavailable: as `PlanHandle.signal` does.
    """
    if answer.action != "accept":
        return False
    content: dict[str, Any] = dict(answer.content or {})
    if not question.decides:
        await give_input(handle, question, content, user)
        return True
    approved = content.pop(APPROVED, None)
    if not isinstance(approved, bool):
        raise InvalidAnswer(handle.plan_id, question.approval.expected_event or "", ["approved: got no true or false"])
    reason = "" if REASON in _declared(question) else str(content.pop(REASON, None) or "")
    send = handle.approve if approved else handle.reject
    data = {name: value for name, value in content.items() if value is not None}
    outcome = await send(data=data, reason=reason, user_id=user, request_id=question.approval.request_id)
    _check(handle, outcome)
    return True


def _check(handle: PlanHandle, outcome: SignalOutcome) -> None:
    if outcome is SignalOutcome.IGNORED:  # such as that of another user, where plans check them
        raise NotAwaited(f"plan {handle.plan_id} has ignored the answer")


def _declared(question: Question) -> Fields:
    return (question.approval.schema or {}).get("properties") or {}


async def give_input(handle: PlanHandle, question: Question, data: dict[str, Any], user: str) -> None:
    """Give a plan data that it waits for; raises as :func:`answer_form` does."""
    if faults := [
        f"data.{name}: allowed: nothing, since it is no decision" for name in (APPROVED, "by") if name in data
    ]:
        raise InvalidAnswer(handle.plan_id, question.approval.expected_event or "", faults)
    if question.approval.expected_event is None:
        await handle.resume(data, user_id=user)
        return
    event, request = question.approval.expected_event, question.approval.request_id
    _check(handle, await handle.signal(event, data, user_id=user, request_id=request))
