"""``python -m simulation``: simulates seeds."""

from __future__ import annotations

import argparse
import sys

from simulation.runner import run_and_report


def main() -> int:
    """Run seeds; return 1 when one of them violates a guarantee."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="number of seeds (10000)")
    parser.add_argument("--from", dest="first", type=int, default=0, help="first seed (0)")
    parser.add_argument("--jobs", type=int, default=0, help="processes; 0 for one per core")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds)
    failed = run_and_report(seeds, 1 if given.seeds < 50 else given.jobs, lambda line: print(line, flush=True))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
