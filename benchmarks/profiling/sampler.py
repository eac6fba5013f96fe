"""A thread that samples the stacks of the other Python threads of its process.

A stack is charged with the CPU time that its thread has used since the previous sample, by the thread's own
clock. So waiting costs nothing, and the charges add up to the threads' CPU time at any sampling rate.
Threads that Python has not started, such as Ray's own, are read from the kernel, as a sum.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.profiling.stages import stage_of

GO = "go"
"""Processes are sampled while this file is in the folder, and write their samples when it is removed."""
INTERVAL = 0.004
"""Seconds between samples, on average."""
POLL = 0.02
SWITCH_INTERVAL = 0.0002
"""Seconds after which a busy thread yields to the sampler; Python's default of 5 ms would favour code that waits."""
COLLECTOR = "garbage collection"
"""The stage of Python's garbage collector, in any code."""


class Sampler(threading.Thread):
    """Samples its process while the folder contains ``go``, then writes ``<pid>.json`` into the folder."""

    def __init__(self, folder: str) -> None:
        super().__init__(name="sampler", daemon=True)
        self._folder = Path(folder)
        self._clocks: dict[int, float] = {}
        self._stages: defaultdict[str, float] = defaultdict(float)
        self._functions: defaultdict[str, float] = defaultdict(float)
        self._collecting_since = 0.0
        self._collected: dict[int, float] = {}
        self._threads: set[int | None] = set()
        self._samples = 0

    def run(self) -> None:
        """Sample until the process ends."""
        go = self._folder / GO
        while True:
            while not go.exists():
                time.sleep(POLL)
            self._measure(go)

    def _measure(self, go: Path) -> None:
        switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL)
        gc.callbacks.append(self._note_collection)
        self._stages.clear()
        self._functions.clear()
        self._collected.clear()
        self._clocks.clear()
        self._samples = 0
        process, own, others = time.process_time(), time.thread_time(), _used_without_python()
        looked_at = self._look_for_threads()
        self._look(charge=False)
        while True:
            time.sleep(INTERVAL * (0.5 + random.random()))
            self._look(charge=True)
            if time.monotonic() > looked_at + POLL:
                looked_at = self._look_for_threads()
                if not go.exists():
                    break
        found = {
            "seconds": time.process_time() - process,
            "sampler": time.thread_time() - own,
            "without_python": _used_without_python() - others,
            "samples": self._samples,
            "stages": dict(self._stages),
            "functions": dict(self._functions),
        }
        gc.callbacks.remove(self._note_collection)
        sys.setswitchinterval(switch_interval)
        written = self._folder / f"{os.getpid()}.part"
        written.write_text(json.dumps(found))
        written.replace(written.with_suffix(".json"))

    def _look_for_threads(self) -> float:
        """Record the ids of all threads but this one; return the time."""
        self._threads = {thread.ident for thread in threading.enumerate()} - {self.ident}
        return time.monotonic()

    def _look(self, *, charge: bool) -> None:
        for ident, frame in sys._current_frames().items():
            if ident not in self._threads or frame.f_code is _NOTING:
                continue
            now = time.clock_gettime(time.pthread_getcpuclockid(ident))
            used = now - self._clocks.get(ident, now)
            self._clocks[ident] = now
            if charge and used > 0:
                self._charge(ident, frame, used)

    def _charge(self, ident: int, frame: FrameType, used: float) -> None:
        self._samples += 1
        collected = min(used, self._collected.pop(ident, 0.0))
        if collected:
            self._stages[COLLECTOR] += collected
        self._stages[stage_of(frame)] += used - collected
        code = frame.f_code
        module = frame.f_globals.get("__name__", "")
        self._functions[f"{module}:{code.co_qualname}"] += used - collected

    def _note_collection(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._collecting_since = time.thread_time()
        else:
            ident = threading.get_ident()
            self._collected[ident] = self._collected.get(ident, 0.0) + time.thread_time() - self._collecting_since


_NOTING = Sampler._note_collection.__code__
"""A thread in this code is not sampled: the collector's share of its time is not known yet."""


def _used_without_python() -> float:
    """Return the CPU seconds of this process's threads that Python has not started."""
    known = {thread.native_id for thread in threading.enumerate()}
    used = 0
    for folder in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if int(folder.name) not in known:
                used += int((folder / "schedstat").read_text().split()[0])
    return used / 1e9
