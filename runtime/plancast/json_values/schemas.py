"""JSON Schemas that others wrote: checked when they are registered, applied within a budget, without fetching anything.

All validation against a JSON Schema goes through this module. `jsonschema` applies the keywords; those of its rules
that backtrack, or compare everything with everything, are replaced by linear ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from contextvars import ContextVar
from functools import cache
from itertools import islice
from typing import Any, Final

from pydantic import BaseModel

from plancast.errors import InvalidApp
from plancast.json_values.limits import at, freeze, shown
from plancast.json_values.normalize import plain
from plancast.json_values.regular_expressions import compile_expression

__all__ = ["MAX_COST", "MAX_SCHEMA_BYTES", "Budget", "Schema", "checked_schema", "schema_faults"]

Schema = Mapping[str, Any] | type[BaseModel]
"""A JSON Schema, or a pydantic model that stands for its own."""

MAX_SCHEMA_BYTES: Final = 64 * 1024
"""Largest schema, in bytes of JSON. It may be nested as deeply as data, see `plain.MAX_DEPTH`."""
MAX_SCHEMA_PARTS: Final = 2_000
"""Most lists and objects in a schema."""
MAX_COST: Final = 2_000_000
"""What applying a schema to data may cost: 24 of it for each subschema applied, 1 for each value."""
_SUBSCHEMA: Final = 24
_CHECK_COST: Final = 2 * MAX_COST
_MAX_NESTING: Final = 200  # keywords within each other: three Python frames each, of a thousand
_MAX_FAULTS: Final = 20
_MAX_FAULT: Final = 1_000
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


# Registration.


def checked_schema(schema: Schema | None, where: str) -> dict[str, Any] | None:
    """A schema as a read-only dict.

    Args:
        schema: A JSON Schema, a pydantic model, or None.
        where: What it is of, for the error.

    Raises:
        InvalidApp: it is no JSON Schema, is too large, refers to other documents, or holds a regular expression that
            does not run in linear time.
    """
    if schema is None:
        return None
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        schema = schema.model_json_schema()
    if not isinstance(schema, Mapping):
        raise InvalidApp(f"{where} is a JSON Schema (a dict) or a pydantic model, not a {type(schema).__name__}")
    try:
        frozen: dict[str, Any] = freeze(schema)
        size = len(json.dumps(plain(frozen)).encode())
    except (TypeError, ValueError) as error:
        raise InvalidApp(f"{where} is not JSON: {error}") from None
    if size > MAX_SCHEMA_BYTES:
        raise InvalidApp(f"{where} has {size} bytes of JSON, {MAX_SCHEMA_BYTES} at most are allowed")
    if fault := _schema_fault(frozen):
        raise InvalidApp(f"{where} is no JSON Schema: {fault}")
    return frozen


def _schema_fault(schema: Mapping[str, Any]) -> str | None:
    kind = _kind_of(schema)
    if kind is None:
        return f"$schema: got {shown(schema['$schema'])}, which is not known here; leave it out for draft 2020-12"
    parts = list(islice(_parts(schema, ""), MAX_SCHEMA_PARTS + 1))
    if len(parts) > MAX_SCHEMA_PARTS:
        return f"it has more than {MAX_SCHEMA_PARTS} lists and objects"
    if fault := next(_foreign(parts), None):
        return fault
    with Budget(_CHECK_COST):
        try:
            for error in _metaschema(kind).iter_errors(schema):
                return f"{_path(error.absolute_path) or 'it'}: {_cut(str(error.cause or error.message))}"
        except _OverBudget:
            return "checking it takes too many steps: it has too many subschemas"
        except _TooDeep:
            return "it is nested too deeply"
    return next(_dangling(kind, schema, parts), None)


def _kind_of(schema: Mapping[str, Any]) -> Any:
    """The validator of the schema's draft, made linear; None when the draft is not known."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    if "$schema" not in schema:
        return _bounded(Draft202012Validator)
    dialect = schema["$schema"]
    kind = validator_for({"$schema": dialect}, default=None) if isinstance(dialect, str) else None
    return None if kind is None else _bounded(kind)


def _parts(schema: Any, path: str) -> Iterator[tuple[str, Any]]:
    """All lists and objects of a schema, itself first, each with its path."""
    if isinstance(schema, (Mapping, list)):
        yield path, schema
        for step, inner in schema.items() if isinstance(schema, Mapping) else enumerate(schema):
            yield from _parts(inner, at(path, step))


def _foreign(parts: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """What refers to other documents, or has references within it lead to other places than they say."""
    for path, part in parts:
        if not isinstance(part, Mapping):
            continue
        for name in _REFERENCES:
            target = part.get(name)
            if isinstance(target, str) and not target.startswith("#"):
                yield (
                    f"{at(path, name)}: it refers to {shown(target)}, "
                    "and only references within the schema (#/...) are followed"
                )
        for name in ("$id", "$schema"):
            if path and isinstance(part.get(name), str):
                yield f"{at(path, name)}: got {shown(part[name])}, allowed: only at the top of a schema"


def _dangling(kind: Any, schema: Mapping[str, Any], parts: Iterable[tuple[str, Any]]) -> Iterator[str]:
    resolver = _resolver_of(kind, schema)
    for path, part in parts:
        for name in _REFERENCES:
            target = part.get(name) if isinstance(part, Mapping) else None
            if isinstance(target, str):
                try:
                    resolver.lookup(target)
                except Exception:  # also where a name is used as the index of a list
                    yield f"{at(path, name)}: there is no {shown(target)} in it"


def _is_expression(value: object) -> bool:
    if isinstance(value, str):
        _spend(2 * compile_expression(value).program_size)
    return True


@cache
def _metaschema(kind: Any) -> Any:
    """The validator of schemas of a draft."""
    from jsonschema import FormatChecker
    from jsonschema_specifications import REGISTRY

    checker = FormatChecker(formats=())
    checker.checks("regex", raises=ValueError)(_is_expression)
    with Budget():
        resolver = REGISTRY.resolver(_resource(kind, kind.META_SCHEMA).id() or "")
        return kind(kind.META_SCHEMA, format_checker=checker, _resolver=resolver)


# Validation.


def schema_faults(schema: Mapping[str, Any], data: Any) -> list[str]:
    """What is wrong with data by a JSON Schema (2020-12 unless it says otherwise); empty when nothing is.

    Each fault names the path in the data, what was got and what is allowed. A schema that cannot be applied is a
    fault too, and so is one that would take more than ``MAX_COST`` on these data, or than what is left of a `Budget`
    around the call. Nothing is fetched. `format` is not checked. At most 20 are listed.
    """
    kind = _kind_of(schema)
    if kind is None:
        return [f"the schema cannot be applied: $schema {shown(schema['$schema'])} is not known here"]
    faults: dict[str, None] = {}
    try:
        with nullcontext() if _BUDGET.get(None) else Budget():
            for error in kind(schema, _resolver=_resolver_of(kind, schema)).iter_errors(data):
                faults[_data_fault(error)[:_MAX_FAULT]] = None
                if len(faults) > _MAX_FAULTS:
                    return [*list(faults)[:_MAX_FAULTS], "and more"]
    except _OverBudget:
        return ["the schema cannot be applied: on data of this size it takes too many steps; send less, or simplify it"]
    except _TooDeep:
        return ["the schema cannot be applied: its references go in circles, or nest too deeply on these data"]
    except Exception as error:  # unknown types, patterns that do not compile, references to nowhere
        return [f"the schema cannot be applied: {type(error).__name__}: {_cut(str(error))}"]
    return list(faults)


def _resolver_of(kind: Any, schema: Mapping[str, Any]) -> Any:
    """What finds references within a schema, and nothing else: this registry retrieves nothing."""
    from referencing import Registry

    resource = _resource(kind, schema)
    uri = resource.id() or ""
    # Read through once: otherwise each look-up of an anchor reads through all of it.
    return Registry().with_resource(uri, resource).crawl().resolver(uri)


def _resource(kind: Any, schema: Mapping[str, Any]) -> Any:
    from referencing.jsonschema import specification_with

    return specification_with(kind.META_SCHEMA["$schema"]).create_resource(schema)


def _data_fault(error: Any) -> str:
    kind, wanted, got = error.validator, error.validator_value, error.instance
    path = _path(error.absolute_path) or "the data"
    if kind in ("anyOf", "oneOf"):
        from jsonschema.exceptions import best_match

        closest = best_match([error])
        if closest is not error:
            return _data_fault(closest)
        return f"{path}: got {shown(got)}, allowed: one of {_cut(json.dumps(plain(wanted)))}"
    if kind == "required":
        missing = ", ".join(name for name in wanted if name not in got)
        return f"{path}: got no {_cut(missing)}, allowed: an object that has it; it is required"
    if kind == "additionalProperties" and wanted is False and "patternProperties" not in error.schema:
        known = list(error.schema.get("properties", {}))
        unknown = ", ".join(shown(name) for name in list(got)[:64] if name not in known)
        return f"{path}: got unknown keys: {_cut(unknown)}, allowed: {_cut(', '.join(known)) or 'none'}"
    if kind == "type":
        return f"{path}: got {shown(got)}, allowed: {wanted if isinstance(wanted, str) else ' or '.join(wanted)}"
    if kind in ("enum", "const"):
        values = wanted if kind == "enum" else [wanted]
        return f"{path}: got {shown(got)}, allowed: {_cut(', '.join(map(shown, values)))}"
    if kind is None:
        return f"{path}: got {shown(got)}, allowed: nothing"
    return f"{path}: got {shown(got)}, allowed: {kind} {shown(wanted)}"


def _path(steps: Iterable[Any]) -> str:
    path = ""
    for step in steps:
        path = at(path, step)
    return path


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 300 else f"{text[:297]}..."


# The budget.


class _OverBudget(Exception):
    """Raised when a validation has spent what it may cost."""


class _TooDeep(Exception):
    """Raised before the interpreter's own limit is reached, which the libraries below do not always survive."""


class _Nesting:
    """How many keywords are being applied within each other."""

    depth = 0

    def __enter__(self) -> None:
        if self.depth >= _MAX_NESTING:
            raise _TooDeep
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


class Budget:
    """What validation may cost in all within a ``with``. It is counted and not timed: same input, same outcome."""

    def __init__(self, left: int = MAX_COST) -> None:
        self.left = left
        self.nesting = _Nesting()

    def __enter__(self) -> None:
        self._token = _BUDGET.set(self)

    def __exit__(self, *_: object) -> None:
        _BUDGET.reset(self._token)


_BUDGET: ContextVar[Budget] = ContextVar("_BUDGET")


def _spend(cost: int) -> None:
    budget = _BUDGET.get()
    budget.left -= cost
    if budget.left < 0:
        raise _OverBudget


def _weight(value: Any) -> int:
    """The values within a value, long texts counting as several; never much more than what is left to spend."""
    weight, most, stack = 0, _BUDGET.get().left, [value]
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
def _bounded(kind: Any) -> Any:
    """A validator class of jsonschema with linear rules, each of which spends what it costs."""
    from jsonschema.validators import extend

    bounded = extend(kind, {name: _counted(name, _LINEAR.get(name, rule)) for name, rule in kind.VALIDATORS.items()})
    # jsonschema's own goes back to its own rules wherever a part of the schema says `$schema`.
    bounded.evolve = _evolved
    return bounded


def _evolved(validator: Any, **changes: Any) -> Any:
    _spend(_SUBSCHEMA)
    kept = {"format_checker": validator.format_checker, "_resolver": validator._resolver, "schema": validator.schema}
    return type(validator)(**{**kept, **changes})


def _counted(name: str, rule: _Rule) -> _Rule:
    compares = name in ("enum", "const")
    refers = name in _REFERENCES
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
        with _BUDGET.get().nesting:
            for error in rule(validator, value, instance, schema) or ():
                _spend(2)
                if not isinstance(error.validator, str):  # made by this rule, with a message of the whole of both
                    _spend(_weight(instance) + _weight(value))
                yield error

    return counted


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
    """The same for values that JSON Schema takes as equal: 1 and 1.0."""
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
    """The keys or indexes of an instance that a schema which it fits has something to say about."""
    if not isinstance(schema, dict):
        return set()
    _spend(_SUBSCHEMA + len(instance))
    with _BUDGET.get().nesting:
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
    for name in _REFERENCES:
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
"""Rules of jsonschema's that backtrack, or take quadratic time, done otherwise."""
