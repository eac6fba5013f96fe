"""AgentOptions: how a remote agent is reached, and which of its skills is wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, urlsplit

from plancast.errors import InvalidApp

WELL_KNOWN: Final = "/.well-known/agent-card.json"


@dataclass(frozen=True)
class AgentOptions:
    """A remote agent.

    Raises:
        InvalidApp: the URL is none, or has a login in it.
    """

    name: str
    card_url: str
    """Address of its card, or of its host."""
    skill: str | None = None
    """The skill that messages name; None: the only one of the card, or none."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers of each request, such as ``Authorization``."""

    def __post_init__(self) -> None:
        try:
            parts = self._parts
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid or "@" in parts.netloc:
            raise InvalidApp(f"agent {self.name!r}: card_url is one of http or https, without a login")

    @property
    def _parts(self) -> SplitResult:
        return urlsplit(self.card_url)

    @property
    def address(self) -> str:
        """Address of the card."""
        return self.card_url if self._parts.path.strip("/") else f"{self.card_url.rstrip('/')}{WELL_KNOWN}"

    @property
    def place(self) -> str:
        """Name and address, for messages; without a query, which may hold secrets."""
        return f"agent {self.name!r} ({self._parts.scheme}://{self._parts.netloc}{self._parts.path})"

    def is_origin_of(self, url: str) -> bool:
        """True if a URL is on the host of the card."""
        parts = urlsplit(url)
        return (parts.scheme, parts.netloc) == (self._parts.scheme, self._parts.netloc)
