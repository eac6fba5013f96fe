"""Ids of events, as a client gives them back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plancast.console.agui_server.position import Position

NUMBERS = st.integers(0, 10**16 - 1)
COUNTS = st.integers(1, 999_999)


@given(NUMBERS, st.tuples(NUMBERS, NUMBERS), st.sampled_from(["", "b", "t", "n", "e", "end"]), COUNTS)
def test_each_position_is_read_as_it_was_written(revision: int, notes: tuple[int, int], part: str, sent: int) -> None:
    count = 0 if part in ("", "end") else sent
    position = Position(revision, max(notes), min(notes), part, count)  # type: ignore[arg-type]
    assert Position.read(str(position)) == position


@pytest.mark.parametrize(
    "text", ["", "x", "1.2.3.4", "-1", "1-", "1-x1", "1-end1", "1-t", "1.2.3", "1 ", "٣", "1" * 17]
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not the id of an event"):
        Position.read(text)
