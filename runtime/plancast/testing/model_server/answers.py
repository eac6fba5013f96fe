"""Requests that a model server receives, and the answers and faults that it can be scripted with."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel


@dataclass(slots=True)
class ModelRequest:
    """A received request. Keys are not stored, only whether there was one and its last characters."""

    number: int
    """Counts from 1, in the order of arrival."""
    model: str
    messages: list[dict[str, Any]]
    parameters: dict[str, Any]
    """Everything else in the body: temperature, response_format ..."""
    headers: dict[str, str]
    """Names in lower case, without those that carry keys."""
    key_given: bool
    key_tail: str
    """The last 4 characters of the key; empty for keys under 8."""
    received_at: float
    """Seconds of a monotonic clock."""
    finished_at: float | None = None
    """When it was answered or cut off, or the client disconnected."""
    status: int | None = None
    """The HTTP status it was answered with."""
    cancelled: bool = False
    """Whether the client disconnected before the answer."""

    @property
    def text(self) -> str:
        """The text of all messages, in order."""
        return "\n".join(_content(message.get("content")) for message in self.messages)

    @property
    def last(self) -> str:
        """The text of the last message."""
        return _content(self.messages[-1].get("content")) if self.messages else ""


def _content(content: object) -> str:
    if isinstance(content, list):  # parts: [{"type": "text", "text": ...}, ...]
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


@dataclass(frozen=True, slots=True)
class Answer:
    """A scripted answer: ``Answer("text")`` is a completion; the class methods make errors and faults."""

    text: str | None = ""
    delay: float = 0.0
    """Seconds before the answer begins."""
    word_delay: float = 0.0
    """Seconds after each word of an answer that is streamed."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    finish_reason: str = "stop"
    refusal: str | None = None
    prompt_tokens: int | None = None
    """Reported usage; None counts one token per four characters."""
    completion_tokens: int | None = None
    cached_tokens: int = 0
    """Reported prompt tokens from the provider's cache."""
    choices: bool = True
    """False leaves ``choices`` empty."""
    body: str | bytes | None = None
    """Sent unchanged in place of a chat completion."""
    content_type: str = "application/json"
    fault: Literal["", "hang", "cut"] = ""

    @classmethod
    def json(cls, value: object, *, delay: float = 0.0) -> Answer:
        """A completion whose text is this value, or pydantic model, as JSON."""
        text = value.model_dump_json() if isinstance(value, BaseModel) else json.dumps(value)
        return cls(text, delay=delay)

    @classmethod
    def error(cls, status: int, message: str = "", *, param: str | None = None, delay: float = 0.0) -> Answer:
        """An error in OpenAI's shape: 400, 401, 403, 404, 500, 503 ..."""
        kind = "server_error" if status >= 500 else "invalid_request_error"
        return cls(status=status, body=error_body(message or f"scripted error {status}", param, kind), delay=delay)

    @classmethod
    def rate_limited(cls, retry_after: float | str | None = None) -> Answer:
        """Status 429, with ``Retry-After`` if given (seconds, or an HTTP date)."""
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        return cls(status=429, headers=headers, body=error_body("Rate limit reached", kind="rate_limit_error"))

    @classmethod
    def hang(cls) -> Answer:
        """Never answer; ends when the client disconnects or the server closes."""
        return cls(fault="hang")

    @classmethod
    def cut(cls, text: str = "never sent in full", *, delay: float = 0.0) -> Answer:
        """Send half of the body, then close the connection."""
        return cls(text, fault="cut", delay=delay)

    @classmethod
    def raw(cls, body: str | bytes, content_type: str = "text/html", *, status: int = 200) -> Answer:
        """An arbitrary body: not JSON, or JSON of another schema."""
        return cls(body=body, content_type=content_type, status=status)

    @classmethod
    def refused(cls, refusal: str = "I'm sorry, I can't help with that.") -> Answer:
        """The model refuses: ``message.refusal`` and no content."""
        return cls(None, refusal=refusal)

    @classmethod
    def empty(cls) -> Answer:
        """A completion without choices."""
        return cls(choices=False)

    def encode(self, request: ModelRequest) -> bytes:
        """Encode the response body for a request."""
        if self.body is not None:
            return self.body.encode() if isinstance(self.body, str) else self.body
        prompt = len(request.text) // 4 + 1 if self.prompt_tokens is None else self.prompt_tokens
        written = len(self.text or "") // 4 + 1 if self.completion_tokens is None else self.completion_tokens
        message = {"role": "assistant", "content": self.text, "refusal": self.refusal}
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason, "logprobs": None}
        completion = {
            "id": f"chatcmpl-{request.number}",
            "object": "chat.completion",
            "created": 1_767_225_600,
            "service_tier": "default",
            "system_fingerprint": "fp_test",
            "model": request.model,
            "choices": [choice] if self.choices else [],
            "usage": self._usage(prompt, written),
        }
        return json.dumps(completion).encode()

    def _usage(self, prompt: int, written: int) -> dict[str, Any]:
        usage = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
        return usage | ({"prompt_tokens_details": {"cached_tokens": self.cached_tokens}} if self.cached_tokens else {})


def completion_chunks(completion: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Split a completion into the chunks of a streamed one: its words, the reason of its end, its usage."""
    same = {name: completion[name] for name in ("id", "created", "model", "system_fingerprint")}
    same |= {"object": "chat.completion.chunk"}
    chunks = []
    for choice in completion["choices"]:
        message = choice["message"]
        words = re.findall(r"\s*\S+|\s+$", message["content"] or "")
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": word} for word in words)]
        if message["refusal"]:
            deltas.append({"refusal": message["refusal"]})
        chunks += [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    return [same | chunk for chunk in (*chunks, {"choices": [], "usage": completion["usage"]})]


AnswerLike: TypeAlias = Answer | BaseModel | str | Mapping[str, Any] | Sequence[Any]
"""Accepted forms of an answer: text, or a JSON value or pydantic model, which is serialized to text."""

Rule: TypeAlias = Callable[[ModelRequest], AnswerLike | Awaitable[AnswerLike]]
"""Answers a request; sync or async."""


def as_answer(value: AnswerLike) -> Answer:
    if isinstance(value, Answer):
        return value
    return Answer(value) if isinstance(value, str) else Answer.json(value)


def error_body(message: str, param: str | None = None, kind: str = "invalid_request_error") -> str:
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": None}})
