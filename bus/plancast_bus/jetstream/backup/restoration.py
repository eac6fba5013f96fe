"""Restores a backup into a nats-server.

While it lasts, a stream of its own marks the deployment as being restored: nothing creates the streams that are still
missing. A restoration that was interrupted leaves the mark, and is begun again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from plancast_bus.errors import AccessDenied, BusError, DeploymentExists, InvalidBackup
from plancast_bus.jetstream.backup import archive
from plancast_bus.jetstream.backup.archive import Manifest, Part, Record
from plancast_bus.jetstream.backup.link import Link, Report
from plancast_bus.jetstream.backup.transfer import send_snapshot
from plancast_bus.jetstream.client.acks import PubAck, SubjectTaken
from plancast_bus.jetstream.client.api import RESTORED_NAME_IN_USE, STREAM_NAME_IN_USE, STREAM_NOT_FOUND, ApiError
from plancast_bus.jetstream.client.request_reply import NoResponders
from plancast_bus.jetstream.messaging.direct_reader import DirectReader
from plancast_bus.jetstream.streams.definitions import restoring_stream

IsWanted = Callable[[Record], Awaitable[bool]]
"""Returns whether the checkpoints that were restored know the turn that has sent a message, and still wait for it."""
IN_FLIGHT, BYTES_IN_FLIGHT = 256, 1 << 20
"""Messages that are published at once, and their bytes."""
WINDOW = 86_400_000_000_000
"""Nanoseconds for which the work queues drop repeated messages during a restoration: the journal repeats some."""
_KEPT = frozenset({"Nats-Msg-Id", "Nats-TTL", "Nats-Schedule", "Nats-Schedule-Target", "Nats-Schedule-Time-Zone"})
"""Headers for the server that are published again."""


async def restore(link: Link, folder: Path, is_wanted: IsWanted, report: Report, *, force: bool = False) -> Manifest:
    """Create the streams of a deployment as a backup holds them; return its manifest.

    With ``force`` all streams of the deployment that exists are deleted before. Nothing is changed before the whole
    backup is verified.

    Raises:
        AccessDenied: the login's account has no JetStream.
        InvalidBackup: the backup is incomplete, damaged, or of another prefix or a newer server.
        DeploymentExists: there is a deployment, and no force.
        BusError: the server refuses; the deployment stays marked, and the restoration has to begin again.
    """
    if link.restricted:
        raise AccessDenied("this login may not create streams: restore with the runtime's login")
    manifest = archive.read_manifest(folder)
    _check_fits(link, folder, manifest)
    for part in manifest.parts:
        await asyncio.to_thread(archive.verify, folder, part)
    await link.lasting(_Restoration(link, folder, manifest, is_wanted, report).run(force))
    return manifest


def _check_fits(link: Link, folder: Path, manifest: Manifest) -> None:
    if manifest.prefix != link.subjects.prefix:
        raise InvalidBackup(
            f"the backup in {folder} is of the prefix {manifest.prefix!r}, and this deployment has "
            f"{link.subjects.prefix!r}: set PLANCAST_BUS__PREFIX={manifest.prefix}"
        )
    if _version(manifest.server) > _version(link.server_version):
        raise InvalidBackup(
            f"the backup in {folder} is of nats-server {manifest.server}, and the one at {link.connection.where} is "
            f"older: {link.server_version}"
        )
    known, streams = set(link.streams()), [part.stream for part in manifest.parts if part.stream]
    if unknown := [name for name in streams if name not in known]:
        raise InvalidBackup(f"the manifest in {folder} names streams that are no deployment's: {', '.join(unknown)}")
    if link.names.checkpoints not in streams:
        raise InvalidBackup(f"the manifest in {folder} names no part for {link.names.checkpoints}")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())


class _Restoration:
    def __init__(self, link: Link, folder: Path, manifest: Manifest, is_wanted: IsWanted, report: Report) -> None:
        self._link = link
        self._folder = folder
        self._manifest = manifest
        self._is_wanted = is_wanted
        self._report = report
        self._mark = restoring_stream(link.subjects)
        self._done = 0

    async def run(self, force: bool) -> None:
        link, parts = self._link, self._manifest.parts
        is_marked = await link.info(self._mark["name"]) is not None
        existing = [name for name in link.streams() if await link.info(name) is not None]
        if existing and not force and not is_marked:
            raise DeploymentExists(
                f"a deployment with the prefix {link.subjects.prefix!r} exists at {link.connection.where} "
                f"({', '.join(existing[:3])}, ...). Stop it, and give --force to delete it and restore the backup"
            )
        if not is_marked:
            await link.api.call(f"STREAM.CREATE.{self._mark['name']}", self._mark)
        for name in link.streams():
            await self._delete(name)
        queues = [part for part in parts if part.stream and not part.snapshot]
        for part in parts:
            if part.snapshot:
                await self._build(part)
        for part in queues:
            await self._create_queue(part)
        for part in queues:
            await self._publish(part.stream, part, set())
        facts = await self._noted_facts()
        for part in parts:
            if not part.stream:
                await self._publish(part.file, part, facts)
        for part in queues:
            await link.api.call(
                f"STREAM.UPDATE.{part.stream}", self._config(part) | {"first_seq": part.last_sequence + 1}
            )
        await self._delete(self._mark["name"])

    async def _delete(self, name: str) -> None:
        try:
            await self._link.api.call(f"STREAM.DELETE.{name}")
        except ApiError as error:
            if error.code != STREAM_NOT_FOUND:
                raise

    def _config(self, part: Part) -> dict[str, Any]:
        settings = self._link.settings
        config = part.config | {"num_replicas": settings.replicas, "storage": settings.storage}
        config.pop("placement", None)
        config["metadata"] = {
            key: value for key, value in (config.get("metadata") or {}).items() if not key.startswith("_nats.")
        }
        return config

    async def _build(self, part: Part) -> None:
        try:
            await self._send(part)
        except ApiError as error:
            if error.code != RESTORED_NAME_IN_USE:
                raise
            await self._delete(part.stream)  # a process that had started before the mark was made
            await self._send(part)

    async def _send(self, part: Part) -> None:
        def noted(count: int) -> None:
            self._done += count
            self._report(part.stream, self._done, self._manifest.bytes)

        await send_snapshot(self._link, part.stream, self._config(part), archive.read_chunks(self._folder, part), noted)

    async def _create_queue(self, part: Part) -> None:
        # Sequences go on behind those of the backup: a plan that withdraws a request by its old one hits no other.
        config = self._config(part) | {"first_seq": part.last_sequence + 1, "duplicate_window": WINDOW, "max_bytes": -1}
        for _ in range(2):
            try:
                await self._link.api.call(f"STREAM.CREATE.{part.stream}", config)
                return
            except ApiError as error:
                if error.code != STREAM_NAME_IN_USE:
                    raise
                await self._delete(part.stream)
        raise BusError(f"another process creates {part.stream} during the restoration: stop the deployment")

    async def _publish(self, what: str, part: Part, known: set[str]) -> None:
        sending, held = list[asyncio.Future[PubAck]](), 0
        for record in archive.read_records(self._folder, part):
            if record.headers.get("Nats-Msg-Id") in known or not await self._is_wanted(record):
                continue
            sending.append(self._begin(record))
            held += len(record.payload)
            if len(sending) >= IN_FLIGHT or held >= BYTES_IN_FLIGHT:
                await _settle(sending)
                sending, held = [], 0
        await _settle(sending)
        self._done += part.bytes
        self._report(what, self._done, self._manifest.bytes)

    def _begin(self, record: Record) -> asyncio.Future[PubAck]:
        subjects, subject = self._link.subjects, record.subject
        if "Nats-Sequence" in record.headers and not subject.startswith(f"{subjects.store}.timers.set."):
            subject = subjects.published_from_stored(subject)
        headers = {
            name: value for name, value in record.headers.items() if name in _KEPT or not name.startswith("Nats-")
        }
        return self._link.requester.begin(subject, record.payload, headers, _unchanged)

    async def _noted_facts(self) -> set[str]:
        """Return the ids of those facts that are in the journal and in the copy of their stream."""
        part = next((part for part in self._manifest.parts if part.stream == self._link.names.facts), None)
        if part is None:
            return set()
        reader = DirectReader(self._link.connection, self._link.api)
        reading = reader.read(part.stream, ">", "all", after=part.noted_after)
        async with aclosing(reading):
            return {message.headers.get("Nats-Msg-Id", "") async for message in reading} - {""}


def _unchanged(ack: PubAck) -> PubAck:
    return ack


async def _settle(sending: Iterable[asyncio.Future[PubAck]]) -> None:
    """Wait for the acknowledgements of messages.

    A response that is there already is none again, and what no stream takes was never in one.
    """
    for result in await asyncio.gather(*sending, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, SubjectTaken | NoResponders):
            raise result
