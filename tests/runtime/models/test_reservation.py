"""Calls are bounded by what is left for them before they are made."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plancast.errors import BudgetExhausted
from plancast.models.port import ReasonReply, ReasonRequest, Usage
from plancast.models.prices import price_of
from plancast.models.reservation import ANSWER, rate_of, reserve


def request(characters: int, model: str = "openai/in-house", **parameters: Any) -> ReasonRequest:
    return ReasonRequest([{"role": "user", "content": "x" * characters}], model, parameters)


@given(
    prompts=st.lists(st.integers(0, 20_000), min_size=1, max_size=30),
    share=st.integers(0, 30_000),
    given_limit=st.none() | st.integers(1, 9_000),
    answers=st.lists(st.integers(0, 50_000), min_size=1, max_size=30),
)
def test_no_plan_passes_its_share_however_long_the_model_would_answer(
    prompts: list[int], share: int, given_limit: int | None, answers: list[int]
) -> None:
    left, rate = share, 1.0
    parameters = {} if given_limit is None else {"max_tokens": given_limit}
    for characters, answer in zip(prompts, answers, strict=False):
        asked = request(characters, **parameters)
        with suppress(BudgetExhausted):
            bound = reserve(asked, left, None, rate).request
            most = bound.parameters["max_tokens"]
            assert 0 < most <= (given_limit or 4_096)
            usage = Usage(bound.prompt_estimate(), min(answer, most))
            rate = max(rate, rate_of(bound, ReasonReply("", usage)))
            left -= usage.total_tokens
        assert left >= 0


@given(characters=st.integers(0, 100_000), share=st.floats(0, 1), fallback=st.sampled_from(["", "gpt-4o", "own/x"]))
def test_no_plan_passes_its_share_of_the_money(characters: int, share: float, fallback: str) -> None:
    asked = ReasonRequest(request(characters).messages, "gpt-4o-mini", fallback_models=(fallback,) if fallback else ())
    price = price_of(asked)
    assert price.prompt > 0
    with suppress(BudgetExhausted):
        most = reserve(asked, None, share).request.parameters["max_tokens"]
        assert asked.prompt_estimate() * price.prompt + most * price.answer <= share


@pytest.mark.parametrize("usage", [Usage(1_200, 300), Usage(300, 9_000), Usage(10**8, 0)])
def test_calls_that_take_more_than_was_estimated_make_the_next_ones_cost_more(usage: Usage) -> None:
    asked = request(400)
    rate = rate_of(asked, ReasonReply("", usage))
    reserve(asked, usage.total_tokens + 3, None, rate)
    with pytest.raises(
        BudgetExhausted, match=r"max_tokens: a call takes about \d+ tokens, and \d+ of the plan's share"
    ):
        reserve(asked, usage.total_tokens - 2, None, rate)


def test_the_models_own_limit_of_an_answer_is_kept() -> None:
    assert reserve(request(4, "gpt-4o"), 10**7, None).request.parameters["max_tokens"] == 16_384
    assert reserve(request(4), 10**7, None).request.parameters["max_tokens"] == 4_096
    assert reserve(request(4, max_completion_tokens=50), 10**7, None).request == request(4, max_completion_tokens=50)
    assert reserve(request(4, max_tokens=900), 401, None).request.parameters["max_tokens"] == 400


def test_a_call_for_which_no_answer_is_left_is_not_made() -> None:
    with pytest.raises(BudgetExhausted, match="max_tokens"):
        reserve(request(400), 100 + ANSWER - 1, None)
    with pytest.raises(BudgetExhausted, match="max_cost: a call takes about"):
        reserve(request(400, "gpt-4o"), None, 1e-5)


def test_prices_of_the_caller_count() -> None:
    own = request(400, input_cost_per_token=0.001, output_cost_per_token=0.01)
    with pytest.raises(BudgetExhausted, match="max_cost"):
        reserve(own, None, 2.0)
    assert reserve(own, None, 3.0).request.parameters["max_tokens"] == 290
