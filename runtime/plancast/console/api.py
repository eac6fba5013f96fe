"""The API, put together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter, FastAPI
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from plancast.console.routes import (
    api_docs,
    approvals,
    audit,
    dead_letters,
    deployment,
    event_streams,
    health,
    plan_actions,
    plans,
    replay,
    usage,
)
from plancast.console.service import auth, errors
from plancast.console.service.auth import Guard, Keyring
from plancast.console.service.backend import Actors, Backend
from plancast.settings import Settings
from plancast_bus.ports.bus import Bus

MOST_REQUESTS = 256
"""Requests to the API at a time, besides streams and long polls."""
STATIC = Path(__file__).parent / "static"
DESCRIPTION = "Submit goals, follow plans, answer what they wait for, and see what runs them."
POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'self'; object-src 'none'"
)
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", POLICY.encode()),
)
_PROBLEM: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "What went wrong.",
        "content": {errors.CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}


def create_api(
    bus: Bus, settings: Settings, *, actors: Actors | None = None, static: Path = STATIC, own_token: str = ""
) -> FastAPI:
    """The HTTP API over a deployment, with the console's pages at ``/``.

    Args:
        bus: The connection to the deployment; who made it closes it.
        settings: Of the deployment; ``settings.console`` says who may use the API.
        actors: Asks what runs in Ray; without it only what NATS knows is told.
        static: Folder of the pages.
        own_token: What is asked for when the settings have no tokens; a random one when it is empty.
    """
    backend = Backend(bus, settings, actors)
    keyring = Keyring(settings.console.tokens, own_token)
    max_bytes = 2 * settings.bus.max_event_bytes  # JSON may be twice as long as what is made of it

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await backend.start()
        try:
            yield
        finally:
            await backend.stop()

    app = FastAPI(
        title="plancast",
        version=version("plancast"),
        description=DESCRIPTION,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=_PROBLEM,
        separate_input_output_schemas=False,
    )
    app.state.backend, app.state.keyring = backend, keyring
    errors.install(app)
    v1 = APIRouter(prefix="/api/v1")
    # The streams first: `/plans/stream` is no plan's id.
    for module in (auth, event_streams, plans, plan_actions, replay, approvals, dead_letters, deployment, usage, audit):
        v1.include_router(module.routes)
    app.include_router(health.routes)
    app.include_router(v1)
    app.include_router(api_docs.routes)
    if static.is_dir():
        app.mount("/", Pages(directory=static, html=True))
    most = settings.console.max_streams + MOST_REQUESTS
    app.add_middleware(Guard, keyring=keyring, max_bytes=max_bytes, most=most)
    app.add_middleware(SlashesInIds)
    app.add_middleware(Headers)
    _describe(app)
    return app


def _describe(app: FastAPI) -> None:
    """Have the schema tell of problems, and of tokens."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = make()
            components = schema.setdefault("components", {})
            components["schemas"] |= errors.Problem.model_json_schema(ref_template="#/components/schemas/{model}").pop(
                "$defs", {}
            )
            described = errors.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            described.pop("$defs", None)
            components["schemas"]["Problem"] = described
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"token": []}]
            for operations in schema["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)  # it is a problem like others
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]


class Pages(StaticFiles):
    """The console's files; what is no file is the console itself, which has places of its own."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, always asked for anew whether it has changed."""
        response = await super().get_response(path, scope)
        response.headers.setdefault("Cache-Control", "no-cache")
        return response


class Headers:
    """Headers that keep browsers from doing what nobody means, on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                there = {name.lower() for name, _ in message.get("headers", ())}
                more = [each for each in _HEADERS if each[0] not in there]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


class SlashesInIds:
    """Lets ids of plans have slashes: ``%2F`` in a path does not divide it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        raw = scope.get("raw_path") or b""
        if scope["type"] == "http" and b"%2f" in raw.lower():
            parts = raw.split(b"?")[0].decode("latin-1").split("/")
            scope = {**scope, "path": "/".join(unquote(part).replace("/", plans.SLASH) for part in parts)}
        await self._app(scope, receive, send)
