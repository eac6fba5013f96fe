"""Metered: a reasoner that keeps account of what a plan's questions take."""

from __future__ import annotations

from typing import Any

from plancast.models.in_process import in_process_reasoner
from plancast.models.port import ReasonerPort, ReasonReply, ReasonRequest


class Metered:
    """A reasoner that keeps account of what a plan's questions take."""

    def __init__(self, reasoner: ReasonerPort | None, spent: dict[str, float]) -> None:
        self._reasoner = reasoner or in_process_reasoner()
        self._spent = spent
        self.calls: list[dict[str, Any]] = []

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        """See :class:`plancast.models.port.ReasonerPort`."""
        reply = await self._reasoner.complete(request)
        self._spent["calls"] = self._spent.get("calls", 0) + 1
        self._spent["tokens"] = self._spent.get("tokens", 0) + reply.usage.total_tokens
        self._spent["cost"] = self._spent.get("cost", 0.0) + (reply.usage.cost or 0.0)
        self.calls.append(
            {
                "model": reply.model,
                "prompt_tokens": reply.usage.prompt_tokens,
                "completion_tokens": reply.usage.completion_tokens,
                "cost": reply.usage.cost,
                "seconds": round(reply.latency_seconds, 3),
                "attempts": reply.attempts,
                "kept": reply.cached,
            }
        )
        return reply


class RecordedAnswers:
    """A reasoner that keeps what it answers, in the order of the questions.

    Args:
        reasoner: Who asks; None has models asked in this process.
    """

    def __init__(self, reasoner: ReasonerPort | None) -> None:
        self._reasoner = reasoner
        self.answers: list[dict[str, Any] | None] = []
        """JSON-able; None for a question that was not answered."""

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        """See :class:`plancast.models.port.ReasonerPort`."""
        place = len(self.answers)
        self.answers.append(None)
        reply = await (self._reasoner or in_process_reasoner()).complete(request)
        self.answers[place] = reply.to_dict()
        return reply
