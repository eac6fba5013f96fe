"""Latency of one plan alone, hop by hop, measured by a subscriber at the nats-server.

Every step of a plan is a message: its goal, the delivery of the goal to a dispatcher, the
checkpoint, the checkpoint's acknowledgement, the request, and so on to the final response. One
subscription to all subjects receives them, in one process and by one clock, without changing the measured system.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from nats.aio.msg import Msg
from rich.table import Table

from benchmarks.apps import w1
from benchmarks.load.measuring import WARM_UP, driven
from benchmarks.reports.rows import Sync
from benchmarks.systems.launcher import SYSTEMS, SystemName
from plancast_bus.jetstream.client.connection import Connection
from plancast_bus.subjects import Subjects

PLANS = 100

STORED = "event published to delivered"
TURN = "delivery to checkpoint published: reading, hop to the host, turn"
COMMIT = "checkpoint published to acknowledged"
EMIT = "checkpoint acknowledged to effects published"
WORK = "request delivered to response published: the worker"
RESPOND = "final response published to republished by the server"
ALL = "total, from the goal to the final response"
HOPS = (STORED, TURN, COMMIT, EMIT, WORK, RESPOND)


@dataclass(frozen=True, slots=True)
class Mark:
    """A received message."""

    time: float
    subject: str
    reply: str


class Recorder:
    """Records all messages of a nats-server."""

    def __init__(self, connection: Connection, subjects: Subjects) -> None:
        self._connection = connection
        self._subjects = subjects
        self._marks: list[Mark] = []

    async def open(self) -> None:
        """Subscribe to all subjects."""
        await self._connection.open()
        await self._connection.client.subscribe(">", cb=self._hear, pending_msgs_limit=0, pending_bytes_limit=0)
        await self._connection.client.flush()

    async def close(self) -> None:
        """Receive what is in flight, then disconnect."""
        await self._connection.client.flush()
        await self._connection.close()

    async def _hear(self, message: Msg) -> None:
        self._marks.append(Mark(time.perf_counter(), message.subject, message.reply))

    def plans(self) -> list[dict[str, float]]:
        """Return the time of each message by name, for each plan recorded from its goal to its final response."""
        found: dict[str, dict[str, float]] = {}
        replies: dict[str, tuple[str, str]] = {}
        counts: dict[tuple[str, str], int] = {}
        for mark in self._marks:
            if mark.subject in replies:
                plan, name = replies.pop(mark.subject)
                found[plan][f"{name} acknowledged"] = mark.time
                continue
            plan, kind = self._read(mark.subject)
            if kind == "goal":
                found[plan] = {}
            if plan not in found:
                continue
            number = counts[plan, kind] = counts.get((plan, kind), 0) + 1
            found[plan][f"{kind} {number}"] = mark.time
            if mark.reply and not mark.reply.startswith("$JS.ACK."):
                replies[mark.reply] = plan, f"{kind} {number}"
        return [times for times in found.values() if "republished 1" in times]

    def _read(self, subject: str) -> tuple[str, str]:
        """Return the plan and the kind of a message, by its subject."""
        prefix, store = self._subjects.prefix, self._subjects.store
        parts = subject.split(".")
        if parts[0] == store:
            if parts[1] == "checkpoints":
                return parts[2], "checkpoint"
            return (parts[3], "response") if parts[1] == "responses" else ("", "")
        if parts[0] != prefix or len(parts) < 5:
            return "", ""
        kinds = {w1.GOAL: "goal", w1.REQUEST: "request", w1.ANSWER: "answer", w1.RESPONSE: "republished"}
        published, delivered = ".".join(parts[3:]), ".".join(parts[4:])
        if published in kinds:
            return parts[2], kinds[published]
        return (parts[3], f"{kinds[delivered]} delivered") if delivered in kinds else ("", "")


def hops(times: dict[str, float]) -> dict[str, list[float]]:
    """Return the hops of one plan, by kind, in seconds."""

    def between(first: str, last: str) -> float:
        return times[last] - times[first]

    found: dict[str, list[float]] = {hop: [] for hop in HOPS}
    for turn in range(1, w1.TURNS + 1):
        event = "goal" if turn == 1 else "answer"
        number = max(1, turn - 1)
        sent = "response 1" if turn == w1.TURNS else f"request {turn}"
        found[STORED].append(between(f"{event} {number}", f"{event} delivered {number}"))
        found[TURN].append(between(f"{event} delivered {number}", f"checkpoint {turn}"))
        found[COMMIT].append(between(f"checkpoint {turn}", f"checkpoint {turn} acknowledged"))
        found[EMIT].append(between(f"checkpoint {turn} acknowledged", sent))
        if turn < w1.TURNS:
            found[STORED].append(between(sent, f"request delivered {turn}"))
            found[WORK].append(between(f"request delivered {turn}", f"answer {turn}"))
    found[RESPOND].append(between("response 1", "republished 1"))
    found[ALL] = [between("goal 1", "republished 1")]
    return found


async def listen(system: SystemName, sync: Sync, count: int = PLANS) -> list[dict[str, list[float]]]:
    """Run plans one after the other on a system, and return the hops of each."""
    async with SYSTEMS[system](sync) as running, driven(running) as driver:
        recorder = Recorder(Connection(running.settings.nats), Subjects(running.settings.bus.prefix))
        await driver.together(WARM_UP[system])
        await driver.alone(count // 5)
        await recorder.open()
        await driver.alone(count)
        await recorder.close()
        return [hops(times) for times in recorder.plans()]


async def run(systems: Sequence[SystemName], sync: Sync) -> Table:
    """Measure the hops of some systems, side by side: medians over the plans."""
    heard = {system: await listen(system, sync) for system in systems}
    table = Table(title=f"One plan alone, medians in ms, sync {sync}")
    table.add_column("hop")
    table.add_column("count")
    for system in systems:
        table.add_column(f"{system}, each", justify="right")
        table.add_column(f"{system}, sum", justify="right")
    for hop in (*HOPS, ALL):
        times = str(len(heard[systems[0]][0][hop]))
        cells = []
        for system in systems:
            plans = [plan[hop] for plan in heard[system]]
            cells.append(f"{1000 * median(each for plan in plans for each in plan):.2f}")
            cells.append(f"{1000 * median(map(sum, plans)):.2f}")
        table.add_row(hop, times, *cells, end_section=hop == HOPS[-1])
    return table
