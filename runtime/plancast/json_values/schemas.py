"""Untrusted JSON Schemas: checked at registration, applied within a budget, and nothing is fetched.

All validation against a JSON Schema goes through this module.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import cache
from itertools import islice
from typing import Any, Final

from pydantic import BaseModel

from plancast.errors import InvalidApp
from plancast.json_values.limits import at, freeze, shown_json
from plancast.json_values.normalize import plain
from plancast.json_values.schema_rules import (
    BUDGET,
    MAX_COST,
    REFERENCES,
    Budget,
    OverBudget,
    TooDeep,
    bounded,
    check_expression,
)

Schema = Mapping[str, Any] | type[BaseModel]
"""A JSON Schema, or a pydantic model, which stands for its schema."""

MAX_SCHEMA_BYTES: Final = 64 * 1024
"""Largest schema, in bytes of JSON. It may be nested as deeply as data, see `plain.MAX_DEPTH`."""
MAX_SCHEMA_PARTS: Final = 2_000
"""Lists and objects in a schema."""
_CHECK_COST: Final = 2 * MAX_COST
_MAX_FAULTS: Final = 20
_MAX_FAULT: Final = 1_000


# Registration.


def checked_schema(schema: Schema | None, where: str) -> dict[str, Any] | None:
    """Check a schema, and return it as a read-only dict.

    Args:
        schema: A JSON Schema, a pydantic model, or None.
        where: The owner of the schema, for the error.

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
        return f"$schema: got {shown_json(schema['$schema'])}, which is not known here; leave it out for draft 2020-12"
    parts = list(islice(_parts(schema, ""), MAX_SCHEMA_PARTS + 1))
    if len(parts) > MAX_SCHEMA_PARTS:
        return f"it has more than {MAX_SCHEMA_PARTS} lists and objects"
    if fault := next(_foreign(parts), None):
        return fault
    with Budget(_CHECK_COST):
        try:
            for error in _metaschema(kind).iter_errors(schema):
                return f"{_path(error.absolute_path) or 'it'}: {_cut(str(error.cause or error.message))}"
        except OverBudget:
            return "checking it takes too many steps: it has too many subschemas"
        except TooDeep:
            return "it is nested too deeply"
    return next(_dangling(kind, schema, parts), None)


def _kind_of(schema: Mapping[str, Any]) -> Any:
    """The validator of the schema's draft, made linear; None when the draft is not known."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    if "$schema" not in schema:
        return bounded(Draft202012Validator)
    dialect = schema["$schema"]
    kind = validator_for({"$schema": dialect}, default=None) if isinstance(dialect, str) else None
    return None if kind is None else bounded(kind)


def _parts(schema: Any, path: str) -> Iterator[tuple[str, Any]]:
    """All lists and objects of a schema, itself first, each with its path."""
    if isinstance(schema, (Mapping, list)):
        yield path, schema
        for step, inner in schema.items() if isinstance(schema, Mapping) else enumerate(schema):
            yield from _parts(inner, at(path, step))


def _foreign(parts: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """Faults: references to other documents, and inner identifiers, which would change what references mean."""
    for path, part in parts:
        if not isinstance(part, Mapping):
            continue
        for name in REFERENCES:
            target = part.get(name)
            if isinstance(target, str) and not target.startswith("#"):
                yield (
                    f"{at(path, name)}: it refers to {shown_json(target)}, "
                    "and only references within the schema (#/...) are followed"
                )
        for name in ("$id", "$schema"):
            if path and isinstance(part.get(name), str):
                yield f"{at(path, name)}: got {shown_json(part[name])}, allowed: only at the top of a schema"


def _dangling(kind: Any, schema: Mapping[str, Any], parts: Iterable[tuple[str, Any]]) -> Iterator[str]:
    resolver = _resolver_of(kind, schema)
    for path, part in parts:
        for name in REFERENCES:
            target = part.get(name) if isinstance(part, Mapping) else None
            if isinstance(target, str):
                try:
                    resolver.lookup(target)
                except Exception:  # also where a name is used as the index of a list
                    yield f"{at(path, name)}: there is no {shown_json(target)} in it"


@cache
def _metaschema(kind: Any) -> Any:
    """The validator of a draft's schemas."""
    from jsonschema import FormatChecker
    from jsonschema_specifications import REGISTRY

    checker = FormatChecker(formats=())
    checker.checks("regex", raises=ValueError)(check_expression)
    with Budget():
        resolver = REGISTRY.resolver(_resource(kind, kind.META_SCHEMA).id() or "")
        return kind(kind.META_SCHEMA, format_checker=checker, _resolver=resolver)


# Validation.


def schema_faults(schema: Mapping[str, Any], data: Any) -> list[str]:
    """Validate data against a JSON Schema (2020-12 unless it names another draft); returns at most 20 faults.

    Each fault names the path in the data, what was got and what is allowed. A schema that cannot be applied is a
    fault too, and so is one that would cost more than ``MAX_COST`` on these data, or more than is left of a `Budget`
    around the call. `format` is not checked.
    """
    kind = _kind_of(schema)
    if kind is None:
        return [f"the schema cannot be applied: $schema {shown_json(schema['$schema'])} is not known here"]
    faults: dict[str, None] = {}
    try:
        with nullcontext() if BUDGET.get(None) else Budget():
            for error in kind(schema, _resolver=_resolver_of(kind, schema)).iter_errors(data):
                faults[_data_fault(error)[:_MAX_FAULT]] = None
                if len(faults) > _MAX_FAULTS:
                    return [*list(faults)[:_MAX_FAULTS], "and more"]
    except OverBudget:
        return ["the schema cannot be applied: on data of this size it takes too many steps; send less, or simplify it"]
    except TooDeep:
        return ["the schema cannot be applied: its references go in circles, or nest too deeply on these data"]
    except Exception as error:  # unknown types, patterns that do not compile, references to nowhere
        return [f"the schema cannot be applied: {type(error).__name__}: {_cut(str(error))}"]
    return list(faults)


def faults_at(where: str, schema: Mapping[str, Any] | None, data: Any) -> list[str]:
    """Validate as `schema_faults`, with ``where`` as the root of paths; without a schema there are no faults."""
    return [_placed(where, fault) for fault in schema_faults(schema, data)] if schema is not None else []


def _placed(where: str, fault: str) -> str:
    if fault.startswith("the data:"):
        return f"{where}{fault.removeprefix('the data')}"
    return f"{where}: {fault}" if fault.startswith(("the schema ", "and more", "[")) else f"{where}.{fault}"


def _resolver_of(kind: Any, schema: Mapping[str, Any]) -> Any:
    """A resolver of references within the schema; it retrieves nothing."""
    from referencing import Registry

    resource = _resource(kind, schema)
    uri = resource.id() or ""
    # Crawled once: otherwise each look-up of an anchor crawls all of it.
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
        return f"{path}: got {shown_json(got)}, allowed: one of {_cut(json.dumps(plain(wanted)))}"
    if kind == "required":
        missing = ", ".join(name for name in wanted if name not in got)
        return f"{path}: got no {_cut(missing)}, allowed: an object that has it; it is required"
    if kind == "additionalProperties" and wanted is False and "patternProperties" not in error.schema:
        known = list(error.schema.get("properties", {}))
        unknown = ", ".join(shown_json(name) for name in list(got)[:64] if name not in known)
        return f"{path}: got unknown keys: {_cut(unknown)}, allowed: {_cut(', '.join(known)) or 'none'}"
    if kind == "type":
        return f"{path}: got {shown_json(got)}, allowed: {wanted if isinstance(wanted, str) else ' or '.join(wanted)}"
    if kind in ("enum", "const"):
        values = wanted if kind == "enum" else [wanted]
        return f"{path}: got {shown_json(got)}, allowed: {_cut(', '.join(map(shown_json, values)))}"
    if kind is None:
        return f"{path}: got {shown_json(got)}, allowed: nothing"
    return f"{path}: got {shown_json(got)}, allowed: {kind} {shown_json(wanted)}"


def _path(steps: Iterable[Any]) -> str:
    path = ""
    for step in steps:
        path = at(path, step)
    return path


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 300 else f"{text[:297]}..."
