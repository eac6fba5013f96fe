"""Watches or turns off a fast path in each process of a run; Python imports it when it is on ``PYTHONPATH``."""

import os

if os.environ.get("PLANCAST_BENCHMARKS_WAY"):
    from benchmarks.ways import switches

    switches.install()
