"""The JSON object in the text that a model has written."""

import json
import re
from typing import Any, Final

from plancast.json_values.limits import shown

MAX_ANSWER_BYTES: Final = 256 * 1024
"""Longest answer of a model that is parsed, in bytes of UTF-8."""
_START: Final = re.compile(r'\{(?=\s*["}])')
_THOUGHTS: Final = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_PAIRS: Final = (("“", "”"), ("«", "»"), ("<data", "</data"), ("<think>", "</think>"))


def object_in_text(text: str) -> dict[str, Any]:
    """Parse the only JSON object in a model's answer.

    Markdown fences and prose around it are passed over, and so is a leading ``<think>`` block. The object must be
    unambiguous, since data that the model quotes may hold objects which others have written.

    Raises:
        ValueError: there is no object, or more than one, or it stands in a quotation, has a key twice, is cut off, is
            broken or is too long.
    """
    if not isinstance(text, str):
        raise ValueError(f"the answer: got a {type(text).__name__}, allowed: text with one JSON object")
    if len(text) > MAX_ANSWER_BYTES or len(text.encode(errors="replace")) > MAX_ANSWER_BYTES:
        raise ValueError(f"the answer: got more than {MAX_ANSWER_BYTES} bytes, allowed: at most that")
    if thoughts := _THOUGHTS.match(text):
        text = text[thoughts.end() :]
    start = _START.search(text)
    if start is None:
        raise _refusal(shown(text))
    found, end = _decoded(text, start.start())
    if _is_quoted(text[: start.start()]):
        raise _refusal("a JSON object within a quotation")
    if _START.search(text, end):
        raise _refusal("more than one JSON object")
    return found


def _decoded(text: str, start: int) -> tuple[dict[str, Any], int]:
    try:
        return _decoder.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise _refusal(_fault(text, start, error)) from None


def _refusal(got: str) -> ValueError:
    return ValueError(f"the answer: got {got}, allowed: one JSON object, whole and valid, and no other beside it")


def _is_quoted(before: str) -> bool:
    """True if the text before an object opens a quotation, a code span or a block that is still open."""
    if before.count('"') % 2 or before.endswith("'") or (before.endswith("`") and not before.endswith("```")):
        return True
    lowered = before.lower()
    opened = any(lowered.count(opening) > lowered.count(closing) for opening, closing in _PAIRS)
    return opened or lowered.rpartition("\n")[2].lstrip().startswith(">")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"it has a key twice: {shown(key)}")
        found[key] = value
    return found


_decoder: Final = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique)


def _fault(text: str, start: int, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "a JSON object that is nested without end"
    if not isinstance(error, json.JSONDecodeError):
        return f"a JSON object that cannot be read ({str(error)[:90]})"
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
        return f"a JSON object that is cut off: ...{shown(text[-40:])}"
    near = shown(text[max(start, error.pos - 20) : error.pos + 20])
    return f"a JSON object that is broken near {near}: {error.msg}"
