"""Prices and limits of models by litellm's price list, which is read without importing litellm: that takes seconds."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from plancast.models.options import ModelOptions
from plancast.models.port import ReasonRequest

_LIST: Final = "model_prices_and_context_window_backup.json"
_PROMPT, _ANSWER = "input_cost_per_token", "output_cost_per_token"
_OWN_PRICES: Final = frozenset({_PROMPT, _ANSWER, "input_cost_per_second"})
"""Parameters of a model by which litellm takes a price from the caller."""
ANSWER_LIMIT: Final = 4_096
"""Most tokens of an answer of a model whose limit is unknown."""


class ModelPrice(NamedTuple):
    """Price of a model, in US dollars a token (0: unknown), and the most tokens of its answers."""

    prompt: float = 0.0
    answer: float = 0.0
    answer_limit: int = 0
    """0: unknown."""


def price_of(request: ReasonRequest) -> ModelPrice:
    """The highest prices and the lowest limit of the models that may answer a request."""
    listed = _listed()
    found = [
        next((listed[name] for name in _names(model) if name in listed), ModelPrice())
        for model in (request.model, *request.fallback_models)
    ]
    own = ModelPrice(_number(request.parameters, _PROMPT), _number(request.parameters, _ANSWER))
    return ModelPrice(
        max(each.prompt for each in (own, *found)),
        max(each.answer for each in (own, *found)),
        min(each.answer_limit or ANSWER_LIMIT for each in found),
    )


def unpriced_models(options: ModelOptions) -> list[str]:
    """The models among a planner's that have no known price, so that a cost budget does not bound them."""
    if _OWN_PRICES.intersection(options.llm_kwargs):
        return []
    known = _listed()
    if not known:
        return []  # there is no list to look them up in
    models = dict.fromkeys((options.model, *options.fallback_models))
    return [model for model in models if known.keys().isdisjoint(_names(model))]


def _names(model: str) -> Iterable[str]:
    """The names under which the list may have a model: with its provider, and without."""
    parts = model.split("/")
    return ("/".join(parts[start:]) for start in range(len(parts)))


@lru_cache(maxsize=1)
def _listed() -> dict[str, ModelPrice]:
    """The models with a price, by name; empty when litellm is not installed."""
    found = importlib.util.find_spec("litellm")
    if found is None or found.origin is None:
        return {}
    try:
        listed = json.loads(Path(found.origin).with_name(_LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {
        name: ModelPrice(
            _number(fields, _PROMPT),
            _number(fields, _ANSWER),
            int(_number(fields, "max_output_tokens")),
        )
        for name, fields in listed.items()
        if any("cost_per" in field for field in fields)
    }


def _number(fields: Mapping[str, Any], name: str) -> float:
    value = fields.get(name)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < inf else 0.0
