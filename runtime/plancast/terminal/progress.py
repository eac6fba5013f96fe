"""A spinner on stderr during long operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.text import Text

from plancast.terminal import logging
from plancast.terminal.output import err, plain

if TYPE_CHECKING:
    from rich.status import Status

Tell = Callable[[str], None]


@contextmanager
def working(text: str) -> Iterator[Tell | None]:
    """Show a spinner while the context is open; yields a function that changes its text, or None without a terminal."""
    console = err()
    if not console.is_terminal or logging.in_json():
        yield None
        return
    status: Status
    with console.status(Text(plain(text))) as status:
        yield lambda text: status.update(Text(plain(text)))
