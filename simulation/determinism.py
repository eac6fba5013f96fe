"""Replaces all sources of nondeterminism: time comes from the loop, ids and randomness from the seed."""

from __future__ import annotations

import contextlib
import datetime as datetimes
import gc
import os
import random
import time
from collections.abc import Iterator
from random import Random
from unittest import mock

from plancast_bus.events import envelope
from simulation.loop import VirtualLoop


@contextlib.contextmanager
def sealed(loop: VirtualLoop, seed: int) -> Iterator[None]:
    """Patch clock, ids and randomness of this process, for one run at a time.

    The garbage collector is disabled as well, since it finalizes objects at unpredictable times.
    """
    chances = Random(f"ids:{seed}")

    class VirtualDatetime(datetimes.datetime):
        @classmethod
        def now(cls, tz: datetimes.tzinfo | None = None) -> datetimes.datetime:  # type: ignore[override]
            return datetimes.datetime.fromtimestamp(loop.time(), tz)

    state = random.getstate()
    collecting = gc.isenabled()
    gc.disable()
    with (
        mock.patch.object(os, "urandom", chances.randbytes),
        mock.patch.object(random, "_urandom", chances.randbytes),
        mock.patch.object(time, "time", loop.time),
        mock.patch.object(time, "monotonic", loop.time),
        mock.patch.object(time, "perf_counter", loop.time),
        mock.patch.object(envelope, "datetime", VirtualDatetime),
    ):
        random.seed(f"chances:{seed}")
        try:
            yield
        finally:
            random.setstate(state)
            if collecting:
                gc.enable()
