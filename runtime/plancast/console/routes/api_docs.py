"""Documentation page of the API: its schema as HTML, without external resources, and a form for each request."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1.5rem; }
h2 { border-bottom: 1px solid var(--line); margin-top: 2.5rem; }
code, pre { font: 13px/1.5 ui-monospace, monospace; }
pre { background: var(--soft); padding: .75rem; overflow-x: auto; border-radius: 4px; }
details { border: 1px solid var(--line); border-radius: 4px; margin: .4rem 0; padding: .4rem .75rem; }
summary { cursor: pointer; }
summary b { display: inline-block; min-width: 4.5rem; }
summary span { opacity: .75; }
table { border-collapse: collapse; width: 100%; }
form { border-top: 1px solid var(--line); margin-top: .75rem; }
form label { display: grid; grid-template-columns: 12rem minmax(0, 1fr); gap: .6rem; margin: .3rem 0; }
form pre { max-height: 30rem; overflow: auto; }
input, textarea, button { font: inherit; padding: .25rem .5rem; min-width: 0; }
textarea { font: 13px/1.5 ui-monospace, monospace; }
code { overflow-wrap: anywhere; }
@media (max-width: 40rem) { body { padding: .75rem; } form label { grid-template-columns: minmax(0, 1fr); gap: 0; }
  table, tbody, tr, td { display: block; } tr:first-child { display: none; } td { border: 0; padding: 0; } }
td, th { text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0; border-bottom: 1px solid var(--soft); }
"""
routes = APIRouter(include_in_schema=False)


@routes.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """Serve the documentation."""
    return HTMLResponse(render(request.app.openapi()))


def render(schema: Mapping[str, Any]) -> str:
    """Render an OpenAPI schema as HTML."""
    info = schema["info"]
    return "".join(
        [
            f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])} API</title>",
            f"<meta name=viewport content='width=device-width'><style>{STYLE}</style>",
            "<script type=module src=/js/api_docs.js></script>",
            f"<h1>{escape(info['title'])} API {escape(info['version'])}</h1>",
            f"<p>{escape(info.get('description', ''))} <a href=/api/v1/openapi.json>OpenAPI schema</a></p>",
            "<p>Requests that are sent from this page use the session of the <a href=/>console</a>.</p>",
            *_operations(schema),
            "<h2>Schemas</h2>",
            *(_schema(name, each) for name, each in sorted(schema["components"]["schemas"].items())),
            "</html>",
        ]
    )


def _operations(schema: Mapping[str, Any]) -> Iterator[str]:
    tags: dict[str, list[str]] = {}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            tag = (operation.get("tags") or ["other"])[0]
            tags.setdefault(tag, []).append(_operation(method, path, operation))
    for tag, rendered in tags.items():
        yield f"<h2>{escape(tag.capitalize())}</h2>"
        yield from rendered


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    head = f"<b>{method.upper()}</b> <code>{escape(path)}</code> <span>{escape(operation.get('summary', ''))}</span>"
    parts = [f"<p>{_prose(operation.get('description', ''))}</p>"]
    if parameters := operation.get("parameters"):
        parts.append("<table><tr><th>parameter<th>in<th>type<th>meaning</tr>")
        for each in parameters:
            required = " (required)" if each.get("required") else ""
            parts.append(
                f"<tr><td><code>{escape(each['name'])}</code>{required}<td>{escape(each['in'])}"
                f"<td>{_type(each['schema'])}<td>{_prose(each.get('description', ''))}</tr>"
            )
        parts.append("</table>")
    for content in (operation.get("requestBody") or {}).get("content", {}).values():
        parts.append(f"<p>Body: {_type(content.get('schema') or {})}</p>")
    for status, response in operation["responses"].items():
        kinds = [
            f"{escape(kind)} {_type(content.get('schema') or {})}"
            for kind, content in (response.get("content") or {}).items()
        ]
        parts.append(f"<p><code>{escape(status)}</code> {', '.join(kinds) or 'nothing'}</p>")
    place = f"data-method='{method}' data-path='{escape(path)}'"
    return f"<details {place}><summary>{head}</summary>{''.join(parts)}</details>"


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    rows = [
        f"<tr><td><code>{escape(field)}</code><td>{_type(each)}<td>{_prose(each.get('description', ''))}</tr>"
        for field, each in schema.get("properties", {}).items()
    ]
    body = f"<table>{''.join(rows)}</table>" if rows else f"<pre>{escape(json.dumps(schema, indent=2))}</pre>"
    return f"<details id='{escape(name)}'><summary><b>{escape(name)}</b></summary>{body}</details>"


def _prose(text: str) -> str:
    """Text of a docstring, whose code is between backticks."""
    return re.sub("`{1,2}([^`]+)`{1,2}", r"<code>\1</code>", escape(text))


def _type(schema: Mapping[str, Any]) -> str:
    """Short text for a type, with a link to a named schema."""
    if "$ref" in schema:
        name = escape(str(schema["$ref"]).rpartition("/")[2])
        return f"<a href='#{name}'>{name}</a>"
    for key, word in (("anyOf", " or "), ("oneOf", " or "), ("allOf", " and ")):
        if key in schema:
            return word.join(_type(each) for each in schema[key])
    if "enum" in schema:
        return " | ".join(f"<code>{escape(json.dumps(each))}</code>" for each in schema["enum"])
    if "const" in schema:
        return f"<code>{escape(json.dumps(schema['const']))}</code>"
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items') or {})}"
    return escape(str(schema.get("format") or schema.get("type") or "any JSON"))
