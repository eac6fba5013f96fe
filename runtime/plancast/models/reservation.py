"""Reservation of a model call: what it may use at most, settled before it is made."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf
from typing import Final, NamedTuple

from plancast.errors import BudgetExhausted
from plancast.models.port import ReasonReply, ReasonRequest
from plancast.models.prices import price_of

ANSWER: Final = 256
"""Fewest tokens of an answer for which a call is made."""
_LIMITS: Final = ("max_completion_tokens", "max_tokens")


class Reservation(NamedTuple):
    """A call that is about to be made, and what it counts as while it is under way."""

    request: ReasonRequest
    tokens: float = 0
    cost: float = 0.0
    """US dollars."""


def estimate(request: ReasonRequest, rate: float = 1.0) -> Reservation:
    """Reserve what a call takes with a short answer, where nothing bounds it.

    Args:
        request: The request.
        rate: Tokens of a call for each one that is estimated, at least 1; see :func:`rate_of`.
    """
    price, prompt, answer = price_of(request), ceil(request.prompt_estimate() * rate), ceil(ANSWER * rate)
    return Reservation(request, prompt + answer, prompt * price.prompt + answer * price.answer)


def reserve(request: ReasonRequest, tokens: float | None, cost: float | None, rate: float = 1.0) -> Reservation:
    """Bound a call by what is left for it, by a limit of its answer, and reserve all that it may take.

    Args:
        request: The request.
        tokens: Tokens that are left; None is no limit.
        cost: US dollars that are left; None is no limit.
        rate: As in :func:`estimate`.

    Raises:
        BudgetExhausted: too little is left for the prompt and a short answer; the reason begins with the limit's name.
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
    if fitting != given:
        request = replace(request, parameters={**request.parameters, name: fitting})
    return Reservation(request, prompt + fitting, prompt * price.prompt + fitting * price.answer)


def rate_of(request: ReasonRequest, reply: ReasonReply) -> float:
    """Tokens that a call has used for each one that :func:`reserve` estimates for its prompt and a short answer."""
    return reply.usage.total_tokens / (request.prompt_estimate() + ANSWER)
