"""Tools of an MCP server, as the tasks that they become."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from plancast.errors import InvalidApp
from plancast.json_values.schemas import checked_schema
from plancast.mcp_client.options import ServerOptions

if TYPE_CHECKING:
    from mcp import Client

logger = logging.getLogger(__name__)
MAX_TOOLS: Final = 1_000
"""Most tools of a server."""
MAX_DESCRIPTION: Final = 4_000
"""Longest description of a tool, in characters; the rest is cut."""
_OTHER: Final = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True)
class Tool:
    """A tool that is a task. What the server says of it is data: it is shown to models, and decides nothing."""

    name: str
    """Its name on the server."""
    description: str = ""
    schema: Mapping[str, Any] | None = None
    result_schema: Mapping[str, Any] | None = None

    def base(self, server: str) -> str:
        """The task type without its last token: ``<server>.<tool>``.

        Characters that no event type has become ``_``.
        """
        tokens = [each for each in _OTHER.sub("_", self.name).split(".") if each]
        return ".".join((server, *(tokens or ["_"])))


async def listed_tools(client: Client, options: ServerOptions) -> list[Tool]:
    """List the tools of a server that the options ask for.

    Raises:
        InvalidApp: the server lacks a tool, or has too many.
    """
    found: dict[str, Tool] = {}
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor, cache_mode="refresh")
        for each in page.tools:
            if options.tools is None or each.name in options.tools:
                found[each.name] = Tool(
                    each.name,
                    (each.description or each.title or "")[:MAX_DESCRIPTION],
                    _schema(each.input_schema, options, each.name),
                    _schema(each.output_schema, options, each.name),
                )
        cursor = page.next_cursor
        if len(found) > MAX_TOOLS:
            raise InvalidApp(f"{options.place} has more than {MAX_TOOLS} tools: name those that are wanted in tools")
        if cursor is None or not page.tools:
            break
    missing = sorted((options.tools or {}).keys() - found.keys())
    if missing:
        raise InvalidApp(f"{options.place} has no tool {', '.join(missing)}")
    return list(found.values())


def _schema(schema: Any, options: ServerOptions, tool: str) -> Mapping[str, Any] | None:
    """A schema that may be applied here; None, with a warning, for one that may not."""
    if schema is None:
        return None
    try:
        return checked_schema(schema, f"tool {tool}")
    except InvalidApp as error:
        logger.warning("%s: a schema is left out: %s", options.place, str(error)[:500])
        return None
