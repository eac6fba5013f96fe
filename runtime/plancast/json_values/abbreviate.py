"""JSON text for prompts within a number of characters; what is left out is named, never silently cut."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

LEAST: Final = 120
"""Characters that every value gets, so that there is room for a note on what is left out."""

# Longest string, list and object of a value that is shortened, from the mildest.
_STEPS: Final = ((4000, 100, 200), (1000, 40, 100), (300, 15, 50), (100, 6, 25), (40, 3, 12))
_MARKUP = re.compile(r"<(?=\s*/?\s*data)", re.IGNORECASE)


def to_json(value: Any) -> str:
    """Compact JSON with sorted keys. Text in it can neither end a ``<data>`` block nor begin one."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str, separators=(", ", ": "))
    return _MARKUP.sub(r"\\u003c", text)


def to_json_within(value: Any, size: int) -> str:
    """JSON in at most ``size`` characters (`LEAST` if that is more), with notes on what is left out."""
    size = max(size, LEAST)
    text = to_json(value)
    if len(text) <= size:
        return text
    for strings, items, keys in _STEPS:
        shorter = to_json(_shortened(value, strings, items, keys))
        if len(shorter) <= size:
            return shorter
    note = f"… [{len(text)} characters of JSON, cut off here: the rest is left out]"
    length = size - len(note) - 4
    while length > 0:
        beginning = to_json(text[:length] + note)
        if len(beginning) <= size:
            return beginning
        length -= max(1, len(beginning) - size)
    return to_json(note)


def cut(text: str, size: int) -> str:
    """The beginning of a text, with the number of characters that are left out."""
    return text if len(text) <= size else f"{text[:size]}… [{len(text) - size} more characters left out]"


def fair_share(sizes: Sequence[int], total: int) -> int:
    """The largest limit for each size under which all of them sum up to at most ``total``."""
    left, count = total, len(sizes)
    for size in sorted(sizes):
        if size * count > left:
            return left // count
        left, count = left - size, count - 1
    return total


def join_names(names: Iterable[str], size: int) -> str:
    """As many names as fit into ``size`` characters, and the number of the others."""
    listed: list[str] = []
    names = list(names)
    for name in names:
        more = f", and {len(names) - len(listed)} more"
        if len(", ".join([*listed, name])) + len(more) > size:
            return ", ".join(listed) + more if listed else f"{len(names)} names"
        listed.append(name)
    return ", ".join(listed)


def data_block(name: str, text: str) -> str:
    """Mark untrusted text as data."""
    return f'<data name="{name}">\n{text}\n</data>'


def _shortened(value: Any, strings: int, items: int, keys: int) -> Any:
    if isinstance(value, str):
        return cut(value, strings)
    if isinstance(value, Mapping):
        names = sorted(value, key=str)
        inner = {cut(str(name), strings): _shortened(value[name], strings, items, keys) for name in names[:keys]}
        if len(names) > keys:
            rest = {str(name): value[name] for name in names[keys:]}
            inner["…"] = f"[{len(rest)} more keys, {len(to_json(rest))} characters, left out]"
        return inner
    if isinstance(value, (list, tuple)):
        first = [_shortened(item, strings, items, keys) for item in value[:items]]
        if len(value) > items:
            rest_size = len(to_json(value[items:]))
            first.append(f"[{len(value) - items} more items, {rest_size} characters, left out]")
        return first
    return value
