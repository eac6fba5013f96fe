"""Attacks on a nats-server by those who have a login: by plain NATS, on the accounts of `plancast nats-config`.

A nats-server checks no permission on reply subjects: it publishes an answer on whatever subject the request names, in
the account that the request came from. The last tests show that the attack works where accounts are shared.
"""

from __future__ import annotations

import asyncio
import json
import re
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from tests.isolation.nats_with_roles import LOGINS, RoleServer, role_server, running
from tests.isolation.test_nats_auth import QUIET, bus_of, deployed, raw

from plancast import Client
from plancast.errors import PlanNotFound
from plancast_actors.workers.runner import task_consumer
from plancast_bus.errors import InvalidSubject, PayloadTooLarge
from plancast_bus.events.codec import pack
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.settings import BusSettings, NatsSettings

ROLES = ("client", "rival", "observer", "operator", "worker", "painter")
WHO = {"rival": "client", "painter": "worker"}
VICTIM = "plancast-store.checkpoints.victim"
TENANTS = ("--tenant=acme", "--tenant=beta", *LOGINS)


def by_each_role(what: str, expected: str) -> Any:
    """A test of each role that is not the runtime's."""
    marks = (pytest.mark.attack(who=WHO.get(role, role), what=what, expected=expected) for role in ROLES)
    return pytest.mark.parametrize(
        "role", [pytest.param(role, marks=mark) for role, mark in zip(ROLES, marks, strict=True)]
    )


@pytest.fixture(scope="module", params=["accounts and permissions", "accounts alone"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoleServer]:
    """With the permissions that have the server say what it refuses, and without: the account is the fence."""
    folder = tmp_path_factory.mktemp("nats")
    if request.param == "accounts alone":
        with role_server(folder, alone=True) as server:
            yield server
    else:
        with role_server(folder) as server:
            yield server


@pytest.fixture
async def runtime(server: RoleServer) -> AsyncIterator[NatsClient]:
    """The runtime's login, by plain NATS; the deployment has something in every stream that could be lost."""
    async with bus_of(server, "runtime") as bus:
        await bus.ensure_streams()
        async with raw(server, "runtime") as (client, _):
            for stream in ("REGISTRY", "DEADLETTERS"):  # of the tests before
                assert (await api(client, f"STREAM.PURGE.PLANCAST_{stream}"))["success"]
        for task in ("work.requested", "image.render"):
            await bus.ensure_consumer(task_consumer(task, bus.subjects, 30.0))
        await bus.registry.put("app", "app", {"name": "app", "goals": ["x.goal"]})
        await bus.registry.put("answers", "a", {"secret": 1})
    async with raw(server, "runtime") as (client, _):
        for subject in (
            VICTIM,
            "plancast-store.history.victim.1",
            "plancast-store.machines.m",
            "plancast-store.aliases.a",
        ):
            await client.request(subject, b"of the victim", timeout=5)
        for task in ("work.requested", "image.render"):
            await client.request(f"plancast.action-requests.victim.{task}", b"a task", timeout=5)
        yield client


async def api(client: NatsClient, operation: str, body: Any = None) -> dict[str, Any]:
    answer = await client.request(f"$JS.API.{operation}", json.dumps(body).encode() if body else b"", timeout=5)
    found: dict[str, Any] = json.loads(answer.data)
    return found


async def held(runtime: NatsClient) -> dict[str, Any]:
    """All streams: how they are configured, and for each subject how much they hold and what was stored last."""
    found: dict[str, Any] = {}
    for stream in (await api(runtime, "STREAM.LIST"))["streams"]:
        name = stream["config"]["name"]
        info = await api(runtime, f"STREAM.INFO.{name}", {"subjects_filter": ">"})
        consumers = (await api(runtime, f"CONSUMER.NAMES.{name}"))["consumers"]
        found[name] = {"config": stream["config"], "consumers": sorted(consumers or ())}
        for subject, count in (info["state"].get("subjects") or {}).items():
            last = await api(runtime, f"STREAM.MSG.GET.{name}", {"last_by_subj": subject})
            found[subject] = (count, last["message"]["seq"], last["message"].get("data"))
    return found


def concrete(pattern: str) -> str:
    """A subject that a permission allows."""
    return pattern.replace("*", "absent").replace(">", "absent")


REPLIES = (
    *(f"$JS.API.STREAM.{call}.PLANCAST_{stream}"
      for call in ("DELETE", "PURGE", "CREATE", "UPDATE", "SNAPSHOT", "MSG.DELETE", "PEER.REMOVE")
      for stream in ("CHECKPOINTS", "META", "REGISTRY", "REQUESTS")),
    "$JS.API.CONSUMER.CREATE.PLANCAST_CHECKPOINTS", "$JS.API.CONSUMER.DELETE.PLANCAST_REQUESTS.task-work-requested",
    "$JS.API.ACCOUNT.PURGE.runtime", "$JS.API.META.LEADER.STEPDOWN",
    VICTIM, "plancast-store.history.victim.2", "plancast-store.machines.m", "plancast-store.aliases.a",
    "plancast-store.registrations.app.app", "plancast-store.registry.answers.a", "plancast-store.registry.task.zz",
    "plancast-store.timers.set.victim.t", "plancast-store.timers.due.victim.t", "plancast-store.keepers.requests",
    "plancast-store.responses.action-results.victim.x",
    "plancast.action-requests.victim.x.goal", "plancast.plan-events.victim.approve",
    "plancast.action-results.victim.work.completed", "plancast.business-facts.victim.x",
)  # fmt: skip
BODIES = (
    b"",
    b'{"seq":1}',
    b'{"last_by_subj":">"}',
    b'{"seq":1,"next_by_subj":">","batch":100}',
    b'{"batch":10,"expires":200000000}',
    b'+NXT {"batch":10}',
)


@by_each_role("have answers published on dangerous subjects, of everything that it may send", "nothing changes")
async def test_no_reply_subject_crosses_to_the_runtime(server: RoleServer, runtime: NatsClient, role: str) -> None:
    allowed = imported(server, role)
    own = [pattern(each) for each in allowed]
    before = await held(runtime)
    async with raw(server, role) as (client, _):
        for subject in map(concrete, allowed):
            for body in BODIES:
                for reply in REPLIES:
                    await client.publish(subject, body, reply=reply)
            await client.flush(30)
    await asyncio.sleep(QUIET)
    after = await held(runtime)

    theirs = {name: found for name, found in before.items() if not any(each.fullmatch(name) for each in own)}
    assert VICTIM in theirs
    assert "PLANCAST_CHECKPOINTS" in theirs
    assert {name: found for name, found in after.items() if not any(each.fullmatch(name) for each in own)} == theirs


def pattern(subject: str) -> re.Pattern[str]:
    """What a subject with wildcards takes; the shard, which follows the topic where events are stored, is among it."""
    return re.compile(re.escape(subject).replace(r"\*", r"[^.]+").replace(">", ".+"))


def imported(server: RoleServer, role: str) -> list[str]:
    """What a login may publish on: the services that its account imports."""
    accounts = json.loads((server.folder / "accounts.conf").read_text().split("accounts: ", 1)[1])
    return [each["service"]["subject"] for each in accounts[role]["imports"] if "service" in each]


@pytest.mark.attack(
    who="worker", what="deliver stored bytes as another tenant's goal or approval", expected="not stored"
)
async def test_a_worker_cannot_have_its_records_delivered_as_events(server: RoleServer, runtime: NatsClient) -> None:
    record = "plancast-store.registry.task.work-requested."
    subject = next(each for each in imported(server, "worker") if each.startswith(record)).replace("*", "zz")
    goal = EventEnvelope(
        source="w", type="x.goal", topic=EventTopic.ACTION_REQUESTS, tenant_id="acme", correlation_id="p"
    )
    headers = {"Content-Type": "application/msgpack", "Plancast-Tenant": "acme", "Nats-Msg-Id": "forged"}
    async with raw(server, "worker") as (client, _):
        stored = json.loads((await client.request(subject, pack(goal.model_dump(mode="json")), headers=headers)).data)
        assert "error" not in stored  # it may keep the record
        before = await held(runtime)
        for reply in ("plancast.action-requests.p.x.goal", "plancast.plan-events.p.approve", VICTIM):
            await client.publish(f"$JS.API.DIRECT.GET.PLANCAST_META.{subject}", b"", reply=reply)
        await client.flush()
        await asyncio.sleep(QUIET)
        assert await held(runtime) == before


@by_each_role("read what others are sent, or all that there is", "nothing is heard")
async def test_nothing_is_heard_that_is_not_exported(server: RoleServer, runtime: NatsClient, role: str) -> None:
    heard: list[str] = []

    async def note(message: Msg) -> None:
        heard.append(message.subject)

    async with raw(server, role) as (client, _), raw(server, "client" if role != "client" else "rival") as (other, _):
        for subject in (">", "_INBOX.>", "*.>", "$JS.>", "_R_.>", "$SYS.>", "plancast-store.>", "_INBOX.runtime.>"):
            await client.subscribe(subject, cb=note)
        await client.flush()
        for subject in (
            "_INBOX.client.result",
            "_INBOX.rival.result",
            "_INBOX.runtime.x",
            "plancast-store.timers.set.p.t",
        ):
            await runtime.publish(subject, b"secret", reply="_INBOX.runtime.reply")
        await runtime.flush()
        await other.request("plancast.plan-events.victim.approve", b"secret", timeout=5)
        await runtime.request("$JS.API.STREAM.INFO.PLANCAST_META", b"", timeout=5)
        await asyncio.sleep(QUIET)
    own = f"_INBOX.{role}."
    others = [each for each in heard if not each.startswith(own)]
    if role in ("observer", "operator"):  # who hear every event
        others = [each for each in others if not each.startswith("plancast.")]
    assert others == []


@pytest.mark.attack(
    who="worker", what="learn of the withdrawn tasks of others", expected="it receives notices of its own tasks only"
)
async def test_a_worker_is_notified_of_its_own_withdrawn_tasks_only(server: RoleServer, runtime: NatsClient) -> None:
    heard: dict[str, list[str]] = {"worker": [], "painter": []}

    def note(role: str) -> Callable[[Msg], Awaitable[None]]:
        async def received(message: Msg) -> None:
            heard[role].append(message.subject)

        return received

    root = "plancast-store.withdrawals"
    async with raw(server, "worker") as (worker, _), raw(server, "painter") as (painter, _):
        for role, client in (("worker", worker), ("painter", painter)):
            for subject in (f"{root}.work.requested", f"{root}.image.render", f"{root}.>", "plancast-store.>"):
                await client.subscribe(subject, cb=note(role))
            await client.flush()
        async with asyncio.timeout(60):
            # A notice is sent at most once, and a denied subscription may cost the connection.
            while not all(heard.values()):
                for task in ("work.requested", "image.render"):
                    await runtime.publish(f"{root}.{task}", b"1")
                await runtime.flush()
                await asyncio.sleep(0.1)
        await asyncio.sleep(QUIET)
    assert set(heard["worker"]) == {f"{root}.work.requested"}
    assert set(heard["painter"]) == {f"{root}.image.render"}


@by_each_role("cancel the running tasks of a worker", "its worker receives no notice")
async def test_no_login_withdraws_the_tasks_of_a_worker(server: RoleServer, runtime: NatsClient, role: str) -> None:
    task = "image.render" if role == "worker" else "work.requested"
    heard: list[bytes] = []

    async def note(message: Msg) -> None:
        heard.append(message.data)

    subject = f"plancast-store.withdrawals.{task}"
    async with raw(server, role) as (client, _), raw(server, "painter" if role == "worker" else "worker") as (owner, _):
        await owner.subscribe(subject, cb=note)
        await owner.flush()
        for body in (b"1", b"2"):
            await client.publish(subject, body, reply=subject)
        await client.flush()
        await asyncio.sleep(QUIET)
        async with asyncio.timeout(60):
            while not heard:
                await runtime.publish(subject, b"of the runtime")
                await asyncio.sleep(0.1)
    assert set(heard) == {b"of the runtime"}


@by_each_role("forge the copy of a withdrawn request", "only what the runtime has published is stored")
async def test_no_login_forges_the_withdrawal_of_a_request(server: RoleServer, runtime: NatsClient, role: str) -> None:
    subjects = [f"plancast.withdrawn-requests.victim.{task}" for task in ("work.requested", "image.render")]
    before = await held(runtime)
    async with raw(server, role) as (client, _):
        for subject in (*subjects, "plancast.withdrawn-requests.0.victim.work.requested"):
            await client.publish(subject, b"{}", headers={"Nats-Msg-Id": f"withdrawn:{role}"})
        await client.flush()
        await asyncio.sleep(QUIET)
    assert await held(runtime) == before
    await runtime.request(subjects[0], b"{}", headers={"Nats-Msg-Id": f"withdrawn:{role}"}, timeout=30)
    assert await held(runtime) != before, "the runtime may, and no login has taken the id"


@by_each_role("have a consumer push what streams hold to a subject of its choice", "no consumer is created")
async def test_no_push_consumer_can_be_made(server: RoleServer, runtime: NatsClient, role: str) -> None:
    before = await held(runtime)
    async with raw(server, role) as (client, _):
        for target in (VICTIM, "$JS.API.STREAM.DELETE.PLANCAST_META", f"_INBOX.{role}.push"):
            for stream in ("CHECKPOINTS", "META", "REQUESTS", "REGISTRY"):
                config = {"name": "x", "deliver_subject": target, "ack_policy": "none", "filter_subject": ">"}
                body = json.dumps({"stream_name": f"PLANCAST_{stream}", "config": config}).encode()
                for form in ("CREATE.{}", "CREATE.{}.x", "CREATE.{}.x.>", "DURABLE.CREATE.{}.x"):
                    await client.publish(f"$JS.API.CONSUMER.{form.format(f'PLANCAST_{stream}')}", body, reply=VICTIM)
        await client.flush()
        await asyncio.sleep(QUIET)
    assert await held(runtime) == before


@pytest.mark.attack(who="client", what="remove or reschedule what streams hold by headers of NATS", expected="refused")
async def test_headers_of_nats_do_nothing_to_a_stream(server: RoleServer, runtime: NatsClient) -> None:
    before = await held(runtime)
    headers = ("Nats-Rollup", "all"), ("Nats-Rollup", "sub"), ("Nats-TTL", "1"), ("Nats-Incr", "1")
    schedule = {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "plancast.action-requests.victim.x.goal"}
    async with raw(server, "client") as (client, _):
        for each in (*({name: value} for name, value in headers), schedule):
            answer = await client.request("plancast.action-requests.p.x.goal", b"goal", headers=each, timeout=5)
            assert "error" in json.loads(answer.data), each
    assert await held(runtime) == before


@pytest.mark.attack(who="client", what="begin atomic batches and never end them", expected="others go on")
async def test_batches_that_never_end_stop_nobody(server: RoleServer, runtime: NatsClient) -> None:
    async with raw(server, "client") as (client, _):
        for number in range(1100):
            batch = {"Nats-Batch-Id": f"b{number}", "Nats-Batch-Sequence": "1"}
            await client.publish("plancast.action-requests.p.x.goal", b"goal", headers=batch)
        await client.flush()
        async with bus_of(server, "runtime") as bus:
            events = [
                EventEnvelope(source="s", type="x", topic=EventTopic.ACTION_REQUESTS, correlation_id=f"c{number}")
                for number in range(300)
            ]
            async with asyncio.timeout(30):
                await asyncio.gather(*map(bus.publish, events))


@pytest.mark.attack(who="worker", what="have an operator replay a letter onto any subject", expected="refused")
async def test_a_dead_letter_is_replayed_as_an_event_or_not_at_all(server: RoleServer, runtime: NatsClient) -> None:
    async with raw(server, "worker") as (client, _):
        for target in (
            "$JS.API.STREAM.DELETE.PLANCAST_CHECKPOINTS", VICTIM, "plancast.", "_INBOX.client.x",
            "plancast-store.timers.due.p.retry", "plancast.plan-events.p.plan.cancel", "plancast.action-results.p.x.y",
        ):  # fmt: skip
            letter = {"reason": "x", "detail": "", "subject": target, "content_type": None, "message_id": None}
            headers = {"Plancast-Dead-Letter": json.dumps(letter)}
            await client.request("plancast-store.deadletters.login.x", b"{}", headers=headers, timeout=5)
        for headers in ({}, {"Plancast-Dead-Letter": "[]"}, {"Plancast-Dead-Letter": '{"reason": 1}'}):
            await client.request("plancast-store.deadletters.login.x", b"{}", headers=headers, timeout=5)
    before = await held(runtime)
    async with bus_of(server, "runtime") as operator:
        letters = [each async for each in operator.dead_letters.list()]
        assert len(letters) == await operator.dead_letters.count() >= 10
        for each in letters:
            with pytest.raises(InvalidSubject, match="cannot be replayed"):
                await operator.dead_letters.replay(each.number)
    assert await held(runtime) == before


@pytest.mark.attack(who="worker", what="hide registrations from readers by forged headers", expected="all are listed")
async def test_a_registration_with_forged_headers_hides_nothing(server: RoleServer, runtime: NatsClient) -> None:
    forged = {
        "Status": "204", "Nats-Num-Pending": "0", "Nats-Sequence": "1",
        "Nats-Subject": "plancast-store.registrations.app.x",
    }  # fmt: skip
    async with raw(server, "worker") as (client, _):
        await client.request("plancast-store.registrations.agent.a", pack({}), headers=forged, timeout=5)
        await client.request("plancast-store.registrations.agent.%FF", b"\xc1", timeout=5)
    async with bus_of(server, "runtime") as bus:
        await bus.registry.put("agent", "b", {"n": 1})
        assert (await bus.registry.list("agent")).keys() == {"a", "b"}
    async with bus_of(server, "client") as bus:
        assert (await bus.registry.list("agent")).keys() == {"a", "b"}
        assert (await bus.registry.list("app")).keys() == {"app"}


@pytest.mark.attack(who="worker", what="a dead letter that is nested too deeply to read", expected="all are listed")
async def test_a_dead_letter_that_is_nested_deeply_hides_no_other(server: RoleServer, runtime: NatsClient) -> None:
    async with raw(server, "worker") as (client, _):
        headers = {"Plancast-Dead-Letter": "[" * 60_000}
        await client.request("plancast-store.deadletters.login.x", b"{}", headers=headers, timeout=5)
    for role in ("runtime", "observer"):
        async with bus_of(server, role) as bus:
            letters = [each async for each in bus.dead_letters.list()]
            assert letters[-1].reason == "foreign"


@pytest.mark.attack(
    who="worker", what="store what reads as the server's word that nobody answers", expected="all are listed"
)
async def test_a_stored_message_is_no_word_of_the_server(server: RoleServer, runtime: NatsClient) -> None:
    async with raw(server, "worker") as (client, _):
        for subject in ("plancast-store.registrations.agent.said", "plancast-store.deadletters.login.x"):
            await client.request(subject, b"", headers={"Status": "503"}, timeout=5)
    async with bus_of(server, "observer") as bus:
        await bus.registry.list("agent")
        letters = [each async for each in bus.dead_letters.list()]
        assert letters[-1].reason == "foreign"
        assert await bus.dead_letters.count() >= 1
        assert (await bus.dead_letters.get(letters[-1].number)).payload == b""


@pytest.mark.attack(
    who="worker", what="a dead letter of 8 MB that takes half a gigabyte to read", expected="it is not read"
)
async def test_a_bundle_of_dead_letters_takes_no_more_memory_than_it_has_bytes(
    server: RoleServer, runtime: NatsClient
) -> None:
    count = 7_000_000
    letter = {"reason": "x", "detail": "", "subject": "plancast.a.b.c", "content_type": None, "message_id": None}
    headers = {"Plancast-Dead-Letter": json.dumps(letter | {"more": 5})}
    async with raw(server, "worker") as (client, _):
        for begin in (b"\xdd" + count.to_bytes(4, "big"), b"\x91\xdd" + count.to_bytes(4, "big")):
            await client.request(
                "plancast-store.deadletters.login.x", begin + b"\x90" * count, headers=headers, timeout=5
            )
    async with bus_of(server, "observer") as bus:
        tracemalloc.start()
        try:
            letters = [each async for each in bus.dead_letters.list()]
            assert tracemalloc.get_traced_memory()[1] < 100_000_000
        finally:
            tracemalloc.stop()
    assert [each.reason for each in letters[-2:]] == ["foreign", "foreign"]


@pytest.mark.attack(
    who="worker", what="a registration of 7 MB that takes half a gigabyte to read", expected="passed over"
)
async def test_a_registration_takes_no_more_memory_than_an_agent_needs(server: RoleServer, runtime: NatsClient) -> None:
    count = 7_000_000
    payload = b"\x81\xa4name\xdd" + count.to_bytes(4, "big") + b"\x90" * count
    async with raw(server, "worker") as (client, _):
        await client.request("plancast-store.registrations.agent.large", payload, headers={"Nats-TTL": "30"}, timeout=5)
    async with bus_of(server, "runtime") as bus:
        await bus.registry.put("agent", "small", {"n": 1}, ttl=30)
        tracemalloc.start()
        try:
            listed = await bus.registry.list("agent")
            assert tracemalloc.get_traced_memory()[1] < 100_000_000
        finally:
            tracemalloc.stop()
        assert "small" in listed
        assert "large" not in listed
        with pytest.raises(PayloadTooLarge):
            await bus.registry.put("agent", "too large", {"description": "x" * 600_000})
        await api(runtime, "STREAM.PURGE.PLANCAST_REGISTRY", {"filter": "plancast-store.registrations.agent.large"})


@pytest.mark.attack(who="client", what="tasks without payload, which end a worker's pull", expected="others go on")
async def test_an_empty_task_holds_up_no_other(server: RoleServer, runtime: NatsClient) -> None:
    await api(runtime, "STREAM.PURGE.PLANCAST_REQUESTS")
    await api(runtime, "CONSUMER.DELETE.PLANCAST_REQUESTS.task-work-requested")  # and the pulls of other tests
    async with (
        deployed(server),
        bus_of(server, "operator") as bus,
        Client(bus) as client,
        raw(server, "client") as (evil, _),
    ):
        async with asyncio.timeout(10):  # less than `workers.ack_wait`
            for number in range(5):
                for headers in (None, {"Nats-Msg-Id": f"empty-{number}"}):
                    await evil.publish("plancast.action-requests.p.work.requested", b"", headers=headers)
                await evil.flush()
                handle = await client.submit("x.goal", {})
                await handle.signal("go", {"by": number})
                assert (await handle.result(10))["wait"] == {"by": number}


@pytest.mark.attack(who="tenant", what="cross to a tenant with the same prefix and the same ids", expected="not there")
async def test_tenants_with_accounts_do_not_meet(tmp_path: Path) -> None:
    with role_server(tmp_path, *TENANTS) as server:
        async with deployed(server, of="acme/"), bus_of(server, "acme/client") as bus, Client(bus) as client:
            handle = await client.submit("x.goal", {}, correlation_id="same")
            async with raw(server, "acme/runtime") as (acme, _), deployed(server, of="beta/"):
                async with bus_of(server, "acme/observer") as watching, Client(watching) as observer:
                    while not (plans := await observer.plans()) or plans[0].current_state != "wait":
                        await asyncio.sleep(0.02)
                async with bus_of(server, "beta/observer") as watching, Client(watching) as observer:
                    assert await observer.plans() == []
                    with pytest.raises(PlanNotFound):
                        await observer.plan("same").state()
                before = await held(acme)
                await attack_from(server, "beta/")
                assert without_heartbeats(await held(acme)) == without_heartbeats(before)
            await handle.signal("go", {"by": "acme"})
            assert (await handle.result(30))["wait"] == {"by": "acme"}


def without_heartbeats(found: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in found.items() if ".registrations." not in name and ".keepers." not in name}


async def attack_from(server: RoleServer, tenant: str) -> None:
    """Send what each login of a tenant may send, its runtime's too, and what it may not, with replies to the other."""
    for role in ("runtime", "client", "worker", "observer", "operator"):
        async with raw(server, f"{tenant}{role}") as (client, _):
            for subject in (
                "$JS.API.DIRECT.GET.PLANCAST_META.plancast-store.registry.task.absent", "plancast.plan-events.same.go",
                "$JS.API.DIRECT.GET.PLANCAST_REGISTRY", "$JS.API.INFO", "plancast-store.checkpoints.same",
            ):  # fmt: skip
                for reply in ("plancast.plan-events.same.go", "$JS.API.STREAM.LIST", "plancast-store.checkpoints.same"):
                    await client.publish(subject, b"{}", reply=reply)
            await client.flush()
    await asyncio.sleep(QUIET)


# What the attacks are worth where there is one account.

SHARED = """
jetstream {{ store_dir: "{store}" }}
accounts {{ PLANCAST {{ jetstream: enabled, users: [
  {{ user: runtime, password: r }}
  {{ user: observer, password: o, permissions: {{
      publish: ["$JS.API.DIRECT.GET.PLANCAST_META.plancast-store.aliases.*"], subscribe: ["_INBOX.observer.>"] }} }}
  {{ user: worker, password: w, permissions: {{
      publish: ["plancast-store.registry.task.*", "$JS.API.DIRECT.GET.PLANCAST_META.plancast-store.registry.task.*"]
      subscribe: ["_INBOX.worker.>"] }} }}
] }} }}
"""


@asynccontextmanager
async def shared_account(folder: Path) -> AsyncIterator[tuple[JetStreamBus, NatsClient, NatsClient, NatsClient]]:
    """One account for all roles: its bus, and plain clients of the runtime, an observer and a worker."""
    config = folder / "shared.conf"
    config.write_text(SHARED.format(store=folder / "store"))
    with running(config, folder, {}) as where:
        async with AsyncExitStack() as stack:
            bus = await connect(NatsSettings(url=where, user="runtime", password="r"), BusSettings(shards=2))  # type: ignore[arg-type]
            stack.push_async_callback(bus.close)
            await bus.ensure_streams()
            clients = []
            for name in ("runtime", "observer", "worker"):
                inbox = f"_INBOX.{name}".encode()
                client = await nats.connect(f"nats://{where}", user=name, password=name[0], inbox_prefix=inbox)
                stack.push_async_callback(client.close)
                clients.append(client)
            yield (bus, *clients)  # type: ignore[misc]


async def test_in_one_account_who_writes_nothing_can_delete_a_stream(tmp_path: Path) -> None:
    async with shared_account(tmp_path) as (_, runtime, observer, _worker):
        get = "$JS.API.DIRECT.GET.PLANCAST_META.plancast-store.aliases.absent"
        await observer.publish(get, b"", reply="$JS.API.STREAM.DELETE.PLANCAST_CHECKPOINTS")
        await observer.flush()
        async with asyncio.timeout(10):
            while "error" not in await api(runtime, "STREAM.INFO.PLANCAST_CHECKPOINTS"):
                await asyncio.sleep(0.02)


async def test_in_one_account_a_record_can_be_delivered_as_a_goal(tmp_path: Path) -> None:
    async with shared_account(tmp_path) as (bus, _, _observer, worker):
        task = "plancast-store.registry.task.zz"
        await worker.request(task, b"a goal of mine", headers={"Nats-Msg-Id": "m"}, timeout=5)
        await worker.publish(f"$JS.API.DIRECT.GET.PLANCAST_META.{task}", b"", reply="plancast.action-requests.p.x.goal")
        await worker.flush()
        async with asyncio.timeout(10):
            while not (found := await bus.stored_events("action-requests", "p")):
                await asyncio.sleep(0.02)
        assert found[0].payload == b"a goal of mine"
