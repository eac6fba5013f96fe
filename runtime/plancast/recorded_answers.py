"""What models answer the handlers of a turn, kept for the timeline."""

from __future__ import annotations

from typing import Any

from plancast.models.port import ReasonerPort, ReasonReply, ReasonRequest
from plancast.models.repair_loop import in_process_reasoner


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
