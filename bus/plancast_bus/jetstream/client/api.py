"""The JetStream JSON API, and reads of single messages."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nats.aio.msg import Msg

from plancast_bus.errors import BusError, BusUnavailable
from plancast_bus.jetstream.client.nats_client import GuardedClient
from plancast_bus.jetstream.client.request_reply import NoResponders, Reply, Requester

# Error codes of the server.
NO_JETSTREAM = 10039
"""The account has no JetStream, though the server may have."""
NO_PEERS = 10005
"""Too few servers of the cluster are known, and online."""
STREAM_NOT_FOUND = 10059
STREAM_NAME_IN_USE = 10058
RESTORED_NAME_IN_USE = 10130
CONSUMER_NOT_FOUND = 10014
MESSAGE_NOT_FOUND = 10037
MESSAGE_GONE = frozenset({10037, 10043, 10057})
"""Errors of deleting a message that does not exist."""
_UNAVAILABLE = frozenset({10008, 10009, 10012, 10013, 10041, 10096, 10104, 10118, 10119})
"""Errors that pass: no leader, or a server that was restarted, and still recovers or removes streams and consumers."""


class ApiError(BusError):
    """Raised when JetStream refuses a call of its API."""

    def __init__(self, operation: str, code: int, description: str) -> None:
        super().__init__(f"JetStream refuses {operation}: {description} (code {code})")
        self.code = code
        self.description = description


@dataclass(slots=True)
class StoredMessage:
    """A message in a stream."""

    subject: str
    sequence: int
    time: float
    """When it was stored, seconds since the epoch, UTC."""
    headers: dict[str, str]
    payload: bytes

    @property
    def is_marker(self) -> bool:
        """The message marks a deletion or an expiry."""
        return "Nats-Marker-Reason" in self.headers or "KV-Operation" in self.headers


class JetStreamApi:
    """Calls of the JetStream API."""

    def __init__(self, requester: Requester) -> None:
        self._requester = requester

    async def call(self, operation: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call ``$JS.API.<operation>`` and return its response.

        Raises:
            ApiError: JetStream refuses the call.
            BusUnavailable: no response, or JetStream has no leader at the moment.
        """
        return await self.settle(operation, await self.send(operation, body))

    async def send(self, operation: str, body: dict[str, Any] | None = None) -> Reply:
        """Send a call; pass the reply to :meth:`settle`."""
        return await self._requester.send(f"$JS.API.{operation}", json.dumps(body).encode() if body else b"")

    async def settle(self, operation: str, reply: Reply) -> dict[str, Any]:
        """Wait for the response to a call; raises as :meth:`call`."""
        try:
            answer: dict[str, Any] = json.loads((await reply).data)
        except NoResponders as absence:
            raise BusUnavailable(f"no response to {operation}: JetStream is off, or has no leader") from absence
        error = answer.get("error")
        if error is None:
            return answer
        code, description = error.get("err_code", 0), str(error.get("description", ""))[:300]
        if code in _UNAVAILABLE:
            raise BusUnavailable(f"JetStream cannot do {operation} at the moment: {description}")
        raise ApiError(operation, code, description)

    async def ask(self, subject: str) -> bytes:
        """Send an empty request to another process, and return its reply.

        Raises:
            NoResponders: no process listens.
            AccessDenied, BusUnavailable: as :meth:`call`.
        """
        return (await self._requester.request(subject)).data

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        """Return the newest message of a subject, or None; in a cluster from any replica, which may lag."""
        return await self._direct(f"$JS.API.DIRECT.GET.{stream}.{subject}", b"")

    async def numbered(self, stream: str, sequence: int) -> StoredMessage | None:
        """Return the message with this sequence, or None."""
        return await self._direct(f"$JS.API.DIRECT.GET.{stream}", json.dumps({"seq": sequence}).encode())

    async def newest(self, stream: str, filter_subject: str) -> StoredMessage | None:
        """Return the newest message that matches a filter, or None."""
        return await self._direct(f"$JS.API.DIRECT.GET.{stream}", json.dumps({"last_by_subj": filter_subject}).encode())

    async def last_from_leader(self, stream: str, subject: str) -> StoredMessage | None:
        """Return the newest message of a subject from the stream's leader, or None."""
        return await self._from_leader(stream, {"last_by_subj": subject})

    async def numbered_from_leader(self, stream: str, sequence: int) -> StoredMessage | None:
        """Return the message with this sequence from the stream's leader, or None."""
        return await self._from_leader(stream, {"seq": sequence})

    async def next_from_leader(self, stream: str, subject: str, after: int) -> StoredMessage | None:
        """Return the first message after a sequence that matches a filter, from the stream's leader, or None."""
        return await self._from_leader(stream, {"seq": after + 1, "next_by_subj": subject})

    async def _from_leader(self, stream: str, which: dict[str, Any]) -> StoredMessage | None:
        try:
            answer = await self.call(f"STREAM.MSG.GET.{stream}", which)
        except ApiError as error:
            if error.code == MESSAGE_NOT_FOUND:
                return None
            raise
        message = answer["message"]
        return StoredMessage(
            subject=message["subject"],
            sequence=message["seq"],
            time=seconds_of(message["time"]),
            headers=_read_headers(b64decode(message.get("hdrs") or "")),
            payload=b64decode(message.get("data") or ""),
        )

    async def purge(self, stream: str, subject: str) -> None:
        """Remove all messages that match a filter."""
        await self.call(f"STREAM.PURGE.{stream}", {"filter": subject})

    async def _direct(self, subject: str, payload: bytes) -> StoredMessage | None:
        try:
            message = await self._requester.request(subject, payload)
        except NoResponders as error:
            raise BusUnavailable(
                f"no response to {subject[:200]}: its stream does not exist, or has no leader"
            ) from error
        return read_direct(message, subject)


def read_direct(message: Msg, subject: str) -> StoredMessage | None:
    """Parse the response to a direct get; None when there is no message.

    Raises:
        BusError: the server refuses the request to ``subject``.
    """
    headers = message.headers or {}
    if "Nats-Sequence" not in headers:
        status = headers.get("Status", "")
        if status == "404":
            return None
        raise BusError(f"{subject[:200]} is refused: {status} {headers.get('Description', '')}")
    return StoredMessage(
        subject=headers["Nats-Subject"],
        sequence=int(headers["Nats-Sequence"]),
        time=seconds_of(headers["Nats-Time-Stamp"]),
        headers=headers,
        payload=message.data,
    )


def seconds_of(timestamp: str) -> float:
    """Convert RFC 3339 with up to nine decimals to seconds since the epoch."""
    return datetime.fromisoformat(timestamp).timestamp()


def _read_headers(block: bytes) -> dict[str, str]:
    return GuardedClient._parse_header_lines(block.partition(b"\r\n")[2])
