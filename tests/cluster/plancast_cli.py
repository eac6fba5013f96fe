"""The command line in a process and a folder of its own, against a cluster elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
APP = """
import shop_code
from plancast import App, Planner, Worker

planner = Planner("shop", version=shop_code.PLANNER)
planner.add_goal("shop.goal", {
    "start": {"state_name": "start", "default_next": "hold"},
    "hold": {"state_name": "hold", "transitions": [{"on_event": "go", "to_state": "work"}]},
    "work": {
        "state_name": "work",
        "action": {"event_type": "shop.work", "response_event": "shop.worked", "data": {}, "timeout_seconds": 60},
        "transitions": [{"on_event": "shop.worked", "to_state": "done"}],
    },
    "done": {"state_name": "done", "is_terminal": True},
})


@planner.on_transition()
async def move(transition, context):
    if transition.event_type == "shop.worked":
        await transition.plan.finalize({"worker": transition.data["by"], "planner": shop_code.CODE})
    else:
        await transition.plan.execute_next(transition.event)


worker = Worker("shop")


@worker.on_task("shop.work", "shop.worked")
async def work(task, context):
    return {"by": shop_code.CODE}


app = App("shop", planners=[planner], workers=[worker])
"""
EXTRA = """
extra = Planner("extra")
extra.add_goal("extra.goal", {
    "start": {"state_name": "start", "default_next": "hold"},
    "hold": {"state_name": "hold", "transitions": [{"on_event": "go", "to_state": "done"}]},
    "done": {"state_name": "done", "is_terminal": True},
})


@extra.on_transition()
async def end(transition, context):
    await transition.plan.finalize({"planner": shop_code.CODE})


app = App("shop", planners=[planner, extra], workers=[worker])
"""
BROKEN = """
import ray
if ray.is_initialized() and ray.get_runtime_context().get_actor_name():  # and not where it is only looked at
    raise OSError("no such disk")
"""
HANGS = """
import time
import ray
if ray.is_initialized() and bool(ray.get_runtime_context().get_actor_name()) is IN_ACTORS:
    time.sleep(3600)
"""


@dataclass(frozen=True)
class Done:
    """Result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Shop:
    """An app that is nowhere but in a folder, and the commands to have it run."""

    folder: Path
    address: str
    environment: Mapping[str, str]

    def write(self, code: str, *, planner: str = "1", broken: bool = False, extra: bool = False) -> None:
        """Change the code; with an extra planner, or to such that does not start."""
        self.folder.mkdir(exist_ok=True)
        # Bytecode is taken for that of a source which was written within the same second and has the same length.
        shutil.rmtree(self.folder / "__pycache__", ignore_errors=True)
        (self.folder / "shop.py").write_text(APP + (BROKEN if broken else "") + (EXTRA if extra else ""))
        (self.folder / "shop_code.py").write_text(f"CODE, PLANNER = {code!r}, {planner!r}\n")

    @property
    def code(self) -> str:
        """The name of the code in the folder."""
        return (self.folder / "shop_code.py").read_text().split("'")[1]

    def hang(self, code: str, *, in_actors: bool) -> None:
        """Change the code to one whose import never ends: in its actors, or where it is looked at in the cluster."""
        self.write(code)
        (self.folder / "shop.py").write_text(APP + HANGS.replace("IN_ACTORS", str(in_actors)))

    def run(self, *arguments: str, address: str = "") -> Done:
        """Run a command on the cluster."""
        where = [] if arguments[0] in ("probe", "submit") else ["--address", address or self.address]
        done = subprocess.run(
            [BIN / "plancast", *arguments, *where],
            cwd=self.folder,
            env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **self.environment},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def run_until(self, text: str, *arguments: str) -> None:
        """Run a command on the cluster, and kill it as soon as it prints a text."""
        command = [BIN / "plancast", *arguments, "--address", self.address]
        environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **self.environment}
        with subprocess.Popen(command, cwd=self.folder, env=environment, stderr=subprocess.PIPE, text=True) as running:
            assert running.stderr is not None
            seen = next((line for line in running.stderr if text in line), None)
            running.kill()
        assert seen is not None, f"{arguments} has not printed {text!r}"

    def status(self) -> dict[str, Any]:
        """What runs, as the command says."""
        return dict(self.run("status", "--json").json)


def codes_of(status: dict[str, Any]) -> set[str]:
    """Which code the actors of a deployment run."""
    kinds = ("dispatchers", "hosts", "workers")
    return {actor["code"] for kind in kinds for actor in status["actors"][kind]}


def pids_of(status: dict[str, Any]) -> set[int]:
    """The processes of a deployment."""
    return {actor["pid"] for kind in ("dispatchers", "hosts", "workers") for actor in status["actors"][kind]}


def lives(pid: int) -> bool:
    """Whether a process is there, and no mere zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
