"""Folders of a measurement: empty at its start and removed at its end, or else before the next run."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRATCH = ROOT / "benchmarks" / ".scratch"
"""Data of the servers, on the repository's disk."""
PREFIX = "plancast-bench-"


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Create an empty folder, and remove it afterwards."""
    SCRATCH.mkdir(exist_ok=True)
    with _folder(SCRATCH) as folder:
        yield folder


@contextlib.contextmanager
def sockets() -> Iterator[Path]:
    """Create a folder for Unix sockets: a socket path has at most 107 bytes, too few for some checkouts."""
    with _folder(Path(tempfile.gettempdir())) as folder:
        yield folder


@contextlib.contextmanager
def _folder(parent: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Remove the folders of killed processes."""
    for parent in (SCRATCH, Path(tempfile.gettempdir())):
        for folder in parent.glob(f"{PREFIX}[0-9]*-*"):
            if not Path("/proc", folder.name.removeprefix(PREFIX).split("-")[0]).exists():
                shutil.rmtree(folder, ignore_errors=True)
