"""Classifies failed model calls: transient or not, when to retry, and a message without keys.

An exception of litellm is classified by its status, not its class: the class follows the error's ``type`` in the body,
so that a 500 may come as ``BadRequestError``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Literal

from plancast.telemetry.redaction import redact

_MAX_TEXT = 500
_TRANSIENT = frozenset({408, 409, 425, 429})
_ADVICE = {
    401: "check the key",
    403: "the key lacks the permission",
    404: "check the model's name and api_base",
}
_WORDS_OF_FORMAT = ("response_format", "response format", "json_schema", "json_object", "structured output")
_NO_KEY = ("api_key client option must be set", "missing credentials", "missing api key", "api key not found")
_NO_PACKAGE = re.compile(r"No module named '([\w.]+)'|(?:pip|uv) install '?\"?([\w.\-\[\]]+)")


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed call."""

    text: str
    """Message for the user: one line, without keys."""
    status: int | None = None
    """HTTP status, if any."""
    transient: bool = False
    """True when a retry can help."""
    retry_after: float | None = None
    """The server's Retry-After, in seconds."""
    about_format: Literal["", "this", "any"] = ""
    """The model refused this response format, or any."""


def classify(error: BaseException, secrets: Iterable[str] = (), *, key_hint: str = "") -> Failure:
    """Classify an exception of litellm. `key_hint` tells the user how to set a key."""
    raw = str(error)
    text = _one_line(redact(raw, secrets))
    lowered = raw.lower()
    if any(words in lowered for words in _NO_KEY):
        return Failure(f"no key is set: {key_hint}" if key_hint else f"no key is set ({text})")
    package = _missing_package(error, raw)
    if package:
        return Failure(f"the package {package} is needed for this model: pip install {package}")
    status = _status(error)
    if status is None:
        return Failure(f"{type(error).__name__}: {text}")
    retry_after = _retry_after(_headers(error))
    if status in _TRANSIENT or status >= 500:
        if "insufficient_quota" in str(getattr(error, "body", "")):
            return Failure(f"the account's quota is used up (HTTP {status}): {text}", status)
        return Failure(f"HTTP {status}: {text}", status, True, retry_after)
    about_format: Literal["", "this", "any"] = ""
    if status in (400, 422) and any(words in lowered for words in _WORDS_OF_FORMAT):
        about_format = "this" if "json_schema" in lowered or "json_object" in lowered else "any"
    advice = f" ({_ADVICE[status]}{': ' + key_hint if key_hint and status == 401 else ''})" if status in _ADVICE else ""
    return Failure(f"HTTP {status}: {text}{advice}", status, about_format=about_format)


def refused(why: str, secrets: Iterable[str] = ()) -> Failure:
    """A refusal by the model: a retry does not help, another model may."""
    return Failure(f"refused: {_one_line(redact(why, secrets))}")


def timed_out(seconds: float) -> Failure:
    return Failure(f"no answer within {seconds:g} s", transient=True)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TEXT else f"{line[:_MAX_TEXT]}…"


def _status(error: BaseException) -> int | None:
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _missing_package(error: BaseException, text: str) -> str:
    """The package that is missing; litellm reports an ImportError as status 500, which would be retried."""
    found = _NO_PACKAGE.search(text)
    if found:
        return next(name for name in found.groups() if name).partition(".")[0]
    return (error.name or "") if isinstance(error, ImportError) else ""


def _headers(error: BaseException) -> dict[str, str]:
    """Response headers; litellm has them in an attribute of its own, its `response` mostly has none."""
    found: dict[str, str] = {}
    for headers in (
        getattr(getattr(error, "response", None), "headers", None),
        getattr(error, "litellm_response_headers", None),
    ):
        if isinstance(headers, Mapping):
            found |= {str(name).lower().removeprefix("llm_provider-"): str(value) for name, value in headers.items()}
    return found


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds: from ``retry-after-ms``, or ``Retry-After`` in seconds or as an HTTP date."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        return max(seconds, 0.0) if seconds == seconds and seconds != float("inf") else None
    try:
        return max(parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time(), 0.0)
    except (KeyError, ValueError, TypeError):
        return None
