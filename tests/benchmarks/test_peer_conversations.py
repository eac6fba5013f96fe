"""W8 on the peers, small: each way to keep the conversation gives a row whose figures add up. Speed is not judged."""

import pytest
from benchmarks.peers import dbos_peer, langgraph_peer, restate_peer
from benchmarks.peers.peer import Peer, PeerUnavailable

WAYS = {"langgraph": ["messages", "delta"], "dbos": ["steps"], "restate": ["journal", "session"]}
CALLS = 12


@pytest.mark.growth
@pytest.mark.timeout(600)
@pytest.mark.parametrize("peer", [langgraph_peer.peer, dbos_peer.peer, restate_peer.peer], ids=lambda peer: peer.name)
async def test_a_peer_keeps_the_answers_and_gives_a_row_for_each_way(peer: Peer) -> None:
    try:
        peer.setup(print)
    except PeerUnavailable as missing:
        pytest.skip(str(missing))

    rows = await peer.measure("w8", CALLS, "always", print)

    assert isinstance(rows, list)
    assert [(row["workload"], row["system"], row["n"]) for row in rows] == [("w8", peer.name, CALLS)] * len(rows)
    assert [row["variant"] for row in rows] == WAYS[peer.name]
    for row in rows:
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert 0 < row["small_p50_ms"] <= row["small_p99_ms"]
        assert row["new_mb"] > 0.8
        assert row["written_mb"] > 0.2 * row["new_mb"]  # compressed
        assert row["rss_mb"] > 0
        assert row["is_default"]
    if peer.name == "langgraph":
        assert rows[0]["written_mb"] > 2 * rows[1]["written_mb"]
