"""Asking a model until its answer holds: the options of a model, and the loop of answer, faults and repair."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from plancast.errors import InvalidDecision, InvalidStateMachine
from plancast.json_values.abbreviate import cut
from plancast.models.options import AnswerFormat, Messages, ModelOptions
from plancast.models.port import ReasonerPort, ReasonReply

__all__ = [
    "Asking",
]

_MOST_ANSWER: Final = 4_000
_MOST_PROMPT: Final = 8_000
_T = TypeVar("_T")


@dataclass(frozen=True)
class Asking:
    """A question that is asked until its answer holds.

    Args:
        port: Who asks.
        options: Which model.
        response_format: What the answer is to be.
        about: Whose plan it is: `tenant_id`, `plan_id` and `planner` of the requests.
        key: What the idempotency keys begin with; empty asks anew each time.
        steady: Messages that stand for the first ones in the key, when those tell the time.
    """

    port: ReasonerPort
    options: ModelOptions
    response_format: AnswerFormat
    about: Mapping[str, str]
    key: str = ""
    steady: Messages | None = None

    async def until(self, messages: Messages, read: Callable[[str], _T]) -> _T:
        """What ``read`` makes of the answer. What it refuses is sent back with the faults, `max_repairs` times.

        Raises:
            InvalidDecision, InvalidStateMachine: as ``read`` raised them of the last answer; their attribute
                ``exchange`` is the whole exchange, a list of ``{"role", "content"}``, long contents cut.
            ModelUnavailable, ReasonerUnavailable: as the port does.
        """
        told: list[Mapping[str, Any]] = list(messages)
        for attempt in range(self.options.max_repairs + 1):
            keyed = [*(self.steady or messages), *told[len(messages) :]]
            request = self.options.request(
                told, self.response_format.wanted, idempotency_key=self._key_of(keyed, attempt), **self.about
            )
            reply = await self.port.complete(request)
            try:
                return read(reply.text)
            except (InvalidDecision, InvalidStateMachine) as error:
                told += _repair(reply, error.faults)
                refused = error
        vars(refused)["exchange"] = _bounded(told, len(messages))
        raise refused

    def _key_of(self, messages: Messages, attempt: int) -> str:
        if not self.key:
            return ""
        told = hashlib.sha256(self.options.told.encode(errors="replace"))
        told.update(self.response_format.told.encode(errors="replace"))
        for each in messages:
            content = str(each["content"]).encode(errors="replace")
            told.update(f"{each['role']}:{len(content)}:".encode())
            told.update(content)
        return f"{self.key}:{attempt}:{told.hexdigest()}"


def _repair(reply: ReasonReply, faults: Sequence[str]) -> list[dict[str, Any]]:
    listed = "\n".join(f"- {fault}" for fault in faults)
    if reply.finish_reason == "length":
        listed += "\n- the answer: it was cut off at the limit of tokens (max_tokens), allowed: a shorter one"
    return [
        {"role": "assistant", "content": cut(reply.text, _MOST_ANSWER) or "(no text)"},
        {
            "role": "user",
            "content": f"That answer cannot be used:\n{listed}\n\nAnswer again: the whole JSON object, mended.",
        },
    ]


def _bounded(messages: Messages, prompts: int) -> list[dict[str, str]]:
    return [
        {"role": str(each["role"]), "content": cut(str(each["content"]), _MOST_PROMPT if i < prompts else _MOST_ANSWER)}
        for i, each in enumerate(messages)
    ]
