"""Findings of `plancast doctor` on schedules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plancast import App, Planner, StateConfig
from plancast.cli.diagnose.schedules import ScheduleReport, read_schedules, schedule_findings
from plancast.schedules.record import LATE_SECONDS
from plancast.testing import ManualClock, PlancastTest
from plancast_bus.errors import AccessDenied
from plancast_bus.ports.schedules import ScheduleKey

DONE = {
    "done": StateConfig(state_name="done", description="", is_terminal=True),
    "failed": StateConfig(state_name="failed", description="", is_terminal=True),
}


def reports_app() -> App:
    planner = Planner("reports")
    for goal, end in (("report.wanted", "done"), ("report.hopeless", "failed")):
        start = StateConfig(state_name="start", description="", default_next=end)
        planner.add_goal(goal, {"start": start, end: DONE[end]})
    return App("reports", planners=[planner])


async def test_schedules_that_are_late_are_named_with_their_tenants() -> None:
    async with PlancastTest(reports_app(), clock=ManualClock()) as env:
        await env.client.schedules.create("nightly", event_type="report.wanted", every=60, tenant_id="acme")
        await env.client.schedules.create("yearly", event_type="report.wanted", cron="@yearly")
        await env.scheduler.stop()  # no dispatcher is left
        await env.advance(60 + LATE_SECONDS)
        assert (await read_schedules(env.bus)) == ScheduleReport(total=2)
        await env.advance(1)
        report = await read_schedules(env.bus)
        assert report is not None
        assert report.late == (f"nightly (tenant acme) by {LATE_SECONDS + 1:.0f} s",)
        (late,) = schedule_findings(report)
        assert (late.level, late.detail) == ("fault", f"1 schedule late: {report.late[0]}")

        await env.client.schedules.pause("nightly", tenant_id="acme")  # then it is not due
        report = await read_schedules(env.bus)
        assert report == ScheduleReport(total=2, paused=("nightly (tenant acme)",))


async def test_schedules_are_named_while_their_newest_run_has_failed() -> None:
    async with PlancastTest(reports_app(), clock=ManualClock()) as env:
        schedules = env.client.schedules
        await schedules.create("nightly", event_type="report.hopeless", every=86_400)
        handle = await schedules.trigger("nightly")
        await env.advance(1)
        assert await handle.status() == "failed"
        report = await read_schedules(env.bus)
        assert report is not None
        assert report.failing == (f"nightly (failed: {handle.plan_id})",)
        assert [each.level for each in schedule_findings(report)] == ["warning", "ok"]

        await schedules.create("nightly", event_type="report.wanted", every=86_400, replace=True)
        await env.advance(1)
        await schedules.trigger("nightly")
        await env.advance(1)
        assert await read_schedules(env.bus) == ScheduleReport(total=1)


async def test_a_schedule_that_cannot_be_read_is_a_fault_and_hides_no_other() -> None:
    async with PlancastTest(reports_app(), clock=ManualClock()) as env:
        await env.client.schedules.create("nightly", event_type="report.wanted", every=60)
        await env.bus.schedules.replace(ScheduleKey("", "odd"), b"\xc1", 0)
        report = await read_schedules(env.bus)
        assert report == ScheduleReport(total=2, unreadable=1)
        assert [each.level for each in schedule_findings(report)] == ["fault", "ok"]


async def test_a_login_that_may_not_read_schedules_is_told_nothing_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async with PlancastTest(reports_app(), clock=ManualClock()) as env:

        async def denied() -> list[object]:
            raise AccessDenied("schedules")

        monkeypatch.setattr(env.bus.schedules, "list", denied)
        assert await read_schedules(env.bus) is None


def test_of_many_schedules_the_first_are_named_and_the_others_counted() -> None:
    many = ScheduleReport(total=30, late=tuple(f"s{number}" for number in range(8)))
    (late,) = schedule_findings(many)
    assert late.detail == "8 schedules late: s0, s1, s2, s3, s4 and 3 more"
    assert not list(schedule_findings(replace(many, total=0, late=())))
