"""Ends of calls of tools: the result, or the part of it that is known."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from mcp import MCPError
from mcp_types import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    UNSUPPORTED_PROTOCOL_VERSION,
    CallToolResult,
    TextContent,
)

from plancast.errors import NotBegun, PlancastError, RetryableError, TerminalError

MAX_ERROR: Final = 2_000
"""Longest text of a tool's error, in characters."""
_REFUSALS: Final = frozenset((
    HEADER_MISMATCH, INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY, UNSUPPORTED_PROTOCOL_VERSION,
))  # fmt: skip
"""Codes with which a server refuses a request before it does anything."""
_OVERLOADED: Final = frozenset({429, 503})
REQUEST_TIMEOUT_STATUS: Final = 408


class CallLost(PlancastError):
    """Raised when it is not known whether a call did anything."""


@dataclass
class Sending:
    """Fate of the HTTP request of a call."""

    is_call: bool = True
    """Only the first request counts, and where that is redirected leads: what the SDK sends after it, to resume the
    response or to cancel the call, says nothing of the call itself."""
    started: bool = False
    unsent: str = ""
    """Why it was not sent, if nothing of it has left this process."""
    status: int = 0
    """Status of the response; 0 for none."""
    retry_after: float | None = None
    """Seconds of the response's ``Retry-After``."""


SENDING: ContextVar[Sending] = ContextVar("SENDING")
"""The request of the current call; the SDK's transport runs it in the caller's context."""


def failure_of(error: Exception, sending: Sending, place: str, *, in_session: bool) -> Exception:
    """Return the error for a call that has no result.

    Args:
        error: The error of the SDK.
        sending: What became of its request, over HTTP.
        place: The server, for messages.
        in_session: The server has sessions, which end with it: it refuses requests of those that it does not know.

    Returns:
        A `NotBegun` where nothing was done for certain, a `TerminalError` where the server has refused the call, else
        a `CallLost`. A status alone proves little: a gateway answers 502, 503 and 504 also for what it has passed on.
        So of those only a 503 with ``Retry-After``, with which a server sheds load, counts as a refusal.
    """
    if sending.unsent:
        return NotBegun(f"{place} cannot be reached: {sending.unsent}")
    status = sending.status
    text = str(error)[:MAX_ERROR] or type(error).__name__
    if status == 429 or (status in _OVERLOADED and sending.retry_after is not None):
        return NotBegun(f"{place} is overloaded (status {status})", retry_after=sending.retry_after)
    if in_session and status in (400, 404):
        return NotBegun(f"{place} has ended the session (status {status})", retry_after=0.0)
    if status in (401, 403):
        return TerminalError(f"{place} refuses the call (status {status}): check headers")
    if 400 <= status < 500 and status != REQUEST_TIMEOUT_STATUS:
        return TerminalError(f"{place} refuses the call (status {status}): {text}")
    if status < 400 and isinstance(error, MCPError) and error.code in _REFUSALS:
        return TerminalError(f"{place} refuses the call: {text}")
    shown = f" (status {status})" if status >= 400 else ""
    return CallLost(f"the answer of {place} is lost{shown}: {text}")


def repeatable(error: Exception) -> Exception:
    """The same failure of a call that may be repeated."""
    return RetryableError(str(error)) if isinstance(error, CallLost) else error


def result_of(answer: CallToolResult) -> Any:
    """The result of a task: the structured content, else ``text``, and ``content`` where there is more than text.

    Raises:
        TerminalError: the tool reports an error.
    """
    texts = [each.text for each in answer.content if isinstance(each, TextContent)]
    if answer.is_error:
        raise TerminalError("\n".join(texts)[:MAX_ERROR] or "the tool has failed, and says nothing of why")
    if answer.structured_content is not None:
        return answer.structured_content
    result: dict[str, Any] = {"text": "\n".join(texts)}
    if len(texts) < len(answer.content):
        result["content"] = [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in answer.content]
    return result
