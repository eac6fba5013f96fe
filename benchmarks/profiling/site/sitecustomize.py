"""Python runs this first, in every process that has this folder on ``PYTHONPATH``: Ray's workers are to be sampled."""

import os
import sys

if os.environ.get("PLANCAST_BENCHMARKS_PROFILE") and any(each.endswith("default_worker.py") for each in sys.orig_argv):
    from benchmarks.profiling.sampler import Sampler

    Sampler(os.environ["PLANCAST_BENCHMARKS_PROFILE"]).start()
