"""Faults that tests cause: where a connection can be made to fail, and how."""

from __future__ import annotations

from typing import Literal, Protocol

Point = Literal["publish.before", "publish.after", "commit.before", "commit.after", "commit.readback", "ack"]
"""Where a fault can strike.

``publish.before``, ``commit.before``: nothing has happened yet; what is raised goes to the caller.
``publish.after``: the message is stored, its acknowledgement not yet with the caller.
``commit.after``: the checkpoint is stored; a ``BusUnavailable`` raised here is a lost
acknowledgement, after which the store is read back.
``commit.readback``: before that reading.
``ack``: a ``BusUnavailable`` raised here loses the acknowledgement of a delivery.
"""


class FaultPlan(Protocol):
    """Called at each point with the subject concerned; may wait, and may raise."""

    async def __call__(self, point: Point, subject: str) -> None: ...
