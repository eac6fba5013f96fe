"""W3C trace context: two headers on the wire, one string everywhere else.

The string is the ``traceparent``, followed by a blank and the ``tracestate`` if there is one; empty for none. A
malformed context from outside is ignored: it is never a reason to refuse an event.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping

PARENT = "traceparent"
STATE = "tracestate"
MAX_STATE = 512
"""Maximum characters of a ``tracestate``; a longer one is dropped, as the standard allows."""

_PARENT_LENGTH = 55
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}").fullmatch
_STATE = re.compile(rf"[!-~][ -~]{{0,{MAX_STATE - 1}}}").fullmatch


def read_trace(parent: str | None, state: str | None = None) -> str:
    """Build the string from two headers; empty when the first is missing or malformed."""
    if not parent or not _PARENT(parent[:_PARENT_LENGTH]):
        return ""
    # Later versions may append fields behind another dash; the part shared with version 00 is used.
    if len(parent) > _PARENT_LENGTH and (parent.startswith("00") or parent[_PARENT_LENGTH] != "-"):
        return ""
    text = f"00{parent[2:_PARENT_LENGTH]}"
    return f"{text} {state}" if state and _STATE(state) else text


def write_trace(trace: str, headers: MutableMapping[str, str]) -> None:
    """Add the headers of a trace to others."""
    parent, _, state = trace.partition(" ")
    headers[PARENT] = parent
    if state:
        headers[STATE] = state


def trace_id_of(trace: str) -> str:
    """Return the trace id: 32 hexadecimal digits, or empty."""
    return trace[3:35]
