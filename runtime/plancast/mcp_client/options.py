"""ServerOptions: how an MCP server is reached, and which of its tools are wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from plancast.effects.effect import Effect
from plancast.errors import InvalidApp


@dataclass(frozen=True)
class ServerOptions:
    """An MCP server, and its tools that become tasks.

    Raises:
        InvalidApp: there is neither a command nor a URL, or both, or one of them is malformed.
    """

    name: str
    """Prefix of the task types."""
    command: Sequence[str] | None = None
    """Program and arguments of a server that speaks over its standard input and output."""
    url: str | None = None
    """Address of a server that speaks streamable HTTP."""
    tools: Mapping[str, Effect | None] | None = None
    """Wanted tools, each with the effect of its calls; None: all that the server has."""
    effect: Effect | None = None
    """Effect of a call of a tool that is not named in ``tools``; None: a call may be repeated."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variables of the command, besides PATH, HOME and the like: no others are inherited."""
    cwd: str | None = None
    """Folder in which the command runs."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers of each HTTP request, such as ``Authorization``."""
    timeout: float = 300.0
    """Longest call of a tool, in seconds."""

    def __post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise InvalidApp(f"MCP server {self.name!r}: give either command=[...] or url=...")
        if self.command is not None and (
            isinstance(self.command, str) or not self.command or not all(isinstance(each, str) for each in self.command)
        ):
            raise InvalidApp(f"MCP server {self.name!r}: command is a list of texts, such as ['npx', 'server-files']")
        if self.url is not None and urlsplit(self.url).scheme not in ("http", "https"):
            raise InvalidApp(f"MCP server {self.name!r}: url begins with http:// or https://")
        for tool, effect in (self.tools or {}).items():
            given: object = effect
            if given is not None and not isinstance(given, Effect):
                raise InvalidApp(f"MCP server {self.name!r}: the effect of the tool {tool!r} is an Effect, or None")
        if not self.timeout > 0:
            raise InvalidApp(f"MCP server {self.name!r}: timeout is a number of seconds, more than 0")

    @property
    def place(self) -> str:
        """Name and address, for messages; without arguments and query, which may hold secrets."""
        if self.command is not None:
            return f"MCP server {self.name!r} (program {self.command[0]!r})"
        parts = urlsplit(self.url or "")
        return f"MCP server {self.name!r} ({parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path})"

    def effect_of(self, tool: str) -> Effect | None:
        """The effect of a call of a tool."""
        return self.tools.get(tool, self.effect) if self.tools is not None else self.effect
