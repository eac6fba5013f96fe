"""Headers and MACs of checkpoints; the runtime accepts only checkpoints with a valid MAC.

The MAC covers the subject, the headers and the body. Since the expected sequence is among the headers, a copied
checkpoint cannot be stored again: the server refuses the old sequence, and a new one invalidates the MAC.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from hmac import compare_digest

from plancast_bus.errors import InvalidEnvelope
from plancast_bus.jetstream.client.api import StoredMessage
from plancast_bus.jetstream.client.nats_client import ForeignHeaders
from plancast_bus.ports.checkpoints import PlanSummary

SUMMARY = "Plancast-Plan"
"""Header with the summary of a plan."""
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
TTL = "Nats-TTL"
ROLLUP = "Nats-Rollup"
MAC = "Plancast-MAC"
COVERED = (EXPECTED, SUMMARY, TTL, ROLLUP)
"""Headers that the MAC covers."""

_HALF = 16
"""Bytes of each of the two digests in a MAC."""


class CheckpointKeys:
    """Signs and verifies checkpoints; the first key signs, all verify.

    A MAC is two keyed digests: of the body, and of that digest with the covered headers. So the headers can be verified
    without the body.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = [_Key(key) for key in keys]

    def mac(self, beside: str, content: bytes) -> str:
        """Return the MAC of a body and the covered text beside it: 64 characters."""
        key = self._keys[0]
        digest = key.content(content)
        return digest + key.whole(digest, beside)

    def verify(self, mac: str, beside: str, content: bytes | None = None) -> bool:
        """Return whether a MAC is valid for the covered text and, where given, the body."""
        digest, whole = mac[: 2 * _HALF], mac[2 * _HALF :]
        for key in self._keys:
            if _same(key.whole(digest, beside), whole):
                return content is None or _same(key.content(content), digest)
        return False


class _Key:
    __slots__ = ("_content", "_whole")

    def __init__(self, key: bytes) -> None:
        secret = blake2b(key, person=b"plancast-key").digest()  # a key of BLAKE2b is at most 64 bytes
        # The key setup is done once and copied.
        self._content = blake2b(key=secret, digest_size=_HALF, person=b"plancast-content")
        self._whole = blake2b(key=secret, digest_size=_HALF, person=b"plancast-whole")

    def content(self, content: bytes) -> str:
        digest = self._content.copy()
        digest.update(content)
        return digest.hexdigest()

    def whole(self, content_digest: str, beside: str) -> str:
        digest = self._whole.copy()
        digest.update((content_digest + beside).encode("utf-8", "surrogatepass"))  # the digest has a fixed length
        return digest.hexdigest()


def _same(one: str, other: str) -> bool:
    return compare_digest(one.encode(), other.encode("utf-8", "surrogatepass"))


class Forged(InvalidEnvelope):
    """Raised when a message among the checkpoints was not written by this deployment."""


def ttl_header(seconds: float) -> str:
    """Format a time to live for the server: whole seconds, at least one."""
    return str(max(1, math.ceil(seconds)))


def covered_text(subject: str, headers: Mapping[str, str]) -> str:
    """Join the subject and the headers that a MAC covers; no header contains a line break."""
    return "\r\n".join([subject, *[headers.get(name, "") for name in COVERED]])


def verified_summary(message: StoredMessage, keys: CheckpointKeys | None, content: bytes | None = None) -> str:
    """Return the summary line of a checkpoint, verified with its content, where given, if there are keys.

    Raises:
        Forged: it is not valid.
    """
    headers = message.headers
    line = headers.get(SUMMARY)
    if line is None:
        raise Forged(f"it has no header {SUMMARY}")
    if keys is None:
        try:
            PlanSummary.from_header(line)
        except InvalidEnvelope as error:
            raise Forged(str(error)) from error
        return line
    mac = headers.get(MAC)
    if mac is None:
        raise Forged(f"it has no header {MAC}: plancast has not written it, or a version without MACs has")
    if isinstance(headers, ForeignHeaders):
        raise Forged("it has headers that plancast does not write")
    if not keys.verify(mac, covered_text(message.subject, headers), content):
        raise Forged(f"its {MAC} is by no key of this deployment, or for something else")
    return line
