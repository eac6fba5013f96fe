"""Placeholders in the data of an action.

`{{path}}` and `{path}` stand for a value of the plan: `{goal_data.topic}`, `{plan_id}`, `{results.search.hits[0]}`. A
path is a root and then tokens of letters of any script, digits, `_` and `-`, joined by dots; a number, after a dot or
in brackets, selects from a list. Spaces are allowed inside double braces. All other braces are text, and keys have no
placeholders; text that was probably meant as a placeholder is listed, for `validate_state_machine` to report.

A string that is a single placeholder becomes the value with its type. Inside a longer string, text, numbers and bools
are inserted as by `str()`, other values as JSON. `{path?}` is optional: without a value it is None, and nothing inside
a longer string. Inserted values are never parsed as templates.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from plancast.errors import InterpolationError
from plancast.json_values import normalize
from plancast_bus.events.lazy_object import NotLoaded

ROOTS: Final = frozenset(("goal_data", "results", "plan_id", "correlation_id", "session_id", "user_id", "tenant_id"))
"""The roots of paths."""

BRANCH_ROOTS: Final = frozenset(("item", "index"))
"""Further roots in the data of an action with a `for_each`."""

MAX_DEPTH: Final = 100
"""Deepest nesting of an action's data."""

MAX_INSERTED: Final = 64 << 20
"""Bytes that placeholders may insert into an action's data in all, as JSON without escapes."""

MAX_PLACEHOLDERS: Final = 1_000
"""Placeholders in an action's data."""

_TOKEN = r"(?:[A-Za-z0-9_-]|(?!\s)[^\x00-\x7f])++"
_PATH = rf"[A-Za-z_][A-Za-z0-9_]*+(?:\.{_TOKEN}|\[[0-9]{{1,9}}\])*+\??"
_PLACEHOLDER = re.compile(rf"\{{\{{\s*+({_PATH})\s*+\}}\}}|\{{({_PATH})\}}")
_SUSPECT = re.compile(
    rf"\{{\{{\s*+[^\W\d][^{{}}]*+\}}\}}|\{{\s*+(?:{'|'.join(sorted(ROOTS))})(?![A-Za-z0-9_])[^{{}}]*+\}}"
)

_MAX_SUSPECTS: Final = 20

_Scope = Mapping[str, Any]
_Render = Callable[[_Scope], Any]


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One placeholder of a template."""

    path: str
    """Path of the value, such as `goal_data.topic`."""
    where: str
    """Position in the data, such as `data.filters[0].query`."""
    depth: int = field(default=0, compare=False)
    """Number of lists and objects around it."""
    optional: bool = False
    """True if it may have no value."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """The steps of the path."""
        return tuple(self.path.replace("[", ".").replace("]", "").split("."))

    @property
    def root(self) -> str:
        """The first token of the path."""
        return self.tokens[0]


class _Found:
    """Result of compiling the data."""

    def __init__(self) -> None:
        self.placeholders: list[Placeholder] = []
        self.suspects: list[str] = []


class Template:
    """Data with its placeholders parsed. Immutable, and independent of the data it was compiled from."""

    __slots__ = ("_lookups", "_render", "is_value", "placeholders", "suspects")

    def __init__(self, render: _Render, found: _Found, is_value: bool = False) -> None:
        self._render = render
        self.is_value: Final[bool] = is_value
        """True if it is a single placeholder, and so gives any value."""
        self.placeholders: Final = tuple(found.placeholders)
        self.suspects: Final = tuple(found.suspects)
        """Text that was probably meant as a placeholder, each with its position: `data.query: '{ plan_id }'`."""
        self._lookups = {(each.path, each.optional): _lookup(each) for each in self.placeholders}

    def render(self, scope: Mapping[str, Any]) -> Any:
        """Replace every placeholder by its value in `scope` (root to value).

        Containers of the template are copied; a value in place of a whole string is the scope's own object.

        Raises:
            InterpolationError: a path does not exist, or the result would be too large or too deep; the message names
                the path and its position.
            NotLoaded: with all names of results that are to be loaded.
        """
        if self.placeholders:
            self._check_size(scope)
        return self._render(scope)

    def _check_size(self, scope: _Scope) -> None:
        measured: dict[tuple[str, bool], tuple[int, int]] = {}
        missing: frozenset[str] = frozenset()
        for key, value_of in self._lookups.items():
            try:
                measured[key] = _measured(value_of(scope), MAX_INSERTED)
            except NotLoaded as needed:
                missing |= needed.names
        if missing:
            raise NotLoaded(missing)
        inserted = 0
        for each in self.placeholders:
            size, depth = measured[each.path, each.optional]
            inserted += size
            if inserted > MAX_INSERTED:
                raise InterpolationError(
                    f"{each.where} refers to {each.path!r}, and with it more than {MAX_INSERTED} bytes would be "
                    "inserted into the data; pass on less, or a reference to where it is"
                )
            if depth and each.depth + depth > normalize.MAX_DEPTH:
                raise InterpolationError(
                    f"{each.where} refers to {each.path!r}, and with it the data would be nested more than "
                    f"{normalize.MAX_DEPTH} levels deep"
                )


def compile_template(data: Any, where: str = "data") -> Template:
    """Parse the placeholders in JSON-like data. Tuples become lists; values that are not JSON-like stay as they are.

    ``where``: name of the data in messages.

    Raises:
        InterpolationError: the data is nested deeper than MAX_DEPTH, or has more than MAX_PLACEHOLDERS.
    """
    found = _Found()
    constant, content = _compile(data, where, 0, found)
    if len(found.placeholders) > MAX_PLACEHOLDERS:
        raise InterpolationError(
            f"the data has {len(found.placeholders)} placeholders, {MAX_PLACEHOLDERS} at most are allowed"
        )
    is_value = isinstance(data, str) and _PLACEHOLDER.fullmatch(data) is not None
    return Template(_copier(content) if constant else content, found, is_value)


def _compile(data: Any, where: str, depth: int, found: _Found) -> tuple[bool, Any]:
    """(True, the constant), or (False, a function that renders it)."""
    if isinstance(data, str):
        return _compile_text(data, where, depth, found)
    if not isinstance(data, (dict, list, tuple)):
        return True, data
    if depth >= MAX_DEPTH:
        raise InterpolationError(f"the data is nested more than {MAX_DEPTH} levels deep, at {where[:80]}...")
    if isinstance(data, dict):
        items = {key: _compile(value, f"{where}.{key}", depth + 1, found) for key, value in data.items()}
        if all(constant for constant, _ in items.values()):
            return True, {key: value for key, (_, value) in items.items()}
        renders = [(key, _copier(part) if constant else part) for key, (constant, part) in items.items()]
        return False, lambda scope: {key: render(scope) for key, render in renders}
    parts = [_compile(value, f"{where}[{index}]", depth + 1, found) for index, value in enumerate(data)]
    if all(constant for constant, _ in parts):
        return True, [value for _, value in parts]
    each = [_copier(part) if constant else part for constant, part in parts]
    return False, lambda scope: [render(scope) for render in each]


def _compile_text(text: str, where: str, depth: int, found: _Found) -> tuple[bool, Any]:
    if "{" not in text:
        return True, text
    matches = list(_PLACEHOLDER.finditer(text))
    if len(found.suspects) < _MAX_SUSPECTS:
        suspects = _SUSPECT.finditer(_PLACEHOLDER.sub("\0", text))
        found.suspects += [f"{where}: {each[0][:80]!r}" for each in islice(suspects, _MAX_SUSPECTS)]
    if not matches:
        return True, text
    pieces: list[str | _Render] = []
    end = 0
    for match in matches:
        path: str = match[1] or match[2]
        placeholder = Placeholder(path.removesuffix("?"), where, depth, path.endswith("?"))
        found.placeholders.append(placeholder)
        value_of = _lookup(placeholder)
        if match[0] == text:
            return False, value_of
        if match.start() > end:
            pieces.append(text[end : match.start()])
        pieces.append(_as_text(value_of, placeholder))
        end = match.end()
    pieces.append(text[end:])
    return False, lambda scope: "".join([piece if isinstance(piece, str) else piece(scope) for piece in pieces])


def _measured(value: Any, most: int) -> tuple[int, int]:
    """Bytes of JSON, counted up to a little more than ``most``, and levels of lists and objects."""
    size = depth = 0
    level: Sequence[Any] = [value]
    while level and size <= most and depth <= MAX_DEPTH:
        inner: list[Any] = []
        for each in level:
            size += 2
            if isinstance(each, str):
                size += len(each) if len(each) > most or each.isascii() else len(each.encode("utf-8", "surrogatepass"))
            elif isinstance(each, Mapping):
                inner += [*each.keys(), *each.values()]
            elif isinstance(each, (list, tuple)):
                inner += each
            else:
                size += each.bit_length() // 3 if isinstance(each, int) else 16
            if size + 2 * len(inner) > most:
                return most + 1, depth
        depth += any(isinstance(each, (Mapping, list, tuple)) for each in level)
        level = inner
    return size, depth


def _lookup(placeholder: Placeholder) -> _Render:
    tokens = placeholder.tokens

    def value_of(scope: _Scope) -> Any:
        value: Any = scope
        for index, token in enumerate(tokens):
            if isinstance(value, (dict, Mapping)) and token in value:
                value = value[token]
            elif isinstance(value, (list, tuple)) and _selects(token, len(value)):
                value = value[int(token)]
            elif placeholder.optional:
                return None
            else:
                within = f" in {'.'.join(tokens[:index])!r}" if index else ""
                raise InterpolationError(
                    f"{placeholder.where} refers to {placeholder.path!r}, but there is no {token!r}{within}"
                )
        return value

    return value_of


def _selects(token: str, length: int) -> bool:
    return token.isdecimal() and len(token) < 10 and int(token) < length


def _as_text(value_of: _Render, placeholder: Placeholder) -> _Render:
    def text_of(scope: _Scope) -> str:
        value = value_of(scope)
        if value is None and placeholder.optional:
            return ""
        try:
            return str(value) if isinstance(value, (str, int, float)) else json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            raise InterpolationError(
                f"{placeholder.where} refers to {placeholder.path!r}, whose value cannot be put into a text"
            ) from None

    return text_of


def _copier(constant: Any) -> _Render:
    """A function that returns the constant with its containers copied."""
    if isinstance(constant, dict):
        inner = [(key, _copier(value)) for key, value in constant.items() if isinstance(value, (dict, list))]
        if not inner:
            return lambda _: constant.copy()
        return lambda scope: {**constant, **{key: copy(scope) for key, copy in inner}}
    if isinstance(constant, list):
        if not any(isinstance(value, (dict, list)) for value in constant):
            return lambda _: constant.copy()
        copiers = [_copier(value) for value in constant]
        return lambda scope: [copy(scope) for copy in copiers]
    return lambda _: constant
