"""The desk without Ray: what the demo promises, and that it sees a promise that is not kept."""

from __future__ import annotations

import asyncio
import json
import time

import aiohttp
import pytest
from tests.actors.on_nats import OnNats

from plancast.demo.apps.desk import app
from plancast.demo.desk.day import Day, ask_all, desk_console
from plancast.demo.desk.inbox import Inbox
from plancast.webhooks.signature import sign
from plancast_actors.maintenance.scheduler import Scheduler
from plancast_bus.nats_server.process import NatsServer

PATIENCE = 900.0
SECRET = "a-secret-of-the-desk"


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_the_desk_is_asked_from_all_sides(fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    day = Day(quiet=True)
    async with Inbox(SECRET) as inbox:
        monkeypatch.setenv("DESK_WEBHOOK", inbox.url)
        monkeypatch.setenv("DESK_WEBHOOK_SECRET", SECRET)
        async with OnNats(fresh_nats, app, console=desk_console().model_dump()) as env, asyncio.timeout(PATIENCE):
            scheduler = Scheduler(env.bus)
            scheduler.start()
            await ask_all(day, env.settings, inbox)
            await scheduler.stop()
    assert [each for each in day.account if not each.held] == []
    assert day.good
    assert len(day.account) == 9


async def test_an_inbox_takes_signed_messages_once_and_no_others() -> None:
    async with Inbox(SECRET) as inbox, aiohttp.ClientSession() as http:
        body = json.dumps({"type": "plan.approval", "data": {"text": "May it be?"}}).encode()

        async def send(secret: str, message_id: str) -> int:
            headers = sign(secret, message_id, int(time.time()), body)
            async with http.post(inbox.url, data=body, headers=headers) as response:
                return response.status

        assert await send(SECRET, "m1") == await send(SECRET, "m1") == 202
        assert await send("a-secret-of-another", "m2") == 401
        assert (await inbox.next())["text"] == "May it be?"
        assert inbox._taken.empty()
        assert inbox.refused == 1


def test_a_day_is_good_only_if_every_promise_was_kept() -> None:
    day = Day(quiet=True)
    assert not day.good, "nothing was proven"
    day.note("one", True, "")
    assert day.good
    day.note("other", False, "")
    assert not day.good
