"""``python -m plancast`` is the command line."""

from plancast.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
