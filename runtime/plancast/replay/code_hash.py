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
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Final

from plancast.state_machine.machine import Machine

OPAQUE: Final = "?"
"""First character of a result that is no hash: the rest says why the code cannot be told."""
_PLANCAST: Final = ("plancast", "plancast_actors", "plancast_bus")
_UNTOLD: Final = frozenset((
    "open", "read_text", "read_bytes", "eval", "exec", "__import__", "import_module", "globals", "environ", "getenv",
    "get_data", "setattr", "delattr",
))  # fmt: skip
"""Names whose use reads code or data that a hash does not see, or changes code."""
_DERIVED: Final = frozenset((
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__", "__static_attributes__",
    "__slotnames__", "_abc_impl", "__abstractmethods__", "__annotations_cache__",
))  # fmt: skip
_PYDANTIC: Final = ("__pydantic_fields__", "__pydantic_decorators__")
_MODULE_FIELDS: Final = frozenset(("__builtins__", "__cached__", "__doc__", "__file__", "__loader__", "__spec__"))


class _Untold(Exception):
    """The code of a value cannot be told; says why."""


def code_hash(value: Any) -> str:
    """Hash what a value can run and hold, independent of files, lines and comments.

    Functions count by their bytecode, defaults, closure, and every global that they name, in turn; objects by class and
    fields; installed packages by the hashes of their files. Names that a function refers to count also where it may not
    use them, so that equal hashes mean equal code. A result that begins with :data:`OPAQUE` is no hash: it says why.
    """
    walk = _Walk()
    try:
        walk.visit(value)
    except (_Untold, RecursionError) as why:
        return f"{OPAQUE}{str(why) or 'its values are nested too deep'}"
    return walk.digest()


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
            self._emit(type(value).__name__, repr(value))
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
            self._all(type(value).__name__, (value.__func__,))
        elif isinstance(value, property):
            self._all("property", (value.fget, value.fset, value.fdel))
        elif isinstance(value, logging.Logger):
            self._emit("logger", value.name)
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
        for name in sorted(fields):
            self._emit("field", name)
            self.visit(fields[name])

    def _library(self, module: str, name: str) -> None:
        self._emit("library", module, name, _files_of(module.partition(".")[0]))

    def _module(self, module: ModuleType) -> None:
        if _is_library(module.__name__):
            self._library(module.__name__, "")
            return
        self._emit("module", module.__name__)
        self._fields({name: value for name, value in vars(module).items() if name not in _MODULE_FIELDS})

    def _function(self, function: FunctionType) -> None:
        self._all("given", (function.__defaults__, function.__kwdefaults__, dict(vars(function))))
        for cell in function.__closure__ or ():
            try:
                self.visit(cell.cell_contents)
            except ValueError:
                self._emit("empty")
        if _is_library(function.__module__):
            self._library(function.__module__ or "", function.__qualname__)
            return
        self._emit("function")
        self.visit(function.__code__)
        names = sorted(set(_names(function.__code__)))
        untold = _UNTOLD.intersection(names)
        if untold:
            raise _Untold(f"{function.__module__}.{function.__qualname__} uses {min(untold)}")
        self._fields({name: function.__globals__[name] for name in names if name in function.__globals__})
        for name in _imports(function.__code__, function.__globals__.get("__package__") or ""):
            try:
                self.visit(importlib.import_module(name))
            except ImportError:
                self._emit("missing", name)

    def _code(self, code: CodeType) -> None:
        self._emit("code", code.co_code.hex(), code.co_exceptiontable.hex() if sys.version_info >= (3, 11) else "")
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self._all("names", (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, counts))
        self._all("consts", code.co_consts)

    def _class(self, kind: type) -> None:
        if _is_library(kind.__module__):
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
        own = {"__reduce__", "__reduce_ex__"} & {name for each in kind.__mro__[:-1] for name in vars(each)}
        wraps = hasattr(value, "__wrapped__")  # such as lru_cache: its function is among its fields
        if isinstance(reduced, str) and not wraps and not _is_library(getattr(value, "__module__", None)):
            raise _Untold(f"it holds a {kind.__module__}.{kind.__qualname__}")
        if own:
            self.visit(reduced if isinstance(reduced, str) else tuple(reduced[:3]))


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


def _imports(code: CodeType, package: str) -> Iterable[str]:
    """Modules that a function and those within it import when they run."""
    steps = list(dis.get_instructions(code))
    for at, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            level = steps[at - 2].argval if at >= 2 else 0
            name = str(step.argval)
            yield importlib.util.resolve_name("." * level + name, package) if isinstance(level, int) and level else name
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _imports(each, package)


@lru_cache(maxsize=4096)
def _is_library(module: str | None) -> bool:
    """True for plancast, the standard library and installed packages; editable ones are the user's."""
    if not module or module.partition(".")[0] in _PLANCAST or module.partition(".")[0] in sys.stdlib_module_names:
        return module not in (None, "", "__main__")
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return False
    installed = {Path(sysconfig.get_path(each)).resolve() for each in ("purelib", "platlib")}
    return not installed.isdisjoint(Path(file).resolve().parents)


@lru_cache(maxsize=512)
def _files_of(package: str) -> str:
    """Hash of the files of an installed package, as its installer has recorded them, and of all that it requires."""
    if package in _PLANCAST or package in sys.stdlib_module_names:
        return ""  # compared as versions
    records: dict[str, str] = {}
    wanted = list(_distributions().get(package, ()))
    while wanted:
        name = wanted.pop()
        if name in records:
            continue
        try:
            found = distribution(name)
        except PackageNotFoundError:  # of an extra, or for another platform
            records[name] = ""
            continue
        records[name] = found.read_text("RECORD") or found.version
        wanted += [re.split(r"[^\w.-]", each, maxsplit=1)[0].lower() for each in found.requires or ()]
    return hashlib.sha256(repr(sorted(records.items())).encode()).hexdigest()


@lru_cache(maxsize=1)
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()
