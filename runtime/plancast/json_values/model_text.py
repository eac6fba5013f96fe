"""The JSON object in the text that a model has written."""

import json
import re
from typing import Any, Final

from plancast.json_values.limits import shown

MAX_ANSWER_BYTES: Final = 256 * 1024
"""Longest answer of a model that is parsed, in bytes of UTF-8."""
_MAX_STARTS: Final = 100
_START: Final = re.compile(r'\{(?=\s*["}])')


def object_in_text(text: str, key: str = "") -> dict[str, Any]:
    """Parse the JSON object in a model's answer; Markdown fences and prose around it are passed over.

    Args:
        text: The answer.
        key: Prefer the first object that has this key.

    Raises:
        ValueError: there is no object, or it is cut off, is broken or is too long. An object without the key is
            returned only if no broken one stands before it.
    """
    if not isinstance(text, str):
        raise ValueError(f"the answer: got a {type(text).__name__}, allowed: text with one JSON object")
    if len(text) > MAX_ANSWER_BYTES or len(text.encode(errors="replace")) > MAX_ANSWER_BYTES:
        raise ValueError(f"the answer: got more than {MAX_ANSWER_BYTES} bytes, allowed: at most that")
    first: dict[str, Any] | None = None
    fault = ""
    position = 0
    for _ in range(_MAX_STARTS):
        start = _START.search(text, position)
        if start is None or (fault and not key):
            break
        try:
            found, position = _decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError) as error:
            fault = fault or _fault(text, start.start(), error)
            position = start.end()
            continue
        if not key or key in found:
            return dict(found)
        first = first or found
    if fault or first is None:
        raise ValueError(f"the answer: got {fault or shown(text)}, allowed: one JSON object, whole and valid")
    return first


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_decoder: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def _fault(text: str, start: int, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "a JSON object that is nested without end"
    if not isinstance(error, json.JSONDecodeError):
        return f"a JSON object that cannot be read ({str(error)[:60]})"
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
        return f"a JSON object that is cut off: ...{shown(text[-40:])}"
    near = shown(text[max(start, error.pos - 20) : error.pos + 20])
    return f"a JSON object that is broken near {near}: {error.msg}"
