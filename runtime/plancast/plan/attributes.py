"""Search attributes of a plan: short values that lists show and filter by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

MAX_ATTRIBUTES: Final = 16
MAX_NAME: Final = 64
MAX_TEXT: Final = 200
"""Characters of a name, and of a text."""
_NAME: Final = re.compile(rf"[A-Za-z_][A-Za-z0-9_.-]{{0,{MAX_NAME - 1}}}")


def check_attributes(attributes: Mapping[Any, Any]) -> None:
    """Check the attributes that handlers have set.

    Raises:
        ValueError: there are too many, or one has a name or a value that cannot be stored with the plan's summary.
    """
    if len(attributes) > MAX_ATTRIBUTES:
        raise ValueError(f"attributes: got {len(attributes)}, at most {MAX_ATTRIBUTES} are allowed")
    for name, value in attributes.items():
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise ValueError(
                f"attributes: the name {name!r:.80} is not allowed: letters, digits, '_', '.' and '-', a letter first, "
                f"up to {MAX_NAME} characters"
            )
        if isinstance(value, str):
            if len(value) > MAX_TEXT:
                raise ValueError(f"attributes.{name}: got {len(value)} characters, at most {MAX_TEXT} are allowed")
        elif type(value) not in (int, float, bool):
            raise ValueError(f"attributes.{name}: got a {type(value).__name__}, allowed: a text, a number or a boolean")
        elif isinstance(value, float) and not isfinite(value):
            raise ValueError(f"attributes.{name}: got {value}, allowed: a finite number")
        elif abs(value) >= 2**53:
            raise ValueError(f"attributes.{name}: got a number of 2**53 or more, use a text")


def read_attribute(text: str) -> tuple[str, str]:
    """The name and the value of a filter, ``name=value``.

    Raises:
        ValueError: it is not of this form.
    """
    name, equals, value = text.partition("=")
    if not equals or _NAME.fullmatch(name) is None:
        raise ValueError(f"got {text[:80]!r}, allowed: NAME=VALUE, such as customer=acme")
    return name, value
