"""The keys of checkpoints, and the MAC by which the runtime recognises what it has stored itself."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from hmac import compare_digest

_HALF = 16
"""Bytes of each of the two digests in a MAC."""


class CheckpointKeys:
    """Makes and verifies MACs of checkpoints.

    A MAC is two keyed digests: one of the content, and one of that digest with the text that travels beside it. So
    readers of headers alone can verify the headers.

    Args:
        keys: Any texts. The first one makes MACs, all verify them.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = [_Key(key) for key in keys]

    def mac(self, beside: str, content: bytes) -> str:
        """The MAC of a content and the text that travels beside it: 64 characters."""
        key = self._keys[0]
        digest = key.content(content)
        return digest + key.whole(digest, beside)

    def verify(self, mac: str, beside: str, content: bytes | None = None) -> bool:
        """Whether a MAC is by one of the keys, of this text, and of this content where it is given."""
        digest, whole = mac[: 2 * _HALF], mac[2 * _HALF :]
        for key in self._keys:
            if _same(key.whole(digest, beside), whole):
                return content is None or _same(key.content(content), digest)
        return False


class _Key:
    __slots__ = ("_content", "_whole")

    def __init__(self, key: bytes) -> None:
        secret = blake2b(key, person=b"plancast-key").digest()  # a key of BLAKE2b is at most 64 bytes
        # What a key costs before the first byte is paid once: copies begin from here.
        self._content = blake2b(key=secret, digest_size=_HALF, person=b"plancast-content")
        self._whole = blake2b(key=secret, digest_size=_HALF, person=b"plancast-whole")

    def content(self, content: bytes) -> str:
        digest = self._content.copy()
        digest.update(content)
        return digest.hexdigest()

    def whole(self, content_digest: str, beside: str) -> str:
        digest = self._whole.copy()
        digest.update((content_digest + beside).encode("utf-8", "surrogatepass"))  # the first has always one length
        return digest.hexdigest()


def _same(one: str, other: str) -> bool:
    return compare_digest(one.encode(), other.encode("utf-8", "surrogatepass"))
