"""One tenant tries to see, answer or assign what a plan of another tenant asks people, by every way in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from tests.isolation.nats_with_roles import RoleServer, role_server
from tests.runtime.console.desk import Desk, served
from tests.runtime.console.desk_app import app

from plancast import Client, Settings
from plancast.cli import main
from plancast.console.server import ConsoleServer
from plancast.errors import ForeignPlan, PlancastError, PlanNotFound
from plancast.testing import PlancastTest
from plancast_bus.errors import AccessDenied
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import connect
from plancast_bus.memory import MemoryBus
from plancast_bus.settings import BusSettings

MINE, THEIRS = "acme", "mallory"
ORDER, TICKET = "order-of-acme", "ticket-of-acme"
SECRET = "the-secret-of-acme"
PLANS = {ORDER: "order.approved", TICKET: "ticket.approved"}
"""A running plan whose machine asks people, and a paused one whose planner does, with the events that answer."""
PATIENCE = 30.0


@pytest.fixture
async def env() -> AsyncIterator[PlancastTest]:
    """An app in memory, in which plans of the tenant acme wait for people."""
    async with PlancastTest(app) as env:
        await env.submit("order.goal", {"item": SECRET}, correlation_id=ORDER, tenant_id=MINE, user_id="ada")
        await env.submit("ticket.goal", {"id": SECRET}, correlation_id=TICKET, tenant_id=MINE, user_id="ada")
        await until_asked(env.client)
        yield env


async def until_asked(client: Client) -> None:
    async with asyncio.timeout(PATIENCE):
        while {each.plan_id for each in await client.plans(status="waiting")} != set(PLANS):
            await asyncio.sleep(0.01)


async def stands(client: Client) -> list[Any]:
    return [await client.plan(plan).state() for plan in PLANS]


@pytest.mark.parametrize("tenant", [THEIRS, None, "", "ACME", "acme "])
async def test_no_answer_in_another_tenants_name_counts_whatever_it_says(env: PlancastTest, tenant: str | None) -> None:
    before, sent = await stands(env.client), 0
    for plan, answer in PLANS.items():
        asked = await env.client.plan(plan, tenant_id=MINE).approval()
        assert asked is not None
        for event, data in (
            (answer, {"approved": True, "by": "ada", "tenant_id": MINE}),
            (answer, {"approved": False, "by": "ada"}),
            ("plan.resume", {"input": {"approved": True, "by": "ada"}}),
            ("plan.reject", {"reason": "forged"}),
        ):
            for topic in (EventTopic.PLAN_EVENTS, EventTopic.ACTION_RESULTS):
                await env.bus.publish(
                    EventEnvelope(
                        source="mallory", type=event, topic=topic, correlation_id=plan, tenant_id=tenant, data=data,
                        user_id="ada", parent_event_id=asked.request_id, metadata={"tenant_id": MINE, "by": "ada"},
                    )
                )  # fmt: skip
                sent += 1
    async with asyncio.timeout(PATIENCE):
        while await env.bus.dead_letters.count() < sent:
            await asyncio.sleep(0.01)
    letters = [each async for each in env.bus.dead_letters.list()]
    assert {each.reason for each in letters} == {"refused"}
    assert not any(SECRET in each.detail for each in letters)
    assert await stands(env.client) == before
    for plan in PLANS:
        assert (await env.client.plan(plan, tenant_id=MINE).approve(user_id="ada")) == "moved"


async def test_a_client_of_another_tenant_neither_sees_nor_answers(env: PlancastTest) -> None:
    before = await stands(env.client)
    async with Client(MemoryBus(env.world), tenant_id=THEIRS) as bound:
        assert await bound.plans(status="waiting") == []
        with pytest.raises(ForeignPlan):
            await bound.plans(status="waiting", tenant_id=MINE)
        for plan, answer in PLANS.items():
            with pytest.raises(ForeignPlan):
                bound.plan(plan, tenant_id=MINE)
            handle = bound.plan(plan)
            request = (await env.client.plan(plan).approval() or pytest.fail("nothing is asked")).request_id
            for attempt in (
                handle.approval(), handle.approve(user_id="ada"), handle.reject("no", user_id="ada"),
                handle.approve(user_id="ada", request_id=request), handle.resume({"approved": True}),
                handle.signal(answer, {"approved": True, "by": "ada"}, user_id="ada", request_id=request),
            ):  # fmt: skip
                with pytest.raises(PlanNotFound) as caught:
                    await attempt
                assert SECRET not in str(caught.value)
    assert await stands(env.client) == before
    assert await env.bus.dead_letters.count() == 0, "nothing was sent"


async def test_the_console_takes_no_answer_without_its_token_nor_in_another_name(env: PlancastTest) -> None:
    settings = Settings()
    settings.console.port = 0
    settings.console.tokens = {"ada": SecretStr("a" * 40), "grace": SecretStr("g" * 40)}
    before = await stands(env.client)
    writes = {"approve": {}, "reject": {"reason": "no"}, "assign": {"assignee": "grace"}, "resume": {"data": {}}}
    async with ConsoleServer(env.bus, settings) as console, httpx.AsyncClient(base_url=f"{console.url}/api/v1") as http:
        for token in ("", "a" * 39, "A" * 40, "ada", "null"):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            headers["Cookie"] = f"plancast_session={token}"
            answers = [await http.get("/approvals", headers=headers)]
            for plan in (*PLANS, "another"):
                answers += [
                    await http.post(f"/plans/{plan}/{what}", json=body, headers=headers)
                    for what, body in writes.items()
                ]
            assert {each.status_code for each in answers} == {401}
            assert not any(SECRET in each.text for each in answers)
        grace = {"Authorization": f"Bearer {'g' * 40}"}
        for what, body in (
            ("approve", {"data": {"by": "ada"}}),
            ("reject", {"data": {"by": "ada"}, "reason": "no"}),
            ("approve", {"user_id": "ada"}),
            ("approve", {"by": "ada"}),
            ("assign", {"assignee": "grace", "by": "ada"}),
            ("signal", {"event_type": PLANS[ORDER], "data": {"approved": True, "by": "ada"}}),
            ("signal", {"event_type": "plan.resume", "data": {"input": {"by": "ada"}}}),
        ):
            answer = await http.post(f"/plans/{ORDER}/{what}", json=body, headers=grace)
            assert answer.status_code == 422, (what, body, answer.text)
        assert await stands(env.client) == before
        assert await env.bus.registry.list("approval-assignment") == {}
        taken = await http.post(f"/plans/{ORDER}/approve", json={}, headers=grace)
        assert (taken.status_code, taken.json()["outcome"]) == (202, "moved")
    history = await env.client.plan(ORDER).history()
    assert [(each["event"]["user_id"], each["event"]["data"]["by"]) for each in history[-1:]] == [("grace", "grace")]


@pytest.fixture
def server(tmp_path: Path) -> Any:
    with role_server(
        tmp_path, "--tenant=acme", "--tenant=mallory", "--operator=people", "--client=shop",
        "--worker=bank=stock.check.requested",
    ) as running:  # fmt: skip
        yield running


@pytest.mark.slow
async def test_logins_of_other_tenants_and_of_other_roles_neither_see_nor_answer(
    server: RoleServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def command(login: str, *arguments: str) -> tuple[int, str, str]:
        for name, value in server.environment(login).items():
            monkeypatch.setenv(name, value)
        code = await asyncio.to_thread(main, ["approvals", *arguments])
        return (code, *capsys.readouterr())

    settings = {}
    for tenant in (MINE, THEIRS):
        settings[tenant] = Settings(nats=server.settings(f"{tenant}/runtime"))
        settings[tenant].console.port = 0
    async with Desk.deployed(settings[MINE]) as mine, Desk.deployed(settings[THEIRS]) as theirs:
        await mine.client.submit("order.goal", {"item": SECRET}, correlation_id=ORDER)
        await mine.client.submit("ticket.goal", {"id": SECRET}, correlation_id=TICKET)
        await until_asked(mine.client)
        before = await stands(mine.client)
        code, shown, _ = await command(f"{MINE}/people", "list", "--json")
        assert (code, {each["plan_id"] for each in json.loads(shown)}) == (0, set(PLANS))

        # Equal prefixes and ids, another account: there are no such plans.
        code, shown, said = await command(f"{THEIRS}/people", "list")
        assert (code, "no plan waits for people" in said) == (0, True), (shown, said)
        for answer in ("approve", "reject"):
            for plan in PLANS:
                code, shown, said = await command(f"{THEIRS}/people", answer, plan, "--user-id", "ada")
                assert (code, f"plan {plan} is unknown" in said) == (1, True), (shown, said)
            code, shown, said = await command(f"{THEIRS}/people", answer, "--all")
            assert (code, "no plan that waits for people matches" in said) == (1, True), (shown, said)
        async with served(theirs, settings[THEIRS]) as api:
            assert (await api.get("/approvals"))["total"] == 0
            for plan in PLANS:
                for what in ("approve", "reject", "assign"):
                    await api.post(f"/plans/{plan}/{what}", {"assignee": "me"} if what == "assign" else {}, 404)

        # The same account, another role: a client may send answers but sees nothing, a worker neither.
        for login in ("shop", "bank"):
            for arguments in (["list"], ["approve", ORDER], ["reject", "--all"]):
                code, shown, said = await command(f"{MINE}/{login}", *arguments)
                assert code != 0, (login, arguments, shown, said)
                assert "does not let this user publish" in said, (login, arguments, said)
                assert "hint: Reading and answering plans takes a login with the role operator" in said
                assert SECRET not in shown + said
        bus = await connect(server.settings(f"{MINE}/bank"), BusSettings())
        with pytest.raises(AccessDenied):
            await bus.registry.put("approval-assignment", ORDER, {"assignee": "mallory"}, ttl=60)
        with pytest.raises(PlancastError):
            await Client(bus, tenant_id="").plan(ORDER).signal(PLANS[ORDER], {"approved": True})
        await bus.close()
        assert await stands(mine.client) == before
        code, _, said = await command(f"{MINE}/people", "approve", *PLANS, "--user-id", "ada")
        assert code == 0, said
