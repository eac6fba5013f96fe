"""Secrets of webhooks and notifications, read from where the app names them when they are needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from typing import Any, Final

from pydantic import SecretStr

from plancast.errors import InvalidApp, PlancastError

Secret = str | SecretStr | Callable[[], Any]
"""``env:NAME`` for an environment variable, a ``SecretStr``, or a function that returns a text or several."""
ENVIRONMENT: Final = "env:"
PREFIX: Final = "whsec_"
"""Begins a secret in base64, by Standard Webhooks."""


class SecretMissing(PlancastError):
    """Raised when none of the secrets that an app names is there; the message says where they were looked for."""


class Secrets:
    """The secrets of one owner, several while they are rotated: the first one signs, all verify.

    Args:
        owner: For messages, such as ``hook 'orders'``.
        given: One secret, or several.

    Raises:
        InvalidApp: one has another form, such as a literal text, which would be in the code.
    """

    def __init__(self, owner: str, given: Secret | Sequence[Secret]) -> None:
        several = given if isinstance(given, (list, tuple)) else (given,)
        self._owner = owner
        self._given: tuple[Any, ...] = tuple(several)
        if not self._given:
            raise InvalidApp(f"{owner}: it has no secret")
        for each in self._given:
            named = isinstance(each, str) and len(each) > len(ENVIRONMENT) and each.startswith(ENVIRONMENT)
            if not (named or isinstance(each, SecretStr) or (callable(each) and not iscoroutinefunction(each))):
                raise InvalidApp(
                    f"{owner}: a secret is a {type(each).__name__}, allowed: 'env:NAME' for an environment variable, "
                    "a SecretStr, or a function that returns it"
                )

    def __repr__(self) -> str:
        return f"Secrets({', '.join(map(_place, self._given))})"

    def read(self) -> list[str]:
        """Read the secrets that are there now; a function of the app may take its time.

        Raises:
            SecretMissing: none is, or a function has failed.
        """
        try:
            found = [text for each in self._given for text in _texts(each) if text.removeprefix(PREFIX)]
        except Exception as error:  # its text may hold secrets
            raise SecretMissing(f"{self._owner} has no secret: a function has raised {type(error).__name__}") from None
        if not found:
            raise SecretMissing(f"{self._owner} has no secret: {', '.join(map(_place, self._given))} gives none")
        return found


def _texts(given: Any) -> list[str]:
    if isinstance(given, SecretStr):
        return [given.get_secret_value()]
    if isinstance(given, str):
        return [os.environ.get(given.removeprefix(ENVIRONMENT), "")]
    made = given()
    several = made if isinstance(made, (list, tuple)) else (made,)
    return [each.get_secret_value() if isinstance(each, SecretStr) else str(each or "") for each in several]


def _place(given: Any) -> str:
    if isinstance(given, str):
        return given
    return "a SecretStr" if isinstance(given, SecretStr) else "a function"
