"""Suggestions for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name with the most similar spelling, as the end of an error's text; empty: none is similar."""
    from difflib import get_close_matches

    close = get_close_matches(name[:200], sorted(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
