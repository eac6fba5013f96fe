"""The comparison of fast paths with the plain ones: what is listed exists, a path is off when it should be."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from benchmarks.load.outcome import BenchmarkFailed
from benchmarks.reports.rows import merge
from benchmarks.systems.scratch import ROOT
from benchmarks.ways import __main__ as command
from benchmarks.ways import lines, pairs, report, switches
from benchmarks.ways.catalogue import WAYS, Way

MODULE = """\
class Reader:
    def take(self, text):
        return fast(text)
    @classmethod
    def begin(cls):
        return "fast"
def fast(text, end="!"):
    return text + end
"""
PROGRAM = """\
import sys
from benchmarks.ways import catalogue, switches
way = catalogue.Way("", "", (), used=("watched:fast",), unused=("watched:Reader.begin",), off={
    "watched:Reader.take": lambda original: lambda reader, text: "plain",
    "watched:Reader.begin": lambda original: lambda cls: original(cls).replace("fast", "plain"),
})
sys.meta_path.insert(0, switches.Patches(way, off=sys.argv[1] == "off"))
from watched import Reader, fast
print(Reader().take("a"), Reader().take("b"), Reader.begin(), fast("c", end="?") if sys.argv[1] == "on" else "")
print(fast.__code__.co_varnames)
"""


def row(name: str, **changes: float) -> dict[str, Any]:
    figures = {"plans_per_second": 1000.0, "p50_ms": 4.0, "p99_ms": 9.0}
    about = {"workload": "ways", "system": "shared", "n": 20, "variant": name, "sync": "default", "lines": 7}
    found: dict[str, Any] = {**about, "durability": "never"}
    for figure, change in changes.items():
        value = figures[figure]
        found |= {figure: value, f"{figure}_off": value * (1 + change / 100), f"{figure}_change": change}
    return found


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_is_listed_exists(way: Way) -> None:
    assert lines.count(way) > 0
    for target in (*way.watched, *way.off):
        owner, name, found = switches.find(target, importlib.import_module(target.partition(":")[0]))
        function = found.__func__ if isinstance(found, classmethod | staticmethod) else found
        assert isinstance(function, FunctionType)
        if target in way.watched:
            assert not function.__code__.co_freevars  # else its code cannot be exchanged
        if target in way.off:
            replacement = way.off[target]
            if replacement is None:
                assert any(hasattr(base, name) for base in owner.__bases__)
            else:
                assert callable(replacement(function))


@pytest.mark.parametrize(
    ("state", "printed", "used"),
    [
        ("on", "a! b! fast c?", {"watched:fast", "watched:Reader.begin"}),
        ("off", "plain plain plain ", {"watched:Reader.begin"}),
    ],
)
def test_functions_are_watched_and_replaced(tmp_path: Path, state: str, printed: str, used: set[str]) -> None:
    (tmp_path / "watched.py").write_text(MODULE)
    notes = tmp_path / "notes"
    notes.mkdir()
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", switches.FOLDER: str(notes)}

    run = [sys.executable, "-c", PROGRAM, state]
    ran = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=60, check=True)

    assert ran.stdout.splitlines()[0] == printed
    assert {each.name for each in notes.iterdir()} == used
    if state == "on":  # the function has its own code again
        assert ran.stdout.splitlines()[1] == "('text', 'end')"


def test_a_run_that_does_not_use_a_way_as_it_should_fails() -> None:
    way = Way("", "", (), used=("m:a",), unused=("m:b",))

    pairs.check(way, "off", [])
    pairs.check(way, "on", ["m:a"])
    with pytest.raises(BenchmarkFailed, match="was off, but these functions were called: m:b"):
        pairs.check(way, "off", ["m:b"])
    with pytest.raises(BenchmarkFailed, match="was on, but these functions were not called: m:a"):
        pairs.check(way, "on", ["m:b"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([-12.0, -11.0, -15.0], "yes"),
        ([-12.0, -9.0, -15.0], "unclear"),
        ([-1.0, 2.0, 14.0], "no"),  # faster without it
    ],
)
def test_the_verdict_needs_all_rounds(changes: list[float], said: str) -> None:
    (merged,) = merge([row("turns", plans_per_second=each) for each in changes])

    assert merged["plans_per_second_change_spread"] == [min(changes), max(changes)]
    assert report.verdict(merged) == said


def test_a_higher_latency_counts_as_a_lower_rate_does() -> None:
    assert report.verdict(row("turns", plans_per_second=-1.0, p50_ms=2.0, p99_ms=30.0)) == "yes"
    assert report.verdict(row("turns", plans_per_second=-1.0, p50_ms=-30.0)) == "no"


def test_tables_have_all_ways_and_the_conditions() -> None:
    machine = {"cores": 2, "cpu": "a core", "memory_gb": 8.0, "python": "3.11.7"}
    stored = row("turns", plans_per_second=-12.0) | {"date": "2026-11-22T10:00", "machine": machine, "runs": 3}

    without, measured = report.document([]).markdown(), report.document([stored]).markdown()

    assert "W1" not in without
    assert all(way.title in without and way.title in measured for way in WAYS.values())
    assert "| default | 1,000 → 880, -12 % |" in measured
    assert "2 cores (a core)" in measured
    assert "sync default: never" in measured
    assert report.terminal([stored]).rows == [
        ["turns", "7", "default", "W1/s", "1,000", "880", "-12", "-12, -12", "yes"]
    ]


def test_each_way_is_measured_with_its_own_durability() -> None:
    titles = [job.title for job in command.jobs(command.arguments([]))]

    assert len(titles) == sum(len(way.syncs) for way in WAYS.values())
    assert "staging, sync always" in titles
    assert [job.title for job in command.jobs(command.arguments(["--only", "turns", "--sync", "always"]))] == [
        "turns, sync always"
    ]


def test_the_document_has_a_place_for_the_table() -> None:
    text = command.DOCUMENT.read_text()
    assert f"<!-- {report.NAME} -->\n" in text
    assert f"<!-- /{report.NAME} -->" in text


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_way_is_on_and_off_in_the_processes_of_the_product() -> None:
    said: list[str] = []

    found = await pairs.measure("turns", "default", "quick", ["w1", "w5"], said.append)

    assert [each.partition(":")[0] for each in said] == ["on", "off"]
    for name in ("plans_per_second", "p50_ms", "cpu_ms"):
        assert min(found[name], found[f"{name}_off"]) > 0
        assert found[f"{name}_change"] == pytest.approx(100 * (found[f"{name}_off"] / found[name] - 1), abs=0.1)
    assert "p99_ms" not in found
