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
