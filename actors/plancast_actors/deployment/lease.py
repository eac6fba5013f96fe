"""DeploymentLease: lets one process at a time change the actors of a deployment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
from collections.abc import Callable
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
    """Raised when another process changes the actors of a deployment; nothing has changed."""


class ChangeLost(PlancastError):
    """Raised when another process has taken over from one that was stopped for too long."""


class DeploymentLease:
    """A lease on a deployment's actors, held while the context is entered, and renewed.

    Whoever finds it waits until its holder gives it back, or until it has expired, and takes it over. When the holder
    renews it, and ``patience`` is over, whoever waits is refused. When the lease is lost the context's task is
    cancelled: it changes nothing any more.

    Args:
        registry: Of the deployment's bus.
        namespace: The Ray namespace of the deployment.
        purpose: What the holder does, for the messages of others.
        seconds: Lifetime without a renewal.
        patience: Seconds to wait for a holder that is alive.
        say: Called with a text when another process holds it.
    """

    def __init__(
        self,
        registry: Registry,
        namespace: str,
        purpose: str,
        *,
        seconds: float = LEASE_SECONDS,
        patience: float = 0.0,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._registry = registry
        self._namespace = namespace
        self._seconds = seconds
        self._patience = patience
        self._say = say
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
        patient_until = loop.time() + self._patience
        while True:
            version = await self._until_free(patient_until)
            try:
                await self._write(version)
                break
            except CommitConflict:
                found, _ = await self._registry.read(KIND, self._namespace)
                if loop.time() >= patient_until:
                    raise ChangeUnderWay(self._refusal(found)) from None
        self._owner = asyncio.current_task()
        self._renewal = loop.create_task(self._renew())
        return self

    async def _until_free(self, patient_until: float) -> int:
        """Wait until the lease is given back or has expired; returns its version. Raises ChangeUnderWay."""
        loop = asyncio.get_running_loop()
        value, version = await self._registry.read(KIND, self._namespace)
        if value:
            most = f"at most {self._seconds:g} s, in case that process was killed"
            if self._patience:
                most = f"at most {max(self._seconds, self._patience):g} s"
            self._say(f"{_holder(value)} holds the deployment: waiting, {most}")
        expires_at = loop.time() + self._seconds
        while value and loop.time() < expires_at:
            await asyncio.sleep(self._seconds / RENEWALS / 2)
            found, renewed = await self._registry.read(KIND, self._namespace)
            if found and renewed != version:
                if loop.time() >= patient_until:
                    raise ChangeUnderWay(self._refusal(found))
                expires_at = loop.time() + self._seconds
            value, version = found, renewed
        return version

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
        return (
            f"another process changes the deployment in {self._namespace!r}: {_holder(found)}. Nothing was changed: "
            "try again later"
        )


def _holder(value: bytes) -> str:
    who = unpack(value) if value else {}
    return f"{who.get('purpose', 'unknown')}, process {who.get('process')} on {who.get('machine')}"
