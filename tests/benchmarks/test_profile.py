"""The profile: what a moment is charged to, that charges add up, and that the tables get into the document."""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest
from benchmarks.profiling import stages
from benchmarks.systems.scratch import ROOT

from benchmarks import profile as command
from benchmarks.workloads import hops

BURN = """
import sys, threading, time
from pathlib import Path
from benchmarks.profiling.sampler import Sampler

folder = Path(sys.argv[1])
go = folder / "go"
Sampler(str(folder)).start()

def burn():
    end = time.thread_time() + 0.4
    while time.thread_time() < end:
        sum(range(1000))

go.touch()
time.sleep(0.2)
for thread in [threading.Thread(target=burn), threading.Thread(target=time.sleep, args=(0.5,))]:
    thread.start()
burn()
time.sleep(0.6)
go.unlink()
while not list(folder.glob("*.json")):
    time.sleep(0.05)
"""

PROFILE = """
import asyncio, json
from benchmarks import profile

found = asyncio.run(profile.profile(50, "default"))
print(json.dumps({"plans": found.plans, "stages": found.stages, "totals": found.totals}))
"""


def frames(*functions: tuple[str, str]) -> FrameType:
    """The innermost frame of a stack of such functions, the outermost first; each a module and a name."""
    names: dict[str, Any] = {"__name__": functions[-1][0], "sys": sys}
    exec(f"def {functions[-1][1]}():\n return sys._getframe()", names)
    call = names[functions[-1][1]]
    for module, name in reversed(functions[:-1]):
        names = {"__name__": module, "call": call}
        exec(f"def {name}():\n return call()", names)
        call = names[name]
    frame: FrameType = call()
    return frame


@pytest.mark.parametrize(
    ("functions", "stage"),
    [
        ([("plancast_actors.plan_actors.slow_path", "_take"), ("plancast.turn.turn", "run")], stages.TURN),
        (
            [
                ("plancast_actors.plan_actors.slow_path", "_take"),
                ("plancast.state_machine.machine", "enter"),
                ("json", "dumps"),
            ],
            stages.TURN,
        ),
        ([("plancast_actors.plan_actors.activation", "commit"), ("nats.aio.client", "publish")], stages.COMMIT),
        (
            [
                ("plancast_actors.plan_actors.activation", "commit"),
                ("plancast_bus.events.codec", "pack"),
                ("msgpack", "packb"),
            ],
            "encode",
        ),
        (
            [("plancast_actors.plan_actors.activation", "commit"), ("plancast_actors.plan_actors.activation", "emit")],
            stages.EMIT,
        ),
        ([("nats.aio.client", "_read_loop"), ("nats.protocol.parser", "parse")], stages.BUS_IN),
        (
            [("plancast_actors.dispatch.dispatcher", "_take_in"), ("plancast_actors.dispatch.inflight", "take_in")],
            stages.DISPATCH,
        ),
        ([("plancast_actors.dispatch.host_link", "_exchange"), ("ray.actor", "remote")], stages.RAY_HOP),
        ([("somewhere", "else_")], stages.REST),
    ],
)
def test_a_moment_belongs_to_the_innermost_that_is_listed(functions: list[tuple[str, str]], stage: str) -> None:
    assert stages.stage_of(frames(*functions)) == stage


def _names(module: Any) -> Iterator[str]:
    for found in vars(module).values():
        if isinstance(found, FunctionType) and found.__module__ == module.__name__:
            yield found.__name__
        if isinstance(found, type) and found.__module__ == module.__name__:
            yield from vars(found)


@pytest.mark.parametrize("name", sorted({*stages.FUNCTIONS, *stages.MODULES}))
def test_what_is_listed_exists(name: str) -> None:
    module = importlib.import_module(name)
    listed = {each for names in stages.FUNCTIONS.get(name, {}).values() for each in names}
    assert listed <= set(_names(module))


def test_charges_are_what_the_threads_have_used(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", BURN, str(tmp_path)], cwd=ROOT, timeout=60, check=True)

    (left,) = tmp_path.glob("*.json")
    found = json.loads(left.read_text())
    burnt = found["functions"]["__main__:burn"]
    assert 0.5 < burnt <= 1.0
    parts = sum(found["stages"].values()) + found["sampler"] + found["without_python"]
    assert parts == pytest.approx(found["seconds"], rel=0.1)


def test_a_table_has_every_stage_and_adds_up() -> None:
    report = {"stages": {"turn": 0.3, "encode": 0.1}, "sampler": 0.1, "without_python": 0.1, "functions": {"a:b": 0.2}}
    used = {"driver": 1.0, "dispatchers": 1.0, "hosts": 2.0, "workers": 1.0, "nats-server": 1.0, "ray": 0.5}
    found = command.Profile.of(1000, 500.0, {kind: [report] for kind in command.SAMPLED}, used)

    lines = {line[0]: line[1:] for line in found.lines()}
    assert lines.keys() >= stages.STAGES.keys()
    assert lines["turn"] == ["75.0", "75.0", "75.0", "75.0", "300.0"]
    assert lines[command.LOST][2] == "350.0"
    assert lines["nats-server"][-1] == "250.0"
    assert lines["total without the sampler"][-1] == f"{1e6 / 4000 * (6.5 - 0.4):.1f}"
    assert found.functions["hosts"] == {"a:b": 50.0}


def test_the_document_keeps_what_is_around_the_measured_part(tmp_path: Path) -> None:
    path = tmp_path / "performance.md"
    path.write_text(f"before\n{command.BEGIN}\nold\n{command.END}\nafter\n")
    report = {"stages": {"turn": 0.3}, "sampler": 0.0, "without_python": 0.0, "functions": {}}
    used = dict.fromkeys([*command.SAMPLED, *command.UNSAMPLED], 0.3)
    found = command.Profile.of(100, 10.0, {kind: [report] for kind in command.SAMPLED}, used)
    heard = {"shared": [{hop: [0.001] for hop in command.SHORT}]}

    command.write(command.document(found, heard, "default"), path)

    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| turn |" in text
    assert "sync_interval" in text
    assert set(command.SHORT) == {*hops.HOPS, hops.ALL}
    path.write_text("no place")
    with pytest.raises(ValueError, match="no place for a profile"):
        command.write("", path)


def test_the_document_has_a_place_for_it() -> None:
    text = command.DOCUMENT.read_text()
    assert command.BEGIN in text
    assert command.END in text


@pytest.mark.slow
def test_all_processes_of_the_product_are_sampled() -> None:
    # In a process of its own: Ray's workers are sampled only where Ray is started with the sampler in its environment.
    run = subprocess.run([sys.executable, "-c", PROFILE], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])

    assert found["plans"] == 50
    for kind in command.SAMPLED:
        assert sum(found["stages"][kind].get(stage, 0.0) for stage in stages.STAGES) > 0
    assert found["totals"]["nats-server"] > 0
