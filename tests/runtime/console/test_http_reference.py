"""The HTTP reference is the API's schema, its examples are accepted, and its errors are what routes answer."""

from __future__ import annotations

import importlib.util
import re
import shlex
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest
from tests.docs.blocks import ROOT, blocks_of
from tests.runtime.console.desk import Api, large_data, lost

pytestmark = pytest.mark.asyncio(loop_scope="session")


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("http_reference", ROOT / "scripts" / "http_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def requests() -> list[tuple[str, str, dict[str, str], str | None]]:
    """Method, path, headers and body of each example."""
    found = []
    for block in blocks_of(ROOT / "docs" / "reference" / "http.md"):
        words = shlex.split(block.text.replace("\\\n", " "))
        assert words[0] == "curl", block.place
        method, body, headers, address = "", None, {}, ""
        rest = iter(words[1:])
        for word in rest:
            if word == "-X":
                method = next(rest)
            elif word == "-H":
                name, _, value = next(rest).partition(": ")
                headers[name] = value
            elif word == "-d":
                body = next(rest)
            elif word != "-N":
                address = word
        path = address.removeprefix("localhost:7878")
        found.append((method or ("GET" if body is None else "POST"), path, headers, body))
    return found


def operations(schema: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(method.upper(), path): each for path, by in schema["paths"].items() for method, each in by.items()}


async def test_the_page_is_what_the_command_writes() -> None:
    module = generator()
    assert module.PAGE.read_text() == module.page(module.openapi()), "run python scripts/http_reference.py"


async def test_every_route_has_an_example_and_no_heading_is_there_twice() -> None:
    module = generator()
    known = operations(module.openapi())
    shown = {(method, re.sub(r"\?.*", "", path)) for method, path, _, _ in requests()}
    variables = {variable: f"{{{name}}}" for name, variable in module.PLACES.items()}
    shown = {(method, re.sub(r"\$[A-Z]+", lambda name: variables[name[0]], path)) for method, path in shown}
    assert shown == set(known)
    headings = re.findall(r"^#+ (.*)$", module.PAGE.read_text(), re.MULTILINE)
    assert len(headings) == len({heading.lower() for heading in headings})


async def test_numbers_of_a_unit_say_which() -> None:
    for name, shape in generator().openapi()["components"]["schemas"].items():
        for field, each in shape.get("properties", {}).items():
            if re.search(r"cost|bytes$|seconds|round_trip|deadline", field):
                assert re.search(r"bytes|dollars|seconds|minutes", each.get("description", ""), re.I), f"{name}.{field}"


async def test_every_example_is_accepted(api: Api) -> None:
    for method, path, headers, body in requests():
        plan = await (api.failed() if path.endswith(("/retry", "/stream")) else api.waiting())
        if path.endswith("/resume"):
            await api.post(f"/plans/{plan}/pause", {"reason": "wait"})
        if path.endswith("/api/v1/session") and method == "POST":
            body = str(body).replace("at least sixteen characters", token_of(api))
        if path == "/api/v1/plans/stream":
            async with api.events("/plans/stream"):
                continue
        if "$TASK" in path:
            plan, task = await api.unknown(uuid4().hex)
            path = path.replace("$TASK", task)
        path = path.replace("$PLAN", plan)
        if "$LETTER" in path:
            path = path.replace("$LETTER", str(await letter(api)))
        if "$SCHEDULE" in path:
            path = path.replace("$SCHEDULE", await api.schedule())
        if "$VALUE" in path:
            path = path.replace("$VALUE", await large_data(api, plan, {"text": "large"}))
        headers = {**headers, "Authorization": api.http.headers["Authorization"]}
        response = await api.http.request(method, path, headers=headers, content=body)
        assert response.status_code < 300, f"{method} {path}: {response.text}"


async def test_routes_refuse_as_the_reference_says(api: Api) -> None:
    known = operations(generator().openapi())
    for method, path, headers, body in requests():
        documented = known[
            method,
            re.sub(r"\?.*", "", path)
            .replace("$PLAN", "{plan_id}")
            .replace("$LETTER", "{number}")
            .replace("$TASK", "{task}")
            .replace("$SCHEDULE", "{name}")
            .replace("$VALUE", "{sha256}"),
        ]
        wanted = documented["responses"]
        if "Authorization" in headers:
            bare = await api.http.request(method, path, headers={"Authorization": "", **without(headers)}, content=body)
            assert (bare.status_code, "401" in wanted) == (401, True), path
        if "$" in path:
            unknown = path.replace("$PLAN", "nobody").replace("$TASK", "nobody:1-0").replace("$SCHEDULE", "nobody")
            unknown = unknown.replace("$LETTER", "999999999").replace("$VALUE", "ab" * 32)
            told = await api.http.request(method, unknown, headers=without(headers), content=body)
            assert (told.status_code, "404" in wanted) == (404, True), f"{method} {path}: {told.text}"
        if body not in (None, "") and "Authorization" in headers:
            odd = path.replace("$PLAN", "nobody").replace("$TASK", "nobody:1-0").replace("$SCHEDULE", "nobody")
            told = await api.http.request(method, odd, headers=without(headers), content='{"no such field": 1}')
            assert (told.status_code, "422" in wanted) == (422, True), f"{method} {path}: {told.text}"


def without(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name != "Authorization"}


def token_of(api: Api) -> str:
    return str(api.http.headers["Authorization"]).removeprefix("Bearer ")


async def letter(api: Api) -> int:
    """Number of a new dead letter that can be sent again."""
    await api.desk.bus.dead_letters.put(lost(api, b'{"broken": 1}'), "undecodable", "no event")
    return int((await api.get("/dead-letters", params={"limit": 500}))["items"][-1]["id"])
