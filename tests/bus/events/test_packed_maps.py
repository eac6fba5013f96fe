"""Maps that are made of packed parts are the maps that would have been packed as a whole."""

from __future__ import annotations

import pytest

from plancast_bus.events.codec import pack
from plancast_bus.events.packed_maps import as_map, pack_fields


@pytest.mark.parametrize("first", [0, 1, 15, 16, 63, 64, 65_535, 65_536])
@pytest.mark.parametrize("second", [0, 1, 15, 16])
def test_parts_make_the_whole(first: int, second: int) -> None:
    some = {f"a{number}": number for number in range(first)}
    others = {f"b{number}": [str(number)] for number in range(second)}
    assert as_map(first + second, pack_fields(some), pack_fields(others)) == pack(some | others)
