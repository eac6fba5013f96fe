"""Prices of models, as far as litellm's price list has them; read without importing litellm, which takes seconds."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final

from plancast.models.options import ModelOptions

_LIST: Final = "model_prices_and_context_window_backup.json"
_OWN_PRICES: Final = frozenset({"input_cost_per_token", "output_cost_per_token", "input_cost_per_second"})
"""Parameters of a model by which litellm takes a price from the caller."""


def unpriced_models(options: ModelOptions) -> list[str]:
    """The models among a planner's that have no known price, so that a cost budget does not bound them."""
    if _OWN_PRICES.intersection(options.llm_kwargs):
        return []
    known = _priced()
    if not known:
        return []  # there is no list to look them up in
    models = dict.fromkeys((options.model, *options.fallback_models))
    return [model for model in models if known.isdisjoint(_names(model))]


def _names(model: str) -> Iterable[str]:
    """The names under which the list may have a model: with its provider, and without."""
    parts = model.split("/")
    return ("/".join(parts[start:]) for start in range(len(parts)))


@lru_cache(maxsize=1)
def _priced() -> frozenset[str]:
    """Names of the models with a price; empty when litellm is not installed."""
    found = importlib.util.find_spec("litellm")
    if found is None or found.origin is None:
        return frozenset()
    try:
        prices = json.loads(Path(found.origin).with_name(_LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return frozenset()
    return frozenset(name for name, fields in prices.items() if any("cost_per" in field for field in fields))
