"""Requests a model's answer until it is valid: the faults of an answer are sent back for repair."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from plancast.errors import InvalidDecision, InvalidStateMachine
from plancast.json_values.abbreviate import cut
from plancast.models.options import AnswerFormat, Messages, ModelOptions
from plancast.models.port import ReasonerPort, ReasonReply

_MAX_ANSWER: Final = 4_000
_MAX_PROMPT: Final = 8_000
_T = TypeVar("_T")


@dataclass(frozen=True)
class RepairLoop:
    """The requests for one answer."""

    port: ReasonerPort
    options: ModelOptions
    response_format: AnswerFormat
    labels: Mapping[str, str]
    """`tenant_id`, `plan_id` and `planner` of the requests."""
    key: str = ""
    """Prefix of the idempotency keys; empty: none, each request is made anew."""
    key_messages: Messages | None = None
    """Hashed into the key in place of the first messages, where those hold the time."""

    async def run(self, messages: Messages, parse: Callable[[str], _T]) -> _T:
        """Request an answer, and parse it. Faults go back to the model, `max_repairs` times.

        Raises:
            InvalidDecision, InvalidStateMachine: from parsing the last answer; their attribute ``exchange`` is the
                whole exchange, a list of ``{"role", "content"}``, long contents cut.
            ModelUnavailable, ReasonerUnavailable: from the port.
        """
        exchange: list[Mapping[str, Any]] = list(messages)
        for attempt in range(self.options.max_repairs + 1):
            keyed = [*(self.key_messages or messages), *exchange[len(messages) :]]
            key = self._idempotency_key(keyed, attempt)
            request = self.options.request(exchange, self.response_format.schema, idempotency_key=key, **self.labels)
            reply = await self.port.complete(request)
            try:
                return parse(reply.text)
            except (InvalidDecision, InvalidStateMachine) as error:
                exchange += _repair_messages(reply, error.faults)
                refusal = error
        vars(refusal)["exchange"] = _abbreviated(exchange, len(messages))
        raise refusal

    def _idempotency_key(self, messages: Messages, attempt: int) -> str:
        if not self.key:
            return ""
        digest = hashlib.sha256(self.options.cache_key.encode(errors="replace"))
        digest.update(self.response_format.cache_key.encode(errors="replace"))
        for each in messages:
            content = str(each["content"]).encode(errors="replace")
            digest.update(f"{each['role']}:{len(content)}:".encode())
            digest.update(content)
        return f"{self.key}:{attempt}:{digest.hexdigest()}"


def _repair_messages(reply: ReasonReply, faults: Sequence[str]) -> list[dict[str, Any]]:
    listed = "\n".join(f"- {fault}" for fault in faults)
    if reply.finish_reason == "length":
        listed += "\n- the answer: it was cut off at the limit of tokens (max_tokens), allowed: a shorter one"
    repair = f"That answer cannot be used:\n{listed}\n\nAnswer again: the whole JSON object, corrected."
    return [
        {"role": "assistant", "content": cut(reply.text, _MAX_ANSWER) or "(no text)"},
        {"role": "user", "content": repair},
    ]


def _abbreviated(messages: Messages, prompts: int) -> list[dict[str, str]]:
    return [
        {"role": str(each["role"]), "content": cut(str(each["content"]), _MAX_PROMPT if i < prompts else _MAX_ANSWER)}
        for i, each in enumerate(messages)
    ]
