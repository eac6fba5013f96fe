"""The echo worker: a line of JSON for each request, and the same back as its answer."""

from __future__ import annotations

import asyncio
import json
import sys

import uvloop


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer requests, those that are there together by one write."""
    while requests := await reader.read(2**16):
        writer.write(requests)
        await writer.drain()
    writer.close()


async def main() -> None:
    """Serve until the input ends."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main())
