"""Notifications on a real nats-server: three processes of which one leads, and others go on when it is gone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from tests.actors.on_nats import OnNats
from tests.runtime.notifications.apps import PATIENCE, asked, drafts, until_status
from tests.runtime.notifications.receiver import http_receiver

from plancast import Webhook
from plancast.notifications import notifier
from plancast.notifications.link import read_link
from plancast.notifications.outbox import PENDING
from plancast_bus.nats_server.process import NatsServer

pytestmark = pytest.mark.slow


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await reached():
            await asyncio.sleep(0.02)


async def test_three_processes_tell_each_cause_once(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "PAUSE", 0.05)
    monkeypatch.setattr(notifier, "LEAD_SECONDS", 1.0)
    monkeypatch.setattr(notifier, "TRY_SECONDS", 1.0)
    async with http_receiver() as receiver:
        app = drafts()
        app.notify(on=("approval", "failed"), to=Webhook(receiver.url))
        console = {"public_url": "https://plans.example.com"}
        async with OnNats(nats_server, app, hosts=3, console=console) as env:
            died = False

            async def die() -> None:
                """Kill all processes between the first delivery and its mark."""
                nonlocal died
                if not died:
                    died = True
                    for host in env.hosts:
                        await host.crash()
                    for host in env.hosts:
                        host.start()

            receiver.before_answer = die
            plans = [await env.client.submit("draft.goal", {"what": f"issue {n}"}) for n in range(6)]
            requests = [await asked(each) for each in plans]
            await until(lambda: told(env, len({*receiver.ids}) == 6))
            for handle, request in zip(plans, requests, strict=True):
                await handle.reject("no", request_id=request)
                await until_status(handle, "failed")
            await until(lambda: told(env, len({*receiver.ids}) == 12))
            await env.bus.seals.prepare()
            for body in receiver.bodies:
                if (link := body["data"]["link"]) is not None:
                    assert read_link(link.rpartition("/")[2], env.bus.seals, 0.0).by == "link:127.0.0.1"
            counts = Counter(receiver.ids)
            assert died
            assert sum(counts.values()) - len(counts) <= notifier.AT_ONCE, "only what was under way is repeated"


async def told(env: OnNats, reached: bool) -> bool:
    return reached and not await env.bus.registry.list(PENDING)
