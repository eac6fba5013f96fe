"""Renders JSON Schemas as types, ``{query: string, limit?: integer (minimum 1)}``, in a third of their tokens."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from plancast.json_values.abbreviate import to_json

_NAME: Final = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
_REFERENCE: Final = re.compile(r"#/(?:\$defs|definitions)/(\w+)\Z", re.ASCII)
_RENDERED: Final = frozenset(
    {"type", "properties", "required", "items", "enum", "const", "anyOf", "oneOf", "$ref", "description"}
    | {"$defs", "definitions"}
)
_DROPPED: Final = frozenset({"title", "default", "discriminator", "examples", "$schema", "$id"})
_LIMITS: Final = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum", "exclusiveMinimum"})


def schema_text(schema: Any) -> str:
    """A schema as a type on one line, with its definitions behind it.

    No restriction is lost: keywords without a short form follow as JSON. Titles, defaults, and whether further
    properties are allowed are left out.
    """
    definitions = _definitions(schema) if isinstance(schema, Mapping) else {}
    if not all(map(_NAME.match, definitions)):
        return to_json(schema)
    rest = [f"{name} = {_type(each)}" for name, each in definitions.items()]
    return f"{_type(schema)} where {'; '.join(rest)}" if rest else _type(schema)


def type_lines(schema: Mapping[str, Any], name: str, hidden: Mapping[str, Collection[str]]) -> str:
    """A line for a schema and for each definition that it uses, with its description and without limits of size.

    Args:
        schema: The schema of an object.
        name: Its name.
        hidden: Properties that are left out, by the name of the definition; empty: of all.
    """
    known = _definitions(schema)
    lines: dict[str, str] = {}
    names = [name]
    for each in names:
        definition = schema if each == name else known[each]
        left_out = {*hidden.get(each, ()), *hidden.get("", ())}
        shown = {key: value for key, value in definition.items() if key != "description"}
        if "properties" in shown:
            shown["properties"] = {key: item for key, item in shown["properties"].items() if key not in left_out}
        text = _type(shown, _DROPPED | _LIMITS)
        about = definition.get("description") if each != name else ""
        lines[each] = f"{each} = {text}" + (f" // {about}" if about else "")
        names += [word for word in re.findall(r"\w+", text) if word in known and word not in names]
    return "\n".join(lines.values())


def _definitions(schema: Mapping[str, Any]) -> dict[str, Any]:
    parts = [schema.get(key) for key in ("definitions", "$defs")]
    return {name: each for part in parts if isinstance(part, Mapping) for name, each in part.items()}


def _type(schema: Any, dropped: frozenset[str] = _DROPPED) -> str:
    if not isinstance(schema, Mapping):
        return "any" if schema is True else to_json(schema)
    text = _base(schema, dropped)
    rest = {key: value for key, value in schema.items() if key not in _RENDERED | dropped}
    if isinstance(rest.get("additionalProperties"), bool):
        del rest["additionalProperties"]
    notes = ", ".join(f"{key if _NAME.match(key) else to_json(key)} {to_json(rest[key])}" for key in sorted(rest))
    return f"{text} ({notes})" if notes else text


def _base(schema: Mapping[str, Any], dropped: frozenset[str]) -> str:
    """The type without its further restrictions."""
    if "$ref" in schema:
        reference = _REFERENCE.match(str(schema["$ref"]))
        return reference[1] if reference else to_json({"$ref": schema["$ref"]})
    if "const" in schema:
        return to_json(schema["const"])
    if isinstance(schema.get("enum"), (list, tuple)):
        return " | ".join(map(to_json, schema["enum"]))
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), (list, tuple)):
            return " | ".join(_type(each, dropped) for each in schema[key])
    kind = schema.get("type")
    if isinstance(kind, (list, tuple)):
        return " | ".join(_base({**schema, "type": each}, dropped) for each in kind)
    if kind == "array" and "items" in schema:
        return f"[{_type(schema['items'], dropped)}]"
    if kind in ("object", None) and isinstance(schema.get("properties"), Mapping):
        required = schema.get("required") or ()
        parts = [_property(key, each, key in required, dropped) for key, each in schema["properties"].items()]
        return f"{{{', '.join(parts)}}}"
    return kind if isinstance(kind, str) and _NAME.match(kind) else "any"


def _property(name: str, schema: Any, required: bool, dropped: frozenset[str]) -> str:
    shown = name if _NAME.match(name) else to_json(name)
    about = schema.get("description") if isinstance(schema, Mapping) else None
    note = f" {to_json(str(about))}" if about else ""
    return f"{shown}{'' if required else '?'}: {_type(schema, dropped)}{note}"
