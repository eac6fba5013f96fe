"""Starts the sampler in Ray's workers; Python imports this at start when the folder is on ``PYTHONPATH``."""

import os
import sys

if os.environ.get("PLANCAST_BENCHMARKS_PROFILE") and any(each.endswith("default_worker.py") for each in sys.orig_argv):
    from benchmarks.profiling.sampler import Sampler

    Sampler(os.environ["PLANCAST_BENCHMARKS_PROFILE"]).start()
