"""Keywords of JSON Schema within a budget.

`jsonschema` applies the keywords; those of its rules that backtrack, or compare everything with everything, are
replaced by linear ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any, Final

from plancast.json_values.regular_expressions import compile_expression

MAX_COST: Final = 2_000_000
"""Budget of a validation: 24 for each subschema that is applied, 1 for each value."""
REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_SUBSCHEMA: Final = 24
_MAX_NESTING: Final = 200  # keywords within each other: three Python frames each, of a thousand


class OverBudget(Exception):
    """Raised when a validation has exhausted its budget."""


class TooDeep(Exception):
    """Raised before the interpreter's recursion limit is reached, which the libraries below do not always survive."""


class _Nesting:
    """Depth of the keywords that are being applied within each other."""

    depth = 0

    def __enter__(self) -> None:
        if self.depth >= _MAX_NESTING:
            raise TooDeep
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


class Budget:
    """The budget of all validations within a ``with``. It is counted and not timed: same input, same outcome."""

    def __init__(self, left: int = MAX_COST) -> None:
        self.left = left
        self.nesting = _Nesting()

    def __enter__(self) -> None:
        self._token = BUDGET.set(self)

    def __exit__(self, *_: object) -> None:
        BUDGET.reset(self._token)


BUDGET: ContextVar[Budget] = ContextVar("BUDGET")


def _spend(cost: int) -> None:
    budget = BUDGET.get()
    budget.left -= cost
    if budget.left < 0:
        raise OverBudget


def _weight(value: Any) -> int:
    """Number of values within a value, long texts counting as several; never much more than the budget left."""
    weight, most, stack = 0, BUDGET.get().left, [value]
    while stack and weight <= most:
        each = stack.pop()
        weight += 1
        if isinstance(each, str):
            weight += len(each) >> 6
        elif isinstance(each, Mapping):
            weight += len(each)
            stack.extend(each.values())
        elif isinstance(each, list):
            stack.extend(each)
    return weight


# Keywords: as in jsonschema, generators of errors from a validator, the keyword's value, an instance and the schema.

_Rule = Callable[[Any, Any, Any, Any], Iterable[Any] | None]


@cache
def bounded(kind: Any) -> Any:
    """A validator class of jsonschema with linear rules, each of which spends its cost."""
    from jsonschema.validators import extend

    made = extend(kind, {name: _counted(name, _LINEAR.get(name, rule)) for name, rule in kind.VALIDATORS.items()})
    # jsonschema's own goes back to its own rules wherever a part of the schema says `$schema`.
    made.evolve = _evolved
    return made


def _evolved(validator: Any, **changes: Any) -> Any:
    _spend(_SUBSCHEMA)
    kept = {"format_checker": validator.format_checker, "_resolver": validator._resolver, "schema": validator.schema}
    return type(validator)(**{**kept, **changes})


def _counted(name: str, rule: _Rule) -> _Rule:
    compares = name in ("enum", "const")
    refers = name in REFERENCES
    ours = name in _LINEAR

    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        holds_many = isinstance(instance, (dict, list))
        inner = value if isinstance(value, (list, str)) else value.values() if isinstance(value, dict) else ()
        _spend(_SUBSCHEMA // 2 + (len(inner) * 4 if refers else len(inner) // 4) + (len(instance) if holds_many else 0))
        if compares and holds_many:
            _spend(_weight(value))
        # jsonschema makes a message of the whole instance wherever a subschema is `false`, also to drop it.
        if not ours and (value is False or any(each is False for each in inner)):
            _spend(_weight(instance) * max(1, sum(each is False for each in inner)))
        with BUDGET.get().nesting:
            for error in rule(validator, value, instance, schema) or ():
                _spend(2)
                if not isinstance(error.validator, str):  # made by this rule, with a message of the whole of both
                    _spend(_weight(instance) + _weight(value))
                yield error

    return counted


def check_expression(value: object) -> bool:
    """A format checker for regular expressions. Raises ValueError for one that RE2 does not run."""
    if isinstance(value, str):
        _spend(2 * compile_expression(value).program_size)
    return True


def _found(pattern: str, text: str) -> bool:
    expression = compile_expression(pattern)
    _spend(4 + expression.program_size // 8 + len(text) * expression.program_size // 50)
    return expression.found_in(text)


def _error(message: str) -> Any:
    from jsonschema import ValidationError

    return ValidationError(message)


def _pattern(_: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, str) and not _found(pattern, instance):
        yield _error("does not match")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, dict):
        for pattern, subschema in patterns.items():
            for key in filter(lambda key: _found(pattern, key), instance):
                yield from validator.descend(instance[key], subschema, path=key, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", ())
    extras = [key for key in instance if key not in known and not any(_found(each, key) for each in patterns)]
    if allowed is False:
        if extras:
            yield _error("has unknown keys")
        return
    for key in extras:
        yield from validator.descend(instance[key], allowed, path=key)


def _unique_items(_: Any, wanted: bool, instance: Any, schema: Any) -> Iterator[Any]:
    if wanted and isinstance(instance, list):
        _spend(_weight(instance))
        if len({json.dumps(_normal(each), sort_keys=True) for each in instance}) < len(instance):
            yield _error("has items that are equal")


def _normal(value: Any) -> Any:
    """Maps values that are equal in JSON Schema, such as 1 and 1.0, to the same value."""
    if isinstance(value, dict):
        return {key: _normal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_normal(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _unevaluated_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, dict):
        yield from _unevaluated(validator, allowed, instance, instance, schema)


def _unevaluated_items(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, list):
        yield from _unevaluated(validator, allowed, instance, range(len(instance)), schema)


def _unevaluated(validator: Any, allowed: Any, instance: Any, steps: Iterable[Any], schema: Any) -> Iterator[Any]:
    others = {name: each for name, each in schema.items() if not name.startswith("unevaluated")}
    seen = _evaluated(validator, instance, others)
    _spend(_weight(instance))
    for step in steps:
        if step not in seen:
            yield from validator.descend(instance[step], allowed, path=step)


def _evaluated(validator: Any, instance: Any, schema: Any) -> set[Any]:
    """The keys or indexes of an instance that are evaluated by a schema which it fits."""
    if not isinstance(schema, dict):
        return set()
    _spend(_SUBSCHEMA + len(instance))
    with BUDGET.get().nesting:
        return _evaluated_by_keywords(validator, instance, schema)


def _evaluated_by_keywords(validator: Any, instance: Any, schema: dict[str, Any]) -> set[Any]:
    def fits(subschema: Any, value: Any = instance) -> bool:
        return next(iter(validator.descend(value, subschema)), None) is None

    seen: set[Any] = set()
    applied = [each for name in ("allOf", "anyOf", "oneOf") for each in schema.get(name, ()) if fits(each)]
    if "if" in schema:
        holds = fits(schema["if"])
        applied += [schema["if"], schema.get("then", True)] if holds else [schema.get("else", True)]
    if isinstance(instance, dict):
        seen |= instance.keys() & schema.get("properties", {}).keys()
        seen.update(key for key in instance if any(_found(each, key) for each in schema.get("patternProperties", ())))
        if "additionalProperties" in schema or "unevaluatedProperties" in schema:
            return set(instance)
        applied += [each for key, each in schema.get("dependentSchemas", {}).items() if key in instance]
    else:
        items, prefix = schema.get("items"), schema.get("prefixItems", ())
        seen.update(range(len(items if isinstance(items, list) else prefix)))
        others = "unevaluatedItems" in schema or ("additionalItems" in schema and isinstance(items, list))
        if others or ("items" in schema and not isinstance(items, list)):
            return set(range(len(instance)))
        if "contains" in schema and "prefixItems" in validator.VALIDATORS:  # only since draft 2020-12
            seen.update(index for index, each in enumerate(instance) if fits(schema["contains"], each))
    for each in applied:
        seen |= _evaluated(validator, instance, each)
    for name in REFERENCES:
        if name in schema:
            resolved = _lookup(validator, name, schema[name])
            referred = validator.evolve(schema=resolved.contents, _resolver=resolved.resolver)
            seen |= _evaluated(referred, instance, resolved.contents)
    return seen


def _lookup(validator: Any, name: str, target: str) -> Any:
    from referencing.jsonschema import lookup_recursive_ref

    resolver = validator._resolver
    return lookup_recursive_ref(resolver) if name == "$recursiveRef" else resolver.lookup(target)


_LINEAR: Final[dict[str, _Rule]] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
    "unevaluatedItems": _unevaluated_items,
    "unevaluatedProperties": _unevaluated_properties,
}
"""Linear replacements for rules of jsonschema that backtrack or take quadratic time."""
