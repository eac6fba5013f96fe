"""Runs a program in a process group that does not outlive another process: ``python guard.py PID FD PROGRAM ...``.

It is a script of its own, which imports nothing of plancast. FD is the read end of a pipe whose write end the process
PID alone has: once that is closed, by a death of whatever kind, what is left of the group is killed.
"""

import os
import signal
import sys
import time

_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL."""
_LIMIT = os.sysconf("SC_OPEN_MAX")


def main(owner: int, pipe: str, command: list[str]) -> None:
    """Become the program, with a child that waits for the end of the owner."""
    alive = os.open(f"/proc/{owner}/fd/{pipe}", os.O_RDONLY)
    if os.getppid() != owner:  # it has ended, and its id may be that of another process by now
        raise SystemExit(f"process {owner} has ended")
    if os.fork() == 0:
        _wait(alive)
    os.closerange(3, _LIMIT)  # some event loops let children inherit what is theirs
    try:
        os.execvp(command[0], command)
    except OSError as error:
        reason = "not found" if isinstance(error, FileNotFoundError) else error.strerror
        raise SystemExit(f"{command[0]}: {reason}") from None


def _wait(alive: int) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    kept = os.dup2(alive, 3) if alive != 3 else alive
    os.closerange(4, _LIMIT)
    os.read(kept, 1)
    os.killpg(0, signal.SIGTERM)
    time.sleep(_GRACE)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
