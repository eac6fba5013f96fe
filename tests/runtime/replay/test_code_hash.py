"""Hashes of code: equal for the same code, other for any change of it, none where it cannot be told."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache, partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

from plancast.replay.code_hash import OPAQUE, code_hash, runtime_hash

SOURCE = """
import json
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial, wraps

LIMIT = 3
NAMES = {"a", "b"}

class Color(Enum):
    RED = 1

@dataclass
class Point:
    x: int = 4

class Base:
    def step(self):
        return 5

class Walker(Base):
    __slots__ = ("size",)
    def __init__(self):
        self.size = 6

def logged(function):
    @wraps(function)
    def call(*args):
        return function(*args)
    return call

@lru_cache
def cached(n):
    return n * 7

def add(a, b=8):
    return a + b

nine = partial(add, 9)
WALKER, POINT, ORIGIN = Walker(), Point(), (0, [Point(10)])

@logged
def main(data):
    import helper_of_hash
    more = [each for each in data if each not in NAMES]
    return helper_of_hash, nine(), cached(LIMIT), WALKER, POINT, ORIGIN, Color.RED, lambda: more and json.dumps(11)
"""


def made(source: str) -> Any:
    module = sys.modules["hashed_source"] = ModuleType("hashed_source")
    exec(compile(source, "hashed.py", "exec"), vars(module))
    return module.main


def test_the_same_code_has_the_same_hash_after_it_was_hashed_too() -> None:
    main = made(SOURCE)
    first = code_hash(main)
    assert not first.startswith(OPAQUE)
    assert {code_hash(main), code_hash(made(SOURCE)), code_hash(made("# a comment\n\n" + SOURCE))} == {first}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ('{"a", "b"}', '{"a", "c"}'),
        ("RED = 1", "RED = 2"),
        ("x: int = 4", "x: int = 5"),
        ("return 5", "return 6"),
        ("self.size = 6", "self.size = 7"),
        ("n * 7", "n * 8"),
        ("b=8", "b=9"),
        ("partial(add, 9)", "partial(add, 10)"),
        ("Point(10)", "Point(11)"),
        ("dumps(11)", "dumps(12)"),
        ("not in NAMES", "in NAMES"),
        ("return function(*args)", "return function(*args[1:])"),
        ("import helper_of_hash", "import another_of_hash as helper_of_hash"),
        ("json.dumps", "json.loads"),
    ],
)
def test_any_change_of_what_a_function_refers_to_changes_its_hash(old: str, new: str) -> None:
    assert old in SOURCE
    assert code_hash(made(SOURCE.replace(old, new))) != code_hash(made(SOURCE))


def test_a_change_of_what_it_does_not_refer_to_does_not() -> None:
    assert code_hash(made(SOURCE + "\nOTHER = 1\ndef other():\n    return OTHER\n")) == code_hash(made(SOURCE))


class Model(BaseModel):
    """A model of pydantic."""

    n: int = 1


@dataclass
class Holds:
    """Holds anything."""

    value: Any


def reads() -> Any:
    return open("data.json")


@pytest.mark.parametrize(
    "value",
    [Holds(threading.Lock()), reads, partial(reads), {"f": [reads]}, Holds({reads})],
    ids=["a lock", "a function", "a partial", "a list in a dict", "a set in an object"],
)
def test_what_cannot_be_told_from_code_has_no_hash_but_a_reason(value: Any) -> None:
    assert code_hash(value).startswith(OPAQUE)
    assert ("reads uses open" in code_hash(value)) or ("_thread.lock" in code_hash(value))


def test_values_count_with_their_types() -> None:
    plain: list[Any] = [1, True, 1.0, "1", b"1", (1,), [1], {1}, {1: None}, None, -0.0, 0.0]
    values = [*plain, Model(), Model(n=2), Holds(1)]
    assert len({code_hash(each) for each in values}) == len(values)


class Optional(BaseModel):
    """A model with a field that may be missing."""

    held: Model | None = None

    @cached_property
    def n(self) -> int:
        """A value that is computed once."""
        return 1


class Kind(Enum):
    """An enumeration."""

    A = "a"


@lru_cache
def cached(n: int) -> int:
    return n


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call() -> Any:
        return function()

    return call


@pytest.mark.parametrize(
    "value",
    [Kind.A, cached, Model, decorated(lambda: 1), partial(cached, 1), Holds, Optional],
    ids=["a member", "a cached function", "a model", "a decorated function", "a partial", "a dataclass", "a union"],
)
def test_common_objects_have_a_hash(value: Any) -> None:
    assert not code_hash(value).startswith(OPAQUE), code_hash(value)


def test_objects_that_refer_to_each_other_have_a_hash() -> None:
    first, second = Holds(None), Holds(None)
    first.value, second.value = [second], {"first": first}
    assert not code_hash(first).startswith(OPAQUE)


class Release:
    """A release of an app of several files, hashed in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.releases = 0

    def hash_of(self, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
        """The hash of ``main`` in ``hashed_app.py``; no module stays."""
        self.releases += 1
        folder = self.folder / str(self.releases)
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        before = dict(sys.modules)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            patch.chdir(folder)
            try:
                return code_hash(importlib.import_module("hashed_app").main)
            finally:
                for name in sys.modules.keys() - before.keys():
                    if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                        del sys.modules[name]


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return Release(tmp_path)


CHANGES: dict[str, tuple[dict[str, str], str, str]] = {
    "a function that takes the name of one of the standard library": (
        {
            "hashed_app.py": "import json\nfrom functools import wraps\n@wraps(json.dumps)\ndef dump(x):\n"
            "    return json.dumps(x, indent=1)\ndef main(): return dump(1)\n"
        },
        "indent=1",
        "indent=2",
    ),
    "a module that takes the name of one of the standard library": (
        {
            "hashed_app.py": "import tabnanny\ndef main(): return tabnanny.rate()\n",
            "tabnanny.py": "def rate(): return 1\n",
        },
        "return 1",
        "return 2",
    ),
    "a function of a module that takes the name of one of the standard library": (
        {
            "hashed_app.py": "from tabnanny import rate\ndef main(): return rate()\n",
            "tabnanny.py": "def rate(): return 1\n",
        },
        "return 1",
        "return 2",
    ),
    "a dataclass that is made": (
        {
            "hashed_app.py": "from dataclasses import make_dataclass\nP = make_dataclass('P', [('x', int, 4)])\n"
            "def main(): return P().x\n"
        },
        "4",
        "5",
    ),
    "an abstract class that is made": (
        {
            "hashed_app.py": "from abc import ABC\nclass Base(ABC): pass\nRule = type('Rule', (Base,), {'limit': 5})\n"
            "def main(): return Rule().limit\n"
        },
        "5",
        "6",
    ),
    "a class that is made": (
        {
            "hashed_app.py": "import types\nR = types.new_class('R', (), {}, lambda space: space.update(limit=5))\n"
            "def main(): return R().limit\n"
        },
        "5",
        "6",
    ),
    "the description of a model's schema": (
        {
            "hashed_app.py": "from pydantic import BaseModel\nclass R(BaseModel):\n    'one'\n"
            "def main(): return R.model_json_schema()\n"
        },
        "one",
        "two",
    ),
    "the docstring of a module": (
        {"hashed_app.py": "import prompt\ndef main(): return prompt.__doc__\n", "prompt.py": "'one'\n"},
        "one",
        "two",
    ),
    "a field that moves from an inner object to the outer": (
        {
            "hashed_app.py": "class B:\n    def __init__(self, **fields): self.__dict__.update(fields)\n"
            "X = B(a=B(b=1))\ndef main(): return X\n"
        },
        "B(a=B(b=1))",
        "B(a=B(), b=1)",
    ),
    "a module of a package that is imported when needed": (
        {
            "hashed_app.py": "def main():\n    from rules import eu\n    return eu.rate()\n",
            "rules/__init__.py": "",
            "rules/eu.py": "def rate(): return 1\n",
        },
        "return 1",
        "return 2",
    ),
    "a relative module that is imported when needed": (
        {
            "hashed_app.py": "from rules.eu import main\n",
            "rules/__init__.py": "",
            "rules/eu.py": "def main():\n    from . import tax\n    return tax.rate()\n",
            "rules/tax.py": "def rate(): return 1\n",
        },
        "return 1",
        "return 2",
    ),
    "a package whose module is imported when needed": (
        {
            "hashed_app.py": "def main():\n    import rules.eu\n    return rules.RATE\n",
            "rules/__init__.py": "RATE = 1\n",
            "rules/eu.py": "",
        },
        "RATE = 1",
        "RATE = 2",
    ),
    "a kind of property": (
        {
            "hashed_app.py": "class P(property):\n    def __get__(self, one, kind=None): return 1\n"
            "class K:\n    @P\n    def x(self): return 3\nk = K()\ndef main(): return k.x\n"
        },
        "return 1",
        "return 2",
    ),
    "a kind of static method": (
        {
            "hashed_app.py": "class P(staticmethod):\n    def __get__(self, one, kind=None): return 1\n"
            "class K:\n    @P\n    def x(): return 3\nk = K()\ndef main(): return k.x\n"
        },
        "return 1",
        "return 2",
    ),
    "a compiled object with a state of its own": (
        {
            "hashed_app.py": "import xml.etree.ElementTree as tree\nX = tree.fromstring('<a>1</a>')\n"
            "def main(): return X.text\n"
        },
        "<a>1",
        "<a>2",
    ),
    "the items of a queue": (
        {"hashed_app.py": "from collections import deque\nX = deque([1])\ndef main(): return X\n"},
        "[1]",
        "[2]",
    ),
    "the value of a kind of number": (
        {"hashed_app.py": "class C(complex): pass\nX = C(1)\ndef main(): return X\n"},
        "C(1)",
        "C(2)",
    ),
    "the hints of a function, from which schemas are made": (
        {
            "hashed_app.py": "import typing\ndef tool(x: int): return x\n"
            "def main(): return typing.get_type_hints(tool)\n"
        },
        "x: int",
        "x: float",
    ),
    "the name of a function": (
        {"hashed_app.py": "def a(): pass\nTOOL = a\ndef main(): return TOOL.__name__\n"},
        "def a(): pass\nTOOL = a",
        "def b(): pass\nTOOL = b",
    ),
    "a number of thousands of digits": (
        {"hashed_app.py": "X = 10**5000\ndef main(): return X\n"},
        "5000",
        "5001",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_an_app_of_several_files_change_its_hash(
    release: Release, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, old, new = CHANGES[name]
    assert any(old in each for each in files.values())
    changed = {path: content.replace(old, new) for path, content in files.items()}
    first = release.hash_of(files, monkeypatch)
    assert not first.startswith(OPAQUE), first
    assert release.hash_of(files, monkeypatch) == first, "in another folder"
    assert release.hash_of(changed, monkeypatch) != first


READERS = {
    "import configparser\ndef main():\n    found = configparser.ConfigParser()\n    found.read('a.ini')\n": "read",
    "import sqlite3\ndef main(): return sqlite3.connect('a.db')\n": "connect",
    "import jinja2\ndef main(): return jinja2.FileSystemLoader('.')\n": "FileSystemLoader",
    "import fileinput\ndef main(): return list(fileinput.input('a.txt'))\n": "fileinput",
    "import numpy\ndef main(): return numpy.loadtxt('a.txt')\n": "loadtxt",
    "from numpy import loadtxt as table\ndef main(): return table('a.txt')\n": "loadtxt",
    "import os\ndef main(): return os.listdir('.')\n": "listdir",
    "import sys\ndef main(): return sys.modules['rules'].rate()\n": "modules",
    "class Rule: pass\ndef main(): return [each() for each in Rule.__subclasses__()]\n": "__subclasses__",
    "text = open\ndef main(): return text('a.txt')\n": "open",
    "def main(text=open): return text('a.txt')\n": "open",
    "from functools import partial\ntext = partial(open, 'a.txt')\ndef main(): return text()\n": "open",
    "from pathlib import Path\ntext = Path('a.txt').read_text\ndef main(): return text()\n": "read_text",
    "def main():\n    import broken\n": "SyntaxError",
}


@pytest.mark.parametrize("source", READERS)
def test_code_that_reads_what_a_hash_does_not_see_has_none(
    release: Release, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "numpy" in source:
        pytest.importorskip("numpy")
    found = release.hash_of({"hashed_app.py": source, "broken.py": "def f(:\n"}, monkeypatch)
    assert found.startswith(OPAQUE)
    assert READERS[source] in found


def test_a_function_of_the_app_that_is_named_as_if_it_read_has_a_hash(
    release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "def load_rules(): return 1\ndef main(): return load_rules()\n"
    first = release.hash_of({"hashed_app.py": source}, monkeypatch)
    assert not first.startswith(OPAQUE)
    assert release.hash_of({"hashed_app.py": source.replace("return 1", "return 2")}, monkeypatch) != first


def test_builds_of_plancast_with_other_files_have_other_hashes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert runtime_hash() == runtime_hash.__wrapped__()

    def hashed(content: str) -> str:
        (tmp_path / "plancast").mkdir(exist_ok=True)
        (tmp_path / "plancast/__init__.py").write_text(content)
        spec = ModuleType("spec")
        vars(spec).update(submodule_search_locations=[str(tmp_path / "plancast")])
        monkeypatch.setattr("importlib.util.find_spec", lambda name: spec if name == "plancast" else None)
        return runtime_hash.__wrapped__()

    assert hashed("x = 1") != hashed("x = 2")
