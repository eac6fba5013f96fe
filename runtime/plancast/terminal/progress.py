"""A spinner on stderr during long operations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from plancast.terminal import logging
from plancast.terminal.output import cell, err

if TYPE_CHECKING:
    from rich.status import Status

Tell = Callable[[str], None]


@contextmanager
def working(text: str) -> Iterator[Tell | None]:
    """Show a spinner while the context is open; yields a function that changes its text, or None without a terminal."""
    if not sys.stderr.isatty() or logging.in_json() or not (console := err()).is_terminal:
        yield None
        return
    status: Status
    with console.status(cell(text)) as status:
        yield lambda text: status.update(cell(text))


@contextmanager
def transferring(text: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar while the context is open; yields a function of what is copied, the bytes so far, and all."""
    if not sys.stderr.isatty() or logging.in_json() or not (console := err()).is_terminal:
        yield lambda _what, _done, _total: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(text, total=None)
        yield lambda what, done, total: bar.update(
            task, description=f"{text} {what}", completed=done, total=max(done, total) or None
        )
