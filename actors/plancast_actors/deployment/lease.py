"""DeploymentLease: lets one process at a time upgrade or scale a deployment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from plancast_bus.errors import BusUnavailable, CommitConflict, PlancastError
from plancast_bus.events.codec import pack, unpack
from plancast_bus.ports.registry import Registry

KIND = "deployment-lease"
"""Kind of the registration of a namespace's lease."""
LEASE_SECONDS = 15.0
"""Lifetime of a lease that its holder does not renew, as one whose process was killed."""
RENEWALS = 5
"""Renewals of a lease in its lifetime."""


class ChangeUnderWay(PlancastError):
    """Raised when another process upgrades or scales a deployment; nothing has changed."""


class ChangeLost(PlancastError):
    """Raised when another process has taken over from one that was stopped for too long."""


class DeploymentLease:
    """A lease on a deployment's actors, held while the context is entered, and renewed.

    Whoever finds it waits until its holder renews it, and is refused, or until it has expired, and takes it over. When
    the lease is lost the context's task is cancelled: it changes nothing any more.

    Args:
        registry: Of the deployment's bus.
        namespace: The Ray namespace of the deployment.
        purpose: What the holder does, for the messages of others.
        seconds: Lifetime without a renewal.
    """

    def __init__(self, registry: Registry, namespace: str, purpose: str, *, seconds: float = LEASE_SECONDS) -> None:
        self._registry = registry
        self._namespace = namespace
        self._seconds = seconds
        who = {"purpose": purpose, "process": os.getpid(), "machine": platform.node(), "id": uuid4().hex}
        self._value = pack(who)
        self._version = 0
        self._writing = asyncio.Lock()
        self._is_lost = False
        self._owner: asyncio.Task[Any] | None = None
        self._renewal: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Take the lease.

        Raises:
            ChangeUnderWay: another process holds it, and has renewed it.
            BusUnavailable: NATS does not answer.
        """
        loop = asyncio.get_running_loop()
        value, version = await self._registry.read(KIND, self._namespace)
        expires_at = loop.time() + self._seconds
        while value and loop.time() < expires_at:
            await asyncio.sleep(self._seconds / RENEWALS / 2)
            found, renewed = await self._registry.read(KIND, self._namespace)
            if found and renewed != version:
                raise ChangeUnderWay(self._refusal(found))
            value, version = found, renewed
        try:
            await self._write(version)
        except CommitConflict:
            found, _ = await self._registry.read(KIND, self._namespace)
            raise ChangeUnderWay(self._refusal(found)) from None
        self._owner = asyncio.current_task()
        self._renewal = loop.create_task(self._renew())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the lease back; raises ChangeLost if it was lost."""
        assert self._renewal is not None
        async with self._writing:
            self._renewal.cancel()
        await asyncio.gather(self._renewal, return_exceptions=True)
        if self._is_lost:
            if isinstance(error, asyncio.CancelledError) and self._owner is not None:
                self._owner.uncancel()
            raise ChangeLost(
                f"this change was stopped for more than {self._seconds:g} s, and another one of {self._namespace!r} "
                "has begun: see `plancast status` when that has ended"
            ) from error
        with contextlib.suppress(CommitConflict, BusUnavailable):  # it expires
            await self._registry.replace(KIND, self._namespace, b"", self._version, self._seconds)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._seconds / RENEWALS)
            try:
                await self._write(self._version)
            except BusUnavailable:  # nobody else can take it meanwhile; the next renewal tells
                continue
            except CommitConflict:
                found, version = await self._registry.read(KIND, self._namespace)
                if found == self._value:  # an earlier renewal was stored although its outcome was unknown
                    self._version = version
                    continue
                self._is_lost = True
                assert self._owner is not None
                self._owner.cancel()
                return

    async def _write(self, version: int) -> None:
        async with self._writing:
            self._version = await self._registry.replace(KIND, self._namespace, self._value, version, self._seconds)

    def _refusal(self, found: bytes) -> str:
        holder = unpack(found) if found else {}
        return (
            f"another process changes the deployment in {self._namespace!r}: {holder.get('purpose', 'unknown')}, "
            f"process {holder.get('process')} on {holder.get('machine')}. Nothing was changed: try again later"
        )
