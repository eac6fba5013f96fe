"""ModelLimits: the rate limits of models, one for the whole pool, for those who choose what goes next."""

from __future__ import annotations

from collections.abc import Mapping

from plancast.models.port import ReasonRequest
from plancast.models.rate_limit import MonotonicClock, RateLimit, Ticket
from plancast.settings import ModelLimit
from plancast_actors.reasoning.serialization import Question, opened
from plancast_bus.clock import Clock


class ModelLimits:
    """Rate limits by model; a model without one is not limited."""

    def __init__(self, limits: Mapping[str, ModelLimit], *, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or MonotonicClock()
        self._limits = {model: RateLimit(limit.rpm, limit.tpm, clock=self._clock) for model, limit in limits.items()}

    def tokens_of(self, question: Question) -> int:
        """Tokens that a question may take; 0 where they do not count, since its model has no limit."""
        return estimate(opened(question)) if question.model in self._limits else 0

    def wait_seconds(self, model: str, tokens: int) -> float:
        """Seconds until such a request may go; 0 when it may go now."""
        limit = self._limits.get(model)
        return limit.wait_seconds(self._clock.time(), tokens) if limit else 0.0

    async def take(self, model: str, tokens: int) -> Ticket | None:
        """Leave for a request that may go now; does not wait then, so nothing comes between the look and the leave."""
        limit = self._limits.get(model)
        return await limit.acquire(tokens) if limit else None

    async def wait(self, model: str, tokens: int) -> None:
        """Wait for leave, outside of any line."""
        while (seconds := self.wait_seconds(model, tokens)) > 0:
            await self._clock.sleep(seconds)
        await self.take(model, tokens)

    def pause(self, model: str, seconds: float) -> None:
        """Let no request for this model go for so long."""
        limit = self._limits.get(model)
        if limit is not None:
            limit.pause(seconds)


def estimate(request: ReasonRequest) -> int:
    """Tokens that a request may take, at four characters each."""
    said = sum(len(str(message.get("content", ""))) for message in request.messages) // 4
    return said + int(request.parameters.get("max_tokens") or request.parameters.get("max_completion_tokens") or 0)
