"""SIGKILL at the worst points, on real Ray and a real nats-server, under all kinds of plan at once.

The deployment runs in a process of its own (this file, as a program), since crash points are armed by its environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from plancast import Client, Settings
from plancast.app import load_app
from plancast.testing import Answer, ModelRequest, ModelServer
from plancast_actors.deployment.local import LocalRuntime
from plancast_bus import fault_injection
from plancast_bus.events import codec
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.fault_injection import CrashPoint
from plancast_bus.jetstream import connect

pytestmark = [pytest.mark.asyncio, pytest.mark.slow, pytest.mark.chaos]
APPS = Path(__file__).parent.parent / "apps"
PATIENCE = 90.0
PLANS = 40
WORST = {
    CrashPoint.TURN_COMMIT_AFTER: (10, 15),
    CrashPoint.EFFECT_AFTER: (12, 24),
    CrashPoint.TURN_HANDLE_AFTER: (8, 14),
    CrashPoint.WORKER_ANSWER_AFTER: (10, 15),
    CrashPoint.DISPATCHER_REPORT_AFTER: (5, 8),
    CrashPoint.REASONER_KEEP_BEFORE: (3, 5),
}
"""Where processes are killed, and at which of their passes: each file kills one process, once."""


def settings_in(folder: Path) -> Settings:
    """Settings of a deployment whose processes restart soon."""
    settings = Settings(data_dir=folder)
    settings.hosts.count = 2
    settings.workers.ack_wait = settings.dispatchers.ack_wait = 2.0
    settings.reasoners.min = settings.reasoners.max = 1
    return settings


async def deploy(folder: Path) -> None:
    """Deploy, print the address of NATS, and run until standard input is closed."""
    async with LocalRuntime("kinds_app:app", settings_in(folder), import_paths=[str(APPS)]) as runtime:
        print(json.dumps({"nats": runtime.nats_url}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


class Deployed:
    """A deployment whose processes kill themselves at crash points, seen from outside."""

    def __init__(self, folder: Path, nats_url: str) -> None:
        self.folder = folder
        self.settings = settings_in(folder)
        self.settings.nats.url = nats_url
        self.responses: Counter[str] = Counter()
        self.asked: set[str] = set()

    @property
    def calls(self) -> set[str]:
        """Requests that workers have taken."""
        return set((self.folder / "calls").read_text().split())

    def kill_at(self, point: CrashPoint, nth: int) -> None:
        (self.folder / "points" / f"{point}.{nth}").touch()

    @property
    def killed(self) -> list[str]:
        """The points at which processes have been killed so far."""
        names = (each.name for each in (self.folder / "points").iterdir())
        return sorted(name.removeprefix("claimed-").rpartition("-by-")[0] for name in names if "-by-" in name)

    async def note(self, subject: str, payload: bytes, content_type: str | None) -> None:
        if subject.endswith(".kind.done"):
            self.responses[subject.split(".")[2]] += 1
        elif subject.startswith("plancast.action-requests."):
            self.asked.add(codec.load(payload, content_type)["id"])


@asynccontextmanager
async def deployed(folder: Path, model_url: str) -> AsyncIterator[Deployed]:
    (folder / "points").mkdir()
    (folder / "calls").touch()
    environment = {
        **os.environ,
        fault_injection.VARIABLE: str(folder / "points"),
        "KINDS_CALLS": str(folder / "calls"),
        "KINDS_MODEL": model_url,
    }
    with (folder / "log").open("wb") as log:
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            __file__,
            str(folder),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=environment,
        )
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE):
                while not (line := await program.stdout.readline()).startswith(b'{"nats"'):
                    assert line, (folder / "log").read_text()[-3000:]
            yield Deployed(folder, json.loads(line)["nats"])
        finally:
            program.stdin.close()
            try:
                async with asyncio.timeout(30):
                    await program.communicate()
            except TimeoutError:
                program.kill()
                await program.wait()


async def test_processes_killed_at_the_worst_points_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    load_app("kinds_app:app", [str(APPS)])
    kinds: Any = sys.modules["kinds_app"]

    def decide(request: ModelRequest) -> Answer:
        return Answer.json(kinds.decide([dict(message) for message in request.messages]))

    async with ModelServer(rule=decide) as model, deployed(tmp_path, model.url) as there:
        for point, passes in WORST.items():
            for nth in passes:
                there.kill_at(point, nth)
        bus = await connect(there.settings.nats, there.settings.bus)
        await bus.subscribe("plancast.>", there.note)
        async with Client.connect(there.settings.nats.url, settings=there.settings) as client:
            chosen = [(kinds.KINDS[n % len(kinds.KINDS)], n) for n in range(PLANS)]
            handles = []
            for kind, n in chosen:
                key = f"{kind}-{n}"
                handle = await client.submit(f"{kind}.goal", {"n": n}, correlation_id=key, response_event="kind.done")
                handles.append(handle)
                await bus.publish(approval(kinds.APPROVED, key))
            async with asyncio.timeout(PATIENCE):
                results = await asyncio.gather(*(handle.result() for handle in handles))
            assert [
                each for each, result in zip(chosen, results, strict=True) if not kinds.is_right(*each, result)
            ] == []
            sent, children = set[str](), set[str]()
            for handle in handles:
                history = await handle.history()
                events = [entry["event"]["id"] for entry in history]
                assert len(set(events)) == len(events)
                sent |= {event_id for entry in history for _, event_id in entry["sent"]}
                goals = (each for entry in history for event_type, each in entry["sent"] if event_type == "child.goal")
                children |= set(goals)
            for child in children:
                history = [codec.unpack(entry) for entry in await bus.checkpoints.history(child)]
                sent |= {event_id for entry in history for _, event_id in entry["sent"]}
            assert there.calls <= sent, "a worker did what no plan has asked for"
            goals = {each for each in there.asked if each.startswith("goal:")}
            assert there.asked - goals <= sent, "sent, and no commit explains it"
            assert there.responses == dict.fromkeys((f"{kind}-{n}" for kind, n in chosen), 1)
            assert await bus.dead_letters.count() == 0
        await bus.close()
        wanted = sorted(f"{point}.{nth}" for point, passes in WORST.items() for nth in passes)
        assert there.killed == wanted


def approval(event_type: str, plan: str) -> EventEnvelope:
    """An approval that arrives before the plan waits for it."""
    return EventEnvelope(
        id=f"approval-{plan}",
        source="person",
        topic=EventTopic.PLAN_EVENTS,
        type=event_type,
        correlation_id=plan,
        data={"by": "Ada"},
    )


if __name__ == "__main__":
    asyncio.run(deploy(Path(sys.argv[1])))
