"""Servers of tools, and what they have done."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SERVER = Path(__file__).with_name("tool_server.py")


class Acts:
    """A folder in which servers of tools note what they do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def command(self) -> list[str]:
        """The command of a server that notes here."""
        return [sys.executable, str(SERVER), str(self.folder)]

    def of(self, name: str) -> list[str]:
        """The acts of a kind."""
        file = self.folder / name
        return file.read_text().split() if file.exists() else []

    def alive(self) -> list[int]:
        """The processes that still run, of servers and of their children."""
        pids = [int(each) for each in (*self.of("starts"), *self.of("children"))]
        return [pid for pid in pids if self._runs(pid)]

    def _runs(self, pid: int) -> bool:
        """True unless it has ended, and its id perhaps been given to another process."""
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text()  # empty for a zombie
        except (FileNotFoundError, ProcessLookupError):
            return False
        return str(self.folder) in command or command.startswith("sleep")


@pytest.fixture
def acts(tmp_path: Path) -> Acts:
    return Acts(tmp_path)


@pytest.fixture
def ends_all(acts: Acts) -> Callable[[], None]:
    """Kill what a failed test has left."""

    def kill() -> None:
        for pid in acts.alive():
            os.kill(pid, 9)

    return kill
