"""Writes docs/reference/http.md, the reference of the HTTP API, from the API's OpenAPI schema."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "http.md"
TOKEN = "a valid token"
PROBLEM = "application/problem+json"
SERVER = "localhost:7878"
HEAD = """\
# HTTP reference

<!-- Written by `python scripts/http_reference.py`; a test holds it current and sends every example. -->

Each route of the console's [HTTP API](../http-api.md), with what it takes and returns. Types are those of JSON; a
*time* is ISO 8601 with a zone, such as `2026-01-31T08:00:00Z`, and responses give it in UTC. Bodies are JSON objects
(`Content-Type: application/json`); an unknown field is refused. Examples take the token from `TOKEN`, the ids of a
plan, of a task and of a dead letter from `PLAN`, `TASK` and `LETTER`, the name of a schedule from `SCHEDULE`, and the
SHA-256 of large data from `VALUE`.

## Errors

Every error is a [`Problem`](#problem) with the content type `application/problem+json`. Each route lists those of its
own; any route may answer 403, 413, 500 and 503.

| status | meaning |
|---|---|
"""
PLACES = {"plan_id": "$PLAN", "number": "$LETTER", "task": "$TASK", "name": "$SCHEDULE", "sha256": "$VALUE"}
_LIMITS = {
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "maxItems": "at most {}",
}
_NAMES = {"string": "text", **{name: name for name in ("integer", "number", "boolean", "object", "null")}}


def openapi() -> dict[str, Any]:
    """Return the OpenAPI schema of the console's API."""
    from plancast import Settings
    from plancast.console.api import create_api
    from plancast_bus.memory.bus import MemoryBus

    return create_api(MemoryBus(), Settings()).openapi()


def page(schema: Mapping[str, Any]) -> str:
    """Render the page."""
    from plancast.console.service.errors import MEANING

    tags: dict[str, list[str]] = {}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            tags.setdefault(operation["tags"][0], []).append(_operation(method, path, operation, schema))
    parts = [HEAD + "\n".join(f"| {status} | {meaning} |" for status, meaning in MEANING.items())]
    for tag, routes in tags.items():
        parts += [f"## Routes of {tag.replace('-', ' ')}", *routes]
    parts += ["## Shapes", *(_shape(name, each) for name, each in sorted(schema["components"]["schemas"].items()))]
    return "\n\n".join(parts) + "\n"


def example(method: str, path: str, operation: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return a command that sends the request."""
    for name, variable in PLACES.items():
        path = path.replace(f"{{{name}}}", variable)
    options = {"delete": " -X DELETE"}.get(method, " -N" if "streams" in operation["tags"] else "")
    asked = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query" and each["required"]]
    query = f"?{'&'.join(f'{name}=1' for name in asked)}" if asked else ""
    words = [f"curl{options}", f"'{SERVER}{path}{query}'" if query and "$" not in path else f"{SERVER}{path}{query}"]
    if _right(path, method) == TOKEN:
        words.append('-H "Authorization: Bearer $TOKEN"')
    if (body := _body(operation)) is not None:
        (found,) = _resolved(body, schema).get("examples", [{}])
        words.append(f"-H 'Content-Type: application/json' \\\n    -d {shlex.quote(json.dumps(found))}")
    elif method == "post":
        words.append("-d ''")
    return " ".join(words)


def _operation(method: str, path: str, operation: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    parts = [f"### {operation['summary']}", f"`{method.upper()} {path}`", _prose(operation.get("description", ""))]
    parts.append(f"Rights: {_right(path, method)}.")
    if parameters := operation.get("parameters"):
        rows = [_row(f"`{each['name']}` | {each['in']}", each, required=each["required"]) for each in parameters]
        parts.append("\n".join(["| parameter | in | type | |", "|---|---|---|---|", *rows]))
    if (body := _body(operation)) is not None:
        parts.append(f"Body: {_type(body)}")
    answers = [f"{status} {kind}" for status, kind in _answers(operation)]
    refused = ", ".join(sorted({*operation["responses"]} - {status for status, _ in _answers(operation)} - {"default"}))
    parts.append(f"Returns: {'; '.join(answers)}. Errors: {refused or 'none of its own'}.")
    parts.append(f"```sh\n{example(method, path, operation, schema)}\n```")
    return "\n\n".join(filter(None, parts))


def _right(path: str, method: str) -> str:
    from plancast.console.service.auth import is_public

    if path.endswith("/session") and method == "post":
        return "the token in the body"
    return TOKEN if not is_public(path) or (path.endswith("/session") and method == "get") else "none"


def _answers(operation: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for status, response in operation["responses"].items():
        content = response.get("content", {})
        if PROBLEM in content:
            continue
        if stream := content.get("text/event-stream"):
            names = stream["schema"]["properties"]["event"]["enum"]
            yield status, f"server-sent events {', '.join(f'`{name}`' for name in names)}, each with JSON as data"
        else:
            yield status, ", ".join(_type(each["schema"]) for each in content.values()) or "without a body"


def _body(operation: Mapping[str, Any]) -> dict[str, Any] | None:
    return next((each["schema"] for each in operation.get("requestBody", {}).get("content", {}).values()), None)


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    return dict(root["components"]["schemas"][schema["$ref"].rpartition("/")[2]])


def _shape(name: str, schema: Mapping[str, Any]) -> str:
    parts = [f"### {name}", _prose(schema.get("description", ""))]
    if fields := schema.get("properties"):
        needed = schema.get("required", ())
        rows = [
            _row(f"`{field}`", {"schema": each, **each}, required=field in needed) for field, each in fields.items()
        ]
        parts.append("\n".join(["| field | type | |", "|---|---|---|", *rows]))
    elif "enum" in schema:
        parts.append(_type(schema) + ".")
    if schema.get("additionalProperties") is True:
        parts.append("Further fields may be there.")
    return "\n\n".join(filter(None, parts))


def _row(name: str, each: Mapping[str, Any], *, required: bool) -> str:
    default = each["schema"].get("default")
    kind = _type(each["schema"]) + (", required" if required else "")
    if not required and default not in (None, ""):
        kind += f", default `{json.dumps(default)}`"
    return f"| {name} | {_cell(kind)} | {_cell(_prose(each.get('description', '')))} |"


def _type(schema: Mapping[str, Any]) -> str:
    """Return the type in a few words, with a link to a named shape."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[`{name}`](#{name.lower()})"
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[key]))
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    limits = [text.format(f"{schema[key]:.15g}") for key, text in _LIMITS.items() if key in schema]
    if schema.get("type") == "array":
        kind = f"list of {_type(schema.get('items') or {})}"
    elif "additionalProperties" in schema and isinstance(schema["additionalProperties"], dict):
        kind = f"object of {_type(schema['additionalProperties'])} by name"
    elif schema.get("format") == "date-time":
        kind = "time"
    else:
        kind = _NAMES.get(str(schema.get("type")), "any JSON")
    return ", ".join([kind, *limits])


def _prose(text: str) -> str:
    return text.replace("``", "`").strip()


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    PAGE.write_text(page(openapi()), encoding="utf-8")
