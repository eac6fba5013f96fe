"""UseTable: the findings of a scan of values and of what refers to them, in a temporary database.

SQLite keeps it in memory up to :data:`CACHE_BYTES`, and moves the rest to an unnamed file in the temporary folder
(``SQLITE_TMPDIR``, ``TMPDIR``). So the memory of a scan does not grow with what is stored.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from plancast_bus.errors import InvalidEnvelope
from plancast_bus.events.value_parts import DIGEST_BYTES, Reference
from plancast_bus.ports.values import PlanWithValues, StoredValue

CACHE_BYTES = 32 << 20
"""Bytes of findings in memory."""
MAX_FAULTS = 100
"""Plans with a fault that are named; the others are counted."""
_PAGE = 500
"""Rows that are read at a time."""
_SCHEMA = """
CREATE TABLE plan (
    id INTEGER PRIMARY KEY, name BLOB UNIQUE, version INTEGER, stored_at REAL,
    is_stored INTEGER DEFAULT 0, has_events INTEGER DEFAULT 0, is_faulty INTEGER DEFAULT 0
);
CREATE TABLE used (id INTEGER PRIMARY KEY, value BLOB UNIQUE, plan INTEGER, size INTEGER, has_references INTEGER);
CREATE TABLE sent (value BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE unknown (tenant BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE listed (value BLOB PRIMARY KEY, messages INTEGER, bytes INTEGER) WITHOUT ROWID;
"""
_IS_USED = """
SELECT EXISTS (SELECT 1 FROM used WHERE value = :value) OR EXISTS (SELECT 1 FROM sent WHERE value = :value)
OR EXISTS (SELECT 1 FROM unknown WHERE tenant = :tenant)
"""
_UNUSED = f"""
SELECT count(*), ifnull(sum(bytes), 0) FROM listed
WHERE value NOT IN (SELECT value FROM used) AND value NOT IN (SELECT value FROM sent)
AND substr(value, {DIGEST_BYTES} + 1) NOT IN (SELECT tenant FROM unknown)
"""


class Use(NamedTuple):
    """A value that a plan refers to."""

    plan: str
    """Correlation id of the last such plan that was found."""
    tenant: str
    reference: Reference
    messages: int
    """The messages of it that were listed."""


class UseTable:
    """The values that stored plans and events refer to, and those that are stored. The owner closes it."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("")  # temporary
        self._db.execute("PRAGMA journal_mode = OFF")  # nothing is rolled back
        self._db.execute(f"PRAGMA cache_size = {-CACHE_BYTES // 1024}")
        self._db.executescript(_SCHEMA)
        self.faults: dict[str, str] = {}
        """Why not all values of a plan are known, by correlation id; of the first :data:`MAX_FAULTS` plans."""
        self.faulty = 0
        """The number of all such plans."""
        self.unreadable: InvalidEnvelope | None = None
        """Why a plan cannot be read, of which even the tenant is unknown: any value may be in use."""

    def close(self) -> None:
        self._db.close()

    # Plans.

    def add_plan(self, note: PlanWithValues) -> None:
        """Add a correlation id that has stored values."""
        row = _blob(note.correlation_id), note.version, note.stored_at
        self._db.execute("INSERT OR IGNORE INTO plan (name, version, stored_at) VALUES (?, ?, ?)", row)

    def plans(self) -> Iterator[str]:
        """Return the added correlation ids."""
        for _, name in self._pages("SELECT id, name FROM plan WHERE id > ? ORDER BY id"):
            yield _text(name)

    def note_stored(self, plan: str) -> None:
        """Note that a plan is stored."""
        self._db.execute("UPDATE plan SET is_stored = 1 WHERE name = ?", (_blob(plan),))

    def note_events(self, plan: str) -> None:
        """Note that events of a plan are stored, or dead letters."""
        self._db.execute("UPDATE plan SET has_events = 1 WHERE name = ?", (_blob(plan),))

    def note_fault(self, plan: str, fault: str) -> None:
        """Note why not all values of a plan are known, or can be read."""
        self.faulty += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults[plan] = fault
        self._db.execute("UPDATE plan SET is_faulty = 1 WHERE name = ?", (_blob(plan),))

    def is_faulty(self, plan: str) -> bool:
        """Return whether a fault of the plan was noted."""
        return bool(self._one("SELECT is_faulty FROM plan WHERE name = ?", (_blob(plan),)))

    def gone(self) -> Iterator[PlanWithValues]:
        """Return the notes of correlation ids that have no stored plan, no such event and no such dead letter."""
        query = (
            "SELECT id, name, version, stored_at FROM plan WHERE id > ? AND NOT (is_stored OR has_events) ORDER BY id"
        )
        for _, name, version, stored_at in self._pages(query):
            yield PlanWithValues(_text(name), version, stored_at)

    # Values.

    def add_used(self, plan: str, tenant: str, references: Iterable[Reference]) -> None:
        """Add what a plan refers to."""
        number = self._one("SELECT id FROM plan WHERE name = ?", (_blob(plan),))
        rows = ((_value(tenant, each.digest), number, each.size, each.has_references) for each in references)
        self._db.executemany(
            "INSERT INTO used (value, plan, size, has_references) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
            "plan = excluded.plan, size = excluded.size, has_references = excluded.has_references",
            rows,
        )

    def add_sent(self, tenant: str, digests: Iterable[bytes]) -> None:
        """Add what an event or a dead letter refers to."""
        rows = ((_value(tenant, digest),) for digest in digests)
        self._db.executemany("INSERT OR IGNORE INTO sent VALUES (?)", rows)

    def add_unknown(self, tenant: str) -> None:
        """Add a tenant any of whose values may be in use."""
        self._db.execute("INSERT OR IGNORE INTO unknown VALUES (?)", (_blob(tenant),))

    def is_used(self, value: StoredValue) -> bool:
        """Return whether a plan or an event refers to a value, or may."""
        row = {"value": _value(value.tenant, value.digest), "tenant": _blob(value.tenant)}
        return bool(self._one(_IS_USED, row))

    def add_listed(self, value: StoredValue) -> None:
        """Add a stored message of a value."""
        self._db.execute(
            "INSERT INTO listed VALUES (?, 1, ?) ON CONFLICT DO UPDATE SET messages = messages + 1, "
            "bytes = bytes + excluded.bytes",
            (_value(value.tenant, value.digest), value.size),
        )

    @property
    def values(self) -> int:
        """The number of listed values."""
        return int(self._one("SELECT count(*) FROM listed"))

    @property
    def unused(self) -> tuple[int, int]:
        """The number of listed values that nothing refers to, and their bytes."""
        if self.unreadable is not None:
            return 0, 0
        number, size = self._db.execute(_UNUSED).fetchone()
        return number, size

    def used(self) -> Iterator[Use]:
        """Return the values that plans refer to."""
        query = (
            "SELECT used.id, used.value, name, size, has_references, ifnull(messages, 0) FROM used "
            "JOIN plan ON plan.id = used.plan LEFT JOIN listed ON listed.value = used.value "
            "WHERE used.id > ? ORDER BY used.id"
        )
        for _, value, name, size, has_references, messages in self._pages(query):
            reference = Reference(value[:DIGEST_BYTES], size, bool(has_references))
            yield Use(_text(name), _text(value[DIGEST_BYTES:]), reference, messages)

    def _pages(self, query: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query after an id, which is their first column."""
        last = 0
        while rows := self._db.execute(f"{query} LIMIT {_PAGE}", (last,)).fetchall():
            yield from rows
            last = rows[-1][0]

    def _one(self, query: str, parameters: Any = ()) -> Any:
        row = self._db.execute(query, parameters).fetchone()
        return row[0] if row is not None else None


def _value(tenant: str, digest: bytes) -> bytes:
    return digest + _blob(tenant)


def _blob(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(blob: bytes) -> str:
    return blob.decode("utf-8", "surrogatepass")
