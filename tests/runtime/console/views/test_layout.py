"""Graphs, laid out."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from plancast.console.views.layout import COLUMN, ROW, place

nodes = st.lists(st.integers(0, 30).map(str), unique=True, max_size=20)


@given(nodes, st.lists(st.tuples(st.integers(0, 30).map(str), st.integers(0, 30).map(str)), max_size=60))
def test_every_node_has_a_place_of_its_own_within_the_picture(names: list[str], edges: list[tuple[str, str]]) -> None:
    places, width, height = place(names, edges)
    assert places.keys() == set(names)
    assert len(set(places.values())) == len(names)
    assert all(0 < x < width and 0 < y < height for x, y in places.values())
    rows: dict[float, list[float]] = {}
    for x, y in places.values():
        rows.setdefault(y, []).append(x)
    assert all(right - left >= COLUMN - 1e-6 for row in rows.values() for left, right in pairwise(sorted(row)))


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=40))
def test_without_circles_every_edge_points_down(pairs: list[tuple[int, int]]) -> None:
    edges = [(str(min(pair)), str(max(pair))) for pair in pairs if pair[0] != pair[1]]
    places, _, _ = place([str(each) for each in range(16)], edges)
    assert all(places[target][1] - places[source][1] >= ROW for source, target in edges)


def test_a_chain_goes_straight_down_and_a_fork_beside_itself() -> None:
    places, _, _ = place(["a", "b", "c", "d"], [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "a")])
    assert places["a"][0] == places["d"][0] == (places["b"][0] + places["c"][0]) / 2
    assert places["b"][1] == places["c"][1]
