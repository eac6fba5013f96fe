"""The client: submits plans at Restate's ingress and waits for their results, each call on a connection of its own.

One call to a handler at the ingress both submits and waits for the result, which is the fastest way.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from typing import Any

import aiohttp
import uvloop

HEADERS = {"content-type": "application/json"}


class Client:
    """Calls handlers of the service ``plans``."""

    def __init__(self, ingress: str, session: aiohttp.ClientSession) -> None:
        self._ingress = ingress
        self._session = session
        self._next = 0

    async def round(self, handler: str, count: int, together: bool, goal: dict[str, Any]) -> dict[str, Any]:
        """Run ``count`` plans at once or one after the other; return latencies and total duration, in seconds.

        Raises:
            ValueError: a plan returned a wrong result.
        """
        numbers = range(self._next, self._next + count)
        self._next += count
        cpu, begin = time.process_time(), time.monotonic()
        if together:
            latencies = await asyncio.gather(*(self._run(handler, number, goal) for number in numbers))
        else:
            latencies = [await self._run(handler, number, goal) for number in numbers]
        seconds, used = time.monotonic() - begin, time.process_time() - cpu
        return {"seconds": seconds, "latencies": latencies, "cpu_seconds": used, "first": numbers[0]}

    async def _run(self, handler: str, number: int, goal: dict[str, Any]) -> float:
        begin = time.monotonic()
        body = json.dumps({**goal, "plan": number}).encode()
        async with self._session.post(f"{self._ingress}/plans/{handler}", data=body, headers=HEADERS) as response:
            returned = await response.read()
        taken = time.monotonic() - begin
        wanted = {"value": number + goal["steps"] if handler == "steps" else 10 * (number + 1)}
        if response.status != 200 or json.loads(returned) != wanted:
            raise ValueError(f"plan {number} gave {response.status} {returned[:300]!r}, not {wanted}")
        return taken


async def main(ingress: str, patience: float) -> None:
    """Run a round for each line of the input; a plan may take ``patience`` seconds."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=600)
    timeout = aiohttp.ClientTimeout(total=patience)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        client = Client(ingress, session)
        print(json.dumps({"ready": True}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                reply = await client.round(**json.loads(line))
            except (ValueError, aiohttp.ClientError, TimeoutError) as error:
                reply = {"failed": repr(error)}
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    uvloop.run(main(**json.loads(sys.argv[1])))
