"""Faults of real processes, generated from a seed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import nats
import ray
from ray.exceptions import RayError
from simulation.history import FaultStruck
from tests.chaos.recorder import Recorder
from tests.chaos.wire import Wire

from plancast_actors.reasoning.client import POOL
from plancast_bus.fault_injection import CrashPoint
from plancast_bus.nats_server.process import NatsServer

KINDS: Final = (
    "kill host", "kill host", "kill host", "kill dispatcher", "kill dispatcher", "kill worker", "kill reasoner",
    "kill pool", "kill twice", "stop process", "stop process", "kill nats", "stop nats", "stall wire", "cut wire",
    "repeat answers", "late answers",
)  # fmt: skip
CRASH_POINT: Final = "crash point"
"""A kill at a crash point; for processes that were started with crash points armed."""
PASSES = 3000
"""Passes of a crash point before a process is killed there, at most."""
CRASH_SECONDS = 5.0
"""Seconds within which a process has to reach a crash point."""
PATIENCE = 60.0
"""Seconds within which an actor has to be found, and to work again."""


@dataclass(frozen=True)
class Fault:
    """A fault, ``at`` seconds after the beginning."""

    at: float
    kind: str
    target: int
    seconds: float


def make_faults(seed: int, seconds: float, per_minute: float, crash_points: bool = False) -> list[Fault]:
    """Generate faults, deterministically; each kind occurs once before any occurs again."""
    kinds = (*KINDS, *[CRASH_POINT] * len(KINDS)) if crash_points else KINDS
    random = Random(f"faults:{seed}")
    faults: list[Fault] = []
    waiting: list[str] = []
    at = random.uniform(0.2, 1.0)
    while at < seconds:
        if not waiting:
            waiting = random.sample(kinds, k=len(kinds))
        faults.append(Fault(at, waiting.pop(), random.randrange(1000), random.uniform(1.0, 5.0)))
        at += random.expovariate(per_minute / 60.0)
    return faults


class Misfortune:
    """Injects faults into a deployment on this machine, and measures recovery times."""

    def __init__(
        self, namespace: str, hosts: int, server: NatsServer, wire: Wire, recorder: Recorder, crash_points: Path
    ) -> None:
        self._namespace = namespace
        self._hosts = [f"host-{number}" for number in range(hosts)]
        self._server = server
        self._wire = wire
        self._recorder = recorder
        self._crash_points = crash_points
        self._crashing = asyncio.Lock()
        self._serving = asyncio.Lock()
        self._stopped: set[int] = set()
        self.struck: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        """Faults whose process did not exist."""
        self.recovered: list[float] = []
        """Recovery times in seconds."""

    async def strike(self, fault: Fault, begin: float) -> None:
        """Inject a fault at its time, and wait for recovery."""
        await asyncio.sleep(max(0.0, begin + fault.at - time.monotonic()))
        deed, _, what = fault.kind.partition(" ")
        done: Callable[[Fault], Awaitable[bool]] = {
            "twice": self._kill_twice,
            "process": self._stop_process,
            "nats": self._kill_nats if deed == "kill" else self._stop_nats,
            "wire": self._stall_wire if deed == "stall" else self._cut_wire,
            "answers": self._repeat_answers,
            "point": self._crash_at_a_point,
        }.get(what, self._kill)
        counter = self.struck if await done(fault) else self.missed
        counter[fault.kind] += 1

    def let_go(self) -> None:
        """Continue all stopped processes."""
        for pid in list(self._stopped):
            _send(pid, signal.SIGCONT)

    def _named(self, fault: Fault) -> str:
        every = [*self._hosts, "worker-0", "dispatcher-0", POOL, "reasoner-0"]
        of = {"host": self._hosts, "worker": ["worker-0"], "dispatcher": ["dispatcher-0"], "reasoner": ["reasoner-0"]}
        names = of.get(fault.kind.partition(" ")[2], [POOL] if fault.kind == "kill pool" else every)
        return names[fault.target % len(names)]

    def _note(self, what: str) -> None:
        self._recorder.record.note("misfortune", FaultStruck(what))

    async def _kill(self, fault: Fault) -> bool:
        name = self._named(fault)
        pid = await self._pid(name)
        if pid is None:
            return False
        self._note(f"kill -9 {name} ({pid})")
        _send(pid, signal.SIGKILL)
        await self._works_again(name, time.monotonic(), but=pid)
        return True

    async def _kill_twice(self, fault: Fault) -> bool:
        """Kill a process, and its successor as soon as that has a process id."""
        name = self._named(fault)
        first = await self._pid(name)
        if first is None:
            return False
        begin = time.monotonic()
        self._note(f"kill -9 {name} ({first})")
        _send(first, signal.SIGKILL)
        second = await self._pid(name, but=first)
        if second is not None:
            self._note(f"kill -9 {name} ({second}) again")
            _send(second, signal.SIGKILL)
        await self._works_again(name, begin, but=second)
        return True

    async def _stop_process(self, fault: Fault) -> bool:
        name = self._named(fault)
        pid = await self._pid(name)
        if pid is None:
            return False
        self._note(f"stop {name} ({pid}) for {fault.seconds:.1f} s")
        await self._stop(pid, fault.seconds)
        await self._works_again(name, time.monotonic())
        return True

    async def _kill_nats(self, fault: Fault) -> bool:
        async with self._serving:
            self._note(f"kill -9 nats-server for {fault.seconds / 3:.1f} s")
            begin = time.monotonic()
            await asyncio.to_thread(self._server.kill)
            await asyncio.sleep(fault.seconds / 3)
            await asyncio.to_thread(self._server.start)
            await self._commits_again(begin)
        return True

    async def _stop_nats(self, fault: Fault) -> bool:
        async with self._serving:
            pid = self._server.pid
            assert pid is not None
            self._note(f"stop nats-server for {fault.seconds:.1f} s")
            await self._stop(pid, fault.seconds)
            await self._commits_again(time.monotonic())
        return True

    async def _stall_wire(self, fault: Fault) -> bool:
        self._note(f"nothing passes to NATS and back for {fault.seconds:.1f} s")
        await self._wire.stall(fault.seconds)
        await self._commits_again(time.monotonic())
        return True

    async def _cut_wire(self, fault: Fault) -> bool:
        self._note("all connections to NATS are cut")
        self._wire.cut()
        await self._commits_again(time.monotonic())
        return True

    async def _repeat_answers(self, fault: Fault) -> bool:
        """Publish earlier replies again, at once or late, without their message ids."""
        prefix = "plancast.action-results."
        given = [each for each in self._recorder.record.seen[-4000:] if each.subject.startswith(prefix)]
        given = [each for each in given if each.headers.get("Nats-Msg-Id", "").startswith("answer:")][-10:]
        if not given:
            return False
        self._note(f"{len(given)} {fault.kind.partition(' ')[0]} answers")
        await asyncio.sleep(fault.seconds if fault.kind == "late answers" else 0.0)
        with contextlib.suppress(nats.errors.Error, OSError):
            connection = await nats.connect(
                self._server.url, allow_reconnect=False, connect_timeout=2, error_cb=_expected
            )
            for each in given:
                kind = {"Content-Type": each.headers["Content-Type"], "Chaos": "again"}
                await connection.publish(each.subject, each.payload, headers=kind)
            await connection.drain()
        return True

    async def _crash_at_a_point(self, fault: Fault) -> bool:
        """Have the first process that reaches the point kill itself."""
        point = list(CrashPoint)[fault.target % len(CrashPoint)]
        async with self._crashing:
            await asyncio.to_thread(self._arm, point, True)
            claimed: list[str] = []
            for _ in range(int(CRASH_SECONDS / 0.1)):
                await asyncio.sleep(0.1)
                claimed = [name for name in os.listdir(self._crash_points) if name.startswith("claimed-")]
                if claimed:
                    break
            await asyncio.to_thread(self._arm, point, False)
        self._note(f"kill -9 at {point}: {', '.join(claimed) or 'nobody came there'}")
        return bool(claimed)

    def _arm(self, point: CrashPoint, armed: bool) -> None:
        self._crash_points.mkdir(exist_ok=True)
        for name in os.listdir(self._crash_points):
            (self._crash_points / name).unlink(missing_ok=True)
        for number in range(1, PASSES if armed else 0):
            (self._crash_points / f"{point}.{number}").touch()

    async def _stop(self, pid: int, seconds: float) -> None:
        self._stopped.add(pid)
        _send(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            _send(pid, signal.SIGCONT)
            self._stopped.discard(pid)

    async def _pid(self, name: str, but: int | None = None) -> int | None:
        """The process id of an actor; waits until it is another one than ``but``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while True:
                    with contextlib.suppress(RayError, ValueError):
                        actor = await asyncio.to_thread(ray.get_actor, name, namespace=self._namespace)
                        pid = int(await actor.pid.remote())
                        if pid != but:
                            return pid
                    await asyncio.sleep(0.05)
        return None

    async def _works_again(self, name: str, begin: float, but: int | None = None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while True:
                    with contextlib.suppress(RayError, ValueError):
                        actor = await asyncio.to_thread(ray.get_actor, name, namespace=self._namespace)
                        if int(await actor.pid.remote()) != but:
                            await actor.ready.remote()
                            self.recovered.append(time.monotonic() - begin)
                            return
                    await asyncio.sleep(0.05)

    async def _commits_again(self, begin: float) -> None:
        before = self._recorder.commits
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while self._recorder.commits == before:
                    await asyncio.sleep(0.02)
                self.recovered.append(time.monotonic() - begin)


async def _expected(_: Exception) -> None:
    """Ignore errors of a connection whose server may be down."""


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
