"""Seals: prove that the runtime of this deployment has written a text, where others could have written it too."""

from __future__ import annotations

from typing import Protocol


class Seals(Protocol):
    """Seals and verifies texts with the keys of the deployment. No I/O, except to read the keys once."""

    async def prepare(self) -> None:
        """Read the keys, unless they are known; required before the first seal of a connection.

        Raises:
            AccessDenied: this user may not read them.
            BusUnavailable: they cannot be read now.
        """
        ...

    def seal(self, text: str) -> str:
        """Return the seal of a text.

        Raises:
            BusUnavailable: the keys were not read.
        """
        ...

    def verify(self, text: str, seal: str) -> bool:
        """Return whether a seal is of this text, by a key of the deployment.

        Raises:
            BusUnavailable: the keys were not read.
        """
        ...
