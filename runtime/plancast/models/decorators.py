"""Decorators of a reasoner: usage accounting, and recording of replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from plancast.errors import BudgetExhausted
from plancast.models.in_process import in_process_reasoner
from plancast.models.port import ReasonerPort, ReasonReply, ReasonRequest
from plancast.models.reservation import Reservation, rate_of


class MeteredReasoner:
    """A reasoner that adds the usage of each reply to a plan's `spent`.

    Args:
        reasoner: None calls models in this process.
        spent: Calls, tokens and cost (US dollars) so far; changed in place.
        exhausted: Returns why no further call may be made; None while one may.
        used: Collects what each request has used, by its idempotency key.
        bound: Bounds a request by what is left, at the rate of the calls so far; raises BudgetExhausted.
        reserved: Holds the reservations of calls that are under way.
        rate: The highest rate of the calls so far; see :func:`plancast.models.reservation.rate_of`.
        learn: Is given the highest rate after each call.
    """

    def __init__(
        self,
        reasoner: ReasonerPort | None,
        spent: dict[str, float],
        exhausted: Callable[[], str | None],
        used: dict[str, dict[str, float]] | None = None,
        bound: Callable[[ReasonRequest, float], Reservation] = lambda request, rate: Reservation(request),
        reserved: list[Reservation] | None = None,
        rate: float = 1.0,
        learn: Callable[[float], None] = lambda rate: None,
    ) -> None:
        self._reasoner = reasoner or in_process_reasoner()
        self._spent = spent
        self._exhausted = exhausted
        self._used = used if used is not None else {}
        self._bound = bound
        self._reserved = reserved if reserved is not None else []
        self._rate = rate
        self._learn = learn
        self.calls: list[dict[str, Any]] = []
        """An account of each call, JSON-able."""

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        """Complete a request, as :class:`~plancast.models.port.ReasonerPort` does.

        Raises:
            BudgetExhausted: the tokens, the money or the time of the plan are spent; the model was not called.
        """
        if (why := self._exhausted()) is not None:
            raise BudgetExhausted(why)
        reservation = self._bound(request, self._rate)
        request = reservation.request
        self._reserved.append(reservation)
        try:
            reply = await self._reasoner.complete(request)
        except asyncio.CancelledError:  # the model may have been called, and have answered
            self._count(request, max(request.prompt_estimate(), reservation.tokens), reservation.cost)
            raise
        finally:
            self._reserved[:] = [each for each in self._reserved if each is not reservation]
        self._rate = max(self._rate, rate_of(request, reply))
        self._learn(self._rate)
        self._count(request, reply.usage.total_tokens, reply.usage.cost or 0.0)
        self.calls.append(
            {
                "model": reply.model,
                **asdict(reply.usage),
                "seconds": round(reply.latency_seconds, 3),
                "attempts": reply.attempts,
                "kept": reply.cached,
            }
        )
        return reply

    def _count(self, request: ReasonRequest, tokens: float, cost: float) -> None:
        used = self._used.setdefault(request.idempotency_key or f"#{len(self._used)}", {})
        for name, amount in (("calls", 1), ("tokens", tokens), ("cost", cost)):
            for account in (self._spent, used):
                account[name] = account.get(name, 0) + amount


class RecordingReasoner:
    """A reasoner that records its replies in the order of the requests.

    Args:
        reasoner: None calls models in this process.
    """

    def __init__(self, reasoner: ReasonerPort | None) -> None:
        self._reasoner = reasoner
        self.answers: list[dict[str, Any] | None] = []
        """JSON-able; None for a request without a reply."""

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        """Complete a request, as :class:`~plancast.models.port.ReasonerPort` does."""
        place = len(self.answers)
        self.answers.append(None)
        reply = await (self._reasoner or in_process_reasoner()).complete(request)
        self.answers[place] = reply.to_dict()
        return reply
