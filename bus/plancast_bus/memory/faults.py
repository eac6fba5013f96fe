"""Fault injection for connections in memory."""

from __future__ import annotations

from typing import Literal, Protocol

Point = Literal["publish.before", "publish.after", "commit.before", "commit.after", "commit.readback", "ack"]
"""Point at which a fault is injected.

``publish.before``, ``commit.before``: nothing has happened; exceptions go to the caller.
``publish.after``: the message is stored, and the caller has no acknowledgement yet.
``commit.after``: the checkpoint is stored; ``BusUnavailable`` means a lost acknowledgement, and the store is read back.
``commit.readback``: before that read.
``ack``: a ``BusUnavailable`` here loses the acknowledgement of a delivery.
"""


class FaultPlan(Protocol):
    """Called at each point with the subject; may wait and raise."""

    async def __call__(self, point: Point, subject: str) -> None: ...
