"""AppModules: imports an app anew, so that its module-level variables begin afresh."""

from __future__ import annotations

import sys
import sysconfig
import threading
from asyncio import Task, all_tasks
from collections.abc import Iterable
from pathlib import Path

from plancast.app import App, load_app

_OWN = frozenset({"plancast", "plancast_actors", "plancast_bus", "ray", "__main__", "__mp_main__"})
_STDLIB = sysconfig.get_paths()["stdlib"]
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_FOREIGN_THREADS = ("asyncio_", "uvloop_", "ThreadPoolExecutor", "Dummy-")
"""Prefixes of the names of threads that wait for work of anyone, or that Ray has started outside Python."""


class AppModules:
    """The modules of an app's own code in this process: the package of its address, and all that is not installed.

    Args:
        address: ``module:attribute`` of the app.
        import_paths: Folders with the app's modules.
    """

    def __init__(self, address: str, import_paths: Iterable[str]) -> None:
        self._address = address
        self._import_paths = tuple(import_paths)
        self._package = address.partition(":")[0].partition(".")[0]
        self._own: dict[str, bool] = {}
        """By name of a module."""
        self._threads = set(threading.enumerate())

    def load(self) -> App:
        """Import the app; modules of it that were imported before are imported anew.

        Raises:
            Exception: what the modules raise.
        """
        for name in self._names():
            del sys.modules[name]
        return load_app(self._address, self._import_paths)

    def note_threads(self) -> None:
        """Note the running threads as those of the process itself, before the first plan."""
        self._threads = set(threading.enumerate())

    def left(self) -> str | None:
        """Describe what the app's code has left running in this process; None for nothing."""
        files = {getattr(sys.modules[name], "__file__", None) for name in self._names()}
        for task in all_tasks():
            if not task.done() and _file_of(task) in files:
                return f"the task {task.get_name()}"
        for thread in threading.enumerate():
            if thread not in self._threads and not thread.name.startswith(_FOREIGN_THREADS):
                return f"the thread {thread.name}"
        return None

    def _names(self) -> list[str]:
        own = self._own
        for name in sys.modules.keys() - own.keys():
            own[name] = self._is_own(name, getattr(sys.modules[name], "__file__", None))
        return [name for name in sys.modules if own[name]]

    def _is_own(self, name: str, file: str | None) -> bool:
        root = name.partition(".")[0]
        if root in _OWN:
            return name == self._address.partition(":")[0]  # an app that plancast itself ships
        if not file or not file.endswith(".py"):  # an extension cannot be imported twice
            return False
        return root == self._package or not (file.startswith(_STDLIB) or _INSTALLED.intersection(Path(file).parts))


def _file_of(task: Task[object]) -> str | None:
    code = getattr(task.get_coro(), "cr_code", None)
    return code.co_filename if code is not None else None
