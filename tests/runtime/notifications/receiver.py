"""Receivers of notifications in tests: an HTTP server, and a mail server, on the loopback."""

from __future__ import annotations

import asyncio
import contextlib
import email
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import default
from typing import Any

from aiohttp import web

PATIENCE = 90.0


@dataclass
class Receiver:
    """An HTTP server that keeps what it gets."""

    url: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of its answers."""
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    """Headers, by their names in lower case, and body of each request."""
    before_answer: Callable[[], Awaitable[None]] | None = None

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(body) for _, body in self.got]

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.got]

    async def until(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.got) < count:
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def http_receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()

    async def take(request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        receiver.got.append((headers, await request.read()))
        if receiver.before_answer is not None:
            await receiver.before_answer()
        return web.Response(status=receiver.status, headers=receiver.headers)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/in"
    try:
        yield receiver
    finally:
        await runner.cleanup()


@dataclass
class MailServer:
    """A mail server that keeps what it gets."""

    port: int = 0
    mails: list[EmailMessage] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.mails) < count:
                await asyncio.sleep(0.01)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 here\r\n")
        while line := await reader.readline():
            command = line.decode().strip()
            if command.upper() == "DATA":
                writer.write(b"354 go on\r\n")
                lines = []
                while (data := await reader.readline()) not in (b".\r\n", b""):
                    lines.append(data[1:] if data.startswith(b"..") else data)
                mail = email.message_from_bytes(b"".join(lines), policy=default)
                assert isinstance(mail, EmailMessage)
                self.mails.append(mail)
            elif command.upper().startswith("RCPT TO:"):
                self.recipients.append(command[8:].split()[0].strip("<>"))
            writer.write(b"221 bye\r\n" if command.upper() == "QUIT" else b"250 yes\r\n")
        writer.close()


@contextlib.asynccontextmanager
async def mail_server() -> AsyncIterator[MailServer]:
    mails = MailServer()
    server = await asyncio.start_server(mails.serve, "127.0.0.1", 0)
    mails.port = server.sockets[0].getsockname()[1]
    try:
        yield mails
    finally:
        server.close()
