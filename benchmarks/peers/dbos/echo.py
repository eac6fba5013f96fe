"""The echo worker: takes requests over a socket, and answers each with a DBOS message to the requesting plan.

Responses that are due together are sent by ``send_bulk``, in one transaction.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading

import uvloop
from dbos import DBOSClient, SendMessage

MOST = 500
"""Responses in one transaction."""


class Echo:
    """Answers requests."""

    def __init__(self, client: DBOSClient) -> None:
        self._client = client
        self._asked: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a request per line, and confirm each with an empty line."""
        while line := await reader.readline():
            self._asked.put_nowait(json.loads(line))
            writer.write(b"\n")
        writer.close()

    async def answer(self) -> None:
        """Send responses, for ever."""
        while True:
            requests = [await self._asked.get()]
            while not self._asked.empty() and len(requests) < MOST:
                requests.append(self._asked.get_nowait())
            await self._client.send_bulk_async([message(request) for request in requests])


def message(request: dict[str, str]) -> SendMessage:
    """Build the response, with an idempotency key for repeated requests."""
    plan, step = request["plan"], request["step"]
    answer = {"step": step, "value": request["value"]}
    return SendMessage(plan, answer, step, idempotency_key=f"{plan}-{step}")


async def main(url: str) -> None:
    """Serve until the input ends."""
    echo = Echo(DBOSClient(system_database_url=url))
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    threading.Thread(target=leave, daemon=True).start()
    await echo.answer()


def leave() -> None:
    """Exit when the parent closes the input."""
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    uvloop.run(main(**json.loads(sys.argv[1])))
