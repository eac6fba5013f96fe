"""Values as JSON for a prompt, within a number of characters; what does not fit is named, never silently cut."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

__all__ = ["LEAST", "cut", "fit", "share", "tell", "tell_names"]

LEAST: Final = 120
"""Characters that any value is given at the least, so that there is room to say what is left out."""

# Longest string, list and object of a value that is shortened, from the mildest.
_STEPS: Final = ((4000, 100, 200), (1000, 40, 100), (300, 15, 50), (100, 6, 25), (40, 3, 12))
_MARKUP = re.compile(r"<(?=\s*/?\s*data)", re.IGNORECASE)


def tell(value: Any) -> str:
    """A value as compact JSON with sorted keys. Text in it can neither end a ``<data>`` block nor begin one."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str, separators=(", ", ": "))
    return _MARKUP.sub(r"\\u003c", text)


def fit(value: Any, size: int) -> str:
    """A value as JSON in at most ``size`` characters (and never under `LEAST`), saying what is left out of it."""
    size = max(size, LEAST)
    text = tell(value)
    if len(text) <= size:
        return text
    for strings, items, keys in _STEPS:
        shorter = tell(_shortened(value, strings, items, keys))
        if len(shorter) <= size:
            return shorter
    return _stump(text, size)


def cut(text: str, size: int) -> str:
    """The beginning of a text, saying how many characters are left out."""
    return text if len(text) <= size else f"{text[:size]}… [{len(text) - size} more characters left out]"


def share(sizes: Sequence[int], total: int) -> int:
    """The most characters that each may have, so that all together have no more than ``total``."""
    left, count = total, len(sizes)
    for size in sorted(sizes):
        if size * count > left:
            return left // count
        left, count = left - size, count - 1
    return total


def tell_names(names: Iterable[str], size: int) -> str:
    """Names, as many as fit into ``size`` characters, with the number of the others."""
    told: list[str] = []
    names = list(names)
    for name in names:
        more = f", and {len(names) - len(told)} more"
        if len(", ".join([*told, name])) + len(more) > size:
            return ", ".join(told) + more if told else f"{len(names)} names"
        told.append(name)
    return ", ".join(told)


def _stump(text: str, size: int) -> str:
    """The beginning of JSON text, as a JSON string."""
    note = f"… [{len(text)} characters of JSON, cut off here: the rest is left out]"
    length = size - len(note) - 4
    while length > 0:
        told = tell(text[:length] + note)
        if len(told) <= size:
            return told
        length -= max(1, len(told) - size)
    return tell(note)


def _shortened(value: Any, strings: int, items: int, keys: int) -> Any:
    if isinstance(value, str):
        return cut(value, strings)
    if isinstance(value, Mapping):
        names = sorted(value, key=str)
        inner = {cut(str(name), strings): _shortened(value[name], strings, items, keys) for name in names[:keys]}
        if len(names) > keys:
            rest = {str(name): value[name] for name in names[keys:]}
            inner["…"] = f"[{len(rest)} more keys, {len(tell(rest))} characters, left out]"
        return inner
    if isinstance(value, (list, tuple)):
        first = [_shortened(item, strings, items, keys) for item in value[:items]]
        if len(value) > items:
            rest_size = len(tell(value[items:]))
            first.append(f"[{len(value) - items} more items, {rest_size} characters, left out]")
        return first
    return value


def data_block(name: str, text: str) -> str:
    """Text that others have written, marked as such."""
    return f'<data name="{name}">\n{text}\n</data>'
