"""The commands, each as a process with a login of its own: run, worker, submit, plans, doctor."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.isolation.nats_with_roles import RoleServer, role_server
from tests.isolation.test_nats_auth import bus_of

ROOT = Path(__file__).parents[2]
APP = "tests.apps.signed_app:app"
PATIENCE = 120.0


def environment_of(server: RoleServer, role: str, **more: str) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PLANCAST_", "NATS_", "RAY_"))}
    return {**known, **server.environment(role), **more}


@contextmanager
def foreground(server: RoleServer, role: str, *arguments: str, **more: str) -> Iterator[dict[str, Any]]:
    """A command that stays, once it is ready; yields what it says of itself."""
    command = [sys.executable, "-m", "plancast", *arguments, "--json"]
    log = server.folder / f"{role}.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command,
            env=environment_of(server, role, **more),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, log.read_text()
            yield {**json.loads(line), "log": log}
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()


def plancast(server: RoleServer, role: str, *arguments: str, code: int = 0) -> str:
    """What a command prints, or complains of when it is to fail."""
    done = subprocess.run(
        [sys.executable, "-m", "plancast", *arguments],
        env=environment_of(server, role),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_each_command_works_with_its_login(tmp_path: Path, ray_folder: str) -> None:
    with role_server(tmp_path, APP, "--operator=operator") as server:
        assert "nothing is deployed" in plancast(server, "client", "submit", "sign.goal", code=1)
        ray = {"RAY_TMPDIR": ray_folder}
        # The worker is there before the streams are, and waits.
        with foreground(server, "draft-writer", "worker", APP, "--only", "Draft Writer") as worker:
            assert worker["tasks"] == ["draft.write"]
            data = str(tmp_path / "data")
            elsewhere = {"PLANCAST_WORKERS__TASKS": '["image.render"]'}
            options = ("--no-workers", "--no-console", "--data-dir", data)
            with foreground(server, "runtime", "run", APP, *options, **ray, **elsewhere):
                assert asyncio.run(_consumers(server)) >= {
                    "task-draft-write", "task-draft-print", "task-image-render"
                }  # fmt: skip
                _a_plan(server)
                _what_is_seen(server)
        assert "no consumer task-draft-write" in worker["log"].read_text()


async def _consumers(server: RoleServer) -> set[str]:
    async with bus_of(server, "console") as bus:
        return set((await bus.health())["streams"]["PLANCAST_REQUESTS"]["consumers"])


def _a_plan(server: RoleServer) -> None:
    plancast(server, "client", "submit", "sign.goal", "--correlation-id", "p1")
    assert json.loads(plancast(server, "operator", "plans", "list", "--json"))[0]["plan_id"] == "p1"
    waiting = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "plancast",
            "submit",
            "sign.goal",
            "--correlation-id",
            "p2",
            "--wait",
            "--timeout",
            "90",
        ],
        env=environment_of(server, "client"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    with waiting:
        watching = subprocess.Popen(
            [sys.executable, "-m", "plancast", "plans", "watch", "p1", "--json"],
            env=environment_of(server, "observer"),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        with watching:
            assert watching.stdout is not None
            while json.loads(watching.stdout.readline())["current_state"] != "wait":
                pass
            for plan in ("p1", "p2"):
                plancast(server, "operator", "plans", "signal", plan, "sign", "--data", '{"by": "hand"}')
            assert json.loads(watching.stdout.readlines()[-1])["status"] == "completed"
            assert watching.wait(PATIENCE) == 0
        said = waiting.stdout.read() if waiting.stdout is not None else ""
        assert waiting.wait(PATIENCE) == 0
        assert json.loads(said)["wait"] == {"by": "hand"}


def _what_is_seen(server: RoleServer) -> None:
    shown = json.loads(plancast(server, "observer", "plans", "show", "p1", "--json"))
    assert shown["status"] == "completed"
    assert "draft.written" in plancast(server, "observer", "plans", "history", "p1")
    assert json.loads(plancast(server, "observer", "deadletters", "list", "--json"))["letters"] == []
    assert "does not let this user" in plancast(server, "client", "plans", "show", "p1", code=3)
    assert "does not let this user" in plancast(server, "observer", "submit", "sign.goal", code=3)
    findings = json.loads(plancast(server, "client", "doctor", "--no-ray", "--json"))
    assert findings["healthy"]
    assert "'client'" in findings["findings"][0]["detail"]
    assert json.loads(plancast(server, "console", "doctor", "--no-ray", "--json"))["healthy"]
    assert "no JetStream" in plancast(server, "operator", "run", APP, "--no-console", code=3)
