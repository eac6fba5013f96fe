"""Attacks on a deployment with the configuration that deploy/ ships: after each of them it serves as before."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import nats
import pytest
from tests.attack.shipped import Shipped, shipped
from tests.isolation.nats_with_roles import RoleServer
from tests.isolation.test_nats_auth import bus_of, raw

from plancast import Client, EventDefinition, PlanFailed, PlanHandle, PlanNotFound
from plancast.testing import ModelServer
from plancast_bus.errors import BusUnavailable
from plancast_bus.jetstream import connect
from plancast_bus.settings import BusSettings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]
PATIENCE = 120.0
KEY = "sk-fort-0123456789abcdef0123456789"
STREAMS = [
    f"PLANCAST_{kind}"
    for kind in (
        "RESULTS", "REQUESTS", "FACTS", "TIMERS", "RESPONSES", "CHECKPOINTS", "HISTORY", "META", "REGISTRY",
        "PROGRESS", "SCHEDULES", "DEADLETTERS", "VALUES", "KEYS",
    )
]  # fmt: skip
ALLOWED = {
    "client": "plancast.action-requests.p.fort.goal",
    "observer": "$JS.API.DIRECT.GET.PLANCAST_CHECKPOINTS",
    "fort": "plancast.action-results.p.fort.worked",
}
"""Of each login, something that it may send a request to."""
VALUE = f"plancast-store.values.%.{'0' * 64}.0"


def delegates(request: Any) -> Any:
    """A model that passes everything on to itself, and says the key that it was asked with."""
    said = str(request.messages)
    if "max_depth" in said or '"status": "completed"' in said:
        return {"next_action": {"action": "complete", "result": {"key": KEY}}, "reasoning": f"asked with {KEY}"}
    delegate = {"action": "delegate", "target_planner": "thinker", "goal_event": "fort.think", "goal_data": {"k": KEY}}
    return {"next_action": delegate, "reasoning": f"someone else should, with {KEY}"}


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer([], rule=delegates, api_keys=[KEY]) as server:
        yield server


@pytest.fixture(scope="module")
def fort(model: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shipped]:
    with shipped(tmp_path_factory.mktemp("fort"), model.url, KEY) as made:
        yield made


@asynccontextmanager
async def client_of(server: RoleServer) -> AsyncIterator[Client]:
    async with bus_of(server, "client") as bus, Client(bus) as client:
        yield client


async def serves(client: Client) -> None:
    """A plan is run as if nothing had been."""
    result = await (await client.submit("fort.goal", {"how": "well"})).result(timeout=PATIENCE)
    assert result["work"] == {"how": "well"}


async def holding(client: Client, server: RoleServer, count: int) -> list[PlanHandle]:
    """Plans that wait for a signal."""
    handles = [await client.submit("fort.hold", {"how": f"plan {n}"}) for n in range(count)]
    async with bus_of(server, "observer") as bus, Client(bus) as observer:
        async with asyncio.timeout(PATIENCE):
            for handle in handles:
                while await _state(observer.plan(handle.plan_id)) != "hold":
                    await asyncio.sleep(0.05)
    return handles


async def _state(plan: PlanHandle) -> str:
    try:
        return str((await plan.state())["current_state"])
    except PlanNotFound:  # not begun yet
        return ""


def restarts(fort: Shipped) -> dict[str, int]:
    return {each["name"]: each["restarts"] for each in fort.actors()}


@pytest.mark.attack(who="stranger", what="use NATS, the console or Ray without a login", expected="refused by each")
async def test_nothing_answers_who_has_no_login(fort: Shipped) -> None:
    with pytest.raises(BusUnavailable, match=r"(?i)authorization"):
        await connect(fort.nats.settings("client", nkey=None, connect_timeout=3.0), BusSettings())
    for path, body in (("/api/v1/plans", None), ("/api/v1/plans/p/signals", b"{}")):
        with pytest.raises(urllib.error.HTTPError) as refused:
            await asyncio.to_thread(urllib.request.urlopen, fort.console.partition("/#")[0] + path, body)
        refused.value.close()
        assert refused.value.code == 401, path
    assert [fort.head.ask("/api/jobs/", token) for token in ("", "0" * 64)] == [401, 403]


@pytest.mark.parametrize(
    "role",
    [
        pytest.param(
            role,
            marks=pytest.mark.attack(
                who={"fort": "worker"}.get(role, role), what="delete, purge or fill streams by reply subjects",
                expected="no effect",
            ),
        )
        for role in ALLOWED
    ],
)  # fmt: skip
async def test_no_login_reaches_a_stream_by_a_reply(fort: Shipped, role: str) -> None:
    async with client_of(fort.nats) as client:
        (held,) = await holding(client, fort.nats, 1)
        async with raw(fort.nats, role) as (attacker, _):
            for stream in STREAMS:
                for call in ("STREAM.DELETE", "STREAM.PURGE", "STREAM.MSG.DELETE"):
                    await attacker.publish(ALLOWED[role], b"{}", reply=f"$JS.API.{call}.{stream}")
            await attacker.publish(ALLOWED[role], b"{}", reply=f"plancast-store.checkpoints.{held.plan_id}")
            await attacker.publish(ALLOWED[role], b"{}", reply=VALUE)
            await attacker.flush()
        await held.signal("go")
        assert (await held.result(timeout=PATIENCE))["work"] == {"how": "plan 0"}
    async with raw(fort.nats, "runtime") as (runtime, _):
        answer = json.loads((await runtime.request("$JS.API.STREAM.NAMES", b"", timeout=10)).data)
        assert sorted(answer["streams"]) == sorted(STREAMS)
        asked = json.dumps({"subjects_filter": VALUE}).encode()
        stored = json.loads((await runtime.request("$JS.API.STREAM.INFO.PLANCAST_VALUES", asked, timeout=10)).data)
        assert not stored["state"].get("subjects")


@pytest.mark.attack(who="client", what="goals with fields that end a connection", expected="put aside, all live on")
async def test_what_a_goal_says_stops_nothing(fort: Shipped) -> None:
    before = restarts(fort)
    hostile: list[dict[str, Any]] = [
        {"metadata": {"notify": notify}}
        for notify in (
            "x" * 5_000,
            "$JS.API.STREAM.DELETE.PLANCAST_CHECKPOINTS",
            "plancast-store.checkpoints.x",
            "a b",
            7,
        )
    ]
    hostile += [{name: "x" * 5_000} for name in ("response_event", "session_id", "tenant_id", "trace_id", "subject")]
    hostile += [{name: "x\r\nPUB a 0\r\n\r\n"} for name in ("response_event", "response_topic", "user_id", "source")]
    async with client_of(fort.nats) as client, raw(fort.nats, "client") as (attacker, _):
        for n, fields in enumerate(hostile):
            goal = json.dumps({"data": {"how": "hostile"}, **fields}).encode()
            await attacker.publish(f"plancast.action-requests.hostile-{n}.fort.goal", goal)
        for n in range(3_000):
            await attacker.publish(f"plancast.action-requests.poison-{n}.fort.goal", b"\xff no event")
        await attacker.flush()
        await serves(client)
    assert restarts(fort) == before


@pytest.mark.attack(
    who="agent", what="register schemas that fetch, or never end", expected="passed over, nothing asked"
)
async def test_a_registered_schema_neither_fetches_nor_hangs(fort: Shipped, model: ModelServer) -> None:
    asked, doubled = model.count, {"a0": {"type": "object"}}
    doubled |= {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n - 1}"}] * 2} for n in range(1, 30)}
    schemas: list[dict[str, Any]] = [
        {"properties": {"x": {"$id": f"{model.url}/", "$ref": "latest/meta-data"}}},
        {"properties": {"x": {"pattern": "(a+)+$"}}},
        {"$defs": doubled, "$ref": "#/$defs/a29"},
    ]
    async with bus_of(fort.nats, "fort") as bus:
        for n, schema in enumerate(schemas):
            wire = EventDefinition("hostile.event", "action-requests").to_dict()
            await bus.registry.put("event", f"hostile-{n}", wire | {"payload_schema": schema}, ttl=30.0)
    async with client_of(fort.nats) as client:
        await (await client.submit("fort.think", {})).result(timeout=PATIENCE)
        await serves(client)
    assert model.count > asked
    assert all(each.messages for each in model.requests[asked:]), "a schema was fetched"


@pytest.mark.attack(who="model", what="delegate to itself, and say its key", expected="8 plans, the key is nowhere")
async def test_a_model_neither_fills_the_deployment_nor_leaves_its_key_there(fort: Shipped) -> None:
    async with client_of(fort.nats) as client, bus_of(fort.nats, "observer") as bus, Client(bus) as observer:
        handle = await client.submit("fort.think", {}, session_id="delegating")
        await handle.result(timeout=PATIENCE)
        plans = await observer.plans(session_id="delegating")
        assert [each.status for each in plans] == ["completed"] * 8
        for each in plans:
            seen = observer.plan(each.plan_id)
            assert KEY not in str([await seen.state(), *await seen.history()])
    async with raw(fort.nats, "runtime") as (runtime, _):
        for stream in STREAMS:
            assert KEY.encode() not in b"".join([each async for each in _stored(runtime, stream)]), stream


async def _stored(runtime: nats.NATS, stream: str) -> AsyncIterator[bytes]:
    """Every message of a stream, with its headers."""
    sequence = 0
    while True:
        wanted = json.dumps({"seq": sequence + 1, "next_by_subj": ">"}).encode()
        answer = json.loads((await runtime.request(f"$JS.API.STREAM.MSG.GET.{stream}", wanted, timeout=10)).data)
        if "message" not in answer:
            return
        sequence = answer["message"]["seq"]
        for part in ("hdrs", "data"):
            yield base64.b64decode(answer["message"].get(part, ""))


@pytest.mark.attack(who="app code", what="panic in a task, write keys that are no strings", expected="failed, in words")
async def test_code_that_panics_fails_its_own_plan(fort: Shipped) -> None:
    before = restarts(fort)
    async with client_of(fort.nats) as client:
        with pytest.raises(PlanFailed, match="PanicException"):
            await (await client.submit("fort.goal", {"how": "panic"})).result(timeout=PATIENCE)
        with pytest.raises(PlanFailed, match="keys must be strings"):
            await (await client.submit("fort.write", {"how": "well"})).result(timeout=PATIENCE)
        await serves(client)
    assert restarts(fort) == before


@pytest.mark.attack(
    who="publisher", what="store garbage as a plan's checkpoint", expected="put aside, the plan goes on"
)
async def test_a_plan_goes_on_from_the_checkpoint_before_a_forged_one(fort: Shipped) -> None:
    async with client_of(fort.nats) as client, raw(fort.nats, "runtime") as (runtime, _):
        (held,) = await holding(client, fort.nats, 1)
        await runtime.request(f"plancast-store.checkpoints.{held.plan_id}", b'{"stream":"X","seq":1}', timeout=10)
        await held.signal("go")
        assert (await held.result(timeout=PATIENCE))["work"] == {"how": "plan 0"}


@pytest.mark.attack(who="operator", what="kill -9 all dispatchers and a host at once", expected="every plan completes")
async def test_plans_end_when_their_processes_are_killed(fort: Shipped) -> None:
    async with client_of(fort.nats) as client:
        handles = await holding(client, fort.nats, 30)
        await asyncio.gather(*(handle.signal("go") for handle in handles))
        for each in await asyncio.to_thread(fort.actors):
            if each["name"].startswith("dispatcher") or each["name"] == "host-0":
                os.kill(each["pid"], signal.SIGKILL)
        results = await asyncio.gather(*(handle.result(timeout=PATIENCE) for handle in handles))
        assert [each["work"]["how"] for each in results] == [f"plan {n}" for n in range(30)]
        await serves(client)
