"""Short commands load what they need: probes run every few seconds in each pod, `submit` in loops of scripts."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest
import typer

from plancast.cli.command_table import CommandTable
from plancast.cli.root import RootCommands, app
from plancast.settings import Settings
from plancast_actors.deployment.health import connected
from plancast_actors.liveness.heartbeat import Heartbeat
from plancast_actors.liveness.heartbeat_files import SECONDS
from plancast_bus.jetstream import connect
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.settings import BusSettings, NatsSettings

HEAVY = {"litellm", "openai", "ray", "fastapi", "uvicorn", "jsonschema", "cel_expr_python", "rich", "aiohttp"}
OF_BUS = {"nats", "asyncio", "pydantic_settings", "plancast.settings", "plancast_bus.settings"}
OF_PLANS = {"plancast.app", "plancast.plan.context", "plancast.turn.turn", "plancast.planners.contract"}
OF_PLANNERS = {"plancast.json_values.model", "plancast.plan.effects.entries", "plancast.state_machine"}
OTHERS = {"plancast.cli.deploy.commands", "plancast.cli.apps.validate", "plancast.cli.plans.commands"}
SCRIPT = (
    "import sys; from plancast.cli import main; code = main(sys.argv[1:]); "
    "print('\\nLOADED', code, *sys.modules, file=sys.stderr)"
)


def loaded(namespace: str, *arguments: str, nats_url: str = "") -> tuple[int, str, set[str]]:
    """Exit code, output and loaded modules of a command."""
    environment = os.environ | {"PLANCAST_RAY__NAMESPACE": namespace, "PLANCAST_BUS__PREFIX": namespace}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env=environment | {"NATS_URL": nats_url},
        capture_output=True,
        text=True,
        timeout=60,
    )
    code, *modules = done.stderr.rpartition("LOADED ")[2].split()
    return int(code), done.stdout, set(modules)


@pytest.fixture
def namespace() -> str:
    return f"start-{uuid4().hex[:8]}"


def test_a_liveness_probe_loads_neither_settings_nor_nats(namespace: str) -> None:
    code, out, modules = loaded(namespace, "probe", "live")
    assert (code, out) == (0, "✓ processes: none is on this machine\n")
    assert not modules & (HEAVY | OF_BUS | OF_PLANS | OTHERS)


async def test_readiness_is_read_from_processes_that_nats_has_just_answered(
    namespace: str, nats_server: NatsServer
) -> None:
    bus = await connect(NatsSettings(url=nats_server.url), BusSettings(prefix=namespace))
    await bus.ensure_streams()
    assert connected(namespace) is None
    beating = Heartbeat(namespace, "host-0", bus)
    async with asyncio.timeout(20):
        while connected(namespace) is None:
            await asyncio.sleep(0.02)
    assert connected(namespace, time.time() + 2 * SECONDS + 1) is None, "then only a connection can tell"
    arguments = ("probe", "ready", "--role", "nats")
    code, out, modules = await asyncio.to_thread(loaded, namespace, *arguments, nats_url="nats://127.0.0.1:1")
    assert code == 0
    assert out.startswith("✓ nats: answered host-0 ")
    assert not modules & (HEAVY | OF_BUS | OF_PLANS | OTHERS)
    await beating.leave()
    await bus.close()
    assert connected(namespace) is None
    code, out, modules = await asyncio.to_thread(loaded, namespace, *arguments, nats_url=nats_server.url)
    assert code == 0
    assert out.startswith("✓ nats: answers in ")
    assert not modules & (HEAVY | OF_PLANS | OTHERS)


async def test_a_submission_loads_no_plans_and_no_apps(namespace: str, nats_server: NatsServer) -> None:
    bus = await connect(NatsSettings(url=nats_server.url), BusSettings(prefix=namespace))
    await bus.ensure_streams()
    await bus.registry.put("app", "greetings", {"goals": ["greet.goal"]})
    await bus.close()
    code, out, modules = await asyncio.to_thread(loaded, namespace, "submit", "greet.goal", nats_url=nats_server.url)
    assert code == 0
    assert len(out.split()) == 1, out
    assert not modules & (HEAVY | OF_PLANS | OF_PLANNERS | OTHERS)


@pytest.mark.parametrize(("arguments", "frozen"), [("", True), ("['--version']", False)])
def test_only_a_process_that_ends_leaves_its_modules_to_no_last_collection(arguments: str, frozen: bool) -> None:
    script = f"import gc; from plancast.cli import main; main({arguments}); print(gc.get_freeze_count() > 1000)"
    command = [sys.executable, "-c", script, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == str(frozen)


@pytest.mark.parametrize(
    ("variables", "namespace"),
    [
        ({}, Settings().ray.namespace),
        ({"PLANCAST_RAY__NAMESPACE": "red"}, "red"),
        ({"plancast_ray__namespace": "red"}, "red"),
        ({"PLANCAST_RAY": '{"namespace": "red"}'}, "red"),
    ],
)
def test_a_probe_reads_the_namespace_as_the_settings_do(
    variables: dict[str, str], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plancast.cli.diagnose.probe import _namespace

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _namespace() == Settings().ray.namespace == namespace


def test_every_command_of_the_table_loads() -> None:
    root = typer.main.get_command(app)
    assert isinstance(root, CommandTable)
    assert list(root.commands) == list(RootCommands.places)
    for name, command in root.commands.items():
        assert command.name == name
        assert command.help
        assert command.rich_help_panel == RootCommands.places[name][0]


def test_a_websocket_url_loads_what_it_needs(tmp_path: Path) -> None:
    code = (
        "import sys, plancast_bus.jetstream; from plancast_bus.jetstream.client import websockets; "
        "assert 'aiohttp' not in sys.modules; websockets.load_for(['nats://a']); assert 'aiohttp' not in sys.modules; "
        "websockets.load_for(['wss://a']); import aiohttp; assert websockets.transport.aiohttp is aiohttp"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
