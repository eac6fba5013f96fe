"""Orders of a list of plans, and cursors of its pages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, get_args

if TYPE_CHECKING:
    from plancast.console.service.plan_index import Row

Sort = Literal["updated", "created", "goal", "tenant", "session", "turns"]
Direction = Literal["desc", "asc"]
_FIELDS: dict[Sort, str] = {
    "created": "created_at",
    "goal": "goal_event",
    "tenant": "tenant_id",
    "session": "session_id",
    "turns": "revision",
}


class PlanOrder(NamedTuple):
    """A column to sort by, and the direction; plans with the same value are ordered by their keys."""

    sort: Sort = "updated"
    direction: Direction = "desc"

    @property
    def descending(self) -> bool:
        return self.direction == "desc"

    def place(self, row: Row) -> tuple[Any, str]:
        """The value to compare rows by."""
        return (row.version, "") if self.sort == "updated" else (getattr(row.summary, _FIELDS[self.sort]), row.key)

    def cursor(self, row: Row) -> str:
        """The cursor of the page behind this row."""
        return json.dumps([*self, *self.place(row)])

    def behind(self, row: Row, place: tuple[Any, str] | None) -> bool:
        """True if a row comes after a place in this order; every row comes after None."""
        if place is None:
            return True
        return self.place(row) < place if self.descending else self.place(row) > place

    def read(self, cursor: str | None) -> tuple[Any, str] | None:
        """The place of a cursor.

        Raises:
            ValueError: the cursor does not belong to this order.
        """
        if cursor is None:
            return None
        try:
            sort, direction, value, key = json.loads(cursor)
        except (ValueError, TypeError, RecursionError):
            sort = direction = value = key = None
        kinds = str if self.sort in ("goal", "tenant", "session") else (int, float)
        if (sort, direction) != self or not isinstance(key, str) or not isinstance(value, kinds):
            raise ValueError(f"invalid cursor {cursor[:100]!r}: use `next` of a page in the same order")
        return value, key

    @classmethod
    def all(cls) -> list[Self]:
        return [cls(sort, direction) for sort in get_args(Sort) for direction in get_args(Direction)]
