"""Error responses as problem details (RFC 9457)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from plancast.errors import (
    CannotReplay,
    ForeignPlan,
    GoalConflict,
    InvalidAnswer,
    InvalidGoal,
    InvalidSchedule,
    NotAwaited,
    PlanFinished,
    PlanNotFound,
    ScheduleExists,
    ScheduleNotFound,
    UnknownGoal,
    UnknownRevision,
)
from plancast_bus.errors import (
    AccessDenied,
    BusError,
    BusUnavailable,
    DeadLetterNotFound,
    InvalidEnvelope,
    InvalidSubject,
    PayloadTooLarge,
)

logger = logging.getLogger(__name__)
CONTENT_TYPE = "application/problem+json"


class Fault(BaseModel):
    """A fault of a request."""

    where: str
    """``body.data``, ``query.limit``."""
    what: str


class Problem(BaseModel):
    """Problem details, RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[Fault] = []


class Refused(Exception):
    """Raised when a request is refused; carries the status of the response."""

    def __init__(self, status: int, detail: str, *, headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.detail = detail
        self.headers = headers
        super().__init__(detail)


MEANING = {
    401: "No valid token.",
    403: "Not allowed: a write from another site, another name of the machine, or a right that NATS denies.",
    404: "Nothing with this id.",
    409: "The plan is in another state than this needs, or is another plan; or the schedule exists.",
    413: "The body is larger than twice `bus.max_event_bytes`.",
    422: "A parameter or a field of the body is invalid; `errors` has each fault.",
    429: "The user has the maximum of such requests in flight; `Retry-After` has the seconds to wait.",
    500: "A defect of the server; its log has the cause.",
    503: "NATS does not answer, or the server is full; `Retry-After` has the seconds to wait.",
}
"""Statuses of errors."""

_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (PlanNotFound, 404),
    (ScheduleNotFound, 404),
    (DeadLetterNotFound, 404),
    (ForeignPlan, 404),
    (UnknownRevision, 404),
    (PlanFinished, 409),
    (NotAwaited, 409),
    (GoalConflict, 409),
    (ScheduleExists, 409),
    (CannotReplay, 409),
    (UnknownGoal, 422),
    (InvalidGoal, 422),
    (InvalidSchedule, 422),
    (InvalidAnswer, 422),
    (InvalidEnvelope, 422),
    (InvalidSubject, 422),
    (PayloadTooLarge, 413),
    (AccessDenied, 403),
    (BusError, 503),
)


def problem(
    status: int, detail: str, errors: list[Fault] | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    body = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, errors=errors or [])
    fields = body.model_dump(exclude={"errors"} if not errors else None)
    return JSONResponse(fields, status, dict(headers or {}), CONTENT_TYPE)


def install(app: FastAPI) -> None:
    """Install handlers that turn errors into problem responses."""

    async def refused(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, Refused)
        return problem(error.status, error.detail, headers=error.headers)

    async def http(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return problem(error.status_code, str(error.detail), headers=error.headers)

    async def invalid(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        faults = [_invalid(each) for each in error.errors() if not _allows_nothing(each)]
        return problem(422, "; ".join(f"{each.where}: {each.what}" for each in faults)[:1000], faults)

    async def known(request: Request, error: Exception) -> JSONResponse:
        status = next(status for kind, status in _STATUS if isinstance(error, kind))
        headers = {"Retry-After": "1"} if status == 503 else None
        faults = [_fault(each) for each in error.faults] if isinstance(error, InvalidAnswer) else None
        detail = str(error) or type(error).__name__
        if status == 503 and isinstance(error, BusUnavailable):
            detail = _unavailable(request, detail)
        return problem(status, detail, faults, headers)

    async def unknown(request: Request, error: Exception) -> JSONResponse:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return problem(500, f"internal error: {type(error).__name__}; see the console's log")

    app.add_exception_handler(Refused, refused)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)
    for kind, _ in _STATUS:
        app.add_exception_handler(kind, known)
    app.add_exception_handler(Exception, unknown)


def _unavailable(request: Request, reason: str) -> str:
    """Name the interrupted operation, and the next step."""
    work = str(getattr(request.scope.get("route"), "summary", "") or f"{request.method} {request.url.path}")
    unknown = "" if request.method == "GET" else " It may have taken effect: look before it is sent again."
    return f"{work}: NATS does not answer ({reason}).{unknown} Check nats-server with `plancast doctor`, then try again"


def _allows_nothing(error: Mapping[str, Any]) -> bool:
    """True for the fault that a value is not empty, which goes with another one: parameters may be empty."""
    return bool(error["type"] == "literal_error" and error.get("ctx", {}).get("expected") == "''")


def _invalid(error: Mapping[str, Any]) -> Fault:
    """A fault of a request. A parameter's path is its name, without pydantic's names of the types that it may have."""
    path = [str(each) for each in error["loc"]]
    if error["type"] == "json_invalid":
        return Fault(where=path[0], what=f"no JSON, at character {path[-1]}: {error.get('ctx', {}).get('error', '')}")
    return Fault(where=".".join(path[:2] if path[0] == "query" else path), what=str(error["msg"]))


def _fault(text: str) -> Fault:
    """A fault of a schema: `data.amount: got ..., allowed: ...`."""
    where, _, what = text.partition(": ")
    return Fault(where=f"body.{where}", what=what)
