"""NATS subjects of each kind of message.

An event is published on ``<prefix>.<topic>.<correlation id>.<event type>``. The server inserts the
shard between topic and correlation id when it stores the event. Internal data lies under
``<prefix>-store``, out of reach of wildcards for events.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple
from urllib.parse import quote, unquote

from plancast_bus.errors import InvalidSubject
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.events.references import Writer

_TYPE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_PREFIX = re.compile(r"[A-Za-z0-9_-]+")
_PLAIN = re.compile(r"[A-Za-z0-9_:-]+")
_NAME = re.compile(r"[!-)+\-/-=?-~]+(\.[!-)+\-/-=?-~]+)*")  # printable ASCII but `.`, `*` and `>`
_VALUE = re.compile(r"(sent)?values\.(%|[A-Za-z0-9_:%-]{1,400})\.[0-9a-f]{64}\.[0-9]{1,5}")
_STORE = "-store"
_NO_TENANT = "%"
"""Token of plans without a tenant; no encoded name is a percent sign alone."""
_LISTED = frozenset({"agent", "app", "event"})
"""Kinds of registrations that clients, workers and observers may list."""
WITHDRAWN: Final = "withdrawn-requests"
"""Topic, in the stream of requests, of copies of withdrawn requests: their workers settle what was begun of them. Only
the runtime may publish on it."""
PLACEHOLDERS = "*.keepers.*"
"""Filter for :meth:`Subjects.placeholder` of all deployments and work queues."""
MAX_TOKEN = 400
"""Longest encoded correlation id, in characters."""
MAX_TYPE = 200
"""Longest event type, in characters."""
_CLEAN_ID = re.compile(r"[!-~]{1,1000}")
_INBOX = re.compile(r"_INBOX(\.[A-Za-z0-9_-]+)+")
_SNAPSHOT = re.compile(r"[0-9a-f]{32}")
MAX_INBOX = 200
"""Longest inbox that a client may name for notifications, in characters."""


@lru_cache(maxsize=1024)  # a turn encodes the id of its plan several times
def encode_token(text: str) -> str:
    """Encode any text as one subject token: percent-encoded unless made of ``A-Z a-z 0-9 _ : -``.

    Raises:
        InvalidSubject: the text is empty, invalid Unicode, or longer than 400 characters once encoded.
    """
    if not _PLAIN.fullmatch(text):
        if not text:
            raise InvalidSubject("a correlation id may not be empty")
        try:
            text = quote(text, safe=":").replace(".", "%2E").replace("~", "%7E")
        except UnicodeEncodeError as error:
            raise InvalidSubject("a correlation id may not hold half of a surrogate pair") from error
    if len(text) > MAX_TOKEN:
        raise InvalidSubject(f"a correlation id may not be longer than {MAX_TOKEN} characters once encoded")
    return text


def decode_token(token: str) -> str:
    """Decode a token of :func:`encode_token`.

    Raises:
        InvalidSubject: the percent-encoded bytes are not UTF-8.
    """
    if "%" not in token:
        return token
    try:
        return unquote(token, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidSubject(f"{token[:80]!r} is no percent-encoded UTF-8") from error


@lru_cache(maxsize=4096)
def check_event_type(event_type: str) -> str:
    """Return the event type if it can be part of a subject.

    Raises:
        InvalidSubject: it is not made of dot separated ``A-Z a-z 0-9 _ -`` tokens, or too long.
    """
    is_text = isinstance(event_type, str)  # a decorator without parentheses gets the handler
    if not is_text or len(event_type) > MAX_TYPE or not _TYPE.fullmatch(event_type):
        shown = repr(event_type[:80] if is_text else event_type)
        raise InvalidSubject(
            f"{shown} is no event type: use dot separated tokens of A-Z a-z 0-9 _ - "
            f"(such as 'web.search.completed'), at most {MAX_TYPE} characters"
        )
    return event_type


def is_inbox(subject: str) -> bool:
    """Return whether a subject is an inbox, the only kind of subject that a message may name for a notification."""
    return len(subject) <= MAX_INBOX and _INBOX.fullmatch(subject) is not None


def is_snapshot_token(text: str) -> bool:
    """Return whether a text is the token of :meth:`Subjects.snapshot`."""
    return _SNAPSHOT.fullmatch(text) is not None


def fitting_token(text: str) -> str:
    """Encode any text as one token; its SHA-256 when it is too long or invalid Unicode."""
    try:
        return encode_token(text)
    except InvalidSubject:
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def message_id_of(event_id: str) -> str:
    """The ``Nats-Msg-Id`` header of an event, by which streams deduplicate."""
    return event_id if _CLEAN_ID.fullmatch(event_id) else fitting_token(event_id)


def name_of_type(event_type: str) -> str:
    """Encode an event type for the name of a durable consumer, which may not contain dots."""
    name = event_type.replace(".", "-")
    if "-" in event_type:  # web.search and web-search are two types
        name += f"-{zlib.crc32(event_type.encode()):08x}"
    return name


def _check_name(name: str) -> str:
    if len(name) > MAX_TOKEN or not _NAME.fullmatch(name):
        raise InvalidSubject(f"{name[:80]!r} cannot be part of a subject: no blanks, wildcards or empty tokens")
    return name


def task_consumer_name(event_type: str) -> str:
    """Name of the durable consumer that all workers of an event type share."""
    return f"task-{name_of_type(event_type)}"


def undo_type(event_type: str) -> str:
    """The task type that undoes the effects of another one."""
    return f"{event_type}.undo"


class EventAddress(NamedTuple):
    """The parts of an event's subject, decoded."""

    topic: str
    correlation_id: str
    event_type: str


@lru_cache(maxsize=2048)  # routing and decoding both parse the subject of an event
def _parse_stored(prefix: str, subject: str) -> EventAddress:
    parts = subject.split(".", 4)
    if len(parts) == 5 and "" not in parts and ".." not in parts[4] and parts[4][-1] != ".":
        if parts[0] == prefix:
            return EventAddress(parts[1], decode_token(parts[3]), parts[4])
        if parts[:3] == [prefix + _STORE, "timers", "due"] and "." in parts[4]:
            return EventAddress("", decode_token(parts[4].partition(".")[0]), "")
    raise InvalidSubject(f"{subject[:200]!r} is not the subject of a stored event")


@dataclass(frozen=True)
class Subjects:
    """The subjects of one deployment."""

    prefix: str = "plancast"

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise InvalidSubject(f"{self.prefix!r} cannot be a subject prefix: use A-Z a-z 0-9 _ -")

    # Events, as published.

    def event(self, topic: str, correlation_id: str, event_type: str) -> str:
        """The subject to publish an event on."""
        return f"{self.prefix}.{topic}.{encode_token(correlation_id)}.{check_event_type(event_type)}"

    def parse_event(self, subject: str) -> EventAddress:
        """Parse a subject as published.

        Raises:
            InvalidSubject: it is not the subject of an event.
        """
        parts = subject.split(".", 3)
        if len(parts) < 4 or parts[0] != self.prefix or not all(subject.split(".")):
            raise InvalidSubject(f"{subject[:200]!r} is not {self.prefix}.<topic>.<correlation id>.<event type>")
        return EventAddress(parts[1], decode_token(parts[2]), parts[3])

    # Events, as stored: the shard follows the topic.

    def stored(self, topic: str, shard: int | str = "*", correlation: str = "*", event_type: str = ">") -> str:
        """The subject of a stored event, or a filter for several."""
        return f"{self.prefix}.{topic}.{shard}.{correlation}.{event_type}"

    def parse_stored(self, subject: str) -> EventAddress:
        """Parse a subject as stored, of an event or of a due timer (whose topic is empty).

        Raises:
            InvalidSubject: it is neither.
        """
        return _parse_stored(self.prefix, subject)

    def correlation_of(self, subject: str) -> str:
        """Return the correlation id in a stored subject; empty if it is neither of an event nor of a due timer."""
        try:
            return self.parse_stored(subject).correlation_id
        except InvalidSubject:
            return ""

    def published_from_stored(self, subject: str) -> str:
        """Convert a stored subject (event, due timer or checkpoint) to the published one, without its shard.

        Raises:
            InvalidSubject: it is neither.
        """
        if self.is_checkpoint(subject):
            return subject
        for root in (self.prefix, f"{self.store}.timers"):
            topic, _, shard_and_rest = subject.removeprefix(f"{root}.").partition(".")
            _shard, _, rest = shard_and_rest.partition(".")
            if subject.startswith(f"{root}.") and rest:
                return f"{root}.{topic}.{rest}"
        raise InvalidSubject(f"{subject[:200]!r} is not the subject of a stored event")

    # Internal data.

    @property
    def store(self) -> str:
        """Root of the subjects of internal data."""
        return f"{self.prefix}{_STORE}"

    def checkpoint(self, plan: str) -> str:
        """The checkpoint of the plan with this correlation id."""
        return f"{self.store}.checkpoints.{encode_token(plan)}"

    @property
    def checkpoints(self) -> str:
        """Filter for all checkpoints."""
        return f"{self.store}.checkpoints.*"

    def is_checkpoint(self, subject: str) -> bool:
        return subject.startswith(f"{self.store}.checkpoints.")

    def is_replayable(self, subject: str, writer: Writer = "runtime") -> bool:
        """Return whether a dead letter may be replayed on a subject: an event's or a due timer's, as published.

        A letter that a worker's login wrote may only be a request, since workers receive nothing but tasks.
        """
        if writer == "login" and not subject.startswith(f"{self.prefix}.action-requests."):
            return False
        if subject.startswith(f"{self.store}.timers.due."):
            return True
        try:
            self.parse_event(subject)
        except InvalidSubject:
            return False
        return True

    def checkpoint_key(self) -> str:
        """The key that signs the deployment's checkpoints."""
        return f"{self.store}.keys.checkpoints"

    def history(self, plan: str, first_revision: int | str) -> str:
        """A sealed part of a plan's timeline."""
        return f"{self.store}.history.{encode_token(plan)}.{first_revision}"

    def value(self, tenant: str, digest: str, frame: int | str, writer: Writer = "runtime") -> str:
        """A part of a content that plans or events of a tenant refer to, by its digest in hexadecimal digits.

        Logins have subjects of their own: what the runtime has stored is out of their reach.
        """
        return f"{self._values(writer)}.{encode_token(tenant) if tenant else _NO_TENANT}.{digest}.{frame}"

    def plan_with_values(self, plan: str) -> str:
        """The note that a plan has stored contents."""
        return f"{self.store}.valueplans.{encode_token(plan)}"

    @property
    def value_clock(self) -> str:
        """A message by which the collector of values reads the server's clock."""
        return f"{self.store}.valueclock"

    def values(self, writer: Writer) -> str:
        """Filter for :meth:`value` of a writer."""
        return f"{self._values(writer)}.*.*.*"

    def _values(self, writer: Writer) -> str:
        return f"{self.store}.{'values' if writer == 'runtime' else 'sentvalues'}"

    @property
    def every_value(self) -> str:
        """Filter for :meth:`value` of all writers, within the stream of values."""
        return f"{self.store}.*.*.*.*"

    @property
    def plans_with_values(self) -> str:
        """Filter for :meth:`plan_with_values`."""
        return f"{self.store}.valueplans.*"

    def value_read(self, value: str) -> str:
        """The subject on which the runtime serves the contents with a subject of :meth:`value` to logins."""
        return f"{self.store}.valuereads.{value.removeprefix(f'{self.store}.')}"

    @property
    def value_reads(self) -> str:
        """Filter for :meth:`value_read`."""
        return f"{self.store}.valuereads.*.*.*.*"

    @property
    def restored(self) -> str:
        """Subject of core NATS on which it is said that streams were deleted, and are made again."""
        return f"{self.store}.restored"

    def parse_value_read(self, subject: str) -> str:
        """Return the subject of :meth:`value` from one of :meth:`value_read`.

        Raises:
            InvalidSubject: it does not name one value. Direct gets would take wildcards in its place.
        """
        value = subject.removeprefix(f"{self.store}.valuereads.")
        if not _VALUE.fullmatch(value):
            raise InvalidSubject(f"{subject[:200]!r} does not name one value")
        return f"{self.store}.{value}"

    def parse_value(self, subject: str) -> tuple[str, str]:
        """Return tenant and digest from a subject of :meth:`value`."""
        tenant, digest = subject.split(".")[2:4]
        return "" if tenant == _NO_TENANT else decode_token(tenant), digest

    def machine(self, digest: str) -> str:
        """The state machine with this content hash."""
        return f"{self.store}.machines.{digest}"

    def alias(self, correlation_id: str) -> str:
        """A further correlation id of a plan."""
        return f"{self.store}.aliases.{encode_token(correlation_id)}"

    def response(self, topic: str, correlation_id: str, event_type: str) -> str:
        """A final response, which the server republishes as an event."""
        return f"{self.store}.responses.{topic}.{encode_token(correlation_id)}.{check_event_type(event_type)}"

    def timer(self, plan: str, name: str) -> str:
        """A timer that is not yet due.

        Raises:
            InvalidSubject: the name is not made of dot separated tokens without blanks and wildcards.
        """
        return f"{self.store}.timers.set.{encode_token(plan)}.{_check_name(name)}"

    def timer_due(self, plan: str, name: str) -> str:
        """A due timer, as published; stored with its shard before the plan."""
        return f"{self.store}.timers.due.{encode_token(plan)}.{_check_name(name)}"

    def at_rest(self, correlation_id: str) -> tuple[str, str, str, str]:
        """Filters for what is stored of a correlation id: events, responses, timers, and due timers."""
        token, timers = encode_token(correlation_id), f"{self.store}.timers"
        responses = f"{self.store}.responses.*.{token}.>"
        return self.stored("*", "*", token), responses, f"{timers}.set.{token}.>", f"{timers}.due.*.{token}.>"

    def timers_due(self) -> str:
        """Filter for the stored due timers."""
        return f"{self.store}.timers.due.*.*.>"

    def withdrawn(self, subject: str) -> str:
        """The subject of the copy of a withdrawn request, from the stored subject of the request.

        Raises:
            InvalidSubject: it is not the subject of a stored event.
        """
        address = self.parse_stored(subject)
        return self.event(WITHDRAWN, address.correlation_id, address.event_type)

    def is_withdrawn(self, subject: str) -> bool:
        """Return whether a stored message is the copy of a withdrawn request."""
        return subject.startswith(f"{self.prefix}.{WITHDRAWN}.")

    def withdrawals(self, task: str) -> str:
        """The notices of withdrawn requests of a task type; the payload is the sequence of the request."""
        return f"{self.store}.withdrawals.{check_event_type(task)}"

    def progress(self, plan_id: str) -> str:
        """The progress notes of a plan."""
        return f"{self.store}.progress.{encode_token(plan_id)}"

    @property
    def every_progress(self) -> str:
        """Filter for :meth:`progress`."""
        return f"{self.store}.progress.*"

    def placeholder(self, source: str) -> str:
        """The message that keeps a work queue from being empty."""
        return f"{self.store}.keepers.{source}"

    def snapshot(self, token: str) -> str:
        """The subject on which the server sends the chunks of a stream's snapshot."""
        return f"{self.store}.snapshots.{token}"

    def snapshot_request(self, stream: str) -> str:
        """The subject on which the runtime has snapshots of a stream sent to logins that take backups."""
        return f"{self.store}.snapshotrequests.{stream}"

    @property
    def restoration(self) -> str:
        """The subject of the stream that marks a deployment as being restored."""
        return f"{self.store}.restoration"

    def journaled(self) -> tuple[str, ...]:
        """Filters for what a backup notes while it copies: events, timers and final responses."""
        return f"{self.prefix}.>", f"{self.store}.timers.>", f"{self.store}.responses.>"

    def dead_letter(self, reason: str, writer: Writer | Literal["*"] = "runtime") -> str:
        """A message that could not be processed."""
        return f"{self.store}.deadletters.{writer}.{reason}"

    def schedule(self, tenant: str, name: str) -> str:
        """A schedule of a tenant."""
        return f"{self.store}.schedules.{encode_token(tenant) if tenant else _NO_TENANT}.{encode_token(name)}"

    @property
    def schedules(self) -> str:
        """Filter for all schedules."""
        return f"{self.store}.schedules.*.*"

    def parse_schedule(self, subject: str) -> tuple[str, str]:
        """Return tenant and name from a subject of :meth:`schedule`.

        Raises:
            InvalidSubject: they cannot be decoded.
        """
        tenant, name = subject.split(".")[2:4]
        return "" if tenant == _NO_TENANT else decode_token(tenant), decode_token(name)

    def registry(self, kind: str, key: str) -> str:
        return f"{self._registrations(kind)}.{encode_token(key)}"

    def registered(self, kind: str) -> str:
        return f"{self._registrations(kind)}.*"

    @staticmethod
    def is_listed(kind: str) -> bool:
        """Return whether every login may list registrations of a kind (apps, agents, events)."""
        return kind in _LISTED

    def _registrations(self, kind: str) -> str:
        return f"{self.store}.{'registrations' if self.is_listed(kind) else 'registry'}.{kind}"


def tenant_of(event: EventEnvelope) -> str:
    """The encoded tenant of a goal or task; empty when it has none, and for other events."""
    return tenant_token(event.tenant_id) if event.topic == EventTopic.ACTION_REQUESTS else ""


def tenant_token(tenant_id: str | None) -> str:
    """Encode a tenant as a subject token; empty for None and for names that are too long."""
    try:
        return encode_token(tenant_id) if tenant_id else ""
    except InvalidSubject:
        return ""
