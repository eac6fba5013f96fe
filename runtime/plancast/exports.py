"""Exports of a package: listed once, in its stub, and loaded when they are first used."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from plancast.replaced_names import instead_of


def lazy_exports(package: str, path: str) -> tuple[dict[str, str], Callable[[str], Any]]:
    """The exports of a package, each with the module that has it, and the package's `__getattr__`, which loads them.

    The stub beside `path` is the table: type checkers read its imports, and so does this function (the scheme of
    SPEC 1, "Lazy loading for submodules").

    Args:
        package: `__name__` of the package.
        path: `__file__` of the package.
    """
    stub = ast.parse(Path(path).with_suffix(".pyi").read_text(encoding="utf-8"))
    modules = {
        alias.name: str(node.module) for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }

    submodules = {
        module.removeprefix(f"{package}.").split(".")[0]
        for module in modules.values()
        if module.startswith(f"{package}.")
    }

    def load(name: str) -> Any:
        if name in modules:
            value = getattr(import_module(modules[name]), name)
        elif name in submodules:  # type checkers take what the stub imports from for loaded
            value = import_module(f"{package}.{name}")
        elif instead := instead_of(name):  # `from ... import` shows no text of an AttributeError
            raise ImportError(f"{package} has no {name!r}{instead}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    return modules, load
