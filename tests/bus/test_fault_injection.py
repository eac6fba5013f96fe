"""Crash points are disabled unless a test or the environment of the process arms them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plancast_bus import fault_injection
from plancast_bus.errors import BusUnavailable
from plancast_bus.fault_injection import MESSAGES, CrashPoint, Passage, SelfKill
from plancast_bus.ports.effects import CancelTimer, Effect, NoteAlias

PROGRAM = """
import asyncio
from plancast_bus import fault_injection
from plancast_bus.fault_injection import CrashPoint

async def main():
    for n in range(4):
        if fault_injection.armed:
            await fault_injection.reach(CrashPoint.TURN_COMMIT_AFTER, "plan-1")
        print(n, flush=True)

asyncio.run(main())
"""


def saying(*passages: Passage | None) -> fault_injection.Hook:
    said = list(passages)

    async def hook(point: CrashPoint, about: str) -> Passage | None:
        return said.pop(0)

    return hook


async def test_a_hook_is_there_as_long_as_its_context() -> None:
    seen: list[tuple[str, str]] = []

    async def hook(point: CrashPoint, about: str) -> None:
        seen.append((point, about))

    assert not fault_injection.armed
    async with fault_injection.installed(hook):
        assert fault_injection.armed
        assert await fault_injection.reach(CrashPoint.TURN_LOAD_BEFORE, "plan-1") == 1
        with pytest.raises(RuntimeError, match="another hook"):
            async with fault_injection.installed(hook):
                pass
    assert not fault_injection.armed
    assert await fault_injection.reach(CrashPoint.TURN_LOAD_BEFORE, "plan-2") == 1
    assert seen == [("turn.load.before", "plan-1")]


@pytest.mark.parametrize(("passage", "copies"), [("drop", 0), ("pass", 1), (None, 1), ("duplicate", 2)])
async def test_a_message_passes_as_often_as_the_hook_decides(passage: Passage | None, copies: int) -> None:
    async with fault_injection.installed(saying(passage)):
        assert await fault_injection.reach(CrashPoint.DISPATCHER_FETCHED, "s") == copies


@pytest.mark.parametrize("point", sorted(set(CrashPoint) - MESSAGES))
async def test_nothing_can_be_dropped_where_no_message_passes(point: CrashPoint) -> None:
    async with fault_injection.installed(saying("drop")):
        with pytest.raises(ValueError, match="no message passes"):
            await fault_injection.reach(point, "plan-1")


@pytest.mark.parametrize(
    ("passages", "carried_out"), [(["drop", None, None], 1), ([None, "drop", None, None], 2), (["duplicate"] * 4, 4)]
)
async def test_a_lost_effect_or_acknowledgement_is_reported_and_the_others_go_on(
    passages: list[Passage | None], carried_out: int
) -> None:
    done: list[Effect] = []

    async def carry_out(effect: Effect) -> int:
        done.append(effect)
        return len(done)

    async with fault_injection.installed(saying(*passages)):
        work = fault_injection.one_by_one((CancelTimer("p", "1-0"), NoteAlias("c", "p")), carry_out)
        if "drop" in passages:
            with pytest.raises(BusUnavailable, match="lost"):
                await work
        else:
            assert await work == [1, 3]
    assert len(done) == carried_out


def run_program(folder: Path | None) -> tuple[int, list[str]]:
    environment = {name: value for name, value in os.environ.items() if name != fault_injection.VARIABLE}
    environment |= {fault_injection.VARIABLE: str(folder)} if folder is not None else {}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    return ended.returncode, ended.stdout.split()


def test_a_file_kills_one_process_once(tmp_path: Path) -> None:
    (tmp_path / "turn.commit.after.3").touch()
    assert run_program(None) == (0, ["0", "1", "2", "3"])
    assert run_program(tmp_path) == (-signal.SIGKILL, ["0", "1"])
    assert run_program(tmp_path) == (0, ["0", "1", "2", "3"])
    (claimed,) = tmp_path.iterdir()
    assert claimed.name.startswith("claimed-turn.commit.after.3-by-")


def test_points_without_a_file_are_passed(tmp_path: Path) -> None:
    (tmp_path / "turn.commit.after.1").touch()
    hook = SelfKill(tmp_path)
    assert [asyncio.run(hook(CrashPoint.TURN_COMMIT_BEFORE, "plan-1")) for _ in range(3)] == ["pass"] * 3
    assert [each.name for each in tmp_path.iterdir()] == ["turn.commit.after.1"]
