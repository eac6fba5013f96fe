"""Targets of notifications: a webhook, a channel of Slack, a mailbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from email.errors import MessageError
from email.headerregistry import Address
from hashlib import sha256
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import SecretStr

from plancast.errors import InvalidApp
from plancast.webhooks.secret import ENVIRONMENT, Secret, Secrets

Kind = Literal["approval", "failed", "effect_unknown", "budget"]
KINDS: Final[tuple[Kind, ...]] = ("approval", "failed", "effect_unknown", "budget")
"""Kinds of causes of notifications."""
LONGEST_LABEL: Final = 200
SMTPS: Final = 465
"""Port on which a mail server speaks TLS from the first byte."""


@dataclass(frozen=True)
class Webhook:
    """A URL that gets each notification as JSON, by POST, signed by Standard Webhooks if there is a secret."""

    url: Secret = field(repr=False)
    """The URL, or where it is: ``env:NAME``, a ``SecretStr``, or a function."""
    secret: Secret | None = field(default=None, repr=False)
    """As that of a hook."""
    label: str = ""
    """Its name in histories, for answers by its links; the host of the URL by default."""

    def __post_init__(self) -> None:
        _check_url(type(self).__name__, self.url)
        _check_label(self.label)
        if self.secret is not None:
            Secrets(type(self).__name__, self.secret)

    @property
    def name(self) -> str:
        """Its name for people."""
        return self.label or _host(self.url)

    @property
    def id(self) -> str:
        """Tells targets apart; the same in all processes."""
        return _id(type(self).__name__, _place(self.url), self.label)

    def address(self) -> str:
        """The URL.

        Raises:
            SecretMissing: it is not there.
            InvalidApp: it is none.
        """
        url = self.url
        if isinstance(url, str) and not url.startswith(ENVIRONMENT):
            return url
        found = Secrets(f"{type(self).__name__} {self.name!r}", url).read()[0]
        _check_url(type(self).__name__, found, literal=True)
        return found


@dataclass(frozen=True)
class Slack(Webhook):
    """An incoming webhook of Slack, or of a service that takes the same messages."""


@dataclass(frozen=True)
class Email:
    """A mailbox, or several, each of which gets a mail of its own.

    Raises:
        InvalidApp: an address is none, or a field has another value than it may have.
    """

    to: str | Sequence[str]
    """Addresses, such as ``ada@example.com``."""
    sender: str
    """The address that mails come from."""
    host: str
    """The mail server that takes them."""
    port: int = 587
    tls: bool = True
    """Encrypts the connection: on port 465 from the first byte, else by STARTTLS."""
    user: str = ""
    """Login at the mail server; empty: none."""
    password: Secret | None = field(default=None, repr=False)
    label: str = ""
    """Its name in histories, for answers by its links; the recipient by default."""

    def __post_init__(self) -> None:
        for address in (*self.recipients, self.sender):
            check_address(address)
        _check_label(self.label)
        if not self.recipients or not self.host or not 0 < self.port < 65_536:
            raise InvalidApp("Email: it needs a recipient, a host, and a port")
        if bool(self.user) != (self.password is not None):
            raise InvalidApp("Email: a user has a password, and a password a user")
        if self.password is not None:
            Secrets("Email", self.password)

    @property
    def recipients(self) -> tuple[str, ...]:
        given: Any = self.to
        return tuple(given) if isinstance(given, (list, tuple)) else (given,)

    @property
    def name(self) -> str:
        """Its name for people."""
        return self.label or ", ".join(self.recipients)

    @property
    def id(self) -> str:
        """Tells targets apart; the same in all processes."""
        return _id("Email", *self.recipients, self.label)

    def each(self) -> list[Email]:
        """One target for each recipient."""
        return [replace(self, to=each) for each in self.recipients]


Target = Webhook | Email


@dataclass(frozen=True)
class Subscription:
    """A target, and what it is notified of."""

    on: frozenset[Kind]
    target: Target


def subscriptions(on: Any, to: Any) -> list[Subscription]:
    """The subscriptions of a target, one for each recipient.

    Raises:
        InvalidApp: it is no target, or there is no such kind of notification.
    """
    kinds = frozenset((on,) if isinstance(on, str) else on)
    if not kinds or kinds - set(KINDS):
        raise InvalidApp(f"notify: on is {sorted(map(str, kinds))}, allowed: {', '.join(KINDS)}")
    if isinstance(to, Email):
        return [Subscription(kinds, each) for each in to.each()]
    if not isinstance(to, Webhook):
        raise InvalidApp(f"notify: to is a {type(to).__name__}, allowed: Webhook, Slack, Email")
    return [Subscription(kinds, to)]


def check_address(address: Any) -> None:
    """Check that a text is an address of a mailbox, with nothing that could become another header.

    Raises:
        InvalidApp: it is not.
    """
    try:
        if not isinstance(address, str) or not address.isprintable():
            raise ValueError("it is no text of one line")
        parsed = Address(addr_spec=address)
        if not parsed.username or not parsed.domain:
            raise ValueError("it has no @")
    except (ValueError, LookupError, MessageError) as error:
        raise InvalidApp(f"Email: {address!r:.80} is no address: {error}") from None


def _check_url(owner: str, url: Any, *, literal: bool = False) -> None:
    if not isinstance(url, str) or (url.startswith(ENVIRONMENT) and not literal):
        Secrets(owner, url)
        return
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or not url.isprintable() or " " in url:
        raise InvalidApp(f"{owner}: its url is none of http or https")


def _check_label(label: Any) -> None:
    if not isinstance(label, str) or len(label) > LONGEST_LABEL or not label.isprintable():
        raise InvalidApp(f"a label has at most {LONGEST_LABEL} characters, and no line breaks")


def _host(url: Any) -> str:
    if not isinstance(url, str):
        return "a webhook"
    return url if url.startswith(ENVIRONMENT) else str(urlsplit(url).hostname)


def _place(url: Any) -> str:
    if isinstance(url, SecretStr):
        return url.get_secret_value()
    return url if isinstance(url, str) else str(getattr(url, "__qualname__", type(url).__name__))


def _id(*parts: str) -> str:
    return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
