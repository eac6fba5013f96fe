"""`plancast schedules`, over an app on a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from tests.runtime.cli.plans.conftest import Invoke
from tests.runtime.console.desk import PATIENCE, Desk

from plancast import Settings
from plancast_actors.maintenance.scheduler import Scheduler
from plancast_bus.nats_server.process import NatsServer

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desk(nats_server: NatsServer) -> AsyncIterator[Desk]:
    settings = Settings()
    settings.nats.url = nats_server.url
    settings.bus.prefix = f"schedules{uuid4().hex}"
    async with Desk.deployed(settings) as deployed:
        scheduler = Scheduler(deployed.bus)
        scheduler.start()
        yield deployed
        await scheduler.stop()


def named() -> str:
    return f"s{uuid4().hex[:12]}"


async def create(invoke: Invoke, *options: str, data: str = '{"item": "lamp"}') -> str:
    name = named()
    created = await invoke("schedules", "create", name, "order.goal", "--data", data, *options)
    assert created.code == 0, created.err
    return name


async def until_run(invoke: Invoke, name: str, status: str) -> dict[str, Any]:
    """Wait until the newest run of a schedule has a status."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = (await invoke("schedules", "runs", name, "--json")).json
            if found and found[0]["status"] == status:
                return dict(found[0])
            await asyncio.sleep(0.05)


async def test_a_schedule_is_created_with_every_option_and_shown(invoke: Invoke) -> None:
    name = named()
    created = await invoke(
        "schedules", "create", name, "order.goal", "--data", '{"item": "lamp"}', "--cron", "0 9 * * MON-FRI",
        "--timezone", "Europe/Berlin", "--overlap", "queue", "--catch-up", "60", "--tenant-id", "t1",
        "--user-id", "ada", "--session-id", "mornings", "--json",
    )  # fmt: skip
    assert created.code == 0
    shown = (await invoke("schedules", "show", name, "--tenant-id", "t1", "--json")).json
    assert shown == created.json
    expected = {
        "name": name, "event_type": "order.goal", "data": {"item": "lamp"}, "cron": "0 9 * * MON-FRI",
        "timezone": "Europe/Berlin", "overlap": "queue", "catch_up": 60.0, "tenant_id": "t1", "user_id": "ada",
        "session_id": "mornings", "paused": False, "waiting": 0, "last_at": None,
    }  # fmt: skip
    assert {field: shown[field] for field in expected} == expected
    table = (await invoke("schedules", "show", name, "--tenant-id", "t1")).out
    assert all(each in table for each in (name, "0 9 * * MON-FRI", "Europe/Berlin", "ada"))


async def test_schedules_are_listed_by_tenant(invoke: Invoke) -> None:
    assert "no schedules" in (await invoke("schedules", "list", "--tenant-id", named())).err
    tenant = named()
    names = sorted([await create(invoke, "--every", "86400", "--tenant-id", tenant) for _ in range(2)])
    found = (await invoke("schedules", "list", "--tenant-id", tenant, "--json")).json
    assert [each["name"] for each in found] == names
    assert set(names) <= {each["name"] for each in (await invoke("schedules", "list", "--json")).json}
    assert "every 86400 s" in (await invoke("schedules", "list", "--tenant-id", tenant)).out


async def test_a_paused_schedule_fires_by_triggers_alone_and_then_goes_on(invoke: Invoke) -> None:
    name = await create(invoke, "--every", "86400")
    assert "is paused" in (await invoke("schedules", "pause", name)).out
    assert (await invoke("schedules", "show", name, "--json")).json["next_at"] is None
    assert "paused" in (await invoke("schedules", "list")).out

    first = (await invoke("schedules", "trigger", name, "--id", "now")).out.strip()
    again = (await invoke("schedules", "trigger", name, "--id", "now", "--json")).json
    assert again == {"schedule": name, "plan_id": first}
    run = await until_run(invoke, name, "running")
    assert (run["kind"], run["state"], run["plan_id"]) == ("trigger", "started", first)
    assert len((await invoke("schedules", "runs", name, "--json")).json) == 1
    assert first in (await invoke("schedules", "runs", name)).out.replace("\n", "")

    assert "fires next at" in (await invoke("schedules", "resume", name)).out
    assert (await invoke("schedules", "show", name, "--json")).json["next_at"] is not None


async def test_past_times_are_made_up(invoke: Invoke) -> None:
    name = await create(invoke, "--cron", "0 9 * * *", "--overlap", "allow")
    times = (await invoke("schedules", "backfill", name, "2026-01-05", "2026-01-06T12:00", "--json")).json["times"]
    assert [each[:16] for each in times] == ["2026-01-05T09:00", "2026-01-06T09:00"]
    run = await until_run(invoke, name, "running")
    assert run["kind"] == "backfill"
    assert "has no times" in (await invoke("schedules", "backfill", name, "2026-01-05", "2026-01-05T01:00")).err


async def test_a_schedule_is_replaced_only_where_that_is_asked_for_and_deleted_once(invoke: Invoke) -> None:
    name = await create(invoke, "--every", "86400")
    again = await invoke("schedules", "create", name, "order.goal", "--data", '{"item": "lamp"}', "--every", "3600")
    assert again.code == 2
    assert "--replace" in again.err
    replaced = ("schedules", "create", name, "order.goal", "--data", '{"item": "lamp"}', "--every", "3600", "--replace")
    assert (await invoke(*replaced)).code == 0
    assert (await invoke("schedules", "show", name, "--json")).json["every"] == 3600.0
    assert (await invoke("schedules", "delete", name)).code == 0
    gone = await invoke("schedules", "delete", name)
    assert gone.code == 1
    assert name in gone.err


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ([], "give one of cron, every and at"),
        (["--cron", "0 9 * *"], "five fields"),
        (["--cron", "0 9 * * *", "--timezone", "Europe/Berlim"], "Europe/Berlin"),
        (["--every", "0.5"], "from 1 to"),
        (["--at", "2020-01-01"], "which is past"),
        (["--every", "60", "--catch-up", "-1"], "catch_up"),
    ],
)
async def test_a_wrong_definition_is_refused_with_its_fault(invoke: Invoke, options: list[str], fault: str) -> None:
    name = named()
    refused = await invoke("schedules", "create", name, "order.goal", "--data", '{"item": "lamp"}', *options)
    assert refused.code == 2, refused.err
    assert fault in refused.err
    assert name not in (await invoke("schedules", "list", "--json")).out


async def test_the_doctor_names_schedules_that_are_paused_or_whose_runs_fail(invoke: Invoke) -> None:
    paused = await create(invoke, "--every", "86400")
    await invoke("schedules", "pause", paused)
    failing = await create(invoke, "--every", "86400", data='{"item": "none"}')
    plan = (await invoke("schedules", "trigger", failing)).out.strip()
    await until_run(invoke, failing, "failed")
    findings = (await invoke("doctor", "--no-ray", "--json")).json["findings"]
    told = [(each["level"], each["detail"]) for each in findings if each["check"] == "schedules"]
    assert any(level == "warning" and f"{failing} (failed: {plan})" in detail for level, detail in told)
    assert any(level == "ok" and " paused: " in detail for level, detail in told)
