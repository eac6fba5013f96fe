"""Seals in memory: nobody outside the process writes there, so one key is enough for all."""

from __future__ import annotations

from hashlib import blake2b
from hmac import compare_digest


class MemorySeals:
    """Seals by a fixed key."""

    async def prepare(self) -> None:
        pass

    def seal(self, text: str) -> str:
        return blake2b(text.encode("utf-8", "surrogatepass"), key=b"memory", digest_size=16).hexdigest()

    def verify(self, text: str, seal: str) -> bool:
        return compare_digest(self.seal(text).encode(), seal.encode("utf-8", "surrogatepass"))
