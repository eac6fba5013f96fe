"""Replies of streams to published messages: acknowledgements and errors."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from plancast_bus.errors import BusError, BusUnavailable, CommitConflict, PayloadTooLarge, PublishRefused
from plancast_bus.topics import stream_full_message

_ACK = re.compile(rb'\{"stream":"[^"]*", ?(?:"domain":"[^"]*", ?)?"seq":(\d+)')

# Error codes of the server.
WRONG_LAST_SEQUENCE = frozenset({10071, 10164})
_TOO_LARGE = frozenset({10054, 10097})
_FULL = frozenset({10023, 10028, 10047, 10077, 10122})
_UNAVAILABLE = frozenset({10005, 10007, 10008, 10009, 10158, 10194, 10195})


class PubAck(NamedTuple):
    """A stream's acknowledgement of a message."""

    sequence: int
    duplicate: bool
    """The stream has dropped the message as a duplicate of one with the same id."""


class WrongLastSequence(CommitConflict):
    """Raised when the last sequence of a subject is not the expected one."""


class SubjectTaken(BusError):
    """Raised when a stream that keeps the first message of a subject already has it."""


def read_ack(data: bytes, subject: str) -> PubAck:
    """Parse the acknowledgement in a stream's reply; raises as :meth:`Publisher.settle`."""
    found = _ACK.match(data)
    if found is not None:
        return PubAck(int(found[1]), b'"duplicate":' in data)
    try:
        reply: dict[str, Any] = json.loads(data)
        error = reply.get("error")
        if error is None:
            return PubAck(int(reply["seq"]), bool(reply.get("duplicate")))
    except (ValueError, KeyError, AttributeError) as fault:
        raise PublishRefused(f"the reply on {subject[:200]} is not from a stream") from fault
    raise refusal(error, reply.get("stream", ""), subject)


def refusal(error: dict[str, Any], stream: str, subject: str) -> BusError:
    """Convert a stream's error to a :class:`BusError`."""
    code = error.get("err_code", 0)
    text = str(error.get("description", "unknown error"))[:300]
    if code in WRONG_LAST_SEQUENCE:
        return WrongLastSequence(f"{subject[:200]}: {text}")
    if code in _TOO_LARGE:
        return PayloadTooLarge(f"the stream {stream} takes no message of this size: {text}")
    if code in _UNAVAILABLE:
        return BusUnavailable(f"the stream {stream or 'for ' + subject[:200]} cannot be reached: {text}")
    if code in _FULL and "per subject" in text:
        return SubjectTaken(f"{subject[:200]}: {text}")
    if code in _FULL:
        return PublishRefused(stream_full_message(stream, text))
    return PublishRefused(f"the stream {stream} refuses {subject[:200]}: {text} (code {code})")
