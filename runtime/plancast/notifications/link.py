"""Link: a URL by which its recipient answers one wait of one plan, once, for some days."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from dataclasses import astuple, dataclass
from hashlib import sha256
from typing import Final

from plancast.errors import PlancastError
from plancast.settings import ConsoleSettings
from plancast_bus.ports.seals import Seals

PATH: Final = "/links/"
"""Path of links at the console's server."""
LIFETIME: Final = 7 * 86_400.0
"""Seconds for which a link may be used."""
LONGEST: Final = 2_600
"""Characters of a token. A plan with a longer id has no links."""
_PURPOSE: Final = "plancast approval link\n"
"""Begins the sealed text, which no other text that is sealed does."""


class InvalidLink(PlancastError):
    """Raised when a token is not one that this deployment has made."""


class ExpiredLink(PlancastError):
    """Raised when a link may no longer be used."""


@dataclass(frozen=True)
class Link:
    """Permission to answer one wait, as a link carries it."""

    key: str
    """Correlation id of the plan's checkpoint."""
    request_id: str
    """The wait."""
    by: str
    """Its recipient, as histories name who has answered."""
    expires: int
    """Seconds since the epoch."""

    @property
    def event_id(self) -> str:
        """Id of the event of an answer by this link: however often it is used, one counts."""
        return f"link:{sha256(repr(astuple(self)).encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"

    def token(self, seals: Seals) -> str:
        """The token, with the seal of the deployment; its keys must have been read."""
        content = json.dumps(astuple(self)).encode()
        encoded = base64.urlsafe_b64encode(content).decode().rstrip("=")
        return f"{encoded}.{seals.seal(_PURPOSE + encoded)}"


class SecretSeals:
    """Seals by a secret, for processes that may not read the keys of the deployment."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    async def prepare(self) -> None:
        """Do nothing: the secret is there."""

    def seal(self, text: str) -> str:
        return hmac.new(self._secret, text.encode("utf-8", "surrogatepass"), sha256).hexdigest()

    def verify(self, text: str, seal: str) -> bool:
        return hmac.compare_digest(self.seal(text).encode(), seal.encode("utf-8", "surrogatepass"))


def link_seals(settings: ConsoleSettings, keys: Seals) -> Seals:
    """The seals of links: by the secret of the settings, or else by the keys of the deployment."""
    secret = settings.link_secret
    return SecretSeals(secret.get_secret_value()) if secret is not None else keys


def read_link(token: str, seals: Seals, now: float) -> Link:
    """The link of a token.

    Raises:
        InvalidLink: this deployment has not made the token.
        ExpiredLink: it may no longer be used.
    """
    encoded, _, seal = token.partition(".")
    if len(token) > LONGEST or not token.isascii() or not seals.verify(_PURPOSE + encoded, seal):
        raise InvalidLink("this link was not made here, or is incomplete")
    try:
        link = Link(*json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))))
    except (ValueError, TypeError, binascii.Error):
        raise InvalidLink("this link is of another version") from None
    if now >= link.expires:
        raise ExpiredLink("this link has expired")
    return link
