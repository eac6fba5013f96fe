"""An MCP server for tests: ``python tool_server.py FOLDER [http PORT]``; its acts are lines of files in the folder."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from mcp.server import MCPServer

FOLDER = Path(sys.argv[1])
server = MCPServer("tools", log_level="CRITICAL")


def note(name: str, text: str = "") -> None:
    """Append a line to a file of the folder."""
    with (FOLDER / name).open("a") as file:
        file.write(f"{text}\n")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def read(path: str) -> dict[str, Any]:
    """Read a file."""
    return {"path": path, "text": f"what is in {path}"}


@server.tool(structured_output=False)
def say(text: str) -> str:
    """Say something."""
    return text


@server.tool(structured_output=False)
def large(size: int) -> str:
    """Return many characters."""
    return "x" * size


@server.tool()
def refuse(why: str) -> str:
    """Fail."""
    raise ValueError(why)


@server.tool()
def pay(invoice: str) -> dict[str, str]:
    """Pay an invoice."""
    note("paid", invoice)
    return {"paid": invoice}


@server.tool()
async def hang(invoice: str) -> str:
    """Pay an invoice, and never answer."""
    note("paid", invoice)
    await asyncio.Event().wait()
    return ""


@server.tool()
def die(invoice: str) -> dict[str, str]:
    """Pay an invoice, and die, if this is the first time."""
    note("paid", invoice)
    if len((FOLDER / "paid").read_text().split()) == 1:
        os._exit(7)
    return {"paid": invoice}


@server.tool()
def spawn() -> int:
    """Start a process that does not notice the end of anything."""
    child = subprocess.Popen(["sleep", "100000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    note("children", str(child.pid))
    return child.pid


@server.tool(name="odd name/1")
def odd() -> str:
    """Have a name that no event type has."""
    return "odd"


if __name__ == "__main__":
    note("starts", str(os.getpid()))
    if "http" in sys.argv:
        server.run("streamable-http", port=int(sys.argv[-1]))
    else:
        server.run()
