"""Terms: the times in which one process has the shards of a dispatcher, counted in the registry by compare-and-set."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from plancast_actors.dispatcher_options import DispatcherOptions
from plancast_actors.rpc.client import Endpoint
from plancast_bus.errors import CommitConflict
from plancast_bus.ports.registry import Registry

KIND = "dispatcher-term"
"""Kind of the registrations, one per dispatcher under ``<namespace>/<dispatcher>``: the holder of its newest term."""


@dataclass(frozen=True)
class Introduction:
    """A dispatcher's term, sent through Ray to the hosts that get its events, so that they notice its end."""

    options: DispatcherOptions
    term: int
    """The version of the registration: a later term has a greater one."""
    actor: str
    """Name of the actor that has the term: the dispatcher's own, or the host that stands in for it."""
    beats: Endpoint
    """Where a thread of that actor answers."""


class Terms:
    """The terms of one dispatcher.

    Args:
        registry: Stores the newest one.
        namespace: The Ray namespace of the deployment.
        dispatcher: The dispatcher's name.
        actor: Name of the actor that begins terms here.
    """

    def __init__(self, registry: Registry, namespace: str, dispatcher: str, actor: str) -> None:
        self._registry = registry
        self._key = f"{namespace}/{dispatcher}"
        self._actor = actor

    async def begin(self) -> tuple[int, str]:
        """Begin a term, whoever has the one before; returns it, and the actor that had that one, or an empty string.

        Raises:
            BusUnavailable: it may have begun, or not.
        """
        while True:
            newest, actor = await self.newest()
            if (term := await self.succeed(newest)) is not None:
                return term, actor

    async def succeed(self, term: int) -> int | None:
        """Begin the term after this one; None if another process has done so.

        Raises:
            BusUnavailable: it may have begun, or not.
        """
        holder = f"{self._actor}/{uuid4().hex}".encode()
        try:
            return await self._registry.replace(KIND, self._key, holder, term, None)
        except CommitConflict:  # also of a write that is repeated, since its acknowledgement was lost
            found, version = await self._registry.read(KIND, self._key)
            return version if found == holder else None

    async def newest(self) -> tuple[int, str]:
        """Return the newest term, and the actor that has it, or an empty string.

        Raises:
            BusUnavailable: it cannot be read.
        """
        holder, version = await self._registry.read(KIND, self._key)
        return version, holder.decode().partition("/")[0]
