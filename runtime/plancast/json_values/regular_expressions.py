"""Untrusted regular expressions, searched in time linear in the text: RE2 does not backtrack."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import re2

_MAX_MEMORY = 1 << 20
"""Bytes for one expression: about 16,000 instructions."""

# pydantic writes it before the pattern of a Decimal. Without it, a text of only signs and dots matches too.
_DECIMAL_LOOKAHEAD = "(?!^[-+.]*$)"


class Expression:
    """A compiled regular expression. Immutable, and safe to share between threads."""

    __slots__ = ("_compiled", "program_size")

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self.program_size: int = compiled.programsize
        """Instructions; a search runs at most all of them for each byte of the text."""

    def found_in(self, text: str) -> bool:
        """Search for a match anywhere in the text."""
        return self._compiled.search(text.encode("utf-8", "surrogatepass")) is not None


@lru_cache(maxsize=1024)
def compile_expression(pattern: str) -> Expression:
    """Compile a regular expression in RE2's syntax: that of JSON Schema without lookaround and backreferences.

    ``$`` is the end of the text; ``\\d`` and ``\\w`` are ASCII.

    Raises:
        ValueError: it is no regular expression, is too large, or needs more than linear time; the message says which.
    """
    options = re2.Options()
    options.max_mem = _MAX_MEMORY
    options.never_capture = True
    options.log_errors = False
    try:
        return Expression(re2.compile(pattern.replace(_DECIMAL_LOOKAHEAD, ""), options))
    except re2.error as error:
        raise ValueError(_words(error.args[0])) from None
    except UnicodeEncodeError:
        raise ValueError("it holds half of a surrogate pair") from None


def _words(reason: str | bytes) -> str:
    text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else reason
    if text.startswith("invalid perl operator: (?"):
        return f"lookaround and the like ({text[24:]}...) are not supported: they take more than linear time"
    if text.startswith("invalid escape sequence: \\") and text[26:27] in "123456789k":
        return f"backreferences ({text[25:]}) are not supported: they take more than linear time"
    return text[:200]
