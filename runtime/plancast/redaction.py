"""Hiding credentials in texts that others wrote: by their shapes in errors and logs, by their values where known.

This is the one list of shapes. RE2 searches for them, in time linear in the text, whatever the text is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import re2

HIDDEN: Final = "[hidden]"
MIN_SECRET: Final = 8
"""Shorter secrets are not looked for by value: they are parts of ordinary words and numbers."""
_MAX_WORD: Final = 16
"""Nor are shorter ones without a digit: names, and what is given as a key where a server wants none."""

# Recognized by themselves. A word of prose is never one: all have a separator, a fixed length or digits.
_TOKENS: Final = (
    r"-----BEGIN (?:[A-Z0-9 ]*PRIVATE KEY[A-Z ]*|USER NKEY SEED|NATS USER JWT)-----"
    r"(?s:.*?)(?:-----END [A-Z0-9 ]*-----|\z)",
    r"\beyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){1,4}",  # JWT, also encrypted
    r"\bS[ACNOUX][A-Z2-7]{56}\b",  # seeds of NATS
    r"\b(?:sk|rk)[-_][A-Za-z0-9_\-*]{8,}",  # OpenAI, Anthropic, OpenRouter, Stripe
    r"\bpk[-_](?:live|lf|prod|test)[-_][A-Za-z0-9_\-*]{8,}",
    r"\b(?:gsk_|hf_|nvapi-|pplx-|r8_|xai-)[A-Za-z0-9_\-*]{16,}",  # other model providers
    r"\b(?:gh[oprsu]_|github_pat_|glpat-)[A-Za-z0-9_-]{16,}",
    r"\b(?:dckr_pat_|dop_v1_|npm_|pypi-|shpat_|whsec_|hvs\.)[A-Za-z0-9_-]{20,}",
    r"\bxox[a-z]-[A-Za-z0-9-]{8,}|\bxapp-[A-Za-z0-9-]{16,}",  # Slack
    r"\b(?:AKIA|ASIA)[A-Z0-9*]{12,}",
    r"\bAIza[A-Za-z0-9_\-*]{8,}|\bya29\.[A-Za-z0-9_-]{16,}|\bGOCSPX-[A-Za-z0-9_-]{16,}",
    r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{33}\b",  # Telegram
)
_NO_SECRET: Final = re.compile(rb"(?i)none|null|true|false|required|basic|bearer|digest")
_PROSE: Final = re.compile(rb"[a-z]+[.,]?")


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without these secrets, and without anything that has the shape of a credential. Linear in the text."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    tokens, named = _compiled()
    raw: bytes = text.encode("utf-8", "surrogatepass")
    raw = tokens.sub(HIDDEN.encode(), raw)
    for pattern, hide in named:
        raw = pattern.sub(hide, raw)
    return raw.decode("utf-8", "surrogatepass")


def without(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets, as they are and as JSON may spell them; short ones and words stay."""
    for secret in sorted(filter(_telling, set(secrets)), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
        if "\\u" in text or not secret.isalnum():
            text = _spelled(secret).sub(HIDDEN, text)
    return text


def _telling(secret: str) -> bool:
    return len(secret) >= _MAX_WORD or (len(secret) >= MIN_SECRET and any(map(str.isdigit, secret)))


@lru_cache(maxsize=256)
def _spelled(secret: str) -> re.Pattern[str]:
    """A secret in JSON, where any character may be written as an escape."""
    return re.compile("".join(map(_spellings, secret)))


def _spellings(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    escape = "".join(rf"\\u(?i:{units[i]:02x}{units[i + 1]:02x})" for i in range(0, len(units), 2))
    return rf"(?:{re.escape(character)}|\\{re.escape(character)}|{escape})"


@lru_cache(maxsize=1)
def _compiled() -> Any:
    options = re2.Options()
    options.log_errors = False
    tokens = re2.compile("|".join(_TOKENS).encode(), options)
    return tokens, [(re2.compile(pattern.encode(), options), hide) for pattern, hide in _NAMED]


def _hide_value(found: Any) -> bytes:
    before, said = found[1], found[2]
    value = said.lstrip(b"\\\"'")
    plain = value.rstrip(b",.:)]}")
    counts = before[:5].lower() == b"token" and plain.isdigit() and len(plain) < MIN_SECRET
    if counts or _NO_SECRET.fullmatch(plain):
        return bytes(found[0])
    return bytes(before + said[: len(said) - len(value)] + HIDDEN.encode() + found[0][len(before) + len(said) :])


def _hide_bearer(found: Any) -> bytes:
    """Words that follow in prose are kept: "basic understanding"."""
    return bytes(found[0]) if _PROSE.fullmatch(found[2]) else bytes(found[1] + HIDDEN.encode())


# Recognized by what stands before, which is kept, as is what follows.
_SCHEME: Final = r"(?:(?:apikey|basic|bearer|digest|token)\s+)?"
_NAMES: Final = (
    r"access[_-]?key|account[_-]?key|api[_-]?key|authorization|credentials?|passphrase|passw(?:or)?d|private[_-]?key|pwd"
    r"|secret|shared[_-]?key|signing[_-]?key|token|x-amz-signature"
)
_NAMED: Final = (
    (r"(?i)([?&;](?:auth|key|pass|sig|signature)=)([^\s&\"'\\]+)", _hide_value),
    (
        rf"(?i)((?:{_NAMES})\\*[\"']?\s*(?:=>|[:=])\s*{_SCHEME})"
        r"(\\*\"(?:[^\"\\]|\\+[^\"\\])+|'[^']+|[^\s\"'\\&;{\[][^\s\"'\\&;]*)",
        _hide_value,
    ),
    (r"(?i)(\b(?:basic|bearer)\s+)([A-Za-z0-9._~+/=-]{4,})", _hide_bearer),
    (r"(://)([^\s/@:\"']*:[^\s/@\"']+|[^\s/@:\"']{16,})@", _hide_value),  # user:password@host, token@host
)
