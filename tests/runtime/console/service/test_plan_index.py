"""The list of plans that the console keeps, over the store in memory and over the stream of checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plancast.console.service.plan_index import PlanIndex, PlanQuery
from plancast.console.service.plan_order import PlanOrder
from plancast.plan_store.listed_status import ListedStatuses
from plancast.state_machine.machine import Machine
from plancast.state_machine.states import StateConfig, StateTransition
from plancast_bus.jetstream import connect
from plancast_bus.memory import MemoryBus
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.checkpoints import Checkpoint, CheckpointStore, Committed, PlanSummary
from plancast_bus.settings import BusSettings, NatsSettings

PATIENCE = 30.0


def summary(name: str, status: str = "running", **fields: Any) -> PlanSummary:
    return PlanSummary(name, status, fields.pop("goal", "goal"), "start", fields.pop("revision", 1), **fields)


def commit(name: str, status: str = "running", *, version: int = 0, expires: float = 0.0, **fields: Any) -> Checkpoint:
    about = summary(name, status, revision=version + 1, **fields)
    return Checkpoint(name, version + 1, "epoch", b"", about, version=version, expires_after=expires)


def statuses(store: CheckpointStore, *people: str) -> ListedStatuses:
    async def human_events() -> tuple[str, ...]:
        return people

    return ListedStatuses(store, human_events)


@asynccontextmanager
async def running(store: CheckpointStore) -> AsyncIterator[PlanIndex]:
    index = PlanIndex(store, statuses(store))
    index.start()
    try:
        assert await index.wait(PATIENCE)
        yield index
    finally:
        await index.stop()


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not reached():
            await asyncio.sleep(0.01)


async def test_it_has_what_was_stored_and_hears_of_what_changes() -> None:
    store = MemoryBus().checkpoints
    version = await store.commit(commit("a", parent_plan_id="p"))
    async with running(store) as index:
        await store.commit(commit("b"))
        await store.commit(commit("a", "completed", version=version, parent_plan_id="p"))
        await until(lambda: index.changes == 3)
        assert [(row.key, row.summary.status) for row in index.rows()] == [("a", "completed"), ("b", "running")]
        assert index.counts() == {"running": 1, "completed": 1}
        assert [each.plan_id for each in index.children("p")] == ["a"]
        await store.commit(commit("c"))
        await until(lambda: len(index) == 3)


async def test_plans_are_listed_anew_when_other_events_are_of_people() -> None:
    store, people = MemoryBus().checkpoints, set[str]()

    async def human_events() -> set[str]:
        return people

    states = {name: StateConfig(state_name=name, transitions=[StateTransition(on_event="go", to_state="over")])
              for name in ("start", "next")}  # fmt: skip
    machine = Machine.compile(states | {"over": StateConfig(state_name="over", is_terminal=True)})
    await store.put_machine(machine.hash, machine.encoded)
    for name in ("a", "b"):
        await store.commit(commit(name, machine=machine.hash))
    index = PlanIndex(store, ListedStatuses(store, human_events))
    index.start()
    try:
        assert await index.wait(PATIENCE)
        assert index.counts() == {"running": 2}
        people.add("go")
        await store.commit(commit("c", machine=machine.hash))
        await until(lambda: index.counts() in ({"running": 2, "waiting": 1}, {"waiting": 3}, {"running": 3}))
        assert await index._statuses.refresh()
        await index.relist()
        assert index.counts() == {"waiting": 3}
        assert [row.key for row in index.page(PlanQuery(frozenset({"waiting"}))).rows] == ["c", "b", "a"]
    finally:
        await index.stop()


async def test_it_forgets_what_expires_and_what_is_gone() -> None:
    store = MemoryBus().checkpoints
    await store.commit(commit("kept"))
    await store.commit(commit("over", "completed", expires=100.0))
    await store.commit(commit("forgotten", parent_plan_id="kept"))
    async with running(store) as index:
        (expires_at,) = [row.expires_at for row in index.rows() if row.key == "over"]
        index.expire(expires_at - 1)
        assert len(index) == 3
        index.expire(expires_at)
        assert sorted(row.key for row in index.rows()) == ["forgotten", "kept"]
        await store.forget("forgotten")
        await store.forget("over")
        await index.compare()
        assert [row.key for row in index.rows()] == ["kept"]
        assert (index.counts(), index.children("kept")) == ({"running": 1}, [])


async def test_it_follows_a_server_that_was_away(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats") as server:
        bus = await connect(NatsSettings(url=server.url), BusSettings(prefix=f"i{uuid4().hex}"))
        try:
            await bus.ensure_streams()
            await bus.checkpoints.commit(commit("before"))
            async with running(bus.checkpoints) as index:
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                async with asyncio.timeout(PATIENCE):
                    while len(index) < 2:
                        try:
                            await bus.checkpoints.commit(commit("after"))
                        except Exception:
                            await asyncio.sleep(0.05)
                        await asyncio.sleep(0.05)
                assert [row.key for row in index.rows()] == ["after", "before"]
        finally:
            await bus.close()


names = st.sampled_from(["a", "b", "c", "d"])
commits = st.lists(
    st.builds(
        summary,
        names,
        st.sampled_from(["running", "completed"]),
        goal=st.sampled_from(["x.goal", "y.goal"]),
        session_id=st.sampled_from(["", "s1", "s2"]),
        parent_plan_id=st.sampled_from(["", "a"]),
        created_at=st.sampled_from([1.0, 2.0, 3.0]),
    ),
    max_size=12,
)
wanted = st.builds(
    PlanQuery,
    status=st.sampled_from([frozenset(), frozenset({"running"})]),
    session_id=st.sampled_from(["", "s1"]),
    goal=st.sampled_from(["", "x.goal"]),
    parent=st.sampled_from(["", "a"]),
    text=st.sampled_from(["", "X.G", "s1 a"]),
)


@given(commits, wanted, st.sampled_from(PlanOrder.all()), st.integers(1, 3), names)
def test_pages_are_what_a_look_through_all_plans_would_find(
    taken: list[PlanSummary], asked: PlanQuery, order: PlanOrder, limit: int, dropped: str
) -> None:
    store = MemoryBus().checkpoints
    index = PlanIndex(store, statuses(store))
    newest: dict[str, tuple[int, PlanSummary]] = {}
    for version, each in enumerate(taken, 1):
        index.take(Committed(version, each.plan_id, each))
        newest[each.plan_id] = version, each
    index.drop(dropped)
    newest.pop(dropped, None)

    def meant(plan: PlanSummary) -> bool:
        text = " ".join([plan.plan_id, plan.goal_event, plan.current_state, plan.session_id]).casefold()
        return (
            asked.session_id in ("", plan.session_id)
            and asked.goal in ("", plan.goal_event)
            and asked.parent in ("", plan.parent_plan_id)
            and all(word in text for word in asked.text.casefold().split())
        )

    found = [(version, plan) for version, plan in newest.values() if meant(plan)]
    fields = {"created": "created_at", "goal": "goal_event", "tenant": "tenant_id", "session": "session_id"}

    def key(each: tuple[int, PlanSummary]) -> Any:
        version, plan = each
        field = fields.get(order.sort, "revision")
        return version if order.sort == "updated" else (getattr(plan, field), plan.plan_id)

    expected = [plan for _, plan in sorted(found, key=key, reverse=order.direction == "desc")]
    counts = {status: n for status in ("running", "completed") if (n := sum(p.status == status for p in expected))}
    if asked.status:
        expected = [plan for plan in expected if plan.status in asked.status]
    pages, cursor = [], None
    while True:
        page = index.page(asked, order=order, limit=limit, cursor=cursor)
        assert (page.total, page.counts) == (len(expected), counts)
        pages += [row.summary for row in page.rows]
        assert page.next is None or len(page.rows) == limit
        cursor = page.next
        if cursor is None:
            break
    assert pages == expected


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "u",
        "7",
        "é",
        "[]",
        "[" * 100_000,
        '["updated", "desc", "x", ""]',
        '["goal", "asc", 1, "a"]',
        '["turns", "asc", 1]',
    ],
)
def test_a_cursor_of_no_page_is_refused(cursor: str) -> None:
    store = MemoryBus().checkpoints
    index = PlanIndex(store, statuses(store))
    for order in PlanOrder.all():
        with pytest.raises(ValueError, match="cursor"):
            index.page(PlanQuery(), order=order, cursor=cursor)


def test_a_cursor_belongs_to_its_order() -> None:
    store = MemoryBus().checkpoints
    index = PlanIndex(store, statuses(store))
    for version, name in enumerate("abc", 1):
        index.take(Committed(version, name, summary(name)))
    for order in PlanOrder.all():
        following = index.page(PlanQuery(), order=order, limit=1).next
        for other in PlanOrder.all():
            if other != order:
                with pytest.raises(ValueError, match="same order"):
                    index.page(PlanQuery(), order=other, cursor=following)
