"""The echo process: takes requests, a line of JSON each, and resolves their awakeables at Restate's ingress.

The response is the request's value plus one, after the request's delay in seconds. It records the time and process
of each plan's steps, for W6.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import aiohttp
import uvloop

CONNECTIONS = 500
HEADERS = {"content-type": "application/json"}
TRIES = 5


class Echo:
    """Records requests, and responds to them."""

    def __init__(self, ingress: str, session: aiohttp.ClientSession) -> None:
        self._ingress = ingress
        self._session = session
        self._answering: set[asyncio.Task[None]] = set()
        self.requests: list[tuple[int, int, int, float]] = []
        """Plan, step, process, and time (seconds of the monotonic clock)."""
        self.failed: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take the requests of one process of plans."""
        try:
            while line := await reader.readline():
                request = json.loads(line)
                self.requests.append((request["plan"], request["step"], request["life"], time.monotonic()))
                task = asyncio.create_task(self._answer(request))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
                writer.write(b"\n")
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: dict[str, Any]) -> None:
        if request["seconds"]:
            await asyncio.sleep(request["seconds"])
        url = f"{self._ingress}/restate/awakeables/{request['reply_to']}/resolve"
        body = json.dumps({"value": request["value"] + 1}).encode()
        for last in (*[False] * (TRIES - 1), True):
            try:
                async with self._session.post(url, data=body, headers=HEADERS) as response:
                    if response.ok:
                        return
                    problem = f"{response.status}: {await response.text()}"
            except aiohttp.ClientError as error:
                problem = repr(error)
            if last:
                self.failed.append(problem)
            await asyncio.sleep(0.1)


async def main(ingress: str) -> None:
    """Print the port, then answer each line of the input with the requests since the previous line."""
    connector = aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=600)
    async with aiohttp.ClientSession(connector=connector) as session:
        echo = Echo(ingress, session)
        server = await asyncio.start_server(echo.serve, "127.0.0.1", 0, backlog=1024)
        print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            requests, echo.requests = echo.requests, []
            reply = {"failed": f"responses were refused: {echo.failed[:3]}"} if echo.failed else {"requests": requests}
            print(json.dumps(reply), flush=True)
        server.close()


if __name__ == "__main__":
    uvloop.run(main(**json.loads(sys.argv[1])))
