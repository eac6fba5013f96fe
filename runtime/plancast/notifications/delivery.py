"""Delivery: sends a message to its target, over HTTP or SMTP, in bounded time."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from typing import TYPE_CHECKING, Any, Final

from plancast.errors import PlancastError
from plancast.notifications.message import mail, slack_body, webhook_body
from plancast.notifications.notice import Notice
from plancast.notifications.targets import SMTPS, Email, Slack, Target, Webhook
from plancast.webhooks.secret import Secrets
from plancast.webhooks.signature import ID, sign

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver

SECONDS: Final = 10.0
"""Seconds for a message over HTTP, and for each step of one over SMTP."""
MAIL_SECONDS: Final = 30.0
MAIL_THREADS: Final = 4
LONGEST_WAIT: Final = 3_600.0
"""Longest wait that a receiver may ask for, in seconds."""


class Undelivered(PlancastError):
    """Raised when a message was not taken; the reason has no secret."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        self.retry_after = retry_after
        """Seconds for which the receiver wants no further attempt."""
        super().__init__(reason)


class Delivery:
    """Sends messages. Redirects are not followed: the targets are those of the app's code, and no others."""

    def __init__(self) -> None:
        self._http: aiohttp.ClientSession | None = None
        self._mail: dict[str, ThreadPoolExecutor] = {}
        """Threads by mail server, so that one that hangs holds up no other."""

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
        for threads in self._mail.values():
            threads.shutdown(wait=False, cancel_futures=True)

    async def send(
        self, target: Target, notice: Notice, *, message_id: str, link: str, created: float, now: float
    ) -> None:
        """Send a notice to a target.

        Args:
            target: The target.
            notice: The notice.
            message_id: The same for each attempt.
            link: The URL by which it is answered; empty: none.
            created: When its cause was found.
            now: The time, for the signature.

        Raises:
            Undelivered: it was not taken, or may have been without an answer in time.
        """
        try:
            if isinstance(target, Email):
                message = mail(notice, target, link, created)
                loop, server = asyncio.get_running_loop(), f"{target.host}:{target.port}"
                threads = self._mail.setdefault(server, ThreadPoolExecutor(MAIL_THREADS, "mail"))
                async with asyncio.timeout(MAIL_SECONDS):
                    await loop.run_in_executor(threads, _send_mail, target, message)
            else:
                body = slack_body(notice, link) if isinstance(target, Slack) else webhook_body(notice, link, created)
                async with asyncio.timeout(SECONDS):
                    await self._post(target, body, message_id, now)
        except (PlancastError, asyncio.CancelledError):
            raise
        except TimeoutError:
            raise Undelivered("no answer in time") from None
        except smtplib.SMTPResponseException as error:
            raise Undelivered(f"the mail server answered {error.smtp_code}") from None
        except Exception as error:  # texts of such errors have URLs and logins
            raise Undelivered(f"{type(error).__name__}{_number(error)}") from None

    async def _post(self, target: Webhook, body: dict[str, Any], message_id: str, now: float) -> None:
        from pydantic_core import to_json

        self._http = self._http or http_session()
        url = await asyncio.to_thread(target.address)
        content = to_json(body)
        headers = {"Content-Type": "application/json", "User-Agent": "plancast", ID: message_id}
        if target.secret is not None:
            secrets = await asyncio.to_thread(Secrets(f"Webhook {target.name!r}", target.secret).read)
            headers |= sign(secrets[0], message_id, int(now), content)
        await post(self._http, url, content, headers)


def http_session(resolver: AbstractResolver | None = None) -> aiohttp.ClientSession:
    """A session for messages to others: no cookies, no connection that is kept.

    Args:
        resolver: Finds the addresses of hosts; that of the system by default.
    """
    import aiohttp

    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=SECONDS),
        connector=aiohttp.TCPConnector(force_close=True, resolver=resolver),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


async def post(http: aiohttp.ClientSession, url: str, content: bytes, headers: Mapping[str, str]) -> None:
    """Send a message by POST, and follow no redirect.

    Raises:
        Undelivered: the answer is another than that it was taken.
        aiohttp.ClientError, TimeoutError: there is none.
    """
    async with http.post(url, data=content, headers=headers, allow_redirects=False) as answer:
        if not 200 <= answer.status < 300:
            wait = answer.headers.get("Retry-After", "")
            seconds = min(float(wait), LONGEST_WAIT) if wait.isascii() and wait.isdigit() and len(wait) < 9 else 0.0
            raise Undelivered(f"it answered {answer.status}", seconds)


def _send_mail(target: Email, message: EmailMessage) -> None:
    context = ssl.create_default_context()
    implicit = target.tls and target.port == SMTPS
    server: smtplib.SMTP = (
        smtplib.SMTP_SSL(target.host, target.port, timeout=SECONDS, context=context)
        if implicit
        else smtplib.SMTP(target.host, target.port, timeout=SECONDS)
    )
    with server:
        if target.tls and not implicit:
            server.starttls(context=context)
        if target.password is not None:
            server.login(target.user, Secrets("Email", target.password).read()[0])
        server.send_message(message, target.sender, list(target.recipients))


def _number(error: BaseException) -> str:
    """The number of an error of the system, such as a refused connection."""
    number = getattr(error, "errno", None)
    return f" ({number})" if isinstance(number, int) else ""
