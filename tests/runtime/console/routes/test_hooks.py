"""Webhooks over HTTP: what begins a plan, what signals one, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest
from pydantic import SecretStr

from plancast import App, Planner, Settings
from plancast.console.server import ConsoleServer
from plancast.console.service.hook_receiver import MOST_BYTES, HookReceiver
from plancast.testing import PlancastTest
from plancast.webhooks.signature import sign

SECRET, NEXT_SECRET, OTHER = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "the-next-secret", "the-secret-of-others"
PATIENCE = 60.0
MACHINE: dict[str, dict[str, Any]] = {
    "start": {"state_name": "start", "transitions": [{"on_event": "order.paid", "to_state": "paid"}]},
    "paid": {"state_name": "paid", "transitions": [{"on_event": "order.sent", "to_state": "done"}]},
    "done": {"state_name": "done", "is_terminal": True},
}


def an_app() -> App:
    planner = Planner("orders")
    planner.add_goal("order.goal", MACHINE, schema={"type": "object", "properties": {"id": {"type": "integer"}}})
    app = App("shop", planners=[planner])
    secret = [SecretStr(SECRET), SecretStr(NEXT_SECRET)]
    app.hook("orders", "order.goal", secret=secret, correlation="order-{{data.id}}")
    app.hook("each", "order.goal", secret=secret)
    app.hook("paid", "order.paid", secret=secret, correlation="order-{{data.id}}")
    app.hook("sent", "order.sent", secret=secret, correlation="order-{{data.id}}")
    app.hook("acme-orders", "order.goal", secret=secret, correlation="acme-{{data.id}}", tenant_id="acme")
    app.hook("acme-taken", "order.goal", secret=secret, correlation="order-{{data.id}}", tenant_id="acme")
    app.hook("acme-paid", "order.paid", secret=secret, correlation="{{data.id}}", tenant_id="acme")
    app.hook("any-paid", "order.paid", secret=secret, correlation="{{data.id}}")
    app.hook("others", "order.goal", secret=SecretStr(OTHER))
    app.hook("unset", "order.goal", secret="env:PLANCAST_TEST_UNSET")
    app.hook("broken", "order.goal", secret=_broken)
    app.hook("opened", "order.goal", secret=secret, when="event.data.action == 'opened'", data={"id": "{{data.n}}"})
    return app


def _broken() -> str:
    raise RuntimeError(f"the vault is closed: {SECRET}")


class Shop:
    def __init__(self, env: PlancastTest, server: ConsoleServer, http: httpx.AsyncClient) -> None:
        self.env, self.server, self.http = env, server, http

    async def send(
        self, name: str, body: Any, *, id: str | None = None, secret: str = SECRET, at: int = 0, **headers: str
    ) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        signed = sign(secret, id or f"m-{uuid4().hex}", int(time.time()) + at, content)
        return await self.http.post(f"/hooks/{name}", content=content, headers=signed | headers)

    async def until(self, plan: str, state: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while (await self.env.client.plan(plan).state())["current_state"] != state:
                await asyncio.sleep(0.01)

    async def plans(self) -> list[str]:
        return sorted(each.plan_id for each in await self.env.client.plans())


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    settings = Settings()
    settings.console.port = 0
    async with (
        PlancastTest(an_app(), settings=settings) as env,
        ConsoleServer(env.bus, settings, hooked=env.app) as server,
        httpx.AsyncClient(base_url=server.url) as http,
    ):
        yield Shop(env, server, http)


async def test_a_message_begins_a_plan_and_others_move_it(shop: Shop) -> None:
    begun = await shop.send("orders", {"id": 7}, id="m1")
    assert (begun.status_code, begun.json()) == (202, {"plan_id": "order-7", "event_id": "hook:orders:m1"})
    await shop.until("order-7", "start")
    paid = await shop.send("paid", {"id": 7, "amount": 3}, secret=NEXT_SECRET)
    assert paid.status_code == 202
    await shop.until("order-7", "paid")
    state = await shop.env.client.plan("order-7").state()
    assert (state["goal_data"], state["results"]["start"]) == ({"id": 7}, {"id": 7, "amount": 3})


async def test_a_repetition_is_accepted_and_counts_once(shop: Shop) -> None:
    for _ in range(3):
        assert (await shop.send("each", {"id": 1}, id="m1")).status_code == 202
        assert (await shop.send("orders", {"id": 7}, id="m1")).status_code == 202
    assert await shop.plans() == ["hook:each:m1", "order-7"]
    await shop.send("paid", {"id": 7}, id="m2")
    await shop.until("order-7", "paid")
    await shop.send("sent", {"id": 7}, id="m3")
    await shop.until("order-7", "done")
    for name, message in (("paid", "m2"), ("sent", "m3"), ("orders", "m1")):
        assert (await shop.send(name, {"id": 7}, id=message)).status_code == 202, "also once the plan has ended"
    history = await shop.env.client.plan("order-7").history()
    assert [each["event"]["type"] for each in history] == ["order.goal", "order.paid", "order.sent"]
    assert (await shop.send("sent", {"id": 7}, id="m4")).status_code == 409
    assert (await shop.send("each", {"id": 2}, id="m1")).status_code == 202, "of the same id: the first one counts"


async def test_messages_of_one_id_that_arrive_together_count_once(shop: Shop) -> None:
    answers = await asyncio.gather(*(shop.send("each", {"id": 1}, id="m1") for _ in range(20)))
    assert {each.status_code for each in answers} == {202}
    await shop.until("hook:each:m1", "start")
    assert await shop.plans() == ["hook:each:m1"]


async def test_github_signs_its_body(shop: Shop) -> None:
    body = b'{"id": 9}'
    headers = {
        "X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
        "X-Hub-Signature-256": f"sha256={hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()}",
    }
    assert (await shop.http.post("/hooks/each", content=body, headers=headers)).status_code == 202
    assert (await shop.http.post("/hooks/each", content=body, headers=headers)).status_code == 202
    assert await shop.plans() == ["hook:each:72d3162e-cc78-11e3-81ab-4c9367dc0958"]
    assert (await shop.http.post("/hooks/each", content=body + b" ", headers=headers)).status_code == 401


async def test_what_is_not_signed_begins_nothing(shop: Shop) -> None:
    refused = [
        await shop.send("orders", {"id": 1}, secret=OTHER),
        await shop.send("others", {"id": 1}),
        await shop.send("orders", {"id": 1}, at=-400),
        await shop.send("orders", {"id": 1}, at=400),
        await shop.http.post("/hooks/orders", json={"id": 1}),
        await shop.http.post("/hooks/orders", json={"id": 1}, headers={"Authorization": f"Bearer {shop.server.token}"}),
    ]
    assert {each.status_code for each in refused} == {401}
    assert {each.headers["content-type"] for each in refused} == {"application/problem+json"}
    assert await shop.plans() == []


REFUSED: list[tuple[str, Any, int, str]] = [
    ("nothing", {"id": 1}, 404, "no hook 'nothing'"),
    ("orders", b'{"id": 1', 400, "line 1 column 8"),
    ("orders", b'{"id": NaN}', 400, "line 1 column"),
    ("orders", b"\xff", 400, "no JSON"),
    ("orders", b"[" * 100_000, 400, "no JSON"),
    ("orders", b"", 400, "no JSON"),
    ("orders", {"name": "lamp"}, 422, "no 'id'"),
    ("orders", {"id": "seven"}, 422, "goal_data.id"),
    ("orders", [1], 422, "no 'id'"),
    ("each", [1], 422, "data is a list"),
    ("paid", {"id": 404}, 404, "plan order-404 is unknown"),
    ("opened", {"n": 1}, 422, "no field 'action'"),
    ("each", b" " * (MOST_BYTES + 1), 413, "too large"),
]


async def test_what_cannot_be_taken_says_why(shop: Shop) -> None:
    for name, body, status, says in REFUSED:
        answer = await shop.send(name, body)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), says
        assert says in answer.json()["detail"]
    assert await shop.plans() == []


async def test_a_condition_leaves_messages_out(shop: Shop) -> None:
    left_out = await shop.send("opened", {"action": "closed", "n": 1})
    assert (left_out.status_code, left_out.json()) == (202, {"outcome": "ignored"})
    assert (await shop.send("opened", {"action": "opened", "n": 1}, id="m1")).status_code == 202
    assert await shop.plans() == ["hook:opened:m1"]


async def test_another_goal_under_the_same_correlation_is_a_conflict(shop: Shop) -> None:
    assert (await shop.send("orders", {"id": 7})).status_code == 202
    await shop.until("order-7", "start")
    assert (await shop.send("orders", {"id": 7, "note": "changed"})).status_code == 409


async def test_a_hook_reaches_the_plans_of_its_own_tenant_only(shop: Shop) -> None:
    await shop.send("orders", {"id": 7})
    await shop.send("acme-orders", {"id": 7})
    await shop.until("order-7", "start")
    await shop.until("acme-7", "start")
    assert (await shop.env.client.plan("acme-7").state())["tenant_id"] == "acme"
    assert (await shop.send("acme-paid", {"id": "order-7"})).status_code == 404
    assert (await shop.send("any-paid", {"id": "acme-7"})).status_code == 404
    assert (await shop.send("acme-taken", {"id": 7})).status_code == 409
    assert (await shop.send("acme-paid", {"id": "acme-7"})).status_code == 202
    await shop.until("acme-7", "paid")
    assert (await shop.env.client.plan("order-7").state())["current_state"] == "start"


async def test_a_hook_without_its_secret_refuses_and_names_none(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("unset", "broken"):
        answer = await shop.send(name, {"id": 1}, secret="")
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        assert SECRET not in answer.text
    assert SECRET not in caplog.text
    assert await shop.plans() == []


async def test_the_sender_may_name_this_machine_as_it_likes(shop: Shop) -> None:
    headers = {"Host": "shop.example.com", "Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
    assert (await shop.send("each", {"id": 1}, **headers)).status_code == 202
    assert (await shop.http.get("/api/v1/plans", headers=headers)).status_code == 403, "which is for hooks only"


async def test_without_an_app_there_are_no_hooks() -> None:
    async with PlancastTest(an_app()) as env:
        env.settings.console.port = 0
        async with ConsoleServer(env.bus, env.settings) as server, httpx.AsyncClient(base_url=server.url) as http:
            signed = sign(SECRET, "m1", int(time.time()), b"{}")
            assert (await http.post("/hooks/each", content=b"{}", headers=signed)).status_code == 404


@contextlib.asynccontextmanager
async def unfinished(shop: Shop) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A message of which only a part of the body has come."""
    at = urlsplit(shop.server.url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    signed = sign(SECRET, f"m-{uuid4().hex}", int(time.time()), b"{}")
    lines = ["POST /hooks/each HTTP/1.1", "Host: localhost", "Content-Length: 100"]
    lines += [f"{name}: {value}" for name, value in signed.items()]
    writer.write("\r\n".join([*lines, "", "{"]).encode())
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def until_read(receiver: HookReceiver, bodies: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while receiver.reading != bodies:
            await asyncio.sleep(0.01)


async def test_slow_senders_give_way_to_the_others(shop: Shop) -> None:
    receiver = shop.server.app.state.hooks = HookReceiver(shop.env.app, most_bodies=2, body_seconds=3_600)
    async with unfinished(shop) as (oldest, _), unfinished(shop) as (_, _):
        await until_read(receiver, 2)
        assert (await shop.send("each", {"id": 1})).status_code == 202
        async with asyncio.timeout(PATIENCE):
            assert (await oldest.readline()).startswith(b"HTTP/1.1 408 ")
        assert receiver.reading == 1
    await until_read(receiver, 0)


async def test_a_body_that_does_not_come_is_given_up(shop: Shop) -> None:
    receiver = shop.server.app.state.hooks = HookReceiver(shop.env.app, body_seconds=0.1)
    async with unfinished(shop) as (reader, _), asyncio.timeout(PATIENCE):
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        await until_read(receiver, 0)
