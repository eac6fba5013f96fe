"""The echo worker: returns each request, a line of JSON, as its response."""

from __future__ import annotations

import asyncio
import json
import sys

import uvloop


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Respond to requests; those that have arrived together by one write."""
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
