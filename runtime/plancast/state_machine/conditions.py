"""Conditions of transitions: CEL expressions over `event` (`type`, `data`, `topic`), `goal_data`, `results` and `plan`.

An expression is checked when it is compiled. Its length is bounded here, its depth and iterations by the evaluator, its
cost on a plan's data by :mod:`plancast.state_machine.condition_cost`. An evaluation reads only the fields that the
expression mentions.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from cel_expr_python import cel

from plancast.errors import ConditionFailed, InvalidCondition
from plancast.state_machine.condition_cost import MAX_COST, Cost
from plancast_bus.events.lazy_object import NotLoaded

ROOTS: Final = ("event", "goal_data", "results", "plan")
"""The names that an expression may use."""

MAX_LENGTH: Final = 4096
"""Longest expression, in characters. The CEL parser refuses more than 32 levels."""

_MAX_DEPTH: Final = 100
_INT64_MIN: Final = -(2**63)
_UINT64_MAX: Final = 2**64 - 1

# A root and the fields selected from it. A name before "(" is a method, not a field.
_PATH = re.compile(rf"\b({'|'.join(ROOTS)})\b((?:\s*\.\s*[A-Za-z_][A-Za-z0-9_]*+(?!\s*\())*)")

_environment: Final = cel.NewEnv(variables={root: cel.Type.Map(cel.Type.STRING, cel.Type.DYN) for root in ROOTS})

_Fields = dict[str, "_Fields"]
"""The fields that an expression mentions, as a tree; an empty tree stands for the whole value."""


class Condition:
    """A compiled condition. Immutable, and safe to share between threads."""

    __slots__ = ("_cost", "_expression", "_fields", "source")

    def __init__(self, source: str, expression: Any) -> None:
        self.source: Final = source
        self._expression = expression
        self._fields = _mentioned(source)
        self._cost = Cost(source, _mentions(source))

    def __repr__(self) -> str:
        return f"Condition({_shown(self.source)})"

    def evaluate(
        self,
        *,
        event: Mapping[str, Any],
        goal_data: Mapping[str, Any],
        results: Mapping[str, Any],
        plan: Mapping[str, Any],
    ) -> bool:
        """Evaluate the condition.

        Raises:
            ConditionFailed: a field is missing (`has(event.data.x)` tests for one), values do not compare, the result
                is no bool, or the iterations or the data are too many.
        """
        roots = {"event": event, "goal_data": goal_data, "results": results, "plan": plan}
        if not self._cost.free and (cost := self._cost.of(roots)) > MAX_COST:
            raise ConditionFailed(
                f"condition {_shown(self.source)} failed: on so much data it could take too long (its cost is "
                f"{cost:.2g}, at most {MAX_COST:.2g} is allowed). Compare fewer or smaller values in its macros, "
                "searches and regular expressions, or have a worker compute it"
            )
        try:
            data = {root: _projected(roots[root], fields, 0) for root, fields in self._fields.items()}
            result = self._expression.eval(data=data)
            kind, value = result.type(), result.value()
        except NotLoaded:
            raise
        except _Unfit as unfit:
            raise ConditionFailed(f"condition {_shown(self.source)} failed: {unfit}") from None
        except Exception as error:
            raise ConditionFailed(f"condition {_shown(self.source)} failed: {self._reason(error)}") from None
        if kind == cel.Type.ERROR:
            raise ConditionFailed(f"condition {_shown(self.source)} failed: {self._reason(value)}")
        if not isinstance(value, bool):
            raise ConditionFailed(f"condition {_shown(self.source)} gives {kind}, not a bool")
        return value

    def _reason(self, error: object) -> str:
        """The evaluator's message, without values of the data."""
        text = re.sub(r"^[A-Z_]+: | \[[A-Z_]+\]$", "", str(error))
        if missing := re.fullmatch(r'Key not found in map : "(.*)"', text, re.DOTALL):
            key = repr(missing[1]) if missing[1] in self.source else "of that name"
            return f"there is no field {key} (test with has(...) whether it is there)"
        if text.startswith("invalid regular expression"):
            return "invalid regular expression"
        if text.startswith("Applying SELECT to non-message type"):
            return "a field is selected from a value that has no fields"
        if text.startswith("basic_string"):
            return "the data holds text that is not Unicode"
        return text[:200]


@lru_cache(maxsize=1024)
def compile_condition(source: str) -> Condition:
    """Compile a CEL expression, once per process.

    Raises:
        InvalidCondition: with the expression, the position and the reason: it does not parse, uses an unknown name, is
            no bool, is too long or is nested too deeply.
    """
    if len(source) > MAX_LENGTH:
        raise InvalidCondition(
            f"condition {_shown(source)} is {len(source)} characters long, {MAX_LENGTH} at most are allowed"
        )
    try:
        expression = _environment.compile(source)
        kind = expression.return_type()
    except Exception as error:
        raise InvalidCondition(f"condition {_shown(source)} does not compile: {_fault(error)}") from None
    if kind not in (cel.Type.BOOL, cel.Type.DYN):
        raise InvalidCondition(f"condition {_shown(source)} does not compile: it gives {kind}, not a bool")
    return Condition(source, expression)


class _Unfit(Exception):
    """Raised for a value that the evaluator does not take."""


def _mentioned(source: str) -> _Fields:
    """The fields that `source` may read, by root.

    It also finds names that only look like roots (in strings, or as other fields), but never misses one that is read.
    """
    if "//" in source:  # a comment may hide the end of a path
        return {root: {} for root in ROOTS}
    mentioned: _Fields = {}
    whole: list[_Fields] = []
    for found in _PATH.finditer(source):
        fields = mentioned.setdefault(found[1], {})
        for name in found[2].split(".")[1:]:
            fields = fields.setdefault(name.strip(), {})
        whole.append(fields)
    for fields in whole:
        fields.clear()
    return mentioned


def _mentions(source: str) -> Iterator[tuple[tuple[str, ...], int]]:
    for found in _PATH.finditer(source):
        yield (found[1], *(name.strip() for name in found[2].split(".")[1:])), found.end()


def _projected(value: Any, fields: _Fields, depth: int) -> Any:
    """The mentioned part of a value, in types of the evaluator."""
    if not fields or not isinstance(value, Mapping):
        return _plain(value, depth)
    return {name: _projected(value[name], inner, depth + 1) for name, inner in fields.items() if name in value}


def _plain(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is str or kind is bool or kind is float or value is None or kind is bytes:
        return value
    if isinstance(value, int):
        return int(value) if _INT64_MIN <= value <= _UINT64_MAX else _as_float(value)
    if isinstance(value, (str, float)):
        return str.__str__(value) if isinstance(value, str) else float(value)
    if depth >= _MAX_DEPTH:
        raise _Unfit(f"the data is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    raise _Unfit(f"the data holds a {kind.__name__}, which is not JSON")


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _shown(source: str) -> str:
    return repr(source) if len(source) <= 200 else f"{source[:200]!r}..."


def _fault(error: Exception) -> str:
    """The compiler's messages on one line, each with its position as line:column."""
    if not isinstance(error, RuntimeError):
        return "it holds characters that are not text"
    faults = re.findall(r"ERROR: <input>:(-?\d+:-?\d+): (.*)", str(error))
    if not faults:
        return re.sub(r"^[A-Z_]+: | \[[A-Z_]+\]$", "", str(error))[:300]
    reasons = (reason if position.startswith("-") else f"{reason} (at {position})" for position, reason in faults)
    return "; ".join(reasons)[:600].replace(" [INVALID_ARGUMENT]", "").replace(" (in container '')", "")
