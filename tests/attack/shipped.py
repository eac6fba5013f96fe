"""The app of ``tests/apps/fort_app.py``, deployed as deploy/ has it: NATS with an account for each login, Ray with a
token, a console with tokens, and each process with its own login. By processes, since there are no containers here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from tests.isolation.nats_with_roles import RoleServer, role_server
from tests.isolation.ray_head import Head, ray_head

APPS = Path(__file__).parents[1] / "apps"
APP = "fort_app:app"
PATIENCE = 200.0
COMMAND = [sys.executable, "-m", "plancast"]


@dataclass(frozen=True)
class Shipped:
    """What was deployed, and how to reach it."""

    nats: RoleServer
    head: Head
    console: str
    """URL of the console."""
    console_token: str

    def plancast(self, role: str, *arguments: str, check: bool = True) -> Any:
        """What a command with a login says in JSON."""
        done = subprocess.run(
            [*COMMAND, *arguments, "--json"],
            cwd=APPS, env=environment(self.nats, role, **self.head.environment),
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr

    def actors(self) -> list[dict[str, Any]]:
        """Its dispatchers, hosts, workers and reasoners."""
        actors = self.plancast("runtime", "status", "--address", self.head.dashboard)["actors"]
        return [each for kind in ("dispatchers", "hosts", "workers") for each in actors[kind]]


def environment(server: RoleServer, role: str, **more: str) -> dict[str, str]:
    """The variables of a process with a login, and none that this process has of plancast, NATS and Ray."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PLANCAST_", "NATS_", "RAY_"))}
    return {**known, **server.environment(role), **more}


@contextmanager
def shipped(folder: Path, model_url: str, model_key: str) -> Iterator[Shipped]:
    """Deploy it, with a model that is asked at ``model_url``."""
    paths = {"PYTHONPATH": str(APPS), "FORT_MODEL_URL": model_url, "FORT_MODEL_KEY": model_key}
    with ExitStack() as stack:
        nats = stack.enter_context(role_server(folder, "tests.apps.fort_app:app"))
        runtime = {**nats.environment("runtime"), **paths, "PLANCAST_HOSTS__COUNT": "2"}
        head = stack.enter_context(ray_head(runtime, cpus=4))
        token = token_hex(16)
        made = Shipped(nats, head, "", token)
        made.plancast("runtime", "deploy", APP, "--address", head.dashboard)
        tokens = {"PLANCAST_CONSOLE__TOKENS": json.dumps({"ada": token})}
        console = stack.enter_context(
            subprocess.Popen(
                [*COMMAND, "console", "--port", "0", "--json"],
                cwd=APPS,
                env=environment(nats, "console", **tokens),
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(console.terminate)
        assert console.stdout is not None
        yield Shipped(nats, head, json.loads(console.stdout.readline())["console"], token)
