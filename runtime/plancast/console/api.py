"""Assembles the HTTP API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from plancast.app import App
from plancast.console.a2a_server.endpoint import CARD, A2aEndpoint
from plancast.console.agui_server.endpoint import AguiEndpoint
from plancast.console.mcp_server.endpoint import McpEndpoint
from plancast.console.routes import (
    api_docs,
    approvals,
    audit,
    dead_letters,
    deployment,
    effects,
    event_streams,
    health,
    plan_actions,
    plans,
    replay,
    schedules,
    usage,
)
from plancast.console.routes.plan_details import PlanDetails
from plancast.console.routes.signed import hooks, links
from plancast.console.service import auth, errors, limits
from plancast.console.service.auth import Guard, Keyring
from plancast.console.service.backend import Actors, Backend
from plancast.console.service.hook_receiver import HookReceiver
from plancast.settings import Settings
from plancast_bus.ports.bus import Bus

MOST_REQUESTS = 256
"""Maximum number of concurrent requests besides streams and long polls."""
STATIC = Path(__file__).parent / "static"
DESCRIPTION = "Submit goals, follow and control plans, and inspect the deployment."
POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'self'; object-src 'none'"
)
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", POLICY.encode()),
)
# Streams come first: in `/plans/stream`, `stream` is not a plan id.
_MODULES = (
    auth,
    event_streams,
    plans,
    plan_actions,
    replay,
    approvals,
    effects,
    dead_letters,
    schedules,
    deployment,
    usage,
    audit,
)
_LOOKING = {
    f"/api/v1{route.path}"
    for module in _MODULES
    for route in module.routes.routes
    if isinstance(route, APIRoute) and limits.Looking in route.dependencies
}
"""Routes that search all plans."""
_PROBLEM: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "An error.",
        "content": {errors.CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}


def create_api(
    bus: Bus,
    settings: Settings,
    *,
    actors: Actors | None = None,
    static: Path = STATIC,
    own_token: str = "",
    hooked: App | None = None,
) -> FastAPI:
    """Create the HTTP API of a deployment, with the console's pages at ``/``.

    Args:
        bus: Connection to the deployment; its creator closes it.
        settings: Settings of the deployment; ``settings.console`` has the tokens of the API's users.
        actors: Queries the actors on Ray; without it, only NATS is queried.
        static: Folder of the pages.
        own_token: Token when the settings have none; a random one when empty.
        hooked: The app whose webhooks are taken; None takes none.
    """
    backend = Backend(bus, settings, actors)
    keyring = Keyring(settings.console.tokens, own_token)
    max_bytes = 2 * settings.bus.max_event_bytes  # JSON may be twice as long as the event
    mcp, a2a = McpEndpoint(backend, max_bytes), A2aEndpoint(backend, own_user=keyring.own_token != "")

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await backend.start()
        a2a.start()
        try:
            yield
        finally:
            await a2a.stop()
            await backend.stop()
            await mcp.stop()

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
    app.state.details = PlanDetails(bus.checkpoints)
    app.state.hooks = HookReceiver(hooked)
    errors.install(app)
    v1 = APIRouter(prefix="/api/v1")
    for module in _MODULES:
        v1.include_router(module.routes)
    app.include_router(health.routes)
    app.include_router(hooks.routes)
    app.include_router(links.routes)
    app.include_router(v1)
    app.include_router(api_docs.routes)
    app.router.routes.append(Route(auth.MCP, mcp))
    app.router.routes += [Route(auth.A2A, a2a.answer, methods=["POST"]), Route(CARD, a2a.card, methods=["GET"])]
    app.router.routes.append(Route(auth.AGUI, AguiEndpoint(backend)))
    if static.is_dir():
        app.mount("/", Pages(directory=static, html=True))
    most = settings.console.max_streams + MOST_REQUESTS
    app.add_middleware(Guard, keyring=keyring, max_bytes=max_bytes, most=most)
    app.add_middleware(SlashesInIds)
    app.add_middleware(Headers)
    _describe(app)
    return app


def _problem(status: int) -> dict[str, Any]:
    """Return the response of a status of an error."""
    return {**_PROBLEM["default"], "description": errors.MEANING[status]}


def _refusals(path: str, method: str, operation: dict[str, Any]) -> Iterator[int]:
    """Yield the statuses with which a route refuses a request; each may answer 403, 413, 500 and 503 too."""
    names = {each["name"] for each in operation.get("parameters", ())}
    if not auth.is_public(path) or (path.endswith("/session") and method != "delete"):
        yield 401
    if "{" in path:
        yield 404
    if method == "post" and ("/plans" in path or path.endswith("/schedules")):
        yield 409
    if names or "requestBody" in operation:
        yield 422
    if "streams" in operation["tags"] or "wait" in names or (method == "get" and path in _LOOKING):
        yield 429


def _describe(app: FastAPI) -> None:
    """Add problem details and token authentication to the schema."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = make()
            components = schema.setdefault("components", {})
            problem = errors.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            components["schemas"] |= {**problem.pop("$defs", {}), "Problem": problem}
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"token": []}]
            for path, operations in schema["paths"].items():
                for method, operation in operations.items():
                    refused = _refusals(path, method, operation)
                    operation["responses"] |= {str(each): _problem(each) for each in refused}
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]


class Pages(StaticFiles):
    """The console's static files."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Serve a file that browsers revalidate with each use."""
        response = await super().get_response(path, scope)
        response.headers.setdefault("Cache-Control", "no-cache")
        return response


class Headers:
    """Adds security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                there = {name.lower() for name, _ in message.get("headers", ())}
                more = [each for each in _HEADERS if each[0] not in there]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


class SlashesInIds:
    """Supports slashes in plan ids: ``%2F`` in a path is not a separator."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path") or b""
        if scope["type"] == "http" and b"%2f" in raw.lower():
            parts = raw.split(b"?")[0].decode("latin-1").split("/")
            scope = {**scope, "path": "/".join(unquote(part).replace("/", plans.SLASH) for part in parts)}
        await self._app(scope, receive, send)
