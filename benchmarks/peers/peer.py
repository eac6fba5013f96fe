"""The interface of a system that is measured beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from benchmarks.reports.rows import Row, Say

PeerSync = Literal["always", "off"]
"""``always``: acknowledged writes are on disk, the peers' default. ``off``: no sync before acknowledging."""
ENVIRONMENTS = Path(__file__).resolve().parent.parent / ".peers"
"""Virtual environments and server binaries, in a folder for each peer; kept between runs."""


class PeerUnavailable(Exception):
    """Raised by ``setup`` when a peer cannot be set up on this machine; the message says what is missing."""


@runtime_checkable
class Peer(Protocol):
    """A system that is measured beside ours.

    Each measurement starts its server on an empty folder in ``benchmarks/.scratch`` and on free ports, and its worker
    processes, warms them up, measures, and stops everything, also when it is cancelled.
    """

    name: str
    """The rows' ``system``."""
    workloads: frozenset[str]
    """Workloads that it can run, such as ``w1``."""

    def setup(self, say: Say) -> None:
        """Create its environment and fetch its server; fast if they exist.

        Raises:
            PeerUnavailable: it cannot be set up here.
        """
        ...

    async def measure(self, workload: str, n: int, sync: PeerSync, say: Say) -> Row | list[Row]:
        """Run once; W8 gives a row for each way to keep the conversation.

        Args:
            workload: One of ``workloads``.
            n: Plans at once; 1 runs plans one after the other. Of W8 the calls of its plan.
            sync: When it syncs to disk.
            say: Reports progress.

        Raises:
            BenchmarkFailed: a plan did not complete, or completed twice.
        """
        ...
