"""Seals by the keys that also sign checkpoints."""

from __future__ import annotations

from plancast_bus.errors import BusUnavailable
from plancast_bus.jetstream.stores.checkpoint_mac import CheckpointKeys
from plancast_bus.jetstream.stores.key_store import KeyStore

_BESIDE = "plancast seal"
"""Tells a seal from the MAC of a checkpoint, which covers a subject in this place: subjects have no spaces."""


class JetStreamSeals:
    """Seals and verifies with the keys of a connection; the first key seals, all verify."""

    def __init__(self, keys: KeyStore) -> None:
        self._keys = keys

    async def prepare(self) -> None:
        if self._keys.known is None:
            await self._keys.require()

    def seal(self, text: str) -> str:
        return self._known().mac(_BESIDE, text.encode("utf-8", "surrogatepass"))

    def verify(self, text: str, seal: str) -> bool:
        return self._known().verify(seal, _BESIDE, text.encode("utf-8", "surrogatepass"))

    def _known(self) -> CheckpointKeys:
        if self._keys.known is None:
            raise BusUnavailable("the keys of this deployment have not been read yet")
        return self._keys.known
