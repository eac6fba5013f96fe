"""Server-sent events, as a browser reads them."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from uuid import uuid4

import pytest
from tests.runtime.console.desk import PATIENCE, Api, Desk, served

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_plan_is_followed_to_its_end(api: Api) -> None:
    plan = await api.waiting()
    told: list[tuple[str, Any]] = []
    async with api.events(f"/plans/{plan}/stream", params={"after": 0}) as events:
        async for name, data in events:
            told.append((name, data))
            if name == "change" and data["revision"] == 2:
                await api.post(f"/plans/{plan}/signal", {"event_type": "order.approved", "data": {"ok": True}})
    assert [name for name, _ in told] == ["status", "change", "change", "status", "change", "end"]
    assert [data["revision"] for name, data in told if name == "change"] == [1, 2, 3]
    assert [data["status"] for name, data in told if name == "status"] == ["running", "completed"]
    assert told[-1][1] == (await api.get(f"/plans/{plan}/result"))


async def test_a_stream_goes_on_where_the_browser_has_left_it(api: Api) -> None:
    plan = await api.failed()
    async with api.events(f"/plans/{plan}/stream", headers={"Last-Event-ID": "1"}) as events:
        assert [data["revision"] async for name, data in events if name == "change"] == [2]
    async with api.events(f"/plans/{plan}/stream") as events:  # the newest turn
        assert [data["revision"] async for name, data in events if name == "change"] == [2]
    await api.get("/plans/unknown/stream", 404)


async def test_the_list_is_followed_under_its_filters(api: Api) -> None:
    session = uuid4().hex
    async with api.events("/plans/stream", params={"session_id": session}) as events:
        name, data = await anext(events)
        assert (name, data) == ("counts", {})
        await api.waiting(session_id="another")
        plan = await api.waiting(session_id=session)
        seen: list[str] = []
        async for name, data in events:
            if name == "plan":
                assert (data["plan_id"], data["session_id"]) == (plan, session)
                seen.append(data["current_state"])
            if seen and seen[-1] == "approving" and (name, data) == ("counts", {"waiting": 1}):
                break


async def test_a_stream_that_is_left_leaves_no_task_behind(api: Api) -> None:
    def waits() -> set[asyncio.Task[Any]]:
        return {task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "") == "Event.wait"}

    plan, before = await api.waiting(), waits()
    async with api.events(f"/plans/{plan}/stream") as events:
        while (await anext(events))[0] != "change":
            pass
        async with asyncio.timeout(PATIENCE):
            while not waits() - before:  # the stream waits for the next change
                await asyncio.sleep(0.01)
    gc.disable()  # which would end a task that nothing refers to
    try:
        async with asyncio.timeout(PATIENCE):
            while waits() - before:
                await asyncio.sleep(0.01)
    finally:
        gc.enable()


async def test_streams_and_long_polls_end_when_the_server_does(api: Api, desk: Desk) -> None:
    plan = await api.waiting()
    async with served(desk, desk.settings) as other:
        polling = asyncio.ensure_future(other.get(f"/plans/{plan}/result", 202, params={"wait": 60}))
        began = asyncio.Event()

        async def follow(path: str) -> str:
            async with other.events(path) as events:
                async for _ in events:
                    began.set()
            return path

        following = [asyncio.ensure_future(follow(path)) for path in ("/plans/stream", f"/plans/{plan}/stream")]
        await asyncio.wait_for(began.wait(), PATIENCE)
        await asyncio.sleep(0.1)
        under_way = asyncio.gather(polling, *following)
        assert not under_way.done()
        await other.end()
        answered = await asyncio.wait_for(under_way, PATIENCE)
    assert answered[0]["status"] == "running"
