"""Subjects: where each kind of message travels and rests.

An event's subject is ``<prefix>.<topic>.<correlation id>.<event type>``. The server inserts the
shard between topic and correlation id when it stores the event. What plancast keeps for itself
lies under ``<prefix>-store``, so that a wildcard on events never meets it.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

from plancast_bus.errors import InvalidSubject
from plancast_bus.events.envelope import EventEnvelope, EventTopic

_TYPE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_PREFIX = re.compile(r"[A-Za-z0-9_-]+")
_PLAIN = re.compile(r"[A-Za-z0-9_:-]+")
_NAME = re.compile(r"[!-)+\-/-=?-~]+(\.[!-)+\-/-=?-~]+)*")  # printable ASCII but `.`, `*` and `>`
_STORE = "-store"
_LISTED = frozenset({"agent", "app", "event"})
"""Kinds of registrations that clients, workers and observers may list."""
PLACEHOLDERS = "*.keepers.*"
"""Filter for :meth:`Subjects.placeholder`, of whatever deployment and work queue."""
LetterWriter = Literal["runtime", "login"]
"""Who has put a message aside: the runtime, or a worker with a login of its own, whose word it is."""
MAX_TOKEN = 400
"""Longest encoded correlation id, in characters."""
MAX_TYPE = 200
"""Longest event type, in characters."""
_CLEAN_ID = re.compile(r"[!-~]{1,1000}")
_INBOX = re.compile(r"_INBOX(\.[A-Za-z0-9_-]+)+")
MAX_INBOX = 200
"""Longest inbox that a client may be told on, in characters."""


@lru_cache(maxsize=1024)  # a turn needs its plan's several times
def encode_token(text: str) -> str:
    """Any text as one subject token: percent-encoded unless made of ``A-Z a-z 0-9 _ : -``.

    Raises:
        InvalidSubject: the text is empty, no valid Unicode, or longer than 400 characters once encoded.
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
    """The text that :func:`encode_token` made a token of.

    Raises:
        InvalidSubject: what is percent-encoded is no UTF-8.
    """
    if "%" not in token:
        return token
    try:
        return unquote(token, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidSubject(f"{token[:80]!r} is no percent-encoded UTF-8") from error


@lru_cache(maxsize=4096)
def check_event_type(event_type: str) -> str:
    """The event type itself, when it can be part of a subject.

    Raises:
        InvalidSubject: it is not made of dot separated ``A-Z a-z 0-9 _ -`` tokens, or too long.
    """
    if len(event_type) > MAX_TYPE or not _TYPE.fullmatch(event_type):
        raise InvalidSubject(
            f"{event_type[:80]!r} is no event type: use dot separated tokens of A-Z a-z 0-9 _ - "
            f"(such as 'web.search.completed'), at most {MAX_TYPE} characters"
        )
    return event_type


def is_inbox(subject: str) -> bool:
    """Whether a subject is an inbox: the only kind that is published on because a message says so."""
    return len(subject) <= MAX_INBOX and _INBOX.fullmatch(subject) is not None


def fitting_token(text: str) -> str:
    """Any text as one token; one that is too long, or no valid Unicode, is stood for by its hash."""
    try:
        return encode_token(text)
    except InvalidSubject:
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def message_id_of(event_id: str) -> str:
    """An event's id as the header by which a stream knows repetitions."""
    return event_id if _CLEAN_ID.fullmatch(event_id) else fitting_token(event_id)


def name_of_type(event_type: str) -> str:
    """An event type as part of the name of a durable consumer, which may hold no dots."""
    name = event_type.replace(".", "-")
    if "-" in event_type:  # web.search and web-search are two types
        name += f"-{zlib.crc32(event_type.encode()):08x}"
    return name


def _check_name(name: str) -> str:
    if len(name) > MAX_TOKEN or not _NAME.fullmatch(name):
        raise InvalidSubject(f"{name[:80]!r} cannot be part of a subject: no blanks, wildcards or empty tokens")
    return name


def task_consumer_name(event_type: str) -> str:
    """Name of the durable consumer that all workers of a kind of task share."""
    return f"task-{name_of_type(event_type)}"


class EventAddress(NamedTuple):
    """The parts of an event's subject, decoded."""

    topic: str
    correlation_id: str
    event_type: str


@lru_cache(maxsize=2048)  # an event is routed by its subject, and soon after read by it
def _parse_stored(prefix: str, subject: str) -> EventAddress:
    parts = subject.split(".", 4)
    if len(parts) == 5 and "" not in parts and ".." not in parts[4] and parts[4][-1] != ".":
        if parts[0] == prefix:
            return EventAddress(parts[1], decode_token(parts[3]), parts[4])
        if parts[:3] == [prefix + _STORE, "timers", "due"] and "." in parts[4]:
            return EventAddress("", decode_token(parts[4].partition(".")[0]), "")
    raise InvalidSubject(f"{subject[:200]!r} is no stored event's subject")


@dataclass(frozen=True)
class Subjects:
    """All subjects of one deployment."""

    prefix: str = "plancast"

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise InvalidSubject(f"{self.prefix!r} cannot be a subject prefix: use A-Z a-z 0-9 _ -")

    # Events, as published.

    def event(self, topic: str, correlation_id: str, event_type: str) -> str:
        """The subject to publish an event on."""
        return f"{self.prefix}.{topic}.{encode_token(correlation_id)}.{check_event_type(event_type)}"

    def parse_event(self, subject: str) -> EventAddress:
        """The parts of a subject as published.

        Raises:
            InvalidSubject: the subject is no event's.
        """
        parts = subject.split(".", 3)
        if len(parts) < 4 or parts[0] != self.prefix or not all(subject.split(".")):
            raise InvalidSubject(f"{subject[:200]!r} is not {self.prefix}.<topic>.<correlation id>.<event type>")
        return EventAddress(parts[1], decode_token(parts[2]), parts[3])

    # Events, as stored: the shard follows the topic.

    def stored(self, topic: str, shard: int | str = "*", correlation: str = "*", event_type: str = ">") -> str:
        """A stored event's subject, or a filter for some."""
        return f"{self.prefix}.{topic}.{shard}.{correlation}.{event_type}"

    def parse_stored(self, subject: str) -> EventAddress:
        """The parts of a subject as stored (or of a due timer, whose topic is empty).

        Raises:
            InvalidSubject: it is neither.
        """
        return _parse_stored(self.prefix, subject)

    def published_from_stored(self, subject: str) -> str:
        """The subject as published, of a subject as stored (or of a due timer, without its shard, or a checkpoint).

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
        raise InvalidSubject(f"{subject[:200]!r} is no stored event's subject")

    # What plancast keeps.

    @property
    def store(self) -> str:
        """Root of what plancast keeps for itself."""
        return f"{self.prefix}{_STORE}"

    def checkpoint(self, plan: str) -> str:
        """Where the checkpoint of the plan with this correlation id rests."""
        return f"{self.store}.checkpoints.{encode_token(plan)}"

    def is_checkpoint(self, subject: str) -> bool:
        """Whether it is where a checkpoint rests."""
        return subject.startswith(f"{self.store}.checkpoints.")

    def is_replayable(self, subject: str, writer: LetterWriter = "runtime") -> bool:
        """Whether a dead letter may be sent again on a subject: an event's or a due timer's, as published.

        One that a worker's login has written may be a request alone: nothing but tasks comes to workers.
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
        """Where the key of the deployment's checkpoints rests."""
        return f"{self.store}.keys.checkpoints"

    def history(self, plan: str, first_revision: int | str) -> str:
        """Where a sealed part of a plan's timeline rests."""
        return f"{self.store}.history.{encode_token(plan)}.{first_revision}"

    def machine(self, digest: str) -> str:
        """Where the state machine with this content hash rests."""
        return f"{self.store}.machines.{digest}"

    def alias(self, correlation_id: str) -> str:
        """Where a further correlation id of a plan is noted."""
        return f"{self.store}.aliases.{encode_token(correlation_id)}"

    def response(self, topic: str, correlation_id: str, event_type: str) -> str:
        """Where a final response rests; the server republishes it as an event."""
        return f"{self.store}.responses.{topic}.{encode_token(correlation_id)}.{check_event_type(event_type)}"

    def timer(self, plan: str, name: str) -> str:
        """Where a timer that is not yet due rests.

        Raises:
            InvalidSubject: the name is not made of dot separated tokens without blanks and wildcards.
        """
        return f"{self.store}.timers.set.{encode_token(plan)}.{_check_name(name)}"

    def timer_due(self, plan: str, name: str) -> str:
        """Where a timer goes when it is due; stored with its shard before the plan."""
        return f"{self.store}.timers.due.{encode_token(plan)}.{_check_name(name)}"

    def timers_due(self, shard: int | str = "*") -> str:
        """Filter for the due timers of a shard, as stored."""
        return f"{self.store}.timers.due.{shard}.*.>"

    def placeholder(self, source: str) -> str:
        """Where the message rests that keeps a work queue from being empty."""
        return f"{self.store}.keepers.{source}"

    def dead_letter(self, reason: str, writer: LetterWriter | Literal["*"] = "runtime") -> str:
        """Where a message that could not be processed rests."""
        return f"{self.store}.deadletters.{writer}.{reason}"

    def registry(self, kind: str, key: str) -> str:
        """Where a registration rests."""
        return f"{self._registrations(kind)}.{encode_token(key)}"

    def registered(self, kind: str) -> str:
        """Filter for all registrations of a kind."""
        return f"{self._registrations(kind)}.*"

    @staticmethod
    def is_listed(kind: str) -> bool:
        """Whether registrations of a kind (apps, agents, events) may be listed by every login."""
        return kind in _LISTED

    def _registrations(self, kind: str) -> str:
        return f"{self.store}.{'registrations' if self.is_listed(kind) else 'registry'}.{kind}"


def tenant_of(event: EventEnvelope) -> str:
    """The tenant of a goal or task as a token of a subject; empty when it has none, and for other events."""
    return tenant_token(event.tenant_id) if event.topic == EventTopic.ACTION_REQUESTS else ""


def tenant_token(tenant_id: str | None) -> str:
    """A tenant as a token of a subject; empty for none, and for a name that is too long to be one."""
    try:
        return encode_token(tenant_id) if tenant_id else ""
    except InvalidSubject:
        return ""
