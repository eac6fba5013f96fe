"""The journal of turns names the turns that a server has lost, and their plans say so."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from plancast import App, Planner, StateConfig, StateTransition
from plancast.cli.diagnose.evidence import lost_turns
from plancast.testing import PlancastTest
from plancast_actors.maintenance.stalled_plans import RESTORED_KEY, RESTORED_KIND
from plancast_actors.maintenance.turn_journal import (
    BOOT,
    FILE,
    KEPT_SECONDS,
    LOSS_KEY,
    LOSS_KIND,
    TurnJournal,
    _Note,
    note_end,
)

PATIENCE = 60.0


def make_app() -> App:
    planner = Planner("doors")
    opened = StateTransition(on_event="door.opened", to_state="open")
    entered = StateTransition(on_event="door.entered", to_state="in")
    planner.add_goal(
        "door.goal",
        {
            "start": StateConfig(state_name="start", default_next="closed"),
            "closed": StateConfig(state_name="closed", transitions=[opened]),
            "open": StateConfig(state_name="open", transitions=[entered]),
            "in": StateConfig(state_name="in", is_terminal=True),
        },
    )
    return App("doors", planners=[planner])


async def until_revision(env: PlancastTest, plan: str, revision: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while (found := await env.bus.checkpoints.load(plan)) is None or found.revision < revision:
            await asyncio.sleep(0.01)


async def begin(env: PlancastTest, plan: str = "p") -> Any:
    handle = await env.submit("door.goal", {}, correlation_id=plan)
    await until_revision(env, plan, 1)
    return handle


async def test_nothing_is_named_while_nothing_is_lost(tmp_path: Path) -> None:
    async with PlancastTest(make_app()) as env:
        await begin(env)
        journal = TurnJournal(env.bus, tmp_path)
        await journal.note()
        assert await TurnJournal(env.bus, tmp_path).check() == []
        assert await env.bus.registry.get(LOSS_KIND, LOSS_KEY) is None


async def test_turns_that_are_not_stored_are_named_once_and_in_the_timeline_of_the_plan(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with PlancastTest(make_app()) as env:
        handle = await begin(env)
        await TurnJournal(env.bus, tmp_path).note()
        noted = (tmp_path / FILE).read_text()
        (tmp_path / FILE).write_text(noted + '["p", 7, 0.0]\n["gone", 3, 0.0]\n["torn')
        with caplog.at_level(logging.ERROR):
            lost = await TurnJournal(env.bus, tmp_path).check()
        assert [(each.plan, each.noted, each.stored) for each in lost] == [("p", 7, 1), ("gone", 3, 0)]
        assert "plan p had committed revision 7, and revision 1 is stored" in caplog.text
        assert "plan gone had committed revision 3, and nothing of it is stored" in caplog.text
        loss = await env.bus.registry.get(LOSS_KIND, LOSS_KEY)
        assert loss is not None
        assert loss["plans"] == 2
        assert "2 plans lost turns before the server's start at" in lost_turns(loss)[0]
        await until_revision(env, "p", 2)
        (note,) = (await handle.history())[-1]["notes"]
        assert note.startswith("warning: the server has lost turns of this plan: revision 7 was committed, and 1 was")
        assert await TurnJournal(env.bus, tmp_path).check() == []


async def test_requests_are_looked_for_after_a_loss_or_a_new_boot_of_the_machine(tmp_path: Path) -> None:
    async with PlancastTest(make_app()) as env:
        await begin(env)
        journal = TurnJournal(env.bus, tmp_path)
        await journal.check()
        await TurnJournal(env.bus, tmp_path).note()
        await TurnJournal(env.bus, tmp_path).check()
        assert await env.bus.registry.get(RESTORED_KIND, RESTORED_KEY) is None
        note_end(tmp_path)
        await TurnJournal(env.bus, tmp_path).check()
        assert await env.bus.registry.get(RESTORED_KIND, RESTORED_KEY) is None
        (tmp_path / BOOT).write_text("another")
        await TurnJournal(env.bus, tmp_path).check()
        assert await env.bus.registry.get(RESTORED_KIND, RESTORED_KEY) is not None


@pytest.mark.parametrize("synced", [False, True])
async def test_a_plan_says_that_power_was_lost_unless_every_write_was_synced(tmp_path: Path, synced: bool) -> None:
    async with PlancastTest(make_app()) as env:
        handle = await begin(env)
        await TurnJournal(env.bus, tmp_path).note()
        assert await TurnJournal(env.bus, tmp_path, synced=synced).check() == []
        await handle.signal("door.opened", {})
        await handle.signal("door.entered", {})
        await handle.result(timeout=PATIENCE)
        notes = [note for turn in await handle.history() for note in turn.get("notes", ())]
        assert any("has lost power" in note for note in notes) is not synced


async def test_a_start_that_was_broken_off_before_its_check_hides_no_loss_of_power(tmp_path: Path) -> None:
    async with PlancastTest(make_app()) as env:
        await begin(env)
        await TurnJournal(env.bus, tmp_path).note()
        (tmp_path / BOOT).write_text("another")
        note_end(tmp_path)
        await TurnJournal(env.bus, tmp_path).check()
        assert await env.bus.registry.get(RESTORED_KIND, RESTORED_KEY) is not None


async def test_a_write_that_broke_off_costs_the_next_one_nothing(tmp_path: Path) -> None:
    async with PlancastTest(make_app()) as env:
        await begin(env)
        journal = TurnJournal(env.bus, tmp_path)
        await journal.check()
        (tmp_path / FILE).write_text('["p", 1')  # as a full disk leaves it
        journal.write([_Note("gone", 3)], env.clock.time())
        assert [each.plan for each in await TurnJournal(env.bus, tmp_path).check()] == ["gone"]


async def test_plans_that_have_expired_are_not_lost(tmp_path: Path) -> None:
    async with PlancastTest(make_app()) as env:
        (tmp_path / FILE).write_text('["old", 3, 1.0]\n')
        assert await TurnJournal(env.bus, tmp_path).check() == []


async def test_only_commits_since_the_check_are_noted_and_old_notes_are_dropped(tmp_path: Path) -> None:
    async with PlancastTest(make_app()) as env:
        await begin(env, "first")
        journal = TurnJournal(env.bus, tmp_path)
        await journal.check()
        await begin(env, "second")
        await journal.note()
        assert "second" in (tmp_path / FILE).read_text()
        assert "first" not in (tmp_path / FILE).read_text()
        now = env.clock.time()
        for number in (1, 2):
            journal.write([], now + number * (KEPT_SECONDS + 1.0))
        assert "second" not in (tmp_path / FILE).read_text() + (tmp_path / f"{FILE}.old").read_text()


async def test_a_running_journal_notes_what_is_committed(tmp_path: Path) -> None:
    async with PlancastTest(make_app()) as env:
        journal = TurnJournal(env.bus, tmp_path)
        await journal.check()
        journal.start()
        try:
            await begin(env)
            async with asyncio.timeout(PATIENCE):
                while '["p", 1, ' not in (tmp_path / FILE).read_text():
                    await asyncio.sleep(0.01)
        finally:
            await journal.stop()


async def test_a_notice_without_revisions_is_refused(tmp_path: Path) -> None:
    async with PlancastTest(make_app()) as env:
        handle = await begin(env)
        await handle.signal("plan.turns_lost", {"revision": "x"})
        await handle.signal("door.opened", {})
        await handle.signal("door.entered", {})
        await handle.result(timeout=PATIENCE)
        assert "plan.turns_lost" not in [turn["event"]["type"] for turn in await handle.history()]
