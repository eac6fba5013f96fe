"""Withdrawn requests on a real nats-server whose worker processes are killed in the act."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.actors.workers.test_effects import CHARGE, outcome_of
from tests.actors.workers.test_effects_on_nats import SECONDS, _answers, _ask, _bus, _next

from plancast import Effect, Outcome, Worker
from plancast.settings import WorkerSettings
from plancast_actors.workers.runner import TaskRunner
from plancast_bus.jetstream import JetStreamBus
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.effects import Withdraw

ACK_WAIT = 1.0
_PROCESS = """
import asyncio, pathlib, sys
from tests.actors.workers.test_effects_on_nats import _bus
from tests.actors.workers.test_withdrawn_on_nats import ACK_WAIT, bank
from plancast.settings import WorkerSettings
from plancast_actors.workers.runner import TaskRunner

class Server:
    url = sys.argv[1]

async def main():
    worker = bank(pathlib.Path(sys.argv[2]), sys.argv[3])
    await TaskRunner([worker], await _bus(Server()), WorkerSettings(ack_wait=ACK_WAIT)).start()
    await asyncio.Event().wait()

asyncio.run(main())
"""


def bank(folder: Path, kind: str) -> Worker:
    """Charges, and hangs; with a look-up that hangs where the file ``hang`` is there."""
    worker = Worker("bank")

    @worker.on_task(CHARGE, effect=Effect(key="{{data.invoice}}", repeat="never"))
    async def charge(task: Any, context: Any) -> None:
        with (folder / "charges").open("a") as file:
            file.write("i")
        await asyncio.Event().wait()

    if kind == "look_up":

        @worker.reconcile(CHARGE)
        async def find(task: Any, context: Any) -> Outcome:
            if (folder / "hang").exists():
                (folder / "looks").write_text("i")
                await asyncio.Event().wait()
            return Outcome.done({"charge": "found"})

    return worker


async def _killed(server: NatsServer, folder: Path, kind: str, reached: str) -> None:
    """Start a process, and kill it once it has reached something."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _PROCESS, server.url, str(folder), kind)
    while not (folder / reached).exists() or not (folder / reached).read_text():
        assert process.returncode is None
        await asyncio.sleep(0.01)
    process.kill()
    assert await process.wait() == -9


async def _withdraw(bus: JetStreamBus) -> None:
    [request] = await bus.stored_events("action-requests", "p")
    await bus.emit([Withdraw(request.sequence, CHARGE, settles=True)])


@pytest.mark.parametrize(
    ("kind", "kills", "expected"), [("never", 1, "unknown"), ("look_up", 1, "done"), ("look_up", 2, "done")]
)
async def test_a_withdrawn_request_whose_process_is_killed_gets_an_end_although_nobody_asks_again(
    fresh_nats: NatsServer, tmp_path: Path, kind: str, kills: int, expected: str
) -> None:
    requester = await _bus(fresh_nats)
    answers = _answers(requester)
    async with asyncio.timeout(SECONDS):
        request = await _ask(requester, 1)
        await _killed(fresh_nats, tmp_path, kind, "charges")
        await _withdraw(requester)
        if kills == 2:
            (tmp_path / "hang").touch()
            await _killed(fresh_nats, tmp_path, kind, "looks")
            (tmp_path / "hang").unlink()
        bus = await _bus(fresh_nats)
        runner = TaskRunner([bank(tmp_path, kind)], bus, WorkerSettings(ack_wait=ACK_WAIT))
        await runner.start()
        answer = await _next(answers)
    assert (outcome_of(answer), answer.parent_event_id) == (expected, request.id)
    assert (tmp_path / "charges").read_text() == "i"
    await runner.stop()
    await bus.close()
    await requester.close()
