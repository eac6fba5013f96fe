"""Turns a fast path off in this process, and records which of its functions are called.

Both happen when a module is imported, so that other modules import the replaced functions; the product has no switch.
A watched function has other code until its first call, so later calls cost nothing more.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from benchmarks.ways.catalogue import WAYS, Replacement, Way

WAY = "PLANCAST_BENCHMARKS_WAY"
"""Environment variable with the name of a way, and ``on`` or ``off``."""
FOLDER = "PLANCAST_BENCHMARKS_WAY_FOLDER"
"""Environment variable with the folder in which each watched function that is called gets a file of its name."""

_watched: dict[str, tuple[FunctionType, CodeType]] = {}


def install() -> None:
    """Watch, or turn off, the way that the environment names, in modules that are imported from now on."""
    name, _, state = os.environ[WAY].partition(" ")
    sys.meta_path.insert(0, Patches(WAYS[name], off=state == "off"))


class Patches(importlib.abc.MetaPathFinder):
    """Changes modules right after their execution."""

    def __init__(self, way: Way, *, off: bool) -> None:
        self._watched: defaultdict[str, list[str]] = defaultdict(list)
        self._replaced: defaultdict[str, dict[str, Replacement]] = defaultdict(dict)
        for target in way.watched:
            self._watched[target.partition(":")[0]].append(target)
        for target, replacement in way.off.items() if off else ():
            self._replaced[target.partition(":")[0]][target] = replacement

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a module to be changed; None for all others."""
        if fullname not in self._watched and fullname not in self._replaced:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            for each in self._watched[fullname]:
                _watch(each, module)
            for each, replacement in self._replaced[fullname].items():
                replace(each, module, replacement)

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


def find(target: str, module: ModuleType) -> tuple[Any, str, Any]:
    """Find a target of the catalogue: its owner, its name there, and what stands under that name.

    Raises:
        KeyError: there is none.
    """
    owner: Any = module
    *classes, name = target.partition(":")[2].split(".")
    for each in classes:
        owner = vars(owner)[each]
    return owner, name, vars(owner)[name]


def replace(target: str, module: ModuleType, replacement: Replacement) -> None:
    """Put the plain function in place of a fast one."""
    owner, name, found = find(target, module)
    if replacement is None:
        delattr(owner, name)
    elif isinstance(found, classmethod | staticmethod):
        setattr(owner, name, type(found)(replacement(found.__func__)))
    else:
        setattr(owner, name, replacement(found))


def _watch(target: str, module: ModuleType) -> None:
    found = find(target, module)[2]
    function: FunctionType = getattr(found, "__func__", found)  # of a class method, or a static one
    _watched[target] = function, function.__code__
    names: dict[str, Any] = {}
    exec(
        "def watched(*arguments, **options):\n"
        "    from benchmarks.ways import switches\n"
        f"    return switches.first_call({target!r})(*arguments, **options)\n",
        names,
    )
    function.__code__ = names["watched"].__code__


def first_call(target: str) -> FunctionType:
    """Record that a watched function is called; return it with its own code restored."""
    function, code = _watched[target]
    function.__code__ = code
    with contextlib.suppress(FileExistsError):
        Path(os.environ[FOLDER], target).touch(exist_ok=False)
    return function
