"""Takes a backup of a deployment that runs.

The streams are copied one after another, in an order in which nothing that a checkpoint waits for is missed: from the
beginning, what is published is noted in a journal. Then the work queues are read: a message that is gone from one was
processed, and what came of it is in a later copy or in the journal. Then come the checkpoints, which end the journal,
and at last what checkpoints refer to.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from plancast_bus.errors import BusError
from plancast_bus.jetstream.backup import archive
from plancast_bus.jetstream.backup.archive import Manifest, Part, PartWriter
from plancast_bus.jetstream.backup.journal import Journal
from plancast_bus.jetstream.backup.link import Link, Report
from plancast_bus.jetstream.backup.transfer import receive_snapshot
from plancast_bus.jetstream.messaging.direct_reader import DirectReader
from plancast_bus.jetstream.streams.definitions import StreamNames, being_restored, restoring_stream
from plancast_bus.topics import WORK_QUEUES

JOURNAL = "journal.jsonl"
ATTEMPTS = 3
"""Attempts to copy a stream; the server gives up when a file of it goes away meanwhile."""


async def back_up(link: Link, folder: Path, report: Report) -> Manifest:
    """Write a backup of all streams into a new folder, and return its manifest.

    A failure removes what was written. A folder that is left by a process that was killed is marked as incomplete.

    Raises:
        InvalidBackup: the folder is not empty.
        BusError: there is no deployment, or the connection was interrupted.
        OSError: the files cannot be written.
    """
    is_new = archive.begin(folder)
    try:
        return await link.lasting(_Backup(link, folder, report).take())
    except BaseException:
        archive.discard(folder, is_new=is_new)
        raise


class _Backup:
    def __init__(self, link: Link, folder: Path, report: Report) -> None:
        self._link = link
        self._folder = folder
        self._report = report
        self._done = self._total = 0

    async def take(self) -> Manifest:
        link, names = self._link, self._link.names
        if await link.info(restoring_stream(link.subjects)["name"]) is not None:
            raise being_restored(link.subjects)
        found = {name: info for name in link.streams() if (info := await link.info(name)) is not None}
        if names.checkpoints not in found:
            raise BusError(
                f"nothing is deployed at {link.connection.where} with the prefix {link.subjects.prefix!r}: the stream "
                f"{names.checkpoints} is missing"
            )
        self._total = sum(info["state"]["bytes"] for info in found.values())
        parts: list[Part] = []
        with PartWriter(self._folder, JOURNAL) as writer:
            journal = Journal(link, writer)
            await journal.open()
            queues = [name for name in _queues(names) if name in found]
            for name in queues:
                parts.append(await self._copy_messages(name, found[name]["config"]))
            for name in (names.responses, names.facts, names.checkpoints):
                if name in found:
                    copied = await self._copy_stream(name)
                    parts.append(replace(copied, noted_after=found[name]["state"]["last_seq"]))
            moment = await link.info(names.checkpoints)
            await journal.close()
            # Later sequences than any that a checkpoint knows: it withdraws a request by its sequence.
            parts = [await self._with_end(part) if part.stream in queues else part for part in parts]
            parts.append(writer.finish())
        already = {part.stream for part in parts}
        for name in found:
            if name not in already:
                parts.append(await self._copy_stream(name))
        manifest = Manifest(
            plancast=version("plancast"),
            server=link.server_version,
            prefix=link.subjects.prefix,
            begun=found[names.checkpoints]["ts"],
            moment=(moment or {}).get("ts", ""),
            parts=tuple(parts),
        )
        archive.complete(self._folder, manifest)
        return manifest

    async def _copy_messages(self, name: str, config: dict[str, Any]) -> Part:
        placeholders = f"{self._link.subjects.store}.keepers."
        reading = DirectReader(self._link.connection, self._link.api).read(name, ">", "all")
        with PartWriter(self._folder, f"{name}.jsonl") as writer:
            async with aclosing(reading):
                async for message in reading:
                    if not message.subject.startswith(placeholders):
                        writer.write_record(message.subject, message.headers, message.payload)
                        self._report(name, self._done + writer.bytes, self._total)
            self._done += writer.bytes
            return writer.finish(name, config=config)

    async def _copy_stream(self, name: str) -> Part:
        for attempt in range(1, ATTEMPTS + 1):
            with PartWriter(self._folder, f"{name}.snapshot") as writer:
                try:
                    began = await receive_snapshot(
                        self._link, name, writer, lambda: self._report(name, self._done, self._total)
                    )
                except BusError:
                    if attempt == ATTEMPTS or not self._link.connection.alive:
                        raise
                    continue
                state = began["state"]
                self._done += state["bytes"]
                self._report(name, self._done, self._total)
                return writer.finish(
                    name,
                    snapshot=True,
                    messages=state["messages"],
                    config=began["config"],
                    last_sequence=state["last_seq"],
                )
        raise AssertionError("every attempt returns, raises or is followed by another")

    async def _with_end(self, part: Part) -> Part:
        info = await self._link.info(part.stream)
        return replace(part, last_sequence=info["state"]["last_seq"] if info is not None else 0)


def _queues(names: StreamNames) -> list[str]:
    return [names.of_source(source) for source in WORK_QUEUES]
