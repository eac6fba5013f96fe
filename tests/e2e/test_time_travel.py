"""Replays and forks on a real deployment: by the client, and by the command line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from plancast import Client, PlanHandle, PlanStatus
from plancast.errors import PlanFinished, UnknownRevision
from plancast.replay.report import Outcome
from plancast_actors.deployment.local import LocalRuntime

pytestmark = [pytest.mark.asyncio(loop_scope="session")]
APPS = Path(__file__).parent.parent / "apps"
PATIENCE = 60.0


CHANGED_APP = """
from chain_app import CHAIN, adder
from plancast import App, Planner

planner = Planner("chain")
planner.add_goal("chain.goal", CHAIN | {"one": CHAIN["one"].model_copy(
    update={"transitions": [CHAIN["one"].transitions[0].model_copy(update={"condition": "event.data.n > 5"})]}
)})
app = App("chain", planners=[planner], workers=[adder])
"""


async def ran(runtime: LocalRuntime, *words: str, json_wanted: bool = True) -> tuple[int, Any]:
    """A command's exit code, and what it has printed."""
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("plancast")), "plans", *words, "--nats-url", runtime.nats_url,
        *(["--json"] if json_wanted else []), cwd=APPS, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, json.loads(out) if out and json_wanted else (out + err).decode()


async def until_it_asks(handle: PlanHandle) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await handle.state())["current_state"] != "asking":
            await asyncio.sleep(0.02)


async def test_a_fork_goes_on_from_the_middle_beside_a_plan_that_is_done(client: Client) -> None:
    old = await client.submit("chain.goal", {"n": 1}, session_id="travel")
    result = await old.result(timeout=PATIENCE)
    history = await old.history()
    fork = await client.fork(old.plan_id, at=2, data={"n": 50})
    assert await fork.result(timeout=PATIENCE) == {"one": {"n": 2}, "two": {"n": 3}, "three": {"n": 4}}
    from_start = await client.fork(old.plan_id, at=1, data={"n": 50})
    assert (await from_start.result(timeout=PATIENCE))["three"] == {"n": 53}
    told = await fork.history()
    assert told[0]["notes"] == [f"forked from plan {old.plan_id} at revision 2"]
    assert [entry["revision"] for entry in told] == [1, 2, 3]
    assert (await old.history(), await old.result()) == (history, result)
    assert (await old.state_at(2)).results == {"one": {"n": 2}}
    assert (await fork.replay()).outcome is Outcome.SAME
    plans = await client.plans(session_id="travel")
    assert {plan.plan_id for plan in plans} == {old.plan_id, fork.plan_id, from_start.plan_id}
    with pytest.raises(PlanFinished, match="completed at revision 4"):
        await client.fork(old.plan_id, at=4)
    with pytest.raises(UnknownRevision, match="1 to 4"):
        await client.fork(old.plan_id, at=5)


async def test_clients_that_fork_at_once_and_again_make_one_plan(client: Client, runtime: LocalRuntime) -> None:
    old = await client.submit("chain.goal", {"n": 1})
    await old.result(timeout=PATIENCE)

    async def fork() -> Any:
        async with Client.connect(runtime.nats_url) as another:
            handle = await another.fork(old.plan_id, at=1, correlation_id="travel / once")
            return await handle.result(timeout=PATIENCE)

    results = await asyncio.gather(*(fork() for _ in range(4)))
    assert await fork() == results[0]
    assert all(each == results[0] for each in results)
    history = await client.plan("travel / once").history()
    assert [entry["event"]["type"] for entry in history] == ["plan.fork", *["chain.add.completed"] * 3]


@pytest.mark.slow
async def test_the_command_line_replays_and_forks(client: Client, runtime: LocalRuntime) -> None:
    old = await client.submit("ask.goal", {})
    await until_it_asks(old)
    code, replayed = await ran(runtime, "replay", old.plan_id, "--app", "chain_app:app")
    assert (code, replayed["outcome"]) == (0, "same")
    code, forked = await ran(runtime, "fork", old.plan_id, "--at", "1", "--correlation-id", "travel-asked")
    assert (code, forked) == (0, {"plan_id": "travel-asked", "forked_from": old.plan_id, "revision": 1})
    fork = client.plan("travel-asked")
    async with asyncio.timeout(PATIENCE):
        while not [plan for plan in await client.plans() if plan.plan_id == "travel-asked"]:
            await asyncio.sleep(0.02)
    await until_it_asks(fork)
    await fork.signal("person.answered", {"yes": True})
    assert await fork.result(timeout=PATIENCE) == {"asking": {"yes": True}}
    assert await old.status() is PlanStatus.RUNNING
    code, refused = await ran(runtime, "fork", old.plan_id, "--at", "9")
    assert code == 1
    assert "its revisions are 1 to 1" in refused
    await old.cancel("the test is over")


@pytest.mark.slow
async def test_the_command_line_finds_the_code_that_was_changed(
    client: Client, runtime: LocalRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "changed_chain_app.py").write_text(CHANGED_APP)
    monkeypatch.syspath_prepend(str(tmp_path))
    old = await client.submit("chain.goal", {"n": 1})
    await old.result(timeout=PATIENCE)
    app = ("--app", "changed_chain_app:app")
    code, replayed = await ran(runtime, "replay", old.plan_id, *app, "--machine", "now")
    assert (code, replayed["outcome"]) == (1, "differs")
    assert [turn["outcome"] for turn in replayed["turns"]] == ["same", "differs", "unknown", "unknown"]
    code, told = await ran(runtime, "replay", old.plan_id, *app, "--machine", "now", json_wanted=False)
    assert code == 1
    assert "the current code differs from revision 2 on" in told
    assert 'state: "two" → "one"' in told
    code, told = await ran(runtime, "replay", old.plan_id, *app, json_wanted=False)
    assert code == 0
    assert "the current code does the same in 4 turns" in told
    code, told = await ran(runtime, "replay", old.plan_id, "--machine", "now", json_wanted=False)
    assert code == 2
    assert "--app" in told
