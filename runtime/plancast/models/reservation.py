"""Reservation of a model call: what it may use at most, settled before it is made."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf
from typing import Final

from plancast.errors import BudgetExhausted
from plancast.models.port import ReasonReply, ReasonRequest
from plancast.models.prices import price_of

ANSWER: Final = 256
"""Fewest tokens of an answer for which a call is made."""
_LIMITS: Final = ("max_completion_tokens", "max_tokens")


def reserve(request: ReasonRequest, tokens: float | None, cost: float | None, rate: float = 1.0) -> ReasonRequest:
    """Bound a call by what is left for it: returns the request with a limit of the answer that fits.

    Args:
        request: The request.
        tokens: Tokens that are left; None is no limit.
        cost: US dollars that are left; None is no limit.
        rate: Tokens of a call for each one that is estimated, at least 1; see :func:`rate_of`.

    Raises:
        BudgetExhausted: too little is left for the prompt and a short answer; the text begins with the limit's name.
    """
    price = price_of(request)
    name = next((each for each in _LIMITS if request.parameters.get(each)), "max_tokens")
    given = request.parameters.get(name)
    most = min(price.answer_limit, given) if isinstance(given, int) else price.answer_limit
    prompt, least = ceil(request.prompt_estimate() * rate), ceil(min(ANSWER, most) * rate)
    left = inf
    if tokens is not None:
        left = tokens - prompt
        if left < least:
            raise BudgetExhausted(
                f"max_tokens: a call takes about {prompt + least} tokens, and {tokens:.0f} of the plan's share are left"
            )
    if cost is not None and price.answer:
        left = min(left, (cost - prompt * price.prompt) / price.answer)
        if left < least:
            dollars = prompt * price.prompt + least * price.answer
            raise BudgetExhausted(
                f"max_cost: a call takes about {dollars:.2g} dollars, and {cost:.2g} of the plan's share are left"
            )
    fitting = int(min(most, left))
    return request if fitting == given else replace(request, parameters={**request.parameters, name: fitting})


def rate_of(request: ReasonRequest, reply: ReasonReply) -> float:
    """Tokens that a call has used for each one that :func:`reserve` estimates for its prompt and a short answer."""
    return reply.usage.total_tokens / (request.prompt_estimate() + ANSWER)
