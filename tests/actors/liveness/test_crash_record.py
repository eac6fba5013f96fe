"""A crash record says how a process died, and for which events code of the app ran then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from plancast_actors.liveness import crash_record
from plancast_actors.liveness.crash_record import (
    CrashRecord,
    EventMark,
    Marks,
    clear_crash_records,
    read_crash_record,
)

PROGRAM = """
import asyncio, ctypes, os, signal, sys, threading, time
from plancast_actors.liveness.crash_record import Marks
from plancast_actors.liveness.watchdog import BlockWatch, end_process, own_marks

marks = Marks("tests", "life")
own_marks.append(marks)
marks.note_exits()

async def innocent():
    mark = marks.begin("S", 1, "p.t.0.other.x.goal")
    try:
        await mark.steps(asyncio.Event().wait())
    finally:
        mark.end()

async def guilty(code):
    await asyncio.sleep(0)
    exec(code)

async def main():
    others = asyncio.create_task(innocent())
    parked = marks.begin("S", 2, "p.t.0.waiting.x.goal")
    parked.park(True)
    finished = marks.begin("S", 3, "p.t.0.done.x.goal")
    await finished.steps(asyncio.sleep(0))
    finished.end()
    {body}

asyncio.run(main())
"""
RUN = "await marks.begin('S', 4, 'p.t.0.plan.x.goal').steps(guilty({code!r}))"
INNOCENT, PARKED = EventMark("S", 1, "p.t.0.other.x.goal"), EventMark("S", 2, "p.t.0.waiting.x.goal")
GUILTY = EventMark("S", 4, "p.t.0.plan.x.goal")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_record, "folder_of", lambda namespace: tmp_path / "all" / namespace)
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def record_of(tmp_path: Path, body: str) -> tuple[int, CrashRecord | None]:
    """The exit status and the record of a process that runs this."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("{body}", body))
    ended = subprocess.run([sys.executable, program], timeout=280, check=False)
    (folder,) = tmp_path.glob("plancast-*/tests")
    (tmp_path / "all").mkdir(mode=0o700)
    folder.rename(tmp_path / "all" / "tests")
    return ended.returncode, read_crash_record("tests", "life")


@pytest.mark.parametrize(
    ("code", "status", "cause"),
    [
        ("os._exit(7)", 7, "os._exit(7) was called"),
        ("ctypes.string_at(0)", -signal.SIGSEGV, "Segmentation fault"),
        ("os.abort()", -signal.SIGABRT, "Aborted"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "SIGKILL"),
    ],
)
def test_the_running_turn_is_the_suspect_and_the_record_says_how_the_process_died(
    tmp_path: Path, code: str, status: int, cause: str
) -> None:
    returned, record = record_of(tmp_path, RUN.format(code=code))
    assert returned == status
    assert record is not None
    assert record.cause.startswith(cause)
    assert record.suspects == (GUILTY,)
    assert (record.begun, record.parked, record.is_blocked) == ((INNOCENT,), (PARKED,), False)
    assert CrashRecord.of([*record.plain()]) == record


def test_what_runs_beside_the_event_loop_makes_suspects_of_all_turns_that_had_begun(tmp_path: Path) -> None:
    _, record = record_of(tmp_path, RUN.format(code="pass") + "; await asyncio.sleep(0); os._exit(1)")
    assert record is not None
    assert record.running is None
    assert set(record.suspects) == {INNOCENT, GUILTY}


def test_a_process_that_is_killed_while_no_turn_has_begun_names_nobody(tmp_path: Path) -> None:
    _, record = record_of(
        tmp_path, "others.cancel(); await asyncio.wait([others]); parked.end(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert record is not None
    assert record.marks == ()


def test_a_process_that_plancast_ends_itself_names_nobody(tmp_path: Path) -> None:
    _, record = record_of(tmp_path, RUN.format(code="end_process('the connection is closed')"))
    assert record is not None
    assert (record.cause, record.marks) == ("plancast ended it", ())


def test_a_forked_child_that_exits_leaves_no_note(tmp_path: Path) -> None:
    fork = "os.fork() or os._exit(3); os.wait(); os.kill(os.getpid(), signal.SIGKILL)"
    _, record = record_of(tmp_path, RUN.format(code=fork))
    assert record is not None
    assert record.cause.startswith("SIGKILL")


@pytest.mark.parametrize("code", ["time.sleep(1000)", "while 'busy': pass"])
def test_a_step_that_blocks_the_event_loop_ends_the_process(tmp_path: Path, code: str) -> None:
    watch = "BlockWatch('host-0', marks, 0.5).start(); "
    returned, record = record_of(tmp_path, watch + RUN.format(code=code))
    assert returned == -signal.SIGKILL
    assert record is not None
    assert record.is_blocked
    assert record.suspects == (GUILTY,)


@pytest.mark.parametrize(
    "body",
    [
        "time.sleep(2)",  # no code of the app
        RUN.format(code="import slow"),
        "await marks.begin('S', 4, 'x').steps(asyncio.sleep(2))",
        "await marks.begin('S', 4, 'x').steps(asyncio.to_thread(time.sleep, 2))",
    ],
)
def test_what_does_not_block_the_event_loop_by_code_of_the_app_is_left_alone(tmp_path: Path, body: str) -> None:
    (tmp_path / "slow.py").write_text("import time; time.sleep(2)")
    watch = f"sys.path.append({str(tmp_path)!r}); BlockWatch('host-0', marks, 0.5).start(); "
    returned, record = record_of(tmp_path, f"{watch}{body}; os._exit(0)")
    assert returned == 0
    assert record is not None
    assert not record.is_blocked


@pytest.fixture
def marks() -> Iterator[Marks]:
    kept = Marks("tests", uuid4().hex)
    yield kept
    kept.remove()


def test_a_record_with_more_turns_than_marks_says_nothing_until_they_have_ended(marks: Marks) -> None:
    begun = [marks.begin("S", number, "x") for number in range(crash_record.SLOTS + 1)]
    assert read_crash_record("tests", marks.path.name) is None
    begun[-1].end()
    record = read_crash_record("tests", marks.path.name)
    assert record is not None
    assert len(record.begun) == crash_record.SLOTS
    for mark in begun[:-1]:
        mark.end()
    assert read_crash_record("tests", marks.path.name) == CrashRecord("SIGKILL, or an end that cannot be noted")


def test_steps_after_the_end_of_a_mark_name_nobody(marks: Marks) -> None:
    mark = marks.begin("S", 1, "x")
    seen = []

    async def given_up() -> None:
        seen.append(marks.running)

    steps = mark.steps(given_up())
    mark.end()
    with pytest.raises(StopIteration):
        steps.send(None)
    assert seen == [0]


def test_long_subjects_are_cut(marks: Marks) -> None:
    mark = marks.begin("S" * 200, 2**40, "é" * 1000)
    record = read_crash_record("tests", marks.path.name)
    assert record is not None
    assert record.begun[0].stream == "S" * 100
    assert record.begun[0].sequence == 2**40
    mark.end()


@pytest.mark.parametrize("incarnation", ["", "../other", "gone"])
def test_no_record_is_read_of_an_unknown_process(incarnation: str) -> None:
    assert read_crash_record("tests", incarnation) is None


def test_no_record_is_read_from_a_folder_that_others_can_write(marks: Marks) -> None:
    marks.path.parent.chmod(0o777)
    assert read_crash_record("tests", marks.path.name) is None
    marks.path.parent.chmod(0o700)


def test_files_of_dead_processes_are_removed_after_a_time(marks: Marks) -> None:
    dead = marks.path.with_name("dead")
    content = bytearray(marks.path.read_bytes())
    content[4:8] = (2**31 - 1).to_bytes(4, "little")  # no pid
    dead.write_bytes(content)
    fresh = marks.path.with_name("fresh")
    fresh.write_bytes(content)
    for file in (dead, marks.path):
        os.utime(file, (1, 1))
    clear_crash_records("tests")
    assert {file.name for file in marks.path.parent.iterdir()} == {"fresh", marks.path.name}
