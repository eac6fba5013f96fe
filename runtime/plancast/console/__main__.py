"""``python -m plancast.console`` is ``plancast console``."""

import sys

from plancast.cli import main

if __name__ == "__main__":
    sys.exit(main(["console", *sys.argv[1:]]))
