"""Plans that an earlier version has stored are read and replayed by the present one, and continue to their end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.actors.on_nats import OnNats
from tests.apps.stored_app import GO, LOOPS, SIZES, app, text
from tests.stored.fixture_store import PATIENCE, SESSION, UNSENT, deployment, stores, unpack, until

from plancast import Client, PlanCancelled, PlanFailed, Settings
from plancast.replay.report import Outcome
from plancast_bus.nats_server.process import NatsServer

pytestmark = pytest.mark.timeout(600)
GONE = {"n": 1}
"""Data of the signal that the plans wait for."""


def answer(size: str) -> dict[str, str]:
    return {"text": text(SIZES[size])}


def holds(wanted: Any, found: Any) -> None:
    """Assert that a value has everything of another one; dicts may have gained keys since."""
    if isinstance(wanted, dict):
        assert isinstance(found, dict)
        for key, value in wanted.items():
            assert key in found, key
            holds(value, found[key])
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(wanted, found, strict=True):
            holds(one, other)
    else:
        assert found == wanted


async def assert_readable(client: Client, written: dict[str, dict[str, Any]]) -> None:
    """Assert that a client reads of each plan what one of the earlier version has read, and that replays agree."""
    listed = {each.plan_id: each for each in await client.plans(session_id=SESSION)}
    assert set(listed) == set(written)
    for plan, was in written.items():
        handle = client.plan(plan)
        assert str(await handle.status()) == was["state"]["status"]
        assert listed[plan].parent_plan_id == (was["state"]["parent_plan_id"] or "")
        holds(was["state"], await handle.state())
        holds(was["history"], await handle.history())
        assert (await handle.replay(app=app)).outcome is Outcome.SAME, plan


async def assert_finished(env: OnNats, written: dict[str, dict[str, Any]]) -> None:
    """Assert that plans which had finished give their results."""
    for size in SIZES:
        assert await env.client.plan(f"finished-{size}").result(PATIENCE) == {"ask": answer(size)}
    with pytest.raises(PlanFailed, match=r"goal_data\.size"):
        await env.client.plan("failed").result(PATIENCE)
    with pytest.raises(PlanCancelled, match="no longer wanted"):
        await env.client.plan("cancelled").result(PATIENCE)


async def assert_continued(env: OnNats, written: dict[str, dict[str, Any]]) -> None:
    """Bring every other plan to its end, and assert its result."""

    async def result(plan: str) -> Any:
        return await env.client.plan(plan).result(PATIENCE)

    async def go(plan: str) -> Any:
        assert await env.client.plan(plan).signal(GO, GONE) == "moved"
        return await result(plan)

    by_itself = {"ask": answer("1kb"), "late": {"late": True}}
    assert await result("late") == by_itself
    assert await result("guarded") == by_itself
    assert await result("group") == {"characters": SIZES["1kb"]}
    assert set(await result("timed")) == {"ask", "late"}
    await until(env.client.plan(UNSENT), "hold")
    assert await go(UNSENT) == {"ask": answer("1kb"), "hold": GONE}
    for size in SIZES:
        assert await go(f"machine-{size}") == {"ask": answer(size), "hold": GONE}
    assert await go("forked") == {"ask": answer("40kb"), "hold": GONE}
    assert await go("steps") == {"characters": SIZES["40kb"]}
    handled = await go("handled")
    assert handled["held"] == handled["ask"] == answer("40kb")
    assert handled["moved"] == ["text.completed", GO]
    assert await go("long") == {**{f"ask-{n}": {"text": text(100)} for n in range(LOOPS)}, "hold": GONE}
    assert await env.client.plan("approval").approve() == "moved"
    assert await result("approval") == {"characters": SIZES["1kb"]}
    await env.client.plan("paused").resume()
    assert (await result("paused"))["hold"] == {"early": True}
    children = {was["state"]["parent_plan_id"]: plan for plan, was in written.items() if was["state"]["parent_plan_id"]}
    child = await go(children["parent"])
    assert child == {"ask": answer("1kb"), "hold": GONE}
    assert (await result("parent"))["child"]["result"] == child
    await go(children["spawn"])
    assert await result("spawn") == {"child": "completed"}


@pytest.mark.parametrize("store", stores(), ids=lambda store: store.name.partition(".")[0])
async def test_plans_of_an_earlier_version_are_read_and_continued(store: Path, tmp_path: Path) -> None:
    written = unpack(store, tmp_path)
    with NatsServer(tmp_path) as server:
        env = deployment(server, app)
        async with Client.connect(settings=Settings.model_validate(env.settings.model_dump())) as client:
            await assert_readable(client, written)
        async with env:
            await assert_finished(env, written)
            await assert_continued(env, written)
            for plan, was in written.items():
                history = await env.client.plan(plan).history()
                assert [entry["revision"] for entry in history] == list(range(1, len(history) + 1))
                holds(was["history"], history[: len(was["history"])])


def test_there_is_a_store() -> None:
    assert stores()
    assert all(each.stat().st_size < 300_000 for each in stores())
