"""Configuration of the streams, and their creation."""

from __future__ import annotations

import asyncio
import re
from dataclasses import astuple, dataclass
from typing import Any

from plancast_bus.errors import AccessDenied, BeingRestored, BusError
from plancast_bus.jetstream.client.api import NO_PEERS, STREAM_NAME_IN_USE, STREAM_NOT_FOUND, ApiError, JetStreamApi
from plancast_bus.ports.progress import KEPT_NOTES, MAX_NOTE_BYTES
from plancast_bus.settings import BusSettings
from plancast_bus.subjects import WITHDRAWN, Subjects
from plancast_bus.topics import TOPICS, Source

PROGRESS_SECONDS, PROGRESS_NOTES = 3600.0, 20_000
"""Age and number up to which progress notes are kept."""
DEAD_LETTER_WINDOW = 86400.0
"""Deduplication window of dead letters, in seconds."""

PEERS_SECONDS, PEERS_PAUSE = 10.0, 0.2
"""Seconds for which a cluster that has just started may lack servers for the replicas, and between two attempts."""
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
    values: str
    meta: str
    registry: str
    schedules: str
    dead_letters: str
    progress: str
    keys: str

    @classmethod
    def of(cls, prefix: str) -> StreamNames:
        root = prefix.upper()
        kinds = (name.upper().replace("_", "") for name in cls.__slots__)
        return cls(*(f"{root}_{kind}" for kind in kinds))

    def of_source(self, source: Source) -> str:
        name: str = getattr(self, source)
        return name

    def all(self) -> list[str]:
        """All names except that of the stream of keys, which only the runtime may read."""
        return [getattr(self, name) for name in self.__slots__ if name != "keys"]


def definitions(subjects: Subjects, settings: BusSettings) -> list[dict[str, Any]]:
    """Return the configuration of every stream, in the form of the JetStream API."""
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
        placeholder = subjects.placeholder(source)
        return {"name": names.of_source(source), "subjects": [*subjects_in, placeholder], "retention": "workqueue"}

    def retained(name: str, max_age: float, window: float = settings.duplicate_window) -> dict[str, Any]:
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
        "max_bytes": settings.queue_bytes,
        "subject_transform": by_shard,
        "allow_atomic": True,
    }
    newest = {**common, "retention": "limits", "discard": "new", "max_msgs_per_subject": 1}
    return [
        {**must_process, **queued("results", events("results"))},
        {**must_process, **queued("requests", [*events("requests"), f"{prefix}.{WITHDRAWN}.*.>"])},
        {
            **retained(names.facts, settings.facts_max_age),
            "subjects": events("facts"),
            "subject_transform": by_shard,
        },
        {
            # Schedules exclude `discard new`; without a bound, the stream discards nothing.
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
            # The first response on a subject stays, further ones are refused. An expected sequence would do that too,
            # but the republished event would carry it, and be refused if another event is on its subject.
            **retained(names.responses, settings.responses_max_age),
            "discard": "new",
            "discard_new_per_subject": True,
            "max_msgs_per_subject": 1,
            "allow_atomic": True,
            "subjects": [f"{store}.responses.>"],
            "republish": {"src": f"{store}.responses.>", "dest": f"{prefix}.>"},
        },
        {
            # The newest checkpoint and the one before it, in case of a forged one. A finished plan has only one, by its
            # rollup header: once it expires, the one before it would be the plan's state again.
            **newest,
            "name": names.checkpoints,
            "subjects": [subjects.checkpoints],
            "max_msgs_per_subject": 2,
            "allow_msg_ttl": True,
            "allow_rollup_hdrs": True,
            "allow_atomic": True,
        },
        {
            # The first key stays: further ones and deletions are refused.
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
            "name": names.values,
            "subjects": [
                subjects.values("runtime"),
                subjects.values("login"),
                subjects.plans_with_values,
                subjects.value_clock,
            ],
        },
        {
            **newest,
            "name": names.meta,
            "subjects": [f"{store}.machines.*", f"{store}.aliases.*", f"{store}.registry.>"],
            "allow_msg_ttl": True,
            "allow_atomic": True,
        },
        {
            # Separate from `meta`: the batched direct gets by which other accounts list registrations can read any
            # message of the stream.
            **newest,
            "name": names.registry,
            "subjects": [f"{store}.registrations.*.*"],
            "allow_msg_ttl": True,
        },
        {**newest, "name": names.schedules, "subjects": [subjects.schedules], "allow_msg_ttl": True},
        {
            **retained(names.dead_letters, settings.dead_letters_max_age, DEAD_LETTER_WINDOW),
            "subjects": [f"{store}.deadletters.*.*"],
            "max_msgs": settings.max_dead_letters,
            "max_bytes": settings.max_dead_letter_bytes,
        },
        {
            **retained(names.progress, PROGRESS_SECONDS),
            "subjects": [subjects.every_progress],
            "max_msgs_per_subject": KEPT_NOTES,
            "max_msg_size": MAX_NOTE_BYTES,
            "max_msgs": PROGRESS_NOTES,
            "max_bytes": settings.queue_bytes,
        },
    ]


def restoring_stream(subjects: Subjects) -> dict[str, Any]:
    """Return the configuration of the stream that exists while a backup is being restored."""
    return {
        "name": f"{subjects.prefix.upper()}_RESTORING",
        "subjects": [subjects.restoration],
        "storage": "file",
        "retention": "limits",
        "max_msgs": 1,
    }


def being_restored(subjects: Subjects) -> BeingRestored:
    """Return the error of what may not begin while :func:`restoring_stream` exists."""
    return BeingRestored(
        f"the deployment with the prefix {subjects.prefix!r} is being restored from a backup, or its restoration was "
        "interrupted. Wait until it is over, or begin it again with `plancast restore`"
    )


async def ensure_streams(api: JetStreamApi, subjects: Subjects, settings: BusSettings, now: float) -> None:
    """Create missing streams, and update those that differ; safe to call concurrently.

    Sequences of a new stream begin at its time of creation, in microseconds: plans, cursors and deduplication refer to
    messages by sequence, and a stream that was deleted and is made again must not give one to another message. Dead
    letters begin at 1, since people type their numbers.

    Args:
        api: Calls the server.
        subjects: The deployment's.
        settings: The deployment's.
        now: Seconds since the epoch, by the server's clock where it is known.

    Raises:
        BusError: an existing stream differs in a fixed setting, such as the number of shards.
        BeingRestored: a backup is being restored.
    """
    try:
        await api.call(f"STREAM.INFO.{restoring_stream(subjects)['name']}")
    except AccessDenied:
        pass  # a login of the operator's own, from before there were restorations
    except ApiError as error:
        if error.code != STREAM_NOT_FOUND:
            raise
    else:
        raise being_restored(subjects)
    first = round(now * 1_000_000)
    numbered = StreamNames.of(subjects.prefix).dead_letters
    await asyncio.gather(
        *(_ensure(api, each, 1 if each["name"] == numbered else first) for each in definitions(subjects, settings))
    )


async def missing_streams(api: JetStreamApi, subjects: Subjects) -> list[str]:
    """Return the names of those streams of a deployment that do not exist."""
    found = await listed(api, "STREAM.NAMES", "streams")
    return [name for name in astuple(StreamNames.of(subjects.prefix)) if name not in found]


async def listed(api: JetStreamApi, operation: str, field: str) -> set[str]:
    """Return the names that a paged call of the API lists in a field."""
    found: set[str] = set()
    while True:
        page = await api.call(operation, {"offset": len(found)})
        names = page.get(field) or []
        found.update(names)
        if not names or len(found) >= page["total"]:
            return found


async def _ensure(api: JetStreamApi, wanted: dict[str, Any], first: int) -> None:
    name = wanted["name"]
    try:
        found = await api.call(f"STREAM.INFO.{name}")
    except ApiError as error:
        if error.code != STREAM_NOT_FOUND:
            raise
        try:
            await _create(api, {**wanted, "first_seq": first})
            return
        except ApiError as refused:
            if refused.code != STREAM_NAME_IN_USE:  # another process was faster, with other settings
                raise
        found = await api.call(f"STREAM.INFO.{name}")
    current = found["config"]
    _check_fixed(current, wanted)
    if any(not same(current.get(key), value) for key, value in wanted.items()):
        await api.call(f"STREAM.UPDATE.{name}", {**current, **wanted})


async def _create(api: JetStreamApi, wanted: dict[str, Any]) -> None:
    now = asyncio.get_running_loop().time
    give_up = now() + PEERS_SECONDS
    while True:
        try:
            await api.call(f"STREAM.CREATE.{wanted['name']}", wanted)
            return
        except ApiError as error:
            if error.code != NO_PEERS or now() >= give_up:
                raise
        await asyncio.sleep(PEERS_PAUSE)


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
    """Return whether the server's value is the wanted one; the server omits empty values."""
    if isinstance(wanted, dict) and isinstance(current, dict):
        return all(current.get(key) == value for key, value in wanted.items())
    return bool(current == wanted) or (not current and not wanted)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1_000_000_000)
