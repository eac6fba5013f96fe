"""Checkpoints without a valid MAC: rejected, copied to the dead letters, and replaced by the one before."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import nats
import pytest
from nats.aio.client import Client as NatsClient
from pydantic import SecretStr, ValidationError
from tests.bus.stored_plans import stored_plans
from tests.isolation.nats_with_roles import role_server, running

from plancast_bus.errors import (
    AccessDenied,
    BusUnavailable,
    CommitConflict,
    InvalidEnvelope,
    InvalidSubject,
    UnreadableCheckpoint,
)
from plancast_bus.events.codec import pack, unpack
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.jetstream.client.api import StoredMessage
from plancast_bus.jetstream.stores.checkpoint_mac import COVERED, EXPECTED, MAC, SUMMARY, CheckpointKeys, covered_text
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.checkpoints import DEFLATED, Checkpoint, Committed, PlanFilter, PlanSummary
from plancast_bus.settings import BusSettings, NatsSettings

PATIENCE = 30.0
OLD, NEW, OTHER = ("old " * 10, "new " * 10, "other " * 10)

Make = Callable[..., Awaitable[JetStreamBus]]


@pytest.fixture
async def made(nats_server: NatsServer) -> AsyncIterator[Make]:
    """Connections to one deployment, its streams made; keywords are settings of the bus."""
    open_, prefix = [], f"f{uuid4().hex}"

    async def make(**fields: object) -> JetStreamBus:
        settings = BusSettings.model_validate({"prefix": prefix, **fields})
        bus = await connect(NatsSettings(url=nats_server.url), settings)
        open_.append(bus)
        await bus.ensure_streams()
        return bus

    yield make
    for bus in open_:
        await bus.close()


@pytest.fixture
async def bus(made: Make) -> JetStreamBus:
    return await made()


@pytest.fixture
async def attacker(nats_server: NatsServer) -> AsyncIterator[NatsClient]:
    """Has the rights of the runtime."""
    client = await nats.connect(nats_server.url)
    yield client
    await client.close()


def a_checkpoint(plan: str = "victim", revision: int = 1, version: int = 0, **fields: object) -> Checkpoint:
    summary = PlanSummary(plan, "running", "goal", "start", revision, created_at=1.0, updated_at=float(revision))
    made = Checkpoint(plan, revision, f"epoch-{revision}", b"state %d" % revision, summary, version=version)
    return replace(made, **fields)  # type: ignore[arg-type]


async def commits(bus: JetStreamBus, plan: str = "victim", revisions: int = 2) -> list[int]:
    """Commit so many revisions of a plan; returns their versions."""
    versions = [0]
    for revision in range(1, revisions + 1):
        versions.append(await bus.checkpoints.commit(a_checkpoint(plan, revision, versions[-1])))
    return versions[1:]


async def stored(bus: JetStreamBus, plan: str = "victim") -> list[StoredMessage]:
    """The messages of a plan, oldest first."""
    found, after = [], 0
    subject = bus.subjects.checkpoint(plan)
    while (each := await bus._api.next_from_leader(bus._names.checkpoints, subject, after)) is not None:
        found.append(each)
        after = each.sequence
    return found


async def put(client: NatsClient, subject: str, body: bytes, headers: dict[str, str] | None = None) -> int:
    """Store a message as an attacker does; returns its sequence."""
    answer = json.loads((await client.request(subject, body, headers=headers, timeout=PATIENCE)).data)
    assert "error" not in answer, answer
    return int(answer["seq"])


async def listed(bus: JetStreamBus) -> dict[str, list[Committed]]:
    """The result of each way to list plans, by its name."""
    store = bus.checkpoints
    newest = [each async for each in store.newest()]
    after = [each async for each in store.committed_after(0)]
    followed: list[Committed] = []
    async with asyncio.timeout(PATIENCE), aclosing(store.follow()) as following:
        async for each in following:
            followed.append(each)
            if len(followed) == len(after):
                break
    return {"newest": newest, "committed_after": after, "follow": followed}


# Forgeries: what an attacker stores, of what is stored already.

Forge = Callable[[list[StoredMessage], StoredMessage], tuple[bytes, dict[str, str]]]


def _ours(message: StoredMessage) -> dict[str, str]:
    return {name: message.headers[name] for name in (*COVERED, MAC) if name in message.headers}


def _now(victim: list[StoredMessage]) -> dict[str, str]:
    return {EXPECTED: str(victim[-1].sequence)}


def _without(headers: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in names}


_CHANGED = PlanSummary("victim", "completed", "goal", "done", 9).to_header()
FORGERIES: dict[str, Forge] = {
    "garbage": lambda victim, other: (b"\xff garbage", {}),
    "an acknowledgement": lambda victim, other: (b'{"stream":"X","seq":1}', {}),
    "a changed body": lambda victim, other: (victim[-1].payload + b"\0", _ours(victim[-1]) | _now(victim)),
    "a changed summary": lambda victim, other: (
        victim[-1].payload,
        _ours(victim[-1]) | {SUMMARY: _CHANGED} | _now(victim),
    ),
    "a summary that is none": lambda victim, other: (
        victim[-1].payload,
        _ours(victim[-1]) | {SUMMARY: "[1]"} | _now(victim),
    ),
    "a time to live": lambda victim, other: (
        victim[-1].payload,
        _ours(victim[-1]) | {"Nats-TTL": "3600"} | _now(victim),
    ),
    "another plan's": lambda victim, other: (other.payload, _without(_ours(other), EXPECTED)),
    "another plan's, expected now": lambda victim, other: (other.payload, _ours(other) | _now(victim)),
    "an older one of the plan": lambda victim, other: (victim[0].payload, _without(_ours(victim[0]), EXPECTED)),
    "an older one, expected now": lambda victim, other: (victim[0].payload, _ours(victim[0]) | _now(victim)),
    "an older one, expected elsewhere": lambda victim, other: (
        victim[0].payload,
        _ours(victim[0]) | {EXPECTED: "0", f"{EXPECTED}-Subject": f"{victim[0].subject}.none"},
    ),
    "one without a MAC": lambda victim, other: (victim[-1].payload, {SUMMARY: victim[-1].headers[SUMMARY]}),
    "one with a MAC that is no text of ours": lambda victim, other: (
        victim[-1].payload,
        {SUMMARY: victim[-1].headers[SUMMARY], MAC: "ä" * 64},
    ),
    "one by another key": lambda victim, other: (
        victim[-1].payload,
        {SUMMARY: victim[-1].headers[SUMMARY], MAC: CheckpointKeys([b"x"]).mac("a", victim[-1].payload)},
    ),
    "a marker of the server": lambda victim, other: (b"", {"Nats-Marker-Reason": "Purge"}),
    "a deletion": lambda victim, other: (b"", {"KV-Operation": "DEL"}),
}


@pytest.mark.attack(
    who="publisher",
    what="store another message as a plan's checkpoint",
    expected="refused, put aside, the one before is used",
)
@pytest.mark.parametrize("forgery", FORGERIES)
async def test_a_checkpoint_that_is_not_ours_is_refused_and_the_one_before_it_used(
    made: Make, attacker: NatsClient, forgery: str, caplog: pytest.LogCaptureFixture
) -> None:
    bus, store = await made(), (await made()).checkpoints
    versions = await commits(bus)
    await commits(bus, "other", 1)
    victim, (other,) = await stored(bus), await stored(bus, "other")
    body, headers = FORGERIES[forgery](victim, other)
    forged = await put(attacker, bus.subjects.checkpoint("victim"), body, headers or None)

    with caplog.at_level(logging.ERROR):
        found = await store.load("victim")
    assert found == a_checkpoint(revision=2)
    assert found is not None
    assert found.version == forged
    (record,) = [each for each in caplog.records if each.name.startswith("plancast_bus")]
    assert re.search(rf"victim.*sequence {forged}.*sequence {versions[1]}, is used", record.getMessage())

    # Whoever dies before the next commit loads it once more, here and elsewhere.
    assert await store.load("victim") == found
    assert await bus.checkpoints.load("victim") == found
    (letter,) = [each async for each in bus.dead_letters.list()]
    assert letter.reason == "forged-checkpoint"
    assert letter.payload == body
    assert f"plan victim: sequence {forged}" in letter.detail
    with pytest.raises(InvalidSubject, match="cannot be replayed"):
        await bus.dead_letters.replay(letter.number)

    for way, plans in (await listed(bus)).items():
        shown = {each.correlation_id: each for each in plans}
        assert shown["victim"].summary == found.summary, way
        assert shown["victim"].version == forged
        assert "other" in shown
    assert {each.plan_id: each.revision for each in await stored_plans(bus)} == {"victim": 2, "other": 1}

    with pytest.raises(CommitConflict):  # by an activation from before
        await store.commit(a_checkpoint(revision=3, version=versions[1]))
    third = await store.commit(a_checkpoint(revision=3, version=forged))
    assert third > forged
    assert await store.load("victim") == a_checkpoint(revision=3)
    assert (await stored(bus))[-1].sequence == third


@pytest.mark.attack(
    who="publisher", what="store an old checkpoint once more, as it was", expected="refused by the server"
)
async def test_an_old_checkpoint_cannot_be_stored_once_more(bus: JetStreamBus, attacker: NatsClient) -> None:
    await commits(bus)
    for old in await stored(bus):
        answer = json.loads((await attacker.request(old.subject, old.payload, headers=_ours(old))).data)
        assert answer["error"]["err_code"] == 10071
    found = await bus.checkpoints.load("victim")
    assert found is not None
    assert found.revision == 2


@pytest.mark.attack(who="publisher", what="have the server and us read two sequences", expected="refused")
@pytest.mark.parametrize("order", ["now, then", "then, now", "then, spaced", "spaced, then"])
async def test_an_old_checkpoint_that_expects_two_sequences_is_refused(
    bus: JetStreamBus, attacker: NatsClient, order: str
) -> None:
    await commits(bus)
    old, newest = await stored(bus)
    then, now = f"{EXPECTED}: {old.headers[EXPECTED]}", f"{EXPECTED}: {newest.sequence}"
    lines = {
        "now, then": [now, then],
        "then, now": [then, now],
        "then, spaced": [then.replace(":", " :"), now],
        "spaced, then": [now, then.replace(":", " :")],
    }[order]
    rest = [f"{name}: {value}" for name, value in _ours(old).items() if name != EXPECTED]
    head = "\r\n".join(["NATS/1.0", *lines, *rest, "", ""]).encode()
    await attacker._send_command(
        b"HPUB %s %d %d\r\n%s%s\r\n"
        % (old.subject.encode(), len(head), len(head) + len(old.payload), head, old.payload)
    )
    await attacker.flush()
    found = await bus.checkpoints.load("victim")
    assert found is not None
    assert found.revision == 2


@pytest.mark.attack(
    who="operator",
    what="store garbage twice as a plan's checkpoint",
    expected="an error, nothing removed, others go on",
)
async def test_where_neither_is_ours_nothing_is_touched_and_the_other_plans_go_on(
    bus: JetStreamBus, attacker: NatsClient, caplog: pytest.LogCaptureFixture
) -> None:
    await commits(bus)
    await commits(bus, "other", 1)
    subject = bus.subjects.checkpoint("victim")
    first, second = await put(attacker, subject, b"garbage"), await put(attacker, subject, b"garbage")
    with pytest.raises(UnreadableCheckpoint, match=rf"plan victim .*sequence {second}: .*sequence {first}: "):
        await bus.checkpoints.load("victim")
    with pytest.raises(UnreadableCheckpoint):
        await bus.checkpoints.history("victim")
    with pytest.raises(CommitConflict):
        await bus.checkpoints.commit(a_checkpoint(revision=3, version=first))
    assert [each.sequence for each in await stored(bus)] == [first, second]
    assert await bus.dead_letters.count() == 0
    for way, plans in (await listed_names(bus)).items():
        assert set(plans) == {"victim", "other"}, way
    (unknown,) = [each async for each in bus.checkpoints.newest() if each.correlation_id == "victim"]
    assert (unknown.version, unknown.summary.revision, unknown.summary.machine) == (second, 0, None)
    assert [each async for each in bus.checkpoints.newest(PlanFilter(tenant_id="acme"))] == []
    assert f"sequence {second}" in caplog.text
    await bus.checkpoints.forget("victim")
    assert await bus.checkpoints.load("victim") is None
    assert await commits(bus)


async def listed_names(bus: JetStreamBus) -> dict[str, list[str]]:
    store = bus.checkpoints
    return {
        "newest": [each.correlation_id async for each in store.newest()],
        "committed_after": [each.correlation_id async for each in store.committed_after(0)],
    }


@pytest.mark.attack(who="publisher", what="store garbage under ids that are none", expected="passed over")
async def test_what_rests_under_no_plans_id_is_passed_over(bus: JetStreamBus, attacker: NatsClient) -> None:
    await commits(bus, "other", 1)
    for token in ("%ff", "%6f%74%68%65%72", "+"):
        await put(attacker, f"{bus.subjects.store}.checkpoints.{token}", b"garbage")
    for way, plans in (await listed_names(bus)).items():
        assert plans == ["other"], way


async def test_who_watches_is_shown_no_forgery(bus: JetStreamBus, attacker: NatsClient) -> None:
    await commits(bus)
    forged = await put(attacker, bus.subjects.checkpoint("victim"), b"garbage")
    seen = []
    async with asyncio.timeout(PATIENCE), aclosing(bus.checkpoints.watch("victim")) as watching:
        async for each in watching:
            seen.append((each.revision, each.version))
            if each.revision == 3:
                break
            await bus.checkpoints.commit(a_checkpoint(revision=3, version=each.version))
    assert seen[0] == (2, forged)
    assert seen[-1][0] == 3


async def test_a_format_of_a_later_version_is_ours_and_nothing_takes_its_place(
    bus: JetStreamBus, attacker: NatsClient
) -> None:
    """A host of the release before must not go back to before a turn that a host of the next one has taken."""
    await commits(bus, revisions=1)
    (first,) = await stored(bus)
    headers = {EXPECTED: str(first.sequence), SUMMARY: first.headers[SUMMARY]}
    body = pack([DEFLATED + 1, *unpack(first.payload)[1:]])
    headers[MAC] = (await bus._keys.require()).mac(covered_text(first.subject, headers), body)
    await put(attacker, first.subject, body, headers)
    with pytest.raises(InvalidEnvelope, match=f"plan victim has format {DEFLATED + 1}"):
        await bus.checkpoints.load("victim")
    assert await bus.dead_letters.count() == 0


# Finished plans.


@pytest.mark.parametrize("group_commit", ["never", "always"])
async def test_the_checkpoint_before_the_last_does_not_outlive_a_finished_plan(made: Make, group_commit: str) -> None:
    bus = await made(group_commit=group_commit)
    names = [f"p{number}" for number in range(60)]
    begun = await asyncio.gather(*(commits(bus, name) for name in names))
    over = [a_checkpoint(name, 3, versions[-1], expires_after=1.0) for name, versions in zip(names, begun, strict=True)]
    await asyncio.gather(*(bus.checkpoints.begin_commit(each) for each in over))
    state = (await bus._api.call(f"STREAM.INFO.{bus._names.checkpoints}"))["state"]
    assert state["messages"] == len(names)
    async with asyncio.timeout(PATIENCE):
        while (await bus._api.call(f"STREAM.INFO.{bus._names.checkpoints}"))["state"]["messages"]:
            await asyncio.sleep(0.1)
    assert await bus.checkpoints.load("p7") is None
    assert await commits(bus, "p7", 1)


async def test_what_is_stored_over_a_finished_plan_is_gone_with_it(bus: JetStreamBus, attacker: NatsClient) -> None:
    versions = await commits(bus)
    last = await bus.checkpoints.commit(a_checkpoint(revision=3, version=versions[-1], expires_after=2.0))
    await put(attacker, bus.subjects.checkpoint("victim"), b"garbage")
    found = await bus.checkpoints.load("victim")
    assert found is not None
    assert (found.revision, found.version) == (3, last)
    assert await bus.dead_letters.count() == 1
    assert [each.version async for each in bus.checkpoints.newest()] == [last]
    async with asyncio.timeout(PATIENCE):
        while await bus.checkpoints.load("victim") is not None:
            await asyncio.sleep(0.1)
    assert await commits(bus)


# Batches.


async def test_checkpoints_of_a_batch_carry_the_headers_that_their_macs_cover(made: Make) -> None:
    bus = await made(group_commit="always")
    names = [f"p{number}" for number in range(100)]
    await bus.checkpoints.commit(a_checkpoint("warm"))
    for revision in (1, 2):
        before = [(await stored(bus, name))[-1].sequence if revision > 1 else 0 for name in names]
        begun = [
            bus.checkpoints.begin_commit(a_checkpoint(name, revision, version))
            for name, version in zip(names, before, strict=True)
        ]
        await asyncio.gather(*begun)
    messages = [(await stored(bus, name))[-1] for name in names]
    assert sum("Nats-Batch-Id" in each.headers for each in messages) > 50
    loaded = await asyncio.gather(*(bus.checkpoints.load(name) for name in names))
    assert [each.revision for each in loaded if each is not None] == [2] * 100
    assert await bus.dead_letters.count() == 0


# Pages.


async def test_pages_show_each_plan_once_with_its_newest_summary(bus: JetStreamBus) -> None:
    names = [f"p{number:03}" for number in range(120)]
    versions = dict.fromkeys(names, 0)
    for revision in range(1, 5):
        for position, name in enumerate(names):
            if (position * 7 + revision) % 4 or revision == 1:
                summary = PlanSummary(name, "running", "goal", "start", revision)
                made = Checkpoint(name, revision, f"e{revision}", b"", summary, version=versions[name])
                versions[name] = await bus.checkpoints.commit(made)
    for size in (7, 50):
        found: list[Committed] = []
        while True:
            page, before = [], found[-1].version if found else 0
            async with aclosing(bus.checkpoints.newest(before=before)) as newest:
                async for each in newest:
                    page.append(each)
                    if len(page) == size:
                        break
            if not page:
                break
            found += page
        assert {each.correlation_id: each.version for each in found} == versions
        assert len(found) == len(names)
        assert [each.version for each in found] == sorted(versions.values(), reverse=True)


# Keys.


async def test_processes_that_start_at_once_agree_on_a_key(nats_server: NatsServer) -> None:
    settings = BusSettings(prefix=f"f{uuid4().hex}")
    buses = [await connect(NatsSettings(url=nats_server.url), settings) for _ in range(8)]
    try:
        await asyncio.gather(*(each.ensure_streams() for each in buses))
        await asyncio.gather(*(each.checkpoints.commit(a_checkpoint(f"p{n}")) for n, each in enumerate(buses)))
        for each in buses:
            assert len([plan async for plan in each.checkpoints.newest()]) == 8
            assert all([await each.checkpoints.load(f"p{n}") for n in range(8)])
    finally:
        for each in buses:
            await each.close()


@pytest.mark.attack(who="operator", what="replace the key of checkpoints", expected="refused by the server")
async def test_the_key_is_neither_replaced_nor_removed(made: Make, attacker: NatsClient) -> None:
    bus = await made()
    await commits(bus)
    subject, stream = bus.subjects.checkpoint_key(), bus._names.keys
    kept = await bus._api.last_from_leader(stream, subject)
    assert kept is not None
    config = (await bus._api.call(f"STREAM.INFO.{stream}"))["config"]
    for target, body, headers in [
        (subject, b"mine", None),
        (subject, b"mine", {"Nats-Rollup": "sub"}),
        (subject, b"mine", {"Nats-Rollup": "all"}),
        (f"$JS.API.STREAM.MSG.DELETE.{stream}", json.dumps({"seq": kept.sequence}).encode(), None),
        (f"$JS.API.STREAM.PURGE.{stream}", b"", None),
        (f"$JS.API.STREAM.PURGE.{stream}", json.dumps({"filter": subject}).encode(), None),
        (f"$JS.API.STREAM.UPDATE.{stream}", json.dumps(config | {"deny_delete": False}).encode(), None),
        (f"$JS.API.STREAM.UPDATE.{stream}", json.dumps(config | {"deny_purge": False}).encode(), None),
    ]:
        answer = json.loads((await attacker.request(target, body, headers=headers, timeout=PATIENCE)).data)
        assert "error" in answer, (target, answer)
    await bus.ensure_streams()
    assert await bus._api.last_from_leader(stream, subject) == kept
    found = await (await made()).checkpoints.load("victim")
    assert found is not None
    assert found.revision == 2


async def test_a_wrong_key_reads_nothing_and_destroys_nothing(made: Make) -> None:
    bus, wrong = await made(), await made(checkpoint_keys=(OTHER,))
    await commits(bus)
    with pytest.raises(UnreadableCheckpoint, match="PLANCAST_BUS__CHECKPOINT_KEYS"):
        await wrong.checkpoints.load("victim")
    shown = [each async for each in wrong.checkpoints.committed_after(0)]
    assert [(each.correlation_id, each.summary.machine) for each in shown] == [("victim", None)] * 2
    assert len(await stored(bus)) == 2
    assert await bus.dead_letters.count() == 0
    found = await bus.checkpoints.load("victim")
    assert found is not None
    assert found.revision == 2


async def test_a_process_without_the_right_key_finds_no_checkpoint_instead_of_taking_the_plan_for_gone(
    made: Make, bus: JetStreamBus
) -> None:
    """A collector would remove all that the plan refers to."""
    await commits(bus)
    stranger = await made(checkpoint_keys=(OTHER,))
    with pytest.raises(UnreadableCheckpoint):
        await stranger.checkpoints.kept("victim")
    assert len(await bus.checkpoints.kept("victim")) == 2
    assert await stranger.checkpoints.kept("nobody") == []


async def test_keys_are_changed_without_a_break(made: Make) -> None:
    old, both, turned, new = [await made(checkpoint_keys=keys) for keys in ((OLD,), (OLD, NEW), (NEW, OLD), (NEW,))]
    version = 0
    for revision, (writer, readers) in enumerate(
        [(old, (old, both, turned)), (both, (old, both, turned)), (turned, (both, turned, new)), (new, (turned, new))],
        1,
    ):
        version = await writer.checkpoints.commit(a_checkpoint(revision=revision, version=version))
        for reader in readers:
            found = await reader.checkpoints.load("victim")
            assert found is not None
            assert found.revision == revision
    assert await new.dead_letters.count() == 0


async def test_a_stored_key_may_become_one_of_the_settings(made: Make) -> None:
    bus = await made()
    await commits(bus)
    kept = await bus._api.last_from_leader(bus._names.keys, bus.subjects.checkpoint_key())
    assert kept is not None
    both = await made(checkpoint_keys=(NEW, kept.payload.decode()))
    assert await both.checkpoints.load("victim") is not None


def test_a_short_key_is_refused_and_not_quoted() -> None:
    with pytest.raises(ValidationError) as refused:
        BusSettings(checkpoint_keys=(SecretStr("short secret"),))
    assert "short secret" not in str(refused.value)
    assert OLD not in repr(BusSettings(checkpoint_keys=(SecretStr(OLD),)))


async def test_without_a_key_nothing_is_written_or_read(nats_server: NatsServer, made: Make) -> None:
    """As while the first process of a deployment is between making the streams and the key."""
    bus = await made(checkpoint_keys=(OLD,))
    await commits(bus)
    late = await connect(NatsSettings(url=nats_server.url), BusSettings(prefix=bus.subjects.prefix))
    try:
        for attempt in (late.checkpoints.load("victim"), late.checkpoints.commit(a_checkpoint("p"))):
            with pytest.raises(BusUnavailable, match="holds no key of checkpoints"):
                await attempt
        with pytest.raises(BusUnavailable, match="not read yet"):
            late.checkpoints.begin_commit(a_checkpoint("p"))
    finally:
        await late.close()


# Who may not read the key.

PERMISSIONS = """
authorization: { users: [
  { user: runtime, password: pw }
  { user: observer, password: pw, permissions: { publish: { deny: ["$JS.API.STREAM.MSG.GET.PLANCAST_KEYS"] } } }
] }
jetstream: { store_dir: "%s" }
"""


@pytest.fixture(params=["permissions", "accounts"])
async def roles(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[JetStreamBus, JetStreamBus]]:
    """A connection of the runtime, and one of an observer, which may not read the key."""
    with contextlib.ExitStack() as stack:
        if request.param == "accounts":
            server = stack.enter_context(role_server(tmp_path))
            logins = [server.settings(role) for role in ("runtime", "observer")]
        else:
            (tmp_path / "nats.conf").write_text(PERMISSIONS % tmp_path)
            where = stack.enter_context(running(tmp_path / "nats.conf", tmp_path, {}))
            logins = [NatsSettings(url=where, user=user, password=SecretStr("pw")) for user in ("runtime", "observer")]
        runtime, observer = [await connect(login, BusSettings()) for login in logins]
        try:
            await runtime.ensure_streams()
            yield runtime, observer
        finally:
            await observer.close()
            await runtime.close()


@pytest.mark.attack(who="observer", what="read the key, and write a checkpoint", expected="refused in words")
async def test_who_may_not_read_the_key_reads_plans_and_writes_none(roles: tuple[JetStreamBus, JetStreamBus]) -> None:
    runtime, observer = roles
    await commits(runtime)
    await commits(runtime, "other", 1)
    found = await observer.checkpoints.load("victim")
    assert found is not None
    assert found.revision == 2
    assert [each.correlation_id async for each in observer.checkpoints.newest()] == ["other", "victim"]
    with pytest.raises(AccessDenied, match="cannot write checkpoints"):
        await observer.checkpoints.commit(a_checkpoint(revision=3, version=found.version))
    with pytest.raises(BusUnavailable):
        observer.checkpoints.begin_commit(a_checkpoint(revision=3, version=found.version))
    assert len(await stored(runtime)) == 2


@pytest.mark.attack(who="publisher", what="crash a listing by a malformed summary", expected="passed over")
async def test_who_cannot_verify_passes_over_what_is_malformed(roles: tuple[JetStreamBus, JetStreamBus]) -> None:
    runtime, observer = roles
    publisher = runtime._connection.client
    await commits(runtime)
    await commits(runtime, "other", 1)
    fields = json.loads(PlanSummary("victim", "running", "goal", "start", 1).to_header())
    lines = [
        "", "{", "[]", "null", "[" * 3_000, json.dumps(fields[:5]), json.dumps([*fields, 1]),
        json.dumps([7, *fields[1:]]), json.dumps([*fields[:10], float("nan"), *fields[11:]]),
    ]  # fmt: skip
    for number, line in enumerate(lines):
        await put(publisher, runtime.subjects.checkpoint("victim"), b"garbage", {SUMMARY: line, "Nats-TTL": "3600"})
        if not number:
            found = await observer.checkpoints.load("victim")
            assert found is not None
            assert found.revision == 2
            assert [each.plan_id for each in await stored_plans(observer)] == ["other", "victim"]
        else:
            shown = [each async for each in observer.checkpoints.newest()]
            assert {each.correlation_id: each.summary.revision for each in shown} == {"victim": 0, "other": 1}
            with pytest.raises(UnreadableCheckpoint):
                await observer.checkpoints.load("victim")
    assert await runtime.dead_letters.count() == 0
    for way, plans in (await listed_names(observer)).items():
        assert set(plans) == {"victim", "other"}, way
