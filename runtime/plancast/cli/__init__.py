"""The command line: `root` puts the commands of the rooms together."""

from __future__ import annotations

import gc
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default the arguments of the process, and return its exit code."""
    from plancast.cli.root import run_command_line

    code = run_command_line(arguments)
    if arguments is None:
        gc.freeze()  # the process ends; its last collection would go through all modules, a sixth of a short command
    return code
