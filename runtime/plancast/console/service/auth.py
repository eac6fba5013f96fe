"""Authentication: tokens, browser sessions, and protection against requests from other sites."""

from __future__ import annotations

import getpass
import hashlib
import hmac
import secrets
import time
from typing import Annotated
from urllib.parse import urlsplit

from cachetools import FIFOCache
from fastapi import APIRouter, Depends, Request, Response
from pydantic import SecretStr
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plancast.console.schemas.system import Login, Session
from plancast.console.service.errors import Refused, problem
from plancast.console.service.exposure import is_loopback

COOKIE = "plancast_session"
SESSION_SECONDS = 12 * 3600
MAX_SESSIONS = 1000
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
MCP, A2A, AGUI = "/mcp", "/a2a", "/agui"
"""Paths of the servers of MCP, A2A and AG-UI, which need a token as those under ``/api``."""
COUNTED = ("/api", A2A, AGUI)
"""Beginnings of paths whose requests in flight are limited together; MCP limits its sessions itself."""
PUBLIC = frozenset({"/api/v1/openapi.json", "/api/v1/session"})
"""Paths under ``/api`` that need no token."""
SELF_PROVING = ("/hooks/", "/links/")
"""Beginnings of paths whose requests prove themselves, by a signature or a link. They may come from any site, and name
this machine as they like."""


class Keyring:
    """Tokens and the sessions opened with them, which end with the process.

    Args:
        tokens: Tokens by user. Without any, there is one for the user of this process.
        own_token: That token; a random one when empty.
    """

    def __init__(self, tokens: dict[str, SecretStr], own_token: str = "") -> None:
        self.own_token = "" if tokens else own_token or secrets.token_urlsafe(32)
        """Token of the user of this process; empty when tokens are configured."""
        known = {name: token.get_secret_value() for name, token in tokens.items()}
        known |= {f"local:{_os_user()}": self.own_token} if self.own_token else {}
        self._digests = {name: _digest(token) for name, token in known.items()}
        self._sessions: FIFOCache[str, tuple[str, float]] = FIFOCache(MAX_SESSIONS)

    def owner(self, token: str) -> str | None:
        """User of a token; compares all tokens, each in constant time."""
        given, found = _digest(token), None
        for name, digest in self._digests.items():
            if hmac.compare_digest(given, digest):
                found = name
        return found

    def open(self, user: str, now: float) -> str:
        """Open a session and return its secret."""
        secret = secrets.token_urlsafe(32)
        self._sessions[secret] = (user, now + SESSION_SECONDS)
        return secret

    def close(self, secret: str) -> None:
        self._sessions.pop(secret, None)

    def user_of(self, connection: HTTPConnection, now: float) -> str | None:
        """User of a request; None when it is not authenticated."""
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        if scheme.casefold() == "bearer" and token:
            return self.owner(token.strip())
        user, until = self._sessions.get(connection.cookies.get(COOKIE, ""), ("", 0.0))
        return user if user and now < until else None


class Guard:
    """Middleware that authenticates, limits concurrent requests, and rejects cross-site writes."""

    def __init__(self, app: ASGIApp, keyring: Keyring, max_bytes: int, most: int) -> None:
        self._app = app
        self._keyring = keyring
        self._max_bytes = max_bytes
        self._most = most
        self._in_flight = 0
        """Number of counted requests in flight, streams included."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        refusal = self._refusal(connection, scope)
        if refusal is not None:
            headers = {401: {"WWW-Authenticate": 'Bearer realm="plancast"'}, 503: {"Retry-After": "1"}}.get(refusal[0])
            await problem(*refusal, headers=headers)(scope, receive, send)
            return
        counts = scope["path"].startswith(COUNTED)
        self._in_flight += counts
        try:
            await self._app(scope, self._bounded(receive), send)
        finally:
            self._in_flight -= counts

    def _bounded(self, receive: Receive) -> Receive:
        """Enforce the maximum size on a body without Content-Length."""
        read = 0

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._max_bytes:
                raise Refused(413, f"the body is too large: the maximum is {self._max_bytes} bytes")
            return message

        return bounded

    def _refusal(self, connection: HTTPConnection, scope: Scope) -> tuple[int, str] | None:
        path, user = scope["path"], self._keyring.user_of(connection, time.time())
        scope.setdefault("state", {})["user"] = user
        proves_itself, host = path.startswith(SELF_PROVING), _host_of(connection.headers.get("host", ""))
        if self._keyring.own_token and not proves_itself and not is_loopback(host):
            # DNS rebinding: a page of another site could point its own name to this machine.
            return 403, "without configured tokens, the console is available at localhost or 127.0.0.1 only"
        if scope["method"] not in SAFE and not proves_itself and not _same_site(connection):
            return 403, "cross-site requests may not change anything"
        if user is None and not is_public(path):
            return 401, "a token is required: Authorization: Bearer TOKEN, or log in"
        if path.startswith(COUNTED) and self._in_flight >= self._most:
            return 503, f"too many requests: {self._in_flight} are in flight"
        length = connection.headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and int(length) > self._max_bytes:
            return 413, f"the body is too large: {length} bytes, the maximum is {self._max_bytes}"
        return None


def is_public(path: str) -> bool:
    """Return whether a path needs no token."""
    return not path.startswith(("/api", MCP, A2A, AGUI)) or path in PUBLIC


def _same_site(connection: HTTPConnection) -> bool:
    origin = connection.headers.get("origin")
    if origin is None:
        return connection.headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    return urlsplit(origin).netloc.casefold() == connection.headers.get("host", "").casefold()


def _host_of(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def _os_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _user(request: Request) -> str:
    user: str | None = request.state.user
    if user is None:
        raise Refused(401, "a token is required: Authorization: Bearer TOKEN, or log in")
    return user


By = Annotated[str, Depends(_user)]
"""User of a request, as a route's argument."""
routes = APIRouter(tags=["session"])


@routes.get("/session", summary="Who I am")
async def get_session(by: By) -> Session:
    """The user of the token or session; 401 without one."""
    return Session(user=by, auth="token", writable=True)


@routes.post("/session", summary="Log in from a browser")
async def post_session(request: Request, response: Response, login: Login) -> Session:
    """Sets a session cookie for 12 hours, given a valid token."""
    keyring: Keyring = request.app.state.keyring
    user = keyring.owner(login.token)
    if user is None:
        raise Refused(401, "invalid token", headers={"WWW-Authenticate": 'Bearer realm="plancast"'})
    secret, secure = keyring.open(user, time.time()), request.url.scheme == "https"
    response.set_cookie(
        COOKIE, secret, max_age=SESSION_SECONDS, httponly=True, samesite="strict", secure=secure, path="/"
    )
    return Session(user=user, auth="token", writable=True)


@routes.delete("/session", status_code=204, summary="Log out")
async def delete_session(request: Request, response: Response) -> None:
    """Ends the cookie's session."""
    keyring: Keyring = request.app.state.keyring
    keyring.close(request.cookies.get(COOKIE, ""))
    response.delete_cookie(COOKIE, path="/")
