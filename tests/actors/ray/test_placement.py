"""The actors that must move so that the loss of a node takes no more than its share of a role."""

from __future__ import annotations

from collections import Counter
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from plancast_actors.ray.placement import crowded, role_of

NODES = ("a", "b", "c")


def test_only_actors_above_the_share_of_their_role_and_those_elsewhere_move() -> None:
    where = {"host-0": "a", "host-1": "a", "host-2": "a", "host-10": "b", "worker-0": "a", "worker-1": "gone"}
    assert crowded(where, ["a", "b"]) == ["host-2", "worker-1"]
    assert crowded(where, ["a", "b", "c"]) == ["host-2", "worker-1"]


def test_actors_that_are_alone_in_their_role_and_spares_stay() -> None:
    assert crowded({"reasoners": "a", "host-spare": "a", "dedicated-0": "a"}, ["a", "b"]) == []


@given(
    st.lists(st.sampled_from([*NODES, "gone"]), max_size=20), st.lists(st.sampled_from(NODES), min_size=1, unique=True)
)
def test_those_that_stay_are_within_the_share_and_no_more_move_than_must(places: list[str], nodes: list[str]) -> None:
    where = {f"host-{number}": place for number, place in enumerate(places)}
    moving = crowded(where, nodes)
    share = ceil(len(where) / len(nodes))
    stay = Counter(place for name, place in where.items() if name not in moving)
    assert stay == {node: min(share, places.count(node)) for node in nodes if node in places}
    assert all(role_of(name) == "host" for name in moving)
