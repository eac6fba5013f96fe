"""Redacts credentials in untrusted text: by pattern in errors and logs, by value where it is known.

All patterns are here. RE2 searches for them, in time linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import re2

HIDDEN: Final = "[hidden]"
MIN_SECRET: Final = 8
"""Shorter secrets are not redacted by value: they occur in ordinary words and numbers."""
_MAX_WORD: Final = 16
"""Nor are shorter ones without a digit: names, and placeholders given to servers that need no key."""

# Recognized without context. All have a separator, a fixed length or digits; hyphenated words of prose are kept.
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
    r"\b(?:AGE-SECRET-KEY-1|ATATT|figd_|lin_api_|sq0[a-z]{3}-)[A-Za-z0-9_=-]{16,}|\bdapi[0-9a-f]{32}",
    r"\bT[A-Z0-9]{7,}/B[A-Z0-9]{7,}/[A-Za-z0-9]{16,}",  # webhooks of Slack
    r"\b(?:bot)?[0-9]{6,12}:AA[A-Za-z0-9_-]{30,}",  # Telegram
)
_MIN_MIXED: Final = 6
"""Shorter values are no credentials where prose may occur: "token: v2"."""
_COUNT: Final = re.compile(rb"(?i).?token|_?pass")
_NO_SECRET: Final = re.compile(rb"(?i)none|null|true|false|required|basic|bearer|digest")
_PROSE: Final = re.compile(rb"[a-z]+[.,]?")
_HYPHENATED: Final = re.compile(rb"[a-z0-9]+(?:[-_](?:[a-z]{1,15}|v?[0-9]{1,3}))+")
_UNMIXED: Final = re.compile(rb"[A-Z]?[a-z]*|[A-Z]+")


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Redact these secrets, and everything that matches the pattern of a credential. Linear in the text."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    tokens, named = _compiled()
    raw: bytes = text.encode("utf-8", "surrogatepass")
    raw = tokens.sub(_hide_token, raw)
    for pattern, hide in named:
        raw = pattern.sub(hide, raw)
    return raw.decode("utf-8", "surrogatepass")


def without(text: str, secrets: Iterable[str]) -> str:
    """Redact these secrets, also with JSON escapes; short ones and words stay."""
    for secret in sorted(filter(_is_distinctive, set(secrets)), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
        if "\\u" in text or not secret.isalnum():
            text = _spelled(secret).sub(HIDDEN, text)
    return text


def _is_distinctive(secret: str) -> bool:
    return len(secret) >= _MAX_WORD or (len(secret) >= MIN_SECRET and any(map(str.isdigit, secret)))


@lru_cache(maxsize=256)
def _spelled(secret: str) -> re.Pattern[str]:
    """Pattern of a secret in JSON, where any character may be escaped."""
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


def _hide_token(found: Any) -> bytes:
    return bytes(found[0]) if _HYPHENATED.fullmatch(found[0]) else HIDDEN.encode()


def _hide_value(found: Any) -> bytes:
    pair = 1 if found[1] is not None else 3 if found[3] is not None else 5
    before, after = found[pair], found[pair + 1]
    value = after.lstrip(b"\\\"'")
    plain = value.rstrip(b",.:)]}")
    counts = _COUNT.match(before) and plain.isdigit() and len(plain) < MIN_SECRET
    if counts or _NO_SECRET.fullmatch(plain) or (pair == 3 and len(plain) < _MIN_MIXED):
        return bytes(found[0])
    return bytes(before + after[: len(after) - len(value)] + HIDDEN.encode())


def _hide_bearer(found: Any) -> bytes:
    """Redact the value, unless it is a word of prose: "basic understanding"."""
    return bytes(found[0]) if _PROSE.fullmatch(found[2]) else bytes(found[1] + HIDDEN.encode())


def _hide_user(found: Any) -> bytes:
    """Redact user and password, or a token; a user alone only in HTTP URLs, where it does not look like a name."""
    user, scheme = found[2], found.string[max(0, found.start() - 5) : found.start()]
    named = not scheme.endswith((b"http", b"https")) or _UNMIXED.fullmatch(user)
    if b":" not in user and len(user) < _MAX_WORD and named:
        return bytes(found[0])
    return bytes(found[1] + HIDDEN.encode() + b"@")


_SCHEME: Final = r"(?:apikey|basic|bearer|digest|token)\s+"
_IS: Final = r"(?:=>|[:=])"
# Recognized by what precedes them, which is kept. The weak names are also words of prose, in which a colon and a blank
# may follow: then the value has to look like a credential, as it has after a blank alone.
_WEAK: Final = r"authorization|credentials?|secret|token"
_STRONG: Final = (
    r"access[_-]?key|account[_-]?key|api[_-]?key|passphrase|passw(?:or)?d|private[_-]?key|pwd"
    r"|secret[_-]?key(?:[_-]base)?|sess(?:ion)?id|shared[_-]?key|signing[_-]?key|x-amz-signature"
)
_STRICT: Final = (
    rf"(?:[\w-](?:{_WEAK})|{_STRONG})\\*[\"']?\s*{_IS}\s*(?:{_SCHEME})?"
    rf"|(?:{_WEAK})(?:\\*[\"']\s*{_IS}\s*|\s*=>?\s*|\s*:)(?:{_SCHEME})?"
    rf"|(?:{_WEAK})\s*:\s*{_SCHEME}"
    rf"|-(?:{_WEAK}|{_STRONG})[\"'],\s*"  # arguments in a list
    r"|(?:\b|_)pass\s*=\s*|[?&;](?:auth|key|sig|signature)="
)
_VALUE: Final = (
    r"\"(?:[^\"\\]|\\(?s:.))+|\\\"(?:[^\"\\]|\\\\\\\"|\\+[^\"\\])+|\\{2,}\"(?:[^\"\\]|\\+[^\"\\])+"
    r"|'(?:[^'\\]|\\(?s:.))+|[^\s\"'\\&;{\[][^\s\"'\\&;]*"
)
_LOOSE: Final = rf"(?:{_WEAK})\s*:\s+|-(?:{_WEAK}|{_STRONG})\s+|api[\s_-]?key(?:\s+provided)?:?\s+"
_MIXED: Final = r"\\*[\"']?[^\s\"'\\&;{\[]*(?:[0-9]|(?-i:[a-z][A-Z]))[^\s\"'\\&;]*"
_COOKIE: Final = r"[\w.-]+=[^\s;\"'\\]+(?:;\s*[\w.-]+=[^\s;\"'\\]+)*"
_NAMED: Final = (
    (  # the second pair of groups is the loose one
        rf"(?i)({_STRICT})({_VALUE})|({_LOOSE})({_MIXED})"
        rf"|(cookie\\*[\"']?\s*{_IS}\s*\\*[\"']?)({_COOKIE})",
        _hide_value,
    ),
    (r"(?i)(\b(?:basic|bearer)\s+)([A-Za-z0-9._~+/=-]{4,})", _hide_bearer),
    (r"(://)([^\s/@:\"']*:[^\s/\"']+|[^\s/@:\"']+)@", _hide_user),  # user:password@host, token@host
    (
        r"(curl[\"']?,?\s(?:(?:[^\n]|\\\n)*?\s)?[\"']?-(?:-user|[A-Za-z]*u)[\"',=\s]*[^\s:\"',-][^\s:\"',]*:)([^\s\"'\\]+)",
        _hide_value,
    ),
)
