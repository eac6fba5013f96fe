"""Hiding what looks like a credential in texts that others wrote: errors of models, of handlers, log lines."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "[hidden]"
_SECRETS = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|hf|r8|nvapi|pplx|AKIA|AIza)[-_]?[A-Za-z0-9_\-*]{8,}"  # as providers shape them
    r"|(?i:(?<=bearer )[^\s\"']{4,})"
    r"|(?i:(?<=basic )[A-Za-z0-9+/=]{8,})"
    r"|(?i:(?<=[?&]key=)[^\s&\"']+)"  # Gemini's are in its URLs
    r"|(?<=://)[^\s/@:\"']*:[^\s/@\"']+(?=@)"  # user:password@host
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without these secrets, and without anything that looks like a key or a password in a URL."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _SECRETS.sub(HIDDEN, text)
