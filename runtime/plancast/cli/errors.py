"""Error reports of the command line: a message, a hint and an exit code."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeGuard, TypeVar

import typer

from plancast.errors import (
    GoalConflict,
    InvalidAnswer,
    InvalidGoal,
    InvalidSchedule,
    PlanCancelled,
    PlancastError,
    PlanFailed,
    PlanNotFound,
    ScheduleExists,
    ScheduleNotFound,
)
from plancast.terminal import logging as logs
from plancast_bus.errors import (
    AccessDenied,
    BusUnavailable,
    DeadLetterNotFound,
    InvalidBackup,
    InvalidEnvelope,
    InvalidSubject,
    NatsServerError,
    PayloadTooLarge,
    UnsupportedServer,
)

if TYPE_CHECKING:
    from pydantic import ValidationError

_T = TypeVar("_T")

DONE, FAILED, USAGE, NO_CONNECTION, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes: done; the plan failed or a check found faults; wrong usage; cannot connect; Ctrl-C."""

_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (BusUnavailable, NO_CONNECTION),
    (UnsupportedServer, NO_CONNECTION),
    (NatsServerError, NO_CONNECTION),
    (ConnectionError, NO_CONNECTION),
    (InvalidGoal, USAGE),
    (InvalidSchedule, USAGE),
    (ScheduleExists, USAGE),
    (GoalConflict, USAGE),
    (InvalidAnswer, USAGE),
    (InvalidSubject, USAGE),
    (InvalidBackup, USAGE),
    (InvalidEnvelope, USAGE),
    (PayloadTooLarge, USAGE),
)
_HINTS: tuple[tuple[type[BaseException], str], ...] = (
    (PlanNotFound, "`plancast plans list` shows all plans."),
    (ScheduleNotFound, "`plancast schedules list` shows all schedules."),
    (DeadLetterNotFound, "`plancast deadletters list` shows all dead letters."),
    (UnsupportedServer, ""),
    (NatsServerError, ""),
    (
        AccessDenied,
        "Reading and answering plans takes a login with the role operator; deployments and the console that of the "
        "runtime: see `plancast nats-config --help`.",
    ),
    (BusUnavailable, "Start one with `plancast run MODULE:APP`, or give another with --nats-url."),
)
_RAY_HINT = "Check the address. A cluster with token authentication requires RAY_AUTH_MODE=token here too."


class CommandFailed(Exception):
    """Raised when a command cannot continue; carries message, hint and exit code."""

    def __init__(self, message: str, *, hint: str = "", code: int = FAILED) -> None:
        self.message = message
        self.hint = hint
        self.code = code
        super().__init__(message)


def usage_error(message: str, hint: str = "") -> CommandFailed:
    return CommandFailed(message, hint=hint, code=USAGE)


def report(error: BaseException) -> int:
    """Report an error on stderr and return its exit code."""
    message, hint, code = describe(error)
    if not message:  # a group without a command: typer has printed its help
        return code
    from rich.text import Text

    from plancast.terminal.output import err, plain

    if logs.in_json():
        logs.tell(logging.ERROR, plain(message), hint=hint, exit_code=code)
        return code
    console = err()
    if logs.tracebacks_wanted():
        console.print("".join(traceback.format_exception(error)), style="dim", soft_wrap=True, end="")
    console.print(Text.assemble(("error: ", "bold red"), plain(message)), soft_wrap=True)
    if hint:
        console.print(Text.assemble(("hint: ", "bold cyan"), plain(hint)), soft_wrap=True)
    return code


def describe(error: BaseException) -> tuple[str, str, int]:
    """Message, hint and exit code of an error."""
    if isinstance(error, CommandFailed):
        return error.message, error.hint, error.code
    if isinstance(error, typer.TyperException):
        text = " ".join(error.format_message().replace("Value error, ", "").split())
        return text, _usage_hint(error), error.exit_code
    if _is_validation_error(error):
        return _settings_fault(error), "Settings are environment variables; see `plancast --help`.", USAGE
    if not isinstance(error, (PlancastError, ConnectionError)):
        return describe_foreign(error), "Run the command again with -v to see the traceback.", FAILED
    text = str(error) or type(error).__name__
    hint = _RAY_HINT if "Ray cluster" in text else _first(_HINTS, error, "")
    if isinstance(error, (PlanFailed, PlanCancelled)):
        hint = f"`plancast plans history {error.plan_id}` shows what happened."
    return text, hint, _first(_CODES, error, FAILED)


def _first(choices: Sequence[tuple[type[BaseException], _T]], error: BaseException, otherwise: _T) -> _T:
    return next((value for kind, value in choices if isinstance(error, kind)), otherwise)


def _usage_hint(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"See `{context.command_path} --help`." if context is not None else ""


def describe_foreign(error: BaseException) -> str:
    """Type and text of an error that plancast does not declare; of a value that a model refuses, its faults."""
    if _is_validation_error(error):
        return f"{error.title}: {_faults(error, _field)}"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _is_validation_error(error: BaseException) -> TypeGuard[ValidationError]:
    pydantic = sys.modules.get("pydantic")  # loaded where it has raised something
    return pydantic is not None and isinstance(error, pydantic.ValidationError)


def _settings_fault(error: ValidationError) -> str:
    return f"invalid settings: {_faults(error, _variable)}"


def _faults(error: ValidationError, name: Callable[[tuple[int | str, ...]], str]) -> str:
    """Names and faults of invalid fields; values are left out, since they may be secrets."""
    faults = error.errors(include_input=False, include_url=False, include_context=False)
    return "; ".join(f"{name(each['loc'])}{each['msg'].removeprefix('Value error, ')}" for each in faults)


def _field(location: tuple[int | str, ...]) -> str:
    return f"{'.'.join(map(str, location))}: " if location else ""


def _variable(location: tuple[int | str, ...]) -> str:
    return f"{'PLANCAST_' + '__'.join(map(str, location)).upper()}: " if location else ""
