"""GoalData: searches the data of plans' goals, which are read from their checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_core import to_json

from plancast.console.service.plan_index import Row
from plancast.console.service.row_reads import RowReads
from plancast_bus.events.codec import unpack
from plancast_bus.ports.checkpoints import Checkpoint, CheckpointStore

MOST = 2_000
"""Maximum number of plans to search."""
KEPT = 10_000
"""Size of the LRU cache."""
LONGEST = 4_000
"""Maximum length of the data of a goal that is searched, in characters."""
SECONDS = 4.0
"""Seconds after which plans go without being searched."""


class GoalData:
    """The data of goals as text."""

    def __init__(self, store: CheckpointStore) -> None:
        self._texts: RowReads[str] = RowReads(store, _text, kept=KEPT, seconds=SECONDS)

    async def having(self, rows: Sequence[Row], words: Sequence[str]) -> tuple[list[Row], int]:
        """The rows whose goals' data have all words, in their order, and the number of rows that were searched.

        Args:
            rows: In the order of their commits; the last 2,000 are searched.
            words: Case-folded.
        """
        wanted = rows[-MOST:]
        texts = await self._texts.of(reversed(wanted))
        return [row for row in wanted if row.key in texts and all(word in texts[row.key] for word in words)], len(texts)


async def _text(checkpoint: Checkpoint) -> str:
    data = unpack(checkpoint.state).get("goal_data") if checkpoint.state else None
    return to_json(data or {}, serialize_unknown=True).decode()[:LONGEST].casefold()
