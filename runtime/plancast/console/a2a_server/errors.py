"""Errors of plans as those of the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from plancast.console.service.errors import Refused
from plancast.errors import (
    ForeignPlan,
    GoalConflict,
    InvalidAnswer,
    InvalidGoal,
    NotAwaited,
    PlancastError,
    PlanFinished,
    PlanNotFound,
    UnknownGoal,
)
from plancast_bus.errors import BusUnavailable, InvalidEnvelope, InvalidSubject, PayloadTooLarge

_KINDS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], type[A2AError]], ...] = (
    ((PlanNotFound, ForeignPlan), TaskNotFoundError),
    ((GoalConflict, InvalidAnswer, InvalidGoal, UnknownGoal), InvalidParamsError),
    ((InvalidEnvelope, InvalidSubject, PayloadTooLarge), InvalidParamsError),
    ((NotAwaited, PlanFinished), UnsupportedOperationError),
)


@contextmanager
def protocol_errors() -> Iterator[None]:
    """Raise an error of the protocol for one of plans, with its text."""
    try:
        yield
    except Refused as error:
        kind = InvalidParamsError if error.status == 422 else InternalError
        raise kind(error.detail) from error
    except BusUnavailable as error:
        raise InternalError(
            f"NATS does not answer ({error}); what was sent may have been taken: send it again with the same messageId"
        ) from error
    except PlancastError as error:
        found = next((made for kinds, made in _KINDS if isinstance(error, kinds)), InternalError)
        raise found(str(error)[:2_000] or type(error).__name__) from error
