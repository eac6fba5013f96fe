"""W3C trace context: two headers on the wire, one short text everywhere else.

The text is the ``traceparent``, and after a blank the ``tracestate`` where there is one; empty for none. What comes
from outside is taken when it is well formed, and is as if it were not there otherwise: a trace is never a reason to
refuse an event.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping

PARENT = "traceparent"
STATE = "tracestate"
MAX_STATE = 512
"""Characters of a ``tracestate`` that are passed on; a longer one is left out, as the standard allows."""

_PARENT_LENGTH = 55
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}").fullmatch
_STATE = re.compile(rf"[!-~][ -~]{{0,{MAX_STATE - 1}}}").fullmatch


def read_trace(parent: str | None, state: str | None = None) -> str:
    """The text of two headers; empty when the first is missing or malformed."""
    if not parent or not _PARENT(parent[:_PARENT_LENGTH]):
        return ""
    # A later version may say more, behind another dash; what it shares with version 00 is taken over.
    if len(parent) > _PARENT_LENGTH and (parent.startswith("00") or parent[_PARENT_LENGTH] != "-"):
        return ""
    text = f"00{parent[2:_PARENT_LENGTH]}"
    return f"{text} {state}" if state and _STATE(state) else text


def write_trace(trace: str, headers: MutableMapping[str, str]) -> None:
    """Put the headers of a text beside others."""
    parent, _, state = trace.partition(" ")
    headers[PARENT] = parent
    if state:
        headers[STATE] = state


def trace_id_of(trace: str) -> str:
    """The id of the whole trace: 32 hexadecimal digits, or nothing."""
    return trace[3:35]
