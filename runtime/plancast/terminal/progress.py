"""What lasts shows that it goes on: on stderr, on a terminal alone, gone when it is over."""

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
    """Show a line with a spinner while something goes on; what is yielded changes its text. None: nobody looks."""
    console = err()
    if not console.is_terminal or logging.in_json():
        yield None
        return
    status: Status
    with console.status(Text(plain(text))) as status:
        yield lambda text: status.update(Text(plain(text)))
