"""ModelLimits: the rate limits of models for the whole pool."""

from __future__ import annotations

from collections.abc import Mapping

from plancast.models.port import ReasonRequest
from plancast.models.rate_limit import MonotonicClock, RateLimit, Ticket
from plancast.settings import ModelLimit
from plancast_actors.reasoning.serialization import AnyRequest, unpack_request
from plancast_bus.clock import Clock


class ModelLimits:
    """Rate limits by model; a model without one is not limited."""

    def __init__(self, limits: Mapping[str, ModelLimit], *, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or MonotonicClock()
        self._limits = {model: RateLimit(limit.rpm, limit.tpm, clock=self._clock) for model, limit in limits.items()}

    def tokens_of(self, request: AnyRequest) -> int:
        """Estimated tokens of a request; 0 when its model has no limit."""
        return estimate(unpack_request(request)) if request.model in self._limits else 0

    def wait_seconds(self, model: str, tokens: int) -> float:
        """Seconds until such a request is permitted; 0 when it is now."""
        limit = self._limits.get(model)
        return limit.wait_seconds(self._clock.time(), tokens) if limit else 0.0

    async def acquire_now(self, model: str, tokens: int) -> Ticket | None:
        """Acquire for a request that is permitted now; does not suspend between check and acquisition."""
        limit = self._limits.get(model)
        return await limit.acquire(tokens) if limit else None

    async def acquire(self, model: str, tokens: int) -> None:
        """Wait until a request is permitted, ahead of the queue."""
        while (seconds := self.wait_seconds(model, tokens)) > 0:
            await self._clock.sleep(seconds)
        await self.acquire_now(model, tokens)

    def pause(self, model: str, seconds: float) -> None:
        """Permit no request to this model for ``seconds``."""
        limit = self._limits.get(model)
        if limit is not None:
            limit.pause(seconds)


def estimate(request: ReasonRequest) -> int:
    """Estimate the tokens of a request, at four characters each."""
    answer = request.parameters.get("max_tokens") or request.parameters.get("max_completion_tokens") or 0
    return request.prompt_estimate() + int(answer)
