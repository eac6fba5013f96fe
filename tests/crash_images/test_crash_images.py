"""A short run of crash images, and the rules by which they are made; `make crash-images` has a long run."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from random import Random

import pytest
from tests.crash_images.images import damaged, make_image
from tests.crash_images.recording import Recording, UnknownCall, read_trace, why_not, without_syncs
from tests.crash_images.run import Report
from tests.crash_images.verdict import Verdict

ROOT = Path(__file__).parents[2]
IMAGES, PLANS = 100, 40


async def run(*asked: str) -> tuple[int | None, str]:
    if reason := why_not():
        pytest.skip(reason)
    # In a process of its own: it takes over the server's binary, and this process' logs.
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.crash_images.run", "--plans", str(PLANS), "--go-on", "0", "--quiet", *asked,
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    print(said.decode(errors="replace"))
    return process.returncode, said.decode(errors="replace")


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_no_turn_is_lost_where_every_write_is_synced_and_none_without_being_named_elsewhere() -> None:
    code, said = await run("--images", str(IMAGES), "--seed", os.environ.get("PLANCAST_TEST_SEED", "7"))
    assert code == 0, said
    assert "every promise was kept" in said


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_server_that_does_not_sync_its_checkpoints_is_found() -> None:
    code, said = await run("--images", "20", "--seed", "7", "--unsynced", "PLANCAST_CHECKPOINTS")
    assert code == 1, said
    assert "BROKEN: always" in said


def text(name: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in name.encode())


def trace(folder: Path, *calls: str) -> Recording:
    lines = [f"7 {100 + number}.0 {call}\n" for number, call in enumerate(calls)]
    (folder / "trace").write_text("".join(lines))
    return read_trace(folder / "trace", Path("/store"))


def opened(name: str, descriptor: int = 5, flags: str = "O_RDWR|O_CREAT") -> str:
    return f'openat(AT_FDCWD, "{text(f"/store/{name}")}", {flags}, 0600) = {descriptor}'


def written(data: str, offset: int, descriptor: int = 5) -> str:
    return f'pwrite64({descriptor}, "{text(data)}", {len(data)}, {offset}) = {len(data)}'


def contents(recording: Recording, line: int) -> set[bytes | None]:
    return {make_image(recording, line, Random(seed)).files.get("a") for seed in range(200)}


def test_a_synced_write_is_in_every_image_and_a_later_one_in_some(tmp_path: Path) -> None:
    recording = trace(tmp_path, opened("a"), written("one", 0), "fsync(5) = 0", written("two", 3), "close(5) = 0")
    assert contents(recording, 5) == {b"one", b"onetwo"}
    assert make_image(recording, 5, Random(1), "synced").files == {"a": b"one"}
    assert make_image(recording, 5, Random(1), "all").files == {"a": b"onetwo"}


def test_a_sync_that_had_not_returned_covers_nothing(tmp_path: Path) -> None:
    recording = trace(
        tmp_path, opened("a"), written("one", 0), "fsync(5 <unfinished ...>", "<... fsync resumed>) = 0", "close(5) = 0"
    )
    assert contents(recording, 3) == {None, b"", b"one"}
    assert contents(recording, 4) == {b"one"}


def test_a_write_is_torn_between_sectors(tmp_path: Path) -> None:
    recording = trace(tmp_path, opened("a"), "fsync(5) = 0", written("x" * 1200, 100), "close(5) = 0")
    sizes = {len(content or b"") for content in contents(recording, 4)}
    assert sizes == {0, 512, 1024, 1300}


def test_names_are_kept_in_their_order_up_to_the_last_sync_of_any_file(tmp_path: Path) -> None:
    renaming = f'renameat(AT_FDCWD, "{text("/store/a")}", AT_FDCWD, "{text("/store/b")}") = 0'
    recording = trace(
        tmp_path,
        opened("a"),
        renaming,
        opened("c", 6),
        "fsync(6) = 0",
        f'unlinkat(AT_FDCWD, "{text("/store/c")}", 0) = 0',
    )
    found = {tuple(sorted(make_image(recording, 5, Random(seed)).files)) for seed in range(50)}
    assert found == {("b", "c"), ("b",)}


def test_what_is_older_than_the_kernels_write_back_is_kept(tmp_path: Path) -> None:
    recording = trace(tmp_path, opened("a"), written("one", 0), "close(5) = 0")
    assert make_image(recording, 3, Random(1), "synced", settled=2).files == {"a": b"one"}


def test_a_call_without_a_rule_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownCall):
        trace(tmp_path, opened("a"), "fallocate(5, 0, 0, 4096) = 0")


def test_syncs_of_some_files_can_be_left_out(tmp_path: Path) -> None:
    recording = trace(tmp_path, opened("a"), written("one", 0), "fsync(5) = 0", "close(5) = 0")
    assert contents(recording, 4) == {b"one"}
    assert contents(without_syncs(recording, "a"), 4) == {None, b"", b"one"}
    assert contents(without_syncs(recording, "other"), 4) == {b"one"}


def test_damage_changes_one_file(tmp_path: Path) -> None:
    recording = trace(tmp_path, opened("a"), written("one", 0), opened("b", 6), written("two", 0, 6))
    whole = make_image(recording, 4, Random(1), "all")
    for seed in range(50):
        found = damaged(whole, Random(seed))
        assert [name for name in whole.files if found.files[name] != whole.files[name]] in (["a"], ["b"])


@pytest.mark.parametrize(
    ("verdict", "kind", "broken"),
    [
        (Verdict("i", lost={"p": "went back"}, named={"p": "went back"}), "always", ["always, i: p went back"]),
        (Verdict("i", lost={"p": "went back"}, named={"p": "went back"}), "interval", []),
        (Verdict("i", lost={"p": "went back"}, young={"p"}), "interval", []),
        (Verdict("i", lost={"p": "went back"}), "damaged", ["damaged, i: p went back"]),
        (Verdict("i", refused="damaged"), "damaged", []),
        (Verdict("i", refused="damaged"), "always", ["always, i:  no start: damaged"]),
        (
            Verdict("i", repeated={"k": "p"}),
            "interval",
            ["interval, i: p did k twice, and says nothing of a loss"],
        ),
    ],
)
def test_a_report_tells_what_is_broken(verdict: Verdict, kind: str, broken: list[str]) -> None:
    report = Report()
    report.add(kind, verdict)  # type: ignore[arg-type]
    assert report.broken == broken
