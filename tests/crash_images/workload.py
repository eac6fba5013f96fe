"""The plans that run while a server is recorded, and an oracle that notes outside what was promised."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from tests.backup.process import Deployment
from tests.crash_images.recording import Recording, read_trace, write_recorder

from plancast import App, Effect, PlanContext, Planner, Settings, StateAction, StateConfig, StateTransition, Worker
from plancast.plan.requests import turn_of_request
from plancast_actors.maintenance.turn_journal import FILE, INTERVAL, TurnJournal
from plancast_actors.plan_actors.activation import Activation
from plancast_bus.errors import BusError
from plancast_bus.nats_server import process
from plancast_bus.nats_server.process import NatsServer, ServerOptions

ASKED, ANSWERED = "charge.requested", "charge.completed"
GOALS = ("charges.goal", "handled.goal")
STEPS = ("first", "second", "third")
PATIENCE = 120.0


@dataclass
class Oracle:
    """Promises of the server and acts outside, each with the time at which it was known."""

    goals: list[tuple[float, str]] = field(default_factory=list)
    """Plans whose goals were accepted."""
    turns: list[tuple[float, str, int]] = field(default_factory=list)
    """Revisions of plans whose commits were acknowledged."""
    acts: list[tuple[float, str, str, int]] = field(default_factory=list)
    """Effects that are out: plan, key, and the revision that has asked for it."""
    journal: list[tuple[float, float, bytes]] = field(default_factory=list)
    """Contents of the journal of turns: when it was on disk, and when its last reading had begun."""

    def before(self, at: float) -> Oracle:
        """Promises and acts that were known by then."""
        return Oracle(
            [each for each in self.goals if each[0] < at],
            [each for each in self.turns if each[0] < at],
            [each for each in self.acts if each[0] < at],
            [each for each in self.journal if each[0] < at],
        )

    def revisions(self) -> dict[str, int]:
        """The newest revision of each plan that was acknowledged or had an effect; 0 for an accepted goal."""
        found = dict.fromkeys((plan for _, plan in self.goals), 0)
        acted = [(plan, revision) for _, plan, _, revision in self.acts]
        for plan, revision in [(plan, revision) for _, plan, revision in self.turns] + acted:
            found[plan] = max(revision, found.get(plan, 0))
        return found

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note the commits of this process."""
        committed = Activation.committed

        def note(activation: Activation, turn: Any, checkpoint: Any, version: int) -> None:
            committed(activation, turn, checkpoint, version)
            self.turns.append((time.time(), checkpoint.correlation_id, checkpoint.revision))

        with patch.object(Activation, "committed", note):
            yield


def _machine() -> dict[str, StateConfig]:
    states = {"start": StateConfig(state_name="start", default_next=STEPS[0])}
    for name, onward in zip(STEPS, (*STEPS[1:], "done"), strict=True):
        data = {"key": f"{{{{goal_data.n}}}}-{name}", "filler": "{{goal_data.filler}}"}
        action = StateAction(event_type=ASKED, response_event=ANSWERED, data=data)
        move = StateTransition(on_event=ANSWERED, to_state=onward)
        states[name] = StateConfig(state_name=name, action=action, transitions=[move], delay_seconds=0.05)
    return states | {"done": StateConfig(state_name="done", is_terminal=True)}


def make_app(oracle: Oracle) -> App:
    """Make the app: each plan charges three times, by a machine or by handlers."""
    machines, handled, worker = Planner("machines"), Planner("handled"), Worker("charging")
    machines.add_goal(GOALS[0], _machine())

    @handled.on_goal(GOALS[1])
    async def begin(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, _machine())
        await plan.execute_next()

    @handled.on_transition()
    async def go_on(event: Any, context: Any) -> None:
        plan = await PlanContext.restore_by_correlation(event.correlation_id, context)
        if plan and plan.get_next_state(event):
            await plan.execute_next(trigger_event=event)

    @worker.on_task(ASKED, ANSWERED, effect=Effect(key="{{data.key}}", repeat="never"))
    async def charge(task: Any, context: Any) -> dict[str, str]:
        await asyncio.sleep(0.01)
        turn = turn_of_request(task.event.id)
        assert turn is not None
        _, revision = turn
        oracle.acts.append((time.time(), task.event.correlation_id, task.data["key"], revision))
        return {"charged": task.data["key"]}

    return App("charges", planners=[machines, handled], workers=[worker])


def make_settings(folder: Path) -> Settings:
    """Make settings in which nothing waits for long."""
    settings = Settings(data_dir=folder)
    settings.workers.ack_wait = settings.dispatchers.ack_wait = 3.0
    settings.plans.timeline_tail_bytes = 2048
    settings.plans.sweep_seconds = settings.plans.stalled_seconds = 2.0
    return settings


@dataclass(frozen=True)
class Take:
    """A recorded run of the workload."""

    recording: Recording
    oracle: Oracle
    begun: int
    """The line of the recording at which the first goal was submitted."""
    sync_interval: str | None


@asynccontextmanager
async def deployed(app: App, server: NatsServer, folder: Path) -> AsyncIterator[Deployment]:
    """Run the app in this process on a server, and end it before the server."""
    async with Deployment(app, server, make_settings(folder)) as deployment:
        yield deployment


async def _keep_journal(deployment: Deployment, folder: Path, oracle: Oracle) -> None:
    """Note turns as `plancast run` does, and what the journal holds after each of its syncs."""
    journal = TurnJournal(deployment.bus, folder)
    while True:
        begun = time.time()
        with suppress(BusError):  # the server was killed
            await journal.note()
            content = (folder / FILE).read_bytes() if (folder / FILE).exists() else b""
            oracle.journal.append((time.time(), begun, content))
        await asyncio.sleep(INTERVAL)


async def record(folder: Path, plans: int, seed: int, sync_interval: str | None) -> Take:
    """Run plans on a recorded server until all have ended, and kill it."""
    script, trace = write_recorder(folder)
    oracle, random = Oracle(), Random(seed)
    with patch.object(process, "find_binary", lambda: script):
        server = NatsServer(folder / "nats", ServerOptions(sync_interval=sync_interval, startup_timeout=PATIENCE))
        await asyncio.to_thread(server.start)
    tracer = _tracer_of(server.pid)
    try:
        async with deployed(make_app(oracle), server, folder) as deployment:
            await asyncio.to_thread(server.stage_in_memory)
            begun = time.time()

            async def submit(n: int) -> None:
                await asyncio.sleep(0.1 * n)
                data = {"n": n, "filler": "x" * random.choice([0, 100, 6000])}
                handle = await deployment.submit(GOALS[n % 2], data, correlation_id=f"plan-{n}")
                oracle.goals.append((time.time(), f"plan-{n}"))
                await handle.result(timeout=PATIENCE)

            noting = asyncio.create_task(_keep_journal(deployment, folder, oracle))
            try:
                with oracle.watching():
                    await asyncio.gather(*(submit(n) for n in range(plans)))
                await asyncio.to_thread(server.kill)
            finally:
                noting.cancel()
                await asyncio.gather(noting, return_exceptions=True)
    finally:
        await asyncio.to_thread(server.kill)
    await asyncio.to_thread(_wait_for_end, tracer)
    without = "/batches/" if sync_interval == "always" else ""  # they are in memory: 0016
    recording = await asyncio.to_thread(read_trace, trace, server.data_dir / "jetstream", without=without)
    first = next(line for line, at in enumerate(recording.times) if at >= begun)
    return Take(recording, oracle, first, sync_interval)


def _tracer_of(pid: int | None) -> int:
    """The process that traces another one; 0 for none."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("TracerPid:"))


def _wait_for_end(tracer: int) -> None:
    """Wait until the tracer has written everything, and has ended."""
    stat = Path(f"/proc/{tracer}/stat")
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except OSError:
            return
        time.sleep(0.05)
