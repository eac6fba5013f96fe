"""The accounts of `plancast nats-config` on a real nats-server: each login can do its work, and nothing beyond it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client as NatsClient
from tests.isolation.nats_with_roles import RoleServer, make_certificates, make_nkey, role_server, running

from plancast import App, Client, Planner, StateAction, StateConfig, StateTransition, Worker
from plancast.cli import main
from plancast.client.changes import TaskProgress
from plancast.effects.ledger import PART_BYTES, EffectLedger
from plancast.effects.record import EffectRecord, EffectState
from plancast.errors import PlanNotFound
from plancast.settings import Settings
from plancast_actors.dispatch.dispatcher import Dispatcher, DispatcherOptions
from plancast_actors.hosting.plan_host import PlanHost
from plancast_actors.plan_actors.protocol import HostPort
from plancast_actors.workers.runner import TaskRunner, task_consumer
from plancast_bus.errors import AccessDenied, BusUnavailable, CommitConflict
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.events.value_parts import Reference, digest_of
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.settings import BusSettings, NatsSettings
from plancast_bus.subjects import name_of_type

QUIET = 0.3
"""Seconds in which what is not allowed would have arrived."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoleServer]:
    with role_server(tmp_path_factory.mktemp("nats-roles")) as server:
        yield server


def an_app() -> App:
    planner, worker = Planner("p"), Worker("w")
    planner.add_goal(
        "x.goal",
        {
            "start": StateConfig(state_name="start", default_next="ask"),
            "ask": StateConfig(
                state_name="ask",
                action=StateAction(
                    event_type="work.requested", response_event="work.completed", data={"text": "{{goal_data.text?}}"}
                ),
                transitions=[StateTransition(on_event="work.completed", to_state="wait")],
            ),
            "wait": StateConfig(state_name="wait", transitions=[StateTransition(on_event="go", to_state="done")]),
            "done": StateConfig(state_name="done", is_terminal=True),
        },
    )

    @worker.on_task("work.requested", "work.completed")
    async def work(task: Any, context: Any) -> dict[str, Any]:
        await context.bus.publish("work.seen", {}, topic="business-facts")
        await task.progress(0.5)
        text = task.data.get("text")
        return {"done": True} | ({"text": text} if text else {})

    return App("app", planners=[planner], workers=[worker])


class _OneHost:
    """A directory with one shared host."""

    def __init__(self, host: PlanHost) -> None:
        self.shared: list[HostPort] = [host]

    def dedicated(self, plan: str, tenant: str = "", begun: bool = False) -> HostPort:
        raise AssertionError("no goal of this app has a host of its own")


@asynccontextmanager
async def deployed(server: RoleServer, of: str = "", replicas: int = 1) -> AsyncIterator[App]:
    """An app: dispatcher and host as the runtime's user (``of`` a tenant: ``acme/``), its worker as the worker's."""
    app, settings = an_app(), Settings(bus=BusSettings(shards=2, replicas=replicas))
    async with AsyncExitStack() as stack:
        runtime = await connect(server.settings(f"{of}runtime"), settings.bus)
        stack.push_async_callback(runtime.close)
        await runtime.ensure_streams()
        await runtime.ensure_consumer(task_consumer("work.requested", runtime.subjects, settings.workers.ack_wait))
        host = PlanHost(app, runtime, settings)
        stack.push_async_callback(host.stop)
        host.start()
        dispatcher = Dispatcher(runtime, _OneHost(host), DispatcherOptions(shards=2, goals=tuple(app.goals)))
        await dispatcher.start()
        stack.push_async_callback(dispatcher.stop)
        tasks = await connect(server.settings(f"{of}worker"), settings.bus)
        stack.push_async_callback(tasks.close)
        runner = TaskRunner(app, tasks, settings.workers)
        await runner.start()
        stack.push_async_callback(runner.stop, drain_seconds=0)
        yield app


@asynccontextmanager
async def bus_of(server: RoleServer, role: str, **changes: Any) -> AsyncIterator[JetStreamBus]:
    bus = await connect(server.settings(role, **changes), BusSettings(shards=2))
    try:
        yield bus
    finally:
        await bus.close()


@asynccontextmanager
async def raw(server: RoleServer, role: str) -> AsyncIterator[tuple[NatsClient, list[str]]]:
    """A plain NATS client of a role, and what the server refuses it."""
    refused: list[str] = []

    async def on_error(error: Exception) -> None:
        refused.append(str(error))

    client = await nats.connect(
        f"tls://{server.where}",
        nkeys_seed=str(server.seed(role)),
        tls=ssl.create_default_context(cafile=server.certificates.ca),
        inbox_prefix=f"_INBOX.{role.rpartition('/')[2]}".encode(),
        error_cb=on_error,
    )
    try:
        yield client, refused
    finally:
        await client.close()


async def test_every_role_can_do_its_work(server: RoleServer) -> None:
    async with (
        deployed(server),
        bus_of(server, "client") as client_bus,
        bus_of(server, "observer") as observer_bus,
        Client(client_bus, tenant_id="acme") as client,
        Client(observer_bus, tenant_id="acme") as observer,
        Client(observer_bus, tenant_id="other") as other,
    ):
        heard: list[str] = []

        async def notice(subject: str, payload: bytes, content_type: str | None) -> None:
            heard.append(subject)

        await observer_bus.subscribe("plancast.>", notice)
        handle = await client.submit("x.goal", {"n": 1})
        seen = observer.plan(handle.plan_id)
        while (await states(seen))[-1] != "wait":
            await asyncio.sleep(0.02)
        await handle.signal("go", {"by": "hand"})  # without a look at the plan, which is not the client's to read

        result = await handle.result(timeout=30)

        assert result["ask"] == {"done": True}
        assert result["wait"] == {"by": "hand"}
        assert (await seen.state())["status"] == "completed"
        seen_changes = [change async for change in seen.watch("0")]
        assert [change.fraction for change in seen_changes if isinstance(change, TaskProgress)] == [0.5]
        assert [change.revision for change in seen_changes if change.kind == "turn"] == [1, 2, 3]
        assert [entry["revision"] for entry in await seen.history()] == [1, 2, 3]
        assert [each.plan_id for each in await observer.plans()] == [handle.plan_id]
        assert await other.plans() == []
        with pytest.raises(PlanNotFound):
            await other.plan(handle.plan_id).state()
        assert (await observer_bus.registry.list("app")).keys() == {"app"}
        assert [each async for each in observer_bus.dead_letters.list()] == []
        assert any(subject.endswith(".work.seen") for subject in heard)
        with pytest.raises(LookupError, match="no planner takes"):
            await client.submit("y.goal", {})


async def test_every_role_sends_and_reads_large_data(server: RoleServer) -> None:
    async with (
        deployed(server),
        bus_of(server, "client") as client_bus,
        bus_of(server, "observer") as observer_bus,
        Client(client_bus, tenant_id="large") as client,
        Client(observer_bus, tenant_id="large") as observer,
    ):
        text, said = "x" * 3_000_000, "y" * 2_000_000
        handle = await client.submit("x.goal", {"text": text})
        seen = observer.plan(handle.plan_id)
        async with asyncio.timeout(60):
            while (await states(seen))[-1] != "wait":
                await asyncio.sleep(0.02)
        await handle.signal("go", {"said": said})
        result = await handle.result(timeout=60)
        assert result["ask"] == {"done": True, "text": text}
        assert result["wait"] == {"said": said}
        assert (await seen.state())["results"]["wait"] == {"said": said}
        assert [entry["event"]["data"] for entry in await seen.history()][-1] == {"said": said}


@pytest.mark.attack(who="worker", what="reads of values by a wildcard in place of a hash", expected="nothing is read")
@pytest.mark.parametrize("role", ["client", "worker"])
async def test_no_value_is_read_without_its_hash(server: RoleServer, role: str) -> None:
    async with deployed(server), bus_of(server, "runtime") as bus, raw(server, role) as (client, refused):
        content = b"a secret of a plan"
        digest = digest_of(content)
        await bus.values.put("acme", "p", {digest: content})
        read, root = bus.subjects.value_read, "plancast-store"
        known = read(bus.subjects.value("acme", digest.hex(), 0))
        assert (await client.request(known, b"", timeout=10)).data == content
        guesses = ("acme.*.0", "*.*.*", f"*.{digest.hex()}.0", f"acme.{digest.hex()}.*", f"acme.{'ab' * 32}.0")
        for guess in guesses:
            assert (await client.request(f"{root}.valuereads.values.{guess}", b"", timeout=10)).data == b""
        gets = [f"$JS.API.DIRECT.GET.PLANCAST_VALUES.{root}.values.{guess}" for guess in guesses]
        more = ["$JS.API.DIRECT.GET.PLANCAST_VALUES", "$JS.API.STREAM.MSG.GET.PLANCAST_VALUES"]
        more += ["$JS.API.STREAM.MSG.DELETE.PLANCAST_VALUES", "$JS.API.STREAM.PURGE.PLANCAST_VALUES"]
        more += [bus.subjects.value("acme", digest.hex(), 0), bus.subjects.value_clock]
        for subject in (*gets, *more):
            await client.publish(subject, b"{}")
        await client.flush()
        async with asyncio.timeout(60):
            while len(refused) < len(gets) + len(more):
                await asyncio.sleep(0.01)
        assert await bus.values.get("acme", [Reference(digest, len(content))]) == {digest: content}


async def states(handle: Any) -> list[str]:
    try:
        return [(await handle.state())["current_state"]]
    except PlanNotFound:
        return [""]


async def test_what_is_not_allowed_is_refused_at_once_and_by_name(server: RoleServer) -> None:
    async with deployed(server), bus_of(server, "client") as bus, Client(bus) as client:
        for attempt in (
            client.plan("p").state(),
            client.plans(),
            client.plan("p").signal("go"),
            client.plan("p").result(),
        ):
            with pytest.raises(AccessDenied, match="does not let this user publish on"):
                await attempt
    async with bus_of(server, "worker") as bus:
        goal = EventEnvelope(source="w", type="x.goal", topic=EventTopic.ACTION_REQUESTS)
        with pytest.raises(AccessDenied, match=r"publish on plancast\.action-requests"):
            await bus.publish(goal)


async def test_a_worker_may_note_what_becomes_of_its_tasks(server: RoleServer) -> None:
    async with deployed(server), bus_of(server, "worker") as bus:
        own, other = (f"task.{name_of_type(task)}" for task in ("work.requested", "image.render"))
        await bus.registry.put(own, "x", {"lost": 1}, ttl=60.0)
        assert await bus.registry.get(own, "x") == {"lost": 1}
        assert await bus.registry.get(own, "unheard-of") is None
        with pytest.raises(AccessDenied):
            await bus.registry.put(other, "x", {"lost": 1}, ttl=60.0)
        with pytest.raises(AccessDenied):
            await bus.registry.get(other, "x")


async def test_a_worker_records_and_undoes_the_effects_of_its_tasks_alone(server: RoleServer) -> None:
    own, large = EffectRecord(state=EffectState.BEGUN, task="t", key="k"), b"x" * 2 * PART_BYTES
    async with (
        bus_of(server, "runtime") as runtime,
        bus_of(server, "worker") as bus,
        bus_of(server, "painter") as rival,
    ):
        await runtime.ensure_streams()
        await runtime.ensure_consumer(task_consumer("work.requested.undo", bus.subjects, 30.0))
        ledger = EffectLedger(bus.registry, "work.requested", 60.0)
        version = await ledger.write("a", own, 0)
        done = own.moved(EffectState.DONE, request=large)
        version = await ledger.write("a", done, version)
        assert await ledger.read("a") == (done, version)
        with pytest.raises(CommitConflict):
            await ledger.write("a", own, 0)
        theirs = EffectLedger(rival.registry, "work.requested", 60.0)
        with pytest.raises(AccessDenied):
            await theirs.read("a")
        with pytest.raises(AccessDenied):
            await theirs.write("a", own, version)
        with pytest.raises(AccessDenied):
            await theirs.write("b", own.moved(EffectState.DONE, request=large), 0)
        assert await ledger.read("a") == (done, version)

        undo = EventEnvelope(source="p", type="work.requested.undo", topic=EventTopic.ACTION_REQUESTS, data={})
        await runtime.publish(undo)
        stolen = rival.consume(task_consumer("work.requested.undo", bus.subjects, 30.0))
        with pytest.raises(AccessDenied):
            await stolen.fetch(1)
        consumer = bus.consume(task_consumer("work.requested.undo", bus.subjects, 30.0))
        [delivery] = await consumer.fetch(1)
        assert delivery.message_id == undo.id
        await consumer.ack([delivery])
        await consumer.close()


async def test_a_new_login_is_taken_up_by_two_reloads_while_others_go_on(tmp_path: Path) -> None:
    worker = "--worker=worker=work.requested"
    with role_server(tmp_path, worker) as server:
        async with deployed(server), bus_of(server, "client") as bus, Client(bus) as client:
            before = await client.submit("x.goal", {})
            assert main(["nats-config", "--output", str(tmp_path), "--client=client", "--client=new", worker]) == 0
            (ports,) = await asyncio.to_thread(lambda: list(tmp_path.glob("*.ports")))
            for times in (1, 2):
                os.kill(int(ports.stem.rpartition("_")[2]), signal.SIGHUP)
                async with asyncio.timeout(30):
                    while (tmp_path / "server.log").read_text().count("Reloaded server configuration") < times:
                        await asyncio.sleep(0.02)
            async with bus_of(server, "new") as new_bus, Client(new_bus) as new:
                after = await new.submit("x.goal", {})
                for handle in (before, after):
                    await handle.signal("go", {"by": "hand"})
                    assert (await handle.result(30))["wait"] == {"by": "hand"}


CHECKPOINT = "plancast-store.checkpoints.p"
GET_CHECKPOINT = "$JS.API.DIRECT.GET.PLANCAST_CHECKPOINTS." + CHECKPOINT
NOT_ALLOWED = {
    "client": [
        CHECKPOINT, "plancast-store.responses.action-results.p.x", "plancast-store.timers.set.p.t",
        "plancast-store.aliases.p", "plancast-store.machines.x", "plancast-store.withdrawals.work.requested",
        "plancast-store.registrations.app.x", "plancast-store.registrations.agent.x",
        "plancast.action-results.p.work.completed", "plancast.business-facts.p.x", "_INBOX.runtime.x",
        "_INBOX.client.x", "plancast-store.progress.p", GET_CHECKPOINT, "$JS.API.STREAM.MSG.GET.PLANCAST_CHECKPOINTS",
        "$JS.API.STREAM.CREATE.X", "$JS.API.STREAM.DELETE.PLANCAST_CHECKPOINTS", "$JS.API.STREAM.PURGE.PLANCAST_META",
        "$JS.API.CONSUMER.CREATE.PLANCAST_CHECKPOINTS", "$JS.API.CONSUMER.CREATE.PLANCAST_META",
        "$JS.API.CONSUMER.CREATE.PLANCAST_META.x.plancast-store.>",
        "$JS.API.CONSUMER.MSG.NEXT.PLANCAST_REQUESTS.plans-goals", "$JS.API.STREAM.LIST", "$SYS.REQ.SERVER.PING",
    ],
    "worker": [
        CHECKPOINT, GET_CHECKPOINT, "plancast.action-requests.p.x.goal", "plancast.plan-events.p.plan.cancel",
        "plancast-store.registrations.app.x", "plancast-store.registry.task.x", "plancast-store.registry.answers.x",
        "$JS.API.DIRECT.GET.PLANCAST_META", "$JS.API.DIRECT.GET.PLANCAST_META.plancast-store.registry.answers.x",
        "$JS.API.CONSUMER.MSG.NEXT.PLANCAST_REQUESTS.task-image-render",
        "plancast-store.responses.action-results.p.x", "plancast-store.machines.x",
        "$JS.API.CONSUMER.CREATE.PLANCAST_REQUESTS.plans-goals",
        "$JS.API.CONSUMER.CREATE.PLANCAST_REQUESTS.task-work-requested",
        "$JS.API.CONSUMER.MSG.NEXT.PLANCAST_REQUESTS.plans-goals", "$JS.API.STREAM.PURGE.PLANCAST_META",
        "$JS.ACK.PLANCAST_REQUESTS.plans-goals.1.1.1.1.0", "_INBOX.client.x",
        "plancast-store.withdrawals.work.requested", "plancast-store.withdrawals.image.render",
        "$JS.API.DIRECT.GET.PLANCAST_PROGRESS", "$JS.API.STREAM.PURGE.PLANCAST_PROGRESS",
    ],
    "observer": [
        CHECKPOINT, "plancast.action-requests.p.x.goal", "plancast.plan-events.p.plan.cancel",
        "plancast-store.withdrawals.work.requested", "$JS.API.STREAM.PURGE.PLANCAST_CHECKPOINTS",
        "$JS.API.STREAM.DELETE.PLANCAST_CHECKPOINTS",
        "$JS.API.STREAM.MSG.DELETE.PLANCAST_REQUESTS", "$JS.API.CONSUMER.DELETE.PLANCAST_REQUESTS.plans-goals",
        "$JS.API.CONSUMER.MSG.NEXT.PLANCAST_RESULTS.plans-results", "_INBOX.client.x",
        "$JS.API.DIRECT.GET.PLANCAST_META.plancast-store.registry.answers.x", "$JS.API.DIRECT.GET.PLANCAST_META",
        "$JS.API.CONSUMER.CREATE.PLANCAST_CHECKPOINTS.x.plancast-store.checkpoints.*", "plancast-store.progress.p",
    ],
}  # fmt: skip
NOT_HEARD = {
    "client": ["_INBOX.>", "_INBOX.runtime.>", "plancast.>", "plancast-store.>", ">", "$JS.API.>", "_INBOX.*.x"],
    "worker": [
        "_INBOX.client.>",
        "plancast.>",
        "plancast-store.checkpoints.*",
        ">",
        "plancast-store.withdrawals.>",
        "plancast-store.withdrawals.image.render",
    ],
    "observer": ["_INBOX.client.>", "plancast-store.>", "$JS.>", ">"],
}


@pytest.mark.parametrize("role", NOT_ALLOWED)
async def test_no_role_can_publish_or_listen_beyond_its_work(server: RoleServer, role: str) -> None:
    async with raw(server, role) as (client, refused):
        for subject in NOT_ALLOWED[role]:
            await client.publish(subject, b"{}")
        for subject in NOT_HEARD[role]:
            await client.subscribe(subject)
        await client.flush()
        while len(refused) < len(NOT_ALLOWED[role]) + len(NOT_HEARD[role]):
            await asyncio.sleep(0.01)

    said = "\n".join(refused).lower()
    for subject in NOT_ALLOWED[role]:
        assert f'permissions violation for publish to "{subject.lower()}"' in said
    for subject in NOT_HEARD[role]:
        assert f'permissions violation for subscription to "{subject.lower()}"' in said


async def test_nobody_comes_in_without_a_key_or_in_clear(server: RoleServer, tmp_path: Path) -> None:
    nobody = server.settings("client", nkey=None, connect_timeout=3.0)
    user = server.settings("client", nkey=None, user="client", password="guess", connect_timeout=3.0)
    stranger = tmp_path / "stranger.nk"
    make_nkey(stranger)
    for settings in (nobody, user, server.settings("client", nkey=stranger, connect_timeout=3.0)):
        with pytest.raises(BusUnavailable, match=r"(?i)authorization|authentication"):
            await connect(settings, BusSettings())
    # A certificate of an authority that we do not know.
    with pytest.raises(BusUnavailable, match=r"(?i)certificate"):
        await connect(server.settings("client", tls_ca=None, connect_timeout=3.0), BusSettings())


ACCOUNTS = """
jetstream {{ store_dir: "{store}" }}
tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{ca}", verify_and_map: true }}
accounts {{
  ACME {{ jetstream: enabled, users: [{{ user: "client@example.com" }}, {{ user: acme, password: "of acme" }}] }}
  OTHER {{ jetstream: enabled, users: [{{ user: other, password: "of other" }}] }}
}}
"""


async def test_an_account_for_each_tenant_keeps_them_apart_though_ids_and_prefix_are_the_same(tmp_path: Path) -> None:
    """Also by user and password, which a URL may hold, and without TLS from the client's side of a proxy."""
    config = tmp_path / "accounts.conf"
    text = ACCOUNTS.replace(
        'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{ca}", verify_and_map: true }}', ""
    )
    config.write_text(text.format(store=tmp_path / "store"))
    with running(config, tmp_path, {}) as where:
        acme = await connect(NatsSettings(url=f"nats://acme:of%20acme@{where}"), BusSettings())
        other = await connect(NatsSettings(url=where, user="other", password="of other"), BusSettings())
        heard: list[str] = []

        async def notice(subject: str, payload: bytes, content_type: str | None) -> None:
            heard.append(subject)

        await other.ensure_streams()
        await acme.ensure_streams()
        await other.subscribe(">", notice)
        await acme.publish(EventEnvelope(source="s", type="x", topic=EventTopic.PLAN_EVENTS, correlation_id="same"))
        await acme.registry.put("app", "a", {"goals": []})
        await asyncio.sleep(QUIET)

        assert not [subject for subject in heard if subject.startswith("plancast")]
        assert await other.registry.list("app") == {}
        assert list(await acme.registry.list("app")) == ["a"]
        await acme.close()
        await other.close()


async def test_a_client_certificate_is_a_login_too(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    config = tmp_path / "accounts.conf"
    config.write_text(
        ACCOUNTS.format(
            store=tmp_path / "store", cert=certificates.server[0], key=certificates.server[1], ca=certificates.ca
        )
    )
    with running(config, tmp_path, {}) as where:
        settings = NatsSettings(url=where, tls_ca=certificates.ca, connect_timeout=3.0)
        cert, key = certificates.client
        bus = await connect(settings.model_copy(update={"tls_cert": cert, "tls_key": key}), BusSettings())
        await bus.ensure_streams()
        await bus.close()
        with pytest.raises(BusUnavailable):
            await connect(settings, BusSettings())


async def test_a_prefix_for_each_tenant_in_one_account_keeps_apart_those_that_do_not_try(tmp_path: Path) -> None:
    """Users who may only touch their own prefix and its streams; test_nats_attacks.py shows how they cross it."""

    def user(name: str) -> str:
        upper = name.upper()
        streams = [f"{upper}_{kind}" for kind in
                   ("RESULTS", "REQUESTS", "FACTS", "TIMERS", "RESPONSES", "CHECKPOINTS", "HISTORY", "META",
                    "REGISTRY", "SCHEDULES", "DEADLETTERS", "VALUES", "KEYS", "PROGRESS")]  # fmt: skip
        calls = [f"$JS.API.STREAM.{call}.{stream}" for call in ("INFO", "CREATE", "UPDATE") for stream in streams]
        calls += [
            f"$JS.API.CONSUMER.{call}.{stream}.>" for call in ("CREATE", "MSG.NEXT", "DELETE") for stream in streams
        ]
        calls += [f"$JS.API.DIRECT.GET.{stream}.>" for stream in streams]
        publish = json.dumps([f"{name}.>", f"{name}-store.>", "$JS.API.INFO", *calls])
        permissions = f'{{ publish: {publish}, subscribe: ["_INBOX.{name}.>", "{name}.>"] }}'
        return f"{{ user: {name}, password: {name}, permissions: {permissions} }}"

    config = tmp_path / "prefixes.conf"
    config.write_text(
        f'jetstream {{ store_dir: "{tmp_path / "store"}" }}\n'
        f"authorization {{ users: [{user('acme')}, {user('other')}] }}\n"
    )
    with running(config, tmp_path, {}) as where:

        async def open_as(name: str, prefix: str) -> JetStreamBus:
            settings = NatsSettings(url=f"nats://{name}:{name}@{where}", inbox_prefix=f"_INBOX.{name}")
            return await connect(settings, BusSettings(prefix=prefix))

        acme, other, hostile = (
            await open_as("acme", "acme"),
            await open_as("other", "other"),
            await open_as("other", "acme"),
        )
        await acme.ensure_streams()
        await other.ensure_streams()
        await acme.registry.put("app", "a", {"goals": []})
        event = EventEnvelope(source="s", type="x", topic=EventTopic.PLAN_EVENTS, correlation_id="p", tenant_id="acme")
        await acme.publish(event)

        for attempt in (
            hostile.publish(event), hostile.registry.list("app"), hostile.registry.get("app", "a"),
            hostile.checkpoints.load("p"), hostile.ensure_streams(), hostile.dead_letters.count(),
        ):  # fmt: skip
            with pytest.raises(AccessDenied):
                await attempt
        assert list(await acme.registry.list("app")) == ["a"]
        assert await other.registry.list("app") == {}
        for bus in (acme, other, hostile):
            await bus.close()
