"""Output of commands: tables, times and JSON. Only the JSON is a stable format.

rich is loaded where something is formatted: probes and `submit` in scripts print plain lines.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urldefrag, urlsplit

from plancast.terminal import logging as logs

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

PIPED_WIDTH = 200
"""Width of tables in pipes and files."""

STATUS_STYLES = {
    "pending": "dim",
    "running": "cyan",
    "waiting": "bright_yellow",
    "paused": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "magenta",
}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def out() -> Console:
    """Console for results: stdout."""
    return _console(stderr=False)


def err() -> Console:
    """Console for progress, notes and errors: stderr."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPED_WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def note(text: str) -> None:
    """Print a note on stderr."""
    if logs.in_json():
        logs.tell(logging.INFO, plain(text))
        return
    err().print(cell(text, "dim"), soft_wrap=True)


def note_link(text: str, link: str) -> None:
    """Print a note with a link; its token is removed where notes are log records."""
    note(f"{text} {urldefrag(link).url if logs.in_json() else link}")


def report_line(text: str, *, good: bool) -> None:
    """Print a line with a tick or a cross on stdout."""
    sign = "✓" if good else "✗"
    if sys.stdout.isatty():
        out().print(cell(sign, "bold green" if good else "bold red"), cell(text), soft_wrap=True)
    else:
        print_line(f"{sign} {plain(text)}")


def print_line(text: str) -> None:
    """Print an unformatted line on stdout and flush, for other programs."""
    print(text, flush=True)


def print_json(value: Any, *, compact: bool = False) -> None:
    """Print a JSON document on stdout; compact makes it one line."""
    indent = None if compact else 2
    print_line(json.dumps(value, indent=indent, ensure_ascii=False, default=str))


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """Create a table without borders; the columns in ``right`` are right-aligned."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    numbers = set(right)
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return made


def fields() -> Table:
    """Create a table of names and values."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    return made


def cell(value: Any, style: str = "") -> Text:
    """A value as text without terminal control characters."""
    from rich.text import Text

    return Text(plain(str(value)), style=style)


def plain(text: str) -> str:
    """Escape control characters, except line breaks and tabs."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def status_text(status: str) -> Text:
    return cell(status, STATUS_STYLES.get(status, ""))


def shorten(value: Any, limit: int) -> str:
    """A value as one line of JSON of up to ``limit`` characters."""
    line = json.dumps(value, ensure_ascii=False, default=str)
    return line if len(line) <= limit else f"{line[: max(1, limit - 1)]}…"


def duration(seconds: float) -> str:
    """Format seconds: ``4.2 ms``, ``340 ms``, ``4.2 s``, ``3 min 05 s``, ``2 h 10 min``, ``4 d 3 h``."""
    seconds = max(0.0, seconds)
    if seconds < 0.00995:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def timestamp(seconds: float, *, fraction: bool = False) -> str:
    """Format seconds since the epoch as UTC time."""
    if not seconds:
        return "–"
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    return text[:-3] if fraction else text[:-7]


def iso(seconds: float) -> str | None:
    """Format seconds since the epoch as ISO 8601, for JSON; None for 0."""
    return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else None


def size(count: float) -> str:
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("the last unit takes everything")


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def public_url(url: str) -> str:
    """Remove user and password from NATS URLs."""
    return ",".join(_without_user(each.strip()) for each in url.split(",") if each.strip())


def _without_user(url: str) -> str:
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    except ValueError:
        return "?"
