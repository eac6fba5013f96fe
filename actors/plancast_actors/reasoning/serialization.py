"""Questions and answers as bytes: packed once, and passed on as they are by whoever need not know what they hold.

A question weighs tens of kilobytes, in hundreds of objects. Between the host that asks and the reasoner that calls the
model it is a single one, beside the few fields by which a pool does its work.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TypeAlias

from plancast.models.port import ReasonReply, ReasonRequest

PROTOCOL = pickle.HIGHEST_PROTOCOL


@dataclass(frozen=True, slots=True)
class SealedRequest:
    """A question that is not opened on its way; fields are those of :class:`plancast.models.port.ReasonRequest`."""

    model: str
    idempotency_key: str
    tenant_id: str
    plan_id: str
    planner: str
    body: bytes
    """The question, pickled: it holds the API key."""

    def __repr__(self) -> str:
        return f"SealedRequest(model={self.model!r}, plan_id={self.plan_id!r}, {len(self.body)} bytes)"

    def open(self) -> ReasonRequest:
        """The question."""
        request: ReasonRequest = pickle.loads(self.body)
        return request


Question: TypeAlias = ReasonRequest | SealedRequest


def seal(question: Question) -> SealedRequest:
    """Pack a question, unless it is packed already."""
    if isinstance(question, SealedRequest):
        return question
    try:
        body = pickle.dumps(question, PROTOCOL)
    except Exception:  # a parameter that only Ray's pickler knows how to take along, such as a class of a script
        from ray import cloudpickle

        body = cloudpickle.dumps(question)  # type: ignore[no-untyped-call]
    asked = question
    return SealedRequest(asked.model, asked.idempotency_key, asked.tenant_id, asked.plan_id, asked.planner, body)


def opened(question: Question) -> ReasonRequest:
    """A question to be read."""
    return question.open() if isinstance(question, SealedRequest) else question


def pack_call(call_id: str, question: Question) -> bytes:
    """A call with its question, as one argument that Ray passes on without a look at it."""
    sealed = seal(question)
    told = (sealed.model, sealed.idempotency_key, sealed.tenant_id, sealed.plan_id, sealed.planner, sealed.body)
    return pickle.dumps((call_id, told), PROTOCOL)


def read_call(packed: bytes) -> tuple[str, SealedRequest]:
    """Id and question of a call."""
    call_id, told = pickle.loads(packed)
    return call_id, SealedRequest(*told)


def pack_reply(reply: ReasonReply | None) -> bytes:
    """An answer; None, for a call that its caller has cancelled, is empty."""
    return b"" if reply is None else pickle.dumps(reply, PROTOCOL)


def read_reply(packed: bytes) -> ReasonReply | None:
    """An answer, or None."""
    return pickle.loads(packed) if packed else None
