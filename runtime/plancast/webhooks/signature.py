"""Signatures of webhooks: Standard Webhooks (https://www.standardwebhooks.com), and GitHub's."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Final

from plancast.errors import PlancastError
from plancast.webhooks.secret import PREFIX

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
"""Headers of Standard Webhooks."""
GITHUB_ID, GITHUB_SIGNATURE = "x-github-delivery", "x-hub-signature-256"
"""Headers of GitHub. Its signature covers the body only, so that neither time nor id of a message are proven."""
TOLERANCE_SECONDS: Final = 300.0
"""Largest difference between a message's time and now, in either direction."""
MOST_SIGNATURES: Final = 16
"""Signatures of one message that are compared; senders that rotate their keys send several."""
LONGEST_ID: Final = 256
_VERSION: Final = "v1"


class Unverified(PlancastError):
    """Raised when a message is not signed with a secret of its hook, or too old; the message does not say which."""


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a message by Standard Webhooks."""
    signature = base64.b64encode(_digest(_keys(secret)[0], _signed(message_id, str(timestamp), body))).decode()
    return {ID: message_id, TIMESTAMP: str(timestamp), SIGNATURE: f"{_VERSION},{signature}"}


def claimed_id(headers: Mapping[str, str], now: float) -> str:
    """The id that a message claims to have; reads no body, so that a message without a signature costs nothing.

    Args:
        headers: By their names in lower case.
        now: Seconds since the epoch.

    Raises:
        Unverified: a header is missing or malformed, or the message is too old, or from the future.
    """
    standard = SIGNATURE in headers
    message_id = headers.get(ID if standard else GITHUB_ID, "")
    if not 0 < len(message_id) <= LONGEST_ID or not message_id.isascii() or not message_id.isprintable():
        raise Unverified(f"{ID} is missing or malformed, with {SIGNATURE}; or {GITHUB_ID}, with {GITHUB_SIGNATURE}")
    if standard:
        given = headers.get(TIMESTAMP, "")
        timely = given.isascii() and given.isdigit() and len(given) <= 12
        if not timely or abs(now - int(given)) > TOLERANCE_SECONDS:
            raise Unverified(f"{TIMESTAMP} is missing, or more than {TOLERANCE_SECONDS:g} s from now")
    elif GITHUB_SIGNATURE not in headers:
        raise Unverified(f"{SIGNATURE} or {GITHUB_SIGNATURE} is missing")
    return message_id


def verify(headers: Mapping[str, str], body: bytes, secrets: Iterable[str], now: float) -> str:
    """Verify a message, and return its id.

    Raises:
        Unverified: none of the secrets has signed it, or it is too old, or from the future.
    """
    message_id = claimed_id(headers, now)
    if SIGNATURE in headers:
        signed = _signed(message_id, headers[TIMESTAMP], body)
        expected = [base64.b64encode(_digest(key, signed)) for each in secrets for key in _keys(each)]
        versioned = (each.partition(",") for each in headers[SIGNATURE].split(" ", MOST_SIGNATURES)[:MOST_SIGNATURES])
        given = [signature for version, _, signature in versioned if version == _VERSION]
    else:
        expected = [_digest(each.encode(), body).hex().encode() for each in secrets]
        scheme, _, signature = headers[GITHUB_SIGNATURE].partition("=")
        given = [signature] if scheme == "sha256" else []
    raw = [each.encode("utf-8", "surrogateescape") for each in given]
    matches = [hmac.compare_digest(one, other) for one in raw for other in expected]
    if not any(matches):
        raise Unverified("the signature is by no secret of this hook")
    return message_id


def _signed(message_id: str, timestamp: str, body: bytes) -> bytes:
    return f"{message_id}.{timestamp}.".encode() + body


def _digest(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, hashlib.sha256)


def _keys(secret: str) -> list[bytes]:
    """The keys that a secret can stand for: ``whsec_`` begins base64, as libraries also take it without; else text."""
    encoded = secret.removeprefix(PREFIX)
    try:
        decoded = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        decoded = b""
    if encoded != secret and decoded:
        return [decoded]
    return [secret.encode(), *filter(None, (decoded,))]
