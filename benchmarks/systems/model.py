"""Runs the model of W4: a model server in a process of its own, which counts its calls."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from benchmarks.apps import w4
from benchmarks.load.outcome import BenchmarkFailed
from benchmarks.systems.ending import die_with_parent
from plancast.testing import ModelServer

START_SECONDS = 30.0


@dataclass(frozen=True)
class ModelCalls:
    """Calls of a model in an interval."""

    decisions: float
    """Decisions; a call that overlaps the interval counts by its share."""
    concurrent: float
    """Mean number of concurrent calls."""
    most_concurrent: int
    """Maximum number of concurrent calls, over its lifetime."""
    late_ms: float
    """Mean delay of a response beyond the model's latency: the cost of the model's own process."""


class Model:
    """A model in another process."""

    def __init__(self, url: str, seconds: float, pipe: Connection, pid: int) -> None:
        self.url = url
        self.seconds = seconds
        """Latency of a response."""
        self.pid = pid
        self._pipe = pipe

    def calls(self, begin: float, end: float) -> ModelCalls:
        """Return its calls between two times of the monotonic clock.

        Raises:
            BenchmarkFailed: it refused a call, or a caller disconnected.
        """
        self._pipe.send((begin, end))
        found = self._pipe.recv()
        if isinstance(found, str):
            raise BenchmarkFailed(found)
        assert isinstance(found, ModelCalls)
        return found


@contextmanager
def model(seconds: float) -> Iterator[Model]:
    """Run a model with a latency of ``seconds``."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, seconds), daemon=True)
    process.start()
    try:
        if not pipe.poll(START_SECONDS):
            raise RuntimeError("the model server did not start")
        yield Model(pipe.recv(), seconds, pipe, process.pid or 0)
    finally:
        process.terminate()
        process.join()


def _serve(pipe: Connection, seconds: float) -> None:
    die_with_parent()
    with ModelServer(rule=w4.decide, latency=seconds) as server:
        pipe.send(server.url)
        while True:
            try:
                begin, end = pipe.recv()
            except EOFError:
                return
            pipe.send(calls_between(server, seconds, begin, end))


def calls_between(server: ModelServer, seconds: float, begin: float, end: float) -> ModelCalls | str:
    """Return the calls of a model of this latency between two times, or why they cannot be judged."""
    requests = list(server.requests)
    refused = [each for each in requests if each.cancelled or each.status not in (None, 200)]
    if refused or server.errors:
        return (
            f"the model refused {len(refused)} of {len(requests)} calls, or callers disconnected: {server.errors[:1]}"
        )
    decisions = concurrent = 0.0
    late = []
    for each in requests:
        finished = each.finished_at or max(end, each.received_at + seconds)
        within = min(finished, end) - max(each.received_at, begin)
        if within <= 0:
            continue
        concurrent += within
        decisions += within / (finished - each.received_at)
        late.append(finished - each.received_at - seconds)
    mean_late = sum(late) / len(late) if late else 0.0
    return ModelCalls(decisions, concurrent / (end - begin), server.high_water, mean_late * 1000)
