"""The keys that sign checkpoints: from the settings, or created by the deployment and stored in JetStream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from secrets import token_hex

from pydantic import SecretStr

from plancast_bus.errors import AccessDenied, BusUnavailable
from plancast_bus.jetstream.client.acks import SubjectTaken
from plancast_bus.jetstream.client.api import STREAM_NOT_FOUND, ApiError
from plancast_bus.jetstream.stores.checkpoint_mac import CheckpointKeys
from plancast_bus.jetstream.stores.store import Store, StreamAccess

logger = logging.getLogger(__name__)


class KeyStore(Store):
    """The keys of a connection.

    The deployment's key is the first message of a stream that accepts no second message and no deletion, so that
    processes which start concurrently agree on it, and it cannot be replaced.

    Args:
        configured: Keys that replace the stored one.
        restricted: The login's account has no JetStream, and so no access to the stored key.
    """

    def __init__(self, access: StreamAccess, configured: Sequence[SecretStr] = (), *, restricted: bool = False) -> None:
        super().__init__(access)
        self._stream, self._subject = self._names.keys, self._subjects.checkpoint_key()
        self._configured = [key.get_secret_value().encode() for key in configured]
        self._restricted = restricted
        self._stored = b""
        """The stored key, once read."""
        self._reading = asyncio.Lock()
        self._denied = restricted
        self.keys: CheckpointKeys | None = None
        """The keys, once read."""
        self.known: CheckpointKeys | None = None
        """The keys as last read, also while they are to be read again."""
        self.forget()

    def forget(self) -> None:
        """Read the stored key again at its next use: server or permissions may have changed."""
        self.keys, self._denied = CheckpointKeys(self._configured) if self._configured else None, self._restricted
        self.known = self.keys or self.known

    @property
    def is_kept(self) -> bool:
        """This process has the key, and can store it again if its stream is deleted."""
        return bool(self._configured or self._stored)

    async def make(self) -> None:
        """Store a key, unless there is one: that of a stream that was deleted, if this process has read it."""
        if not self._configured:
            with suppress(SubjectTaken):
                await self._publisher.publish_acked(self._subject, self._stored or token_hex(32).encode(), {})

    async def read(self) -> CheckpointKeys | None:
        """Return the keys, or None when this user may not read them.

        Raises:
            BusUnavailable: no key is stored, or it cannot be read now.
        """
        if not self._is_known():
            async with self._reading:
                if not self._is_known():
                    await self._read()
        return self.keys

    async def require(self) -> CheckpointKeys:
        """Return the keys.

        Raises:
            AccessDenied: this user may not read them.
            BusUnavailable: no key is stored, or it cannot be read now.
        """
        keys = await self.read()
        if keys is None:
            raise AccessDenied(
                f"this user may not read {self._stream}, so that it cannot write checkpoints: connect as the runtime, "
                "or set PLANCAST_BUS__CHECKPOINT_KEYS"
            )
        return keys

    def _is_known(self) -> bool:
        return self.keys is not None or self._denied

    async def _read(self) -> None:
        stored = None
        try:
            stored = await self._api.last_from_leader(self._stream, self._subject)
        except AccessDenied:
            self._denied = True
            logger.info("checkpoints are read without verification: this user may not read %s", self._stream)
            return
        except ApiError as error:
            if error.code != STREAM_NOT_FOUND:
                raise
        if stored is None:
            raise BusUnavailable(
                f"{self._stream} holds no key of checkpoints: the start of a plancast deployment creates it, or set "
                "PLANCAST_BUS__CHECKPOINT_KEYS"
            )
        self._stored = stored.payload
        self.keys = self.known = CheckpointKeys([stored.payload])
