"""Hash of the code that a value can run: functions, classes and modules of the user, and all that they refer to."""

from __future__ import annotations

import dis
import hashlib
import importlib
import importlib.util
import logging
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CellType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    UnionType,
    WrapperDescriptorType,
)
from typing import Any, Final, ParamSpec, TypeVar, TypeVarTuple

from plancast.state_machine.machine import Machine

OPAQUE: Final = "?"
"""First character of a result that is no hash: the rest says why the code cannot be told."""
_PLANCAST: Final = ("plancast", "plancast_actors", "plancast_bus")
_UNTOLD: Final = frozenset((
    "open", "read_text", "read_bytes", "eval", "exec", "__import__", "import_module", "globals", "environ", "getenv",
    "get_data", "setattr", "delattr", "modules", "__subclasses__", "entry_points", "exec_module", "run_path",
    "run_module", "reload", "getsource", "CDLL",
))  # fmt: skip
"""Names whose use reads code or data that a hash does not see, or changes code."""
_READS: Final = re.compile(
    r"read(_\w+)?|load(_\w+|txt)?|from_?file|genfromtxt|memmap|mmap|listdir|scandir|iterdir|r?glob|walk|connect|getline"
    r"|fileinput|sqlite3|shelve|dbm|(get|select)_template|(FileSystem|Package)Loader"
)
"""Names by which libraries read files. A function of the app with such a name is hashed like all others."""
_DERIVED: Final = frozenset((
    "__dict__", "__weakref__", "__module__", "__qualname__", "__firstlineno__", "__static_attributes__",
    "__slotnames__", "_abc_impl", "__abstractmethods__", "__annotations_cache__",
))  # fmt: skip
_PYDANTIC: Final = ("__pydantic_fields__", "__pydantic_decorators__")
_MODULE_FIELDS: Final = frozenset((
    "__builtins__", "__cached__", "__file__", "__loader__", "__path__", "__spec__", "__warningregistry__",
))  # fmt: skip


class _Untold(Exception):
    """The code of a value cannot be told; says why."""


def code_hash(value: Any) -> str:
    """Hash what a value can run and hold, independent of files, lines and comments.

    Functions count by their bytecode, annotations, defaults, closure, and every global that they name, in turn; objects
    by class and fields; installed packages by the hashes of their files. Names that a function refers to count also
    where it may not use them, so that equal hashes mean equal code. Modules that a function imports when it runs are
    imported. A result that begins with :data:`OPAQUE` is no hash: it says why.
    """
    walk = _Walk()
    try:
        walk.visit(value)
    except (_Untold, RecursionError) as why:
        return f"{OPAQUE}{str(why) or 'its values are nested too deep'}"
    except Exception as error:  # of the app's own code: its properties, its pickling, its imports
        return f"{OPAQUE}reading its values fails with {type(error).__name__}"
    return walk.digest()


@lru_cache(maxsize=1)
def runtime_hash() -> str:
    """Hash of plancast's own files and of the library that evaluates conditions; two builds may have one version."""
    sha = hashlib.sha256(_files_of_all("cel-expr-python").encode())
    for package in _PLANCAST:
        spec = importlib.util.find_spec(package)
        for folder in spec.submodule_search_locations or () if spec is not None else ():
            for file in sorted(Path(folder).rglob("*.py")):
                content = file.read_bytes()
                sha.update(f"{package} {file.relative_to(folder)} {len(content)} ".encode() + content)
    return sha.hexdigest()[:24]


class _Walk:
    def __init__(self) -> None:
        self._sha = hashlib.sha256(f"{sys.implementation.cache_tag}".encode())
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []
        """Visited values, kept alive so that no id is reused."""

    def digest(self) -> str:
        return self._sha.hexdigest()[:24]

    def visit(self, value: Any) -> None:
        if value is None or value is Ellipsis or value is NotImplemented or type(value) in _PLAIN:
            self._emit(type(value).__name__, f"{value:x}" if type(value) is int else repr(value))
            return
        if type(value) not in (tuple, frozenset):  # equal constants may be one object in one process and two in another
            if id(value) in self._seen:
                self._emit("seen", str(self._seen[id(value)]))
                return
            self._seen[id(value)] = len(self._kept)
            self._kept.append(value)
        self._visit_new(value)

    def _visit_new(self, value: Any) -> None:
        if isinstance(value, Machine):
            self._emit("machine", value.hash)
        elif isinstance(value, ModuleType):
            self._module(value)
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, CodeType):
            self._code(value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, MethodType):
            self._all("method", (value.__func__, value.__self__))
        elif isinstance(value, BuiltinFunctionType):
            self._built_in(value)
        elif isinstance(value, (staticmethod, classmethod)):
            self._all("method", (type(value), value.__func__))
        elif isinstance(value, property):
            self._all("property", (type(value), value.fget, value.fset, value.fdel))
        elif isinstance(value, cached_property):
            self._all("cached_property", (type(value), value.func))
        elif isinstance(value, UnionType):
            self._all("union", value.__args__)
        elif isinstance(value, (TypeVar, ParamSpec, TypeVarTuple)):
            bounds = (getattr(value, name, None) for name in ("__bound__", "__constraints__"))
            self._all("type variable", (type(value), value.__name__, *bounds))
        elif isinstance(value, logging.Logger):
            self._all("logger", (type(value), value.name))
        elif isinstance(value, re.Pattern):
            self._all("pattern", (value.pattern, value.flags))
        elif isinstance(value, Enum):
            self._all("enum", (type(value), value.name))
        elif type(value) in (set, frozenset):
            self._unordered(value)
        elif type(value) in (dict, MappingProxyType):
            self._all(type(value).__name__, (part for item in value.items() for part in item))
        elif type(value) in (list, tuple):
            self._all(type(value).__name__, value)
        elif type(value) in _DESCRIPTORS:
            self._emit("descriptor", value.__qualname__)
            if type(value) is MethodDescriptorType and not _is_library(value.__objclass__.__module__):
                raise _Untold(f"{value.__qualname__} is compiled")
        else:
            self._object(value)

    def _emit(self, *parts: str) -> None:
        for part in parts:
            encoded = part.encode("utf-8", "surrogatepass")
            self._sha.update(f"{len(encoded)}:".encode() + encoded)

    def _all(self, kind: str, values: Iterable[Any]) -> None:
        found = list(values)
        self._emit(kind, str(len(found)))
        for each in found:
            self.visit(each)

    def _unordered(self, values: Iterable[Any]) -> None:
        hashes = sorted(code_hash(each) for each in values)
        if hashes and hashes[-1].startswith(OPAQUE):
            raise _Untold(hashes[-1][len(OPAQUE) :])
        self._all("set", hashes)

    def _fields(self, fields: Mapping[str, Any]) -> None:
        self._emit("fields", str(len(fields)))  # else a field of an inner object could be one of the outer
        for name in sorted(fields):
            self._emit("field", name)
            self.visit(fields[name])

    def _library(self, module: str, name: str) -> None:
        if _is_untold(name.rpartition(".")[2]):
            raise _Untold(f"it holds {module}.{name}")
        self._emit("library", module, name, _files_of(module.partition(".")[0]))

    def _module(self, module: ModuleType) -> None:
        if _is_library(module.__name__):
            self._library(module.__name__, "")
            return
        self._emit("module", module.__name__)
        self._fields({name: value for name, value in vars(module).items() if name not in _MODULE_FIELDS})

    def _function(self, function: FunctionType) -> None:
        self._emit("function", function.__qualname__)
        self._all("given", (function.__defaults__, function.__kwdefaults__, dict(vars(function))))
        self._all("closure", (_content(cell) for cell in function.__closure__ or ()))
        self.visit(function.__code__)
        module = function.__globals__.get("__name__")  # that of the function may be of another, which it wraps
        if _is_library(module):
            self._library(str(module), function.__code__.co_name)
            return
        self._all("annotations", (function.__annotations__,))
        names = sorted(set(_names(function.__code__)))
        found = {name: function.__globals__[name] for name in names if name in function.__globals__}
        own = {name for name, value in found.items() if isinstance(value, (FunctionType, type))}
        untold = next((each for each in names if each in _UNTOLD or (each not in own and _is_untold(each))), None)
        if untold is not None:
            raise _Untold(f"{function.__module__}.{function.__qualname__} uses {untold}")
        self._fields(found)
        imported = {name: _module(name) for name in _imports(function.__code__, _package(function))}
        self._fields({name: value for name, value in imported.items() if value is not None})

    def _code(self, code: CodeType) -> None:
        self._emit("code", code.co_code.hex(), code.co_exceptiontable.hex() if sys.version_info >= (3, 11) else "")
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self._all("names", (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, counts))
        self._all("consts", code.co_consts)

    def _class(self, kind: type) -> None:
        if _is_library_class(kind):
            self._library(kind.__module__, kind.__qualname__)
            return
        self._emit("class", kind.__qualname__)
        self._all("bases", (type(kind), *kind.__bases__))
        self._fields({
            name: value
            for name, value in vars(kind).items()
            if name not in _DERIVED and (not name.startswith("__pydantic_") or name in _PYDANTIC)
        })  # fmt: skip

    def _built_in(self, function: BuiltinFunctionType) -> None:
        owner = function.__self__
        if owner is not None and not isinstance(owner, ModuleType):
            self._all("bound", (function.__name__, owner))
            return
        if not _is_library(function.__module__):
            raise _Untold(f"{function.__module__}.{function.__qualname__} is compiled")
        self._library(function.__module__ or "", function.__qualname__)

    def _object(self, value: Any) -> None:
        kind = type(value)
        self._emit("object")
        self.visit(kind)
        base = next((each for each in _CONTAINERS if isinstance(value, each)), None)
        if base is not None:
            self.visit(base(value))
        slots = [name for each in kind.__mro__ for name in _slots(each)]
        state = {name: getattr(value, name) for name in slots if hasattr(value, name)}
        self._fields(state | getattr(value, "__dict__", {}))
        try:
            reduced = value.__reduce_ex__(2)
        except Exception as error:  # it has a state beside its fields, such as a lock or a connection
            raise _Untold(f"it holds a {kind.__module__}.{kind.__qualname__}") from error
        wraps = hasattr(value, "__wrapped__")  # such as lru_cache: its function is among its fields
        if isinstance(reduced, str):
            if not wraps and not _is_library(getattr(value, "__module__", None)):
                raise _Untold(f"it holds a {kind.__module__}.{kind.__qualname__}")
            self.visit(reduced)
            return
        made, arguments, held, *contents = reduced[:5] + (None,) * (3 - len(reduced[:3]))
        own = {"__reduce__", "__reduce_ex__", "__getstate__"} & {
            name for each in kind.__mro__[:-1] for name in vars(each)
        }
        self._all("reduced", (made, arguments, held if own else None))
        self._all("contents", (list(each) for each in contents if each is not None))


_HEAP_TYPE: Final = 1 << 9
"""Flag of classes that are made while Python runs; others are compiled."""
_PLAIN: Final = frozenset((bool, int, float, complex, str, bytes))
_CONTAINERS: Final[tuple[Any, ...]] = (str, bytes, int, float, tuple, list, dict, set, frozenset)
_DESCRIPTORS: Final = frozenset((
    GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType,
))  # fmt: skip


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _names(code: CodeType) -> Iterable[str]:
    """Names that a function and those within it refer to."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def _is_untold(name: str) -> bool:
    return name in _UNTOLD or _READS.fullmatch(name) is not None


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has none yet
        return _Untold


def _package(function: FunctionType) -> str:
    return function.__globals__.get("__package__") or ""


def _imports(code: CodeType, package: str) -> Iterable[str]:
    """Modules that a function and those within it import when they run, and what else may be a module."""
    steps = list(dis.get_instructions(code))
    for at, step in enumerate(steps):
        if step.opname != "IMPORT_NAME":
            continue
        level, names = (steps[at - 2].argval, steps[at - 1].argval) if at >= 2 else (0, None)
        name = str(step.argval)
        if isinstance(level, int) and level:
            name = importlib.util.resolve_name("." * level + name, package)
        yield name
        if isinstance(names, tuple):
            yield from (f"{name}.{each}" for each in names if each != "*")
        elif "." in name and steps[at + 1].opname != "IMPORT_FROM":  # it binds the first package
            yield name.partition(".")[0]
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _imports(each, package)


def _module(name: str) -> ModuleType | None:
    """A module, imported; None where there is none of that name."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@lru_cache(maxsize=4096)
def _is_library(module: str | None) -> bool:
    """True for plancast, the standard library and installed packages; editable ones are the user's."""
    found = sys.modules.get(module or "")
    if module in (None, "", "__main__") or found is None:
        return False
    package = found.__name__.partition(".")[0]
    if package in _PLANCAST:
        return True
    file = getattr(found, "__file__", None)
    if file is None:  # compiled into the interpreter, or a folder
        return package in sys.stdlib_module_names and not hasattr(found, "__path__")
    folders = set(Path(file).resolve().parents)
    if not folders.isdisjoint(_folders("purelib", "platlib")):
        return package in _distributions()  # else nobody has recorded its files
    return package in sys.stdlib_module_names and not folders.isdisjoint(_folders("stdlib", "platstdlib"))


def _is_library_class(kind: type) -> bool:
    """True for a class that a library defines, and not one that it has made for the app, such as a dataclass."""
    if not _is_library(kind.__module__):
        return False
    found: Any = sys.modules[kind.__module__]
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind or not kind.__flags__ & _HEAP_TYPE


def _folders(*names: str) -> set[Path]:
    return {Path(sysconfig.get_path(each)).resolve() for each in names}


@lru_cache(maxsize=512)
def _files_of(package: str) -> str:
    """Hash of the files of an installed package, as its installer has recorded them, and of all that it requires."""
    if package in _PLANCAST or package in sys.stdlib_module_names:
        return ""  # compared once for all, and by the version of Python
    return _files_of_all(*_distributions().get(package, ()))


def _files_of_all(*names: str) -> str:
    records: dict[str, Any] = {}
    wanted = list(names)
    while wanted:
        name = wanted.pop()
        if name in records:
            continue
        try:
            found = distribution(name)
        except PackageNotFoundError:  # of an extra, or for another platform
            records[name] = ""
            continue
        records[name] = _recorded(found.read_text("RECORD") or "") or found.version
        wanted += [re.split(r"[^\w.-]", each, maxsplit=1)[0].lower() for each in found.requires or ()]
    return hashlib.sha256(repr(sorted(records.items())).encode()).hexdigest()


def _recorded(record: str) -> list[str]:
    """Files with hashes; without compiled files, scripts and notes, which depend on the installer and its paths."""
    rows = (row for row in record.splitlines() if ",sha256=" in row and not row.startswith(".."))
    return sorted(row for row in rows if ".dist-info/" not in row or ".dist-info/METADATA," in row)


@lru_cache(maxsize=1)
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()
