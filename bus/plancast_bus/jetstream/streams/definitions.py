"""The streams: what each holds, for how long, and how they come to be."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

from plancast_bus.errors import BusError
from plancast_bus.jetstream.client.api import STREAM_NAME_IN_USE, STREAM_NOT_FOUND, ApiError, JetStreamApi
from plancast_bus.settings import BusSettings
from plancast_bus.subjects import Subjects
from plancast_bus.topics import TOPICS, Source

DEAD_LETTER_WINDOW = 86400.0
"""Seconds in which the same message put aside again is recognised."""

_PARTITION = re.compile(r"\{\{\s*partition\((\d+)\s*,", re.IGNORECASE)
_FIXED = ("storage", "retention")


@dataclass(frozen=True, slots=True)
class StreamNames:
    """The names of a deployment's streams."""

    results: str
    requests: str
    facts: str
    timers: str
    responses: str
    checkpoints: str
    history: str
    meta: str
    registry: str
    dead_letters: str
    keys: str

    @classmethod
    def of(cls, prefix: str) -> StreamNames:
        """The names under a prefix."""
        root = prefix.upper()
        kinds = (name.upper().replace("_", "") for name in cls.__slots__)
        return cls(*(f"{root}_{kind}" for kind in kinds))

    def of_source(self, source: Source) -> str:
        """The stream that a consumer of this source reads."""
        name: str = getattr(self, source)
        return name

    def all(self) -> list[str]:
        """Every name but that of the keys, whose stream only the runtime may look at."""
        return [getattr(self, name) for name in self.__slots__ if name != "keys"]


def definitions(subjects: Subjects, settings: BusSettings) -> list[dict[str, Any]]:
    """The configuration of every stream, as the JetStream API takes it."""
    names = StreamNames.of(subjects.prefix)
    prefix, store, shards = subjects.prefix, subjects.store, settings.shards
    common: dict[str, Any] = {
        "storage": settings.storage,
        "num_replicas": settings.replicas,
        "duplicate_window": _nanoseconds(settings.duplicate_window),
        "allow_direct": True,
    }

    def events(source: Source) -> list[str]:
        return [f"{prefix}.{topic}.*.>" for topic in TOPICS[source]]

    def queued(source: Source, subjects_in: list[str]) -> dict[str, Any]:
        keeper = subjects.placeholder(source)
        return {"name": names.of_source(source), "subjects": [*subjects_in, keeper], "retention": "workqueue"}

    def kept(name: str, max_age: float, window: float = settings.duplicate_window) -> dict[str, Any]:
        window = min(window, max_age) if max_age else window
        return {
            **common,
            "name": name,
            "retention": "limits",
            "discard": "old",
            "max_age": _nanoseconds(max_age),
            "duplicate_window": _nanoseconds(window),
        }

    by_shard = {
        "src": f"{prefix}.*.*.>",
        "dest": f"{prefix}.{{{{wildcard(1)}}}}.{{{{partition({shards},2)}}}}.{{{{wildcard(2)}}}}.>",
    }
    must_process = {
        **common,
        "discard": "new",
        "max_bytes": settings.max_stream_bytes,
        "subject_transform": by_shard,
        "allow_atomic": True,
    }
    newest = {**common, "retention": "limits", "discard": "new", "max_msgs_per_subject": 1}
    return [
        {**must_process, **queued("results", events("results"))},
        {**must_process, **queued("requests", events("requests"))},
        {
            **kept(names.facts, settings.facts_max_age),
            "subjects": events("facts"),
            "subject_transform": by_shard,
        },
        {
            # Schedules exclude `discard new`; the stream has no bound that could make it discard anything.
            **common,
            **queued("timers", [f"{store}.timers.>"]),
            "discard": "old",
            "allow_msg_schedules": True,
            "allow_msg_ttl": True,
            "subject_transform": {
                "src": f"{store}.timers.due.*.>",
                "dest": f"{store}.timers.due.{{{{partition({shards},1)}}}}.{{{{wildcard(1)}}}}.>",
            },
        },
        {
            # The first response on a subject stays, and a further one is refused. An expected sequence would do
            # as well, but the republished event would carry it, and be refused where another one waits already.
            **kept(names.responses, settings.responses_max_age),
            "discard": "new",
            "discard_new_per_subject": True,
            "max_msgs_per_subject": 1,
            "allow_atomic": True,
            "subjects": [f"{store}.responses.>"],
            "republish": {"src": f"{store}.responses.>", "dest": f"{prefix}.>"},
        },
        {
            # The newest checkpoint and the one before it, which a forged one does not displace. A finished plan's is
            # alone, by its rollup header: the one before it would be the plan's state again once it has expired.
            **newest,
            "name": names.checkpoints,
            "subjects": [f"{store}.checkpoints.*"],
            "max_msgs_per_subject": 2,
            "allow_msg_ttl": True,
            "allow_rollup_hdrs": True,
            "allow_atomic": True,
        },
        {
            # The first key stays: a second one is refused, and nothing is removed.
            **newest,
            "name": names.keys,
            "subjects": [subjects.checkpoint_key()],
            "discard_new_per_subject": True,
            "deny_delete": True,
            "deny_purge": True,
            "allow_direct": False,
        },
        {**newest, "name": names.history, "subjects": [f"{store}.history.*.*"], "allow_msg_ttl": True},
        {
            **newest,
            "name": names.meta,
            "subjects": [f"{store}.machines.*", f"{store}.aliases.*", f"{store}.registry.>"],
            "allow_msg_ttl": True,
        },
        {
            # Apart from what is in `meta`: a batched direct get, by which other accounts list registrations, reads any
            # message of its stream.
            **newest,
            "name": names.registry,
            "subjects": [f"{store}.registrations.*.*"],
            "allow_msg_ttl": True,
        },
        {
            **kept(names.dead_letters, settings.dead_letters_max_age, DEAD_LETTER_WINDOW),
            "subjects": [f"{store}.deadletters.*.*"],
            "max_msgs": settings.max_dead_letters,
            "max_bytes": settings.max_dead_letter_bytes,
        },
    ]


async def ensure_streams(api: JetStreamApi, subjects: Subjects, settings: BusSettings) -> None:
    """Create the streams that are not there, and update those that differ; many may do so at once.

    Raises:
        BusError: a stream that exists differs in what cannot be changed, such as the number of shards.
    """
    await asyncio.gather(*(_ensure(api, wanted) for wanted in definitions(subjects, settings)))


async def _ensure(api: JetStreamApi, wanted: dict[str, Any]) -> None:
    name = wanted["name"]
    try:
        found = await api.call(f"STREAM.INFO.{name}")
    except ApiError as error:
        if error.code != STREAM_NOT_FOUND:
            raise
        try:
            await api.call(f"STREAM.CREATE.{name}", wanted)
            return
        except ApiError as refused:
            if refused.code != STREAM_NAME_IN_USE:  # someone else was faster, with other settings
                raise
        found = await api.call(f"STREAM.INFO.{name}")
    current = found["config"]
    _check_fixed(current, wanted)
    if any(not same(current.get(key), value) for key, value in wanted.items()):
        await api.call(f"STREAM.UPDATE.{name}", {**current, **wanted})


def _check_fixed(current: dict[str, Any], wanted: dict[str, Any]) -> None:
    name = wanted["name"]
    have, want = _shards(current), _shards(wanted)
    if have != want:
        raise BusError(
            f"the stream {name} has {have} shards and the settings ask for {want}: the number is fixed once "
            f"the streams exist. Set shards to {have}, or use another prefix."
        )
    for key in _FIXED:
        if current.get(key) != wanted[key]:
            raise BusError(
                f"the stream {name} has {key} {current.get(key)!r} and the settings ask for {wanted[key]!r}: "
                "that cannot be changed once it exists. Keep it, or use another prefix."
            )


def _shards(config: dict[str, Any]) -> int | None:
    found = _PARTITION.search((config.get("subject_transform") or {}).get("dest", ""))
    return int(found[1]) if found else None


def same(current: Any, wanted: Any) -> bool:
    """Whether the server's value is the wanted one; it leaves out what is empty."""
    if isinstance(wanted, dict) and isinstance(current, dict):
        return all(current.get(key) == value for key, value in wanted.items())
    return bool(current == wanted) or (not current and not wanted)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1_000_000_000)
