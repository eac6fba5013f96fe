"""Who is let into a bounded stream of requests: what comes from outside up to three quarters, plans up to its bound.

Goals and tasks share a stream. If goals could fill it, the plans that they begin would find no room for their tasks,
and no goal would ever be done with: nothing would move again.
"""

from __future__ import annotations


def admitted_bytes(max_bytes: int) -> int:
    """Bytes in a stream up to which requests from outside are let in; -1 where it has no bound."""
    return max_bytes - max_bytes // 4 if max_bytes > 0 else -1


def full(stream: str, how: str) -> str:
    """What is said to those who are refused."""
    return (
        f"the stream {stream} is full ({how}): it takes no more until what it holds is processed. See whether its "
        "consumers run, or raise max_stream_bytes or the server's storage limit."
    )
