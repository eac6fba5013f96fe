"""Follows a planner's imports by reading source files, without importing them."""

from __future__ import annotations

import ast
import importlib.util
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

RUNTIME: Final = (
    "plancast.planner_turn",
    "plancast.turn",
    "plancast.turn_record",
    "plancast_actors",
    "plancast_bus.jetstream",
    "ray",
    "nats",
)
"""Modules that run plans; planners must not import them."""
MODELS: Final = ("plancast.models", "litellm")
"""Modules that call models; decision trees must not import them either."""

_OURS: Final = ("plancast", "plancast_bus")
_NOT_FOLLOWED: Final = ("plancast", "plancast.testing")
"""Not followed: the public root imports everything, and planners in a test module import this kit."""
_INSTALLED: Final = "site-packages"


@dataclass
class Reached:
    """The files read, and the forbidden imports."""

    files: list[Path] = field(default_factory=list)
    """In the order in which they were read."""
    found: list[str] = field(default_factory=list)
    """Shortest import chain to each forbidden module: ``own_planner -> own_tools -> ray``."""


def reached(modules: Mapping[str, Path], forbidden: tuple[str, ...] = RUNTIME) -> Reached:
    """Follow imports, including those in functions, through the modules' own packages and plancast."""
    roots = {name: folder for name in _OURS if (folder := _package(name)) is not None}
    siblings: list[Path] = []
    for name, file in modules.items():
        if name.partition(".")[0] not in _OURS:
            _add_root(name, file, roots, siblings)
    result = Reached()
    ways = {name: name for name in modules}
    hits: set[str] = set()
    waiting = deque(modules.items())
    while waiting:
        name, file = waiting.popleft()
        result.files.append(file)
        for imported in imports_of(ast.parse(file.read_bytes(), str(file)), name, file.name == "__init__.py"):
            if imported in ways or imported in _NOT_FOLLOWED or imported.startswith("plancast.testing."):
                continue
            ways[imported] = f"{ways[name]} -> {imported}"
            if (hit := _within(imported, forbidden)) is not None:
                if hit not in hits:
                    result.found.append(ways[imported])
                hits.add(hit)
            elif (found := _file_of(imported, roots, siblings)) is not None:
                waiting.append((imported, found))
    return result


def modules_of(planner: object) -> dict[str, Path]:
    """Files of the modules of a planner's class and its base classes.

    Installed libraries, such as pydantic for a model as base class, are left out.
    """
    own = {*_OURS, type(planner).__module__.partition(".")[0]}
    found: dict[str, Path] = {}
    for each in type(planner).__mro__:
        top = each.__module__.partition(".")[0]
        file = _source_of(each) if top not in sys.stdlib_module_names else None
        if file is not None and (top in own or _INSTALLED not in file.parts):
            found[each.__module__] = file
    return found


def _source_of(cls: type) -> Path | None:
    """Source file of a class: of its module, or of its functions when the module was loaded by hand."""
    declared = getattr(sys.modules.get(cls.__module__), "__file__", None)
    code = [each.__code__.co_filename for each in vars(cls).values() if isinstance(each, types.FunctionType)]
    for file in (declared, *code):
        if file and file.endswith(".py") and Path(file).is_file():
            return Path(file)
    return None


def imports_of(tree: ast.Module, module: str, is_package: bool) -> Iterator[str]:
    """Yield the names that a module imports anywhere, except under TYPE_CHECKING."""
    waiting: deque[ast.AST] = deque([tree])
    while waiting:
        node = waiting.popleft()
        if isinstance(node, ast.If) and _for_types(node.test):
            waiting.extend(node.orelse)
            continue
        waiting.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module, is_package)
            yield from _with_parents(base)
            for alias in node.names:
                yield f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and (name := _imported_by_call(node)):
            yield from _with_parents(name)


def _for_types(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _with_parents(name: str) -> Iterator[str]:
    """Yield a module and its parent packages, which an import also runs."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


def _absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + is_package]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _imported_by_call(node: ast.Call) -> str:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    first = node.args[0] if node.args else None
    by_name = called in ("import_module", "__import__") and isinstance(first, ast.Constant)
    return first.value if by_name and isinstance(first.value, str) else ""  # type: ignore[union-attr]


def _within(name: str, packages: tuple[str, ...]) -> str | None:
    return next((each for each in packages if name == each or name.startswith(f"{each}.")), None)


def _package(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    places = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(places))) if places else None


def _add_root(name: str, file: Path, roots: dict[str, Path], siblings: list[Path]) -> None:
    """Register the folder of a module's siblings: its top-level package, or its own folder."""
    inside = file.parent if file.name == "__init__.py" else file
    depth = name.count(".")
    if depth or file.name == "__init__.py":
        roots[name.partition(".")[0]] = inside.parents[depth - 1] if depth else inside
    elif _INSTALLED not in file.parts:
        siblings.append(file.parent)


def _file_of(name: str, roots: Mapping[str, Path], siblings: list[Path]) -> Path | None:
    top, _, rest = name.partition(".")
    bases = [roots[top]] if top in roots else [folder / top for folder in siblings]
    for base in bases:
        place = base.joinpath(*rest.split(".")) if rest else base
        for file in (place / "__init__.py", place.parent / f"{place.name}.py"):
            if file.is_file():
                return file
    return None
