"""Probes tell what they are asked: that event loops turn, and that a deployment can work."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from plancast_actors.deployment.health import liveness, readiness
from plancast_actors.liveness.heartbeat import Heartbeat
from plancast_actors.liveness.heartbeat_files import FRESH_SECONDS, KIND, folder_of
from plancast_actors.release import RECORD
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.settings import BusSettings, NatsSettings

RUNNING = {"dispatchers": 1, "hosts": 2, "workers": 0}


@pytest.fixture
def namespace() -> str:
    return f"health-{uuid4().hex[:8]}"


@pytest.fixture
async def bus(nats_server: NatsServer, namespace: str) -> AsyncIterator[JetStreamBus]:
    made = await connect(NatsSettings(url=nats_server.url), BusSettings(prefix=namespace))
    yield made
    await made.close()


def failing(found: object) -> set[str]:
    return {check.name for check in found.checks if not check.ok}  # type: ignore[attr-defined]


async def reports(bus: JetStreamBus, count: int) -> None:
    async with asyncio.timeout(10):
        while len(await bus.registry.list(KIND)) != count:
            await asyncio.sleep(0.02)


async def test_a_process_is_live_while_its_loop_turns(namespace: str) -> None:
    assert liveness(namespace).ok, "what is not there cannot hang"
    heartbeat = Heartbeat(namespace, "host-0", None)
    async with asyncio.timeout(10):
        while liveness(namespace).checks[0].name != "host-0":
            await asyncio.sleep(0.01)
    now = time.time()
    assert [(check.name, check.ok) for check in liveness(namespace).checks] == [("host-0", True)]
    assert failing(liveness(namespace, now + FRESH_SECONDS + 1)) == {"host-0"}
    await heartbeat.leave()
    assert liveness(namespace, now + FRESH_SECONDS + 1).ok


def test_what_a_dead_process_has_left_is_cleared_away(namespace: str) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    sign = folder_of(namespace) / f"host-0.{done.pid}"
    sign.parent.mkdir(parents=True)
    sign.write_text('{"at": 0}')
    assert liveness(namespace).ok
    assert not sign.parent.exists()


async def test_a_deployment_is_ready_when_all_its_processes_report(bus: JetStreamBus, namespace: str) -> None:
    assert (await readiness(bus, namespace, "nats")).ok
    assert failing(await readiness(bus, namespace)) == {"streams"}
    await bus.ensure_streams()
    assert failing(await readiness(bus, namespace)) == {"deployment"}
    await bus.registry.put(RECORD, namespace, RUNNING)
    assert failing(await readiness(bus, namespace)) == {"dispatchers", "hosts"}
    beating = [Heartbeat(namespace, name, bus) for name in ("dispatcher-0", "host-0")]
    await reports(bus, 2)
    found = await readiness(bus, namespace)
    assert failing(found) == {"hosts"}
    assert "host-1" in next(check.detail for check in found.checks if check.name == "hosts")
    assert (await readiness(bus, namespace, "dispatchers")).ok
    beating.append(Heartbeat(namespace, "host-1", bus))
    await reports(bus, 3)
    assert (await readiness(bus, namespace)).ok
    assert failing(await readiness(bus, namespace, now=time.time() + FRESH_SECONDS + 5)) == {"dispatchers", "hosts"}
    await asyncio.gather(*(each.leave() for each in beating))
    assert failing(await readiness(bus, namespace)) == {"dispatchers", "hosts"}


async def test_a_deployment_whose_processes_run_two_releases_is_not_ready(bus: JetStreamBus, namespace: str) -> None:
    await bus.ensure_streams()
    await bus.registry.put(RECORD, namespace, {"hosts": 2, "code": "one"})
    beating = [Heartbeat(namespace, f"host-{index}", bus, code) for index, code in enumerate(("one", "two"))]
    await reports(bus, 2)
    found = await readiness(bus, namespace)
    assert failing(found) == {"release"}
    mixed = next(each.detail for each in found.checks if each.name == "release")
    assert mixed.startswith("mixed: code one in host-0, two in host-1;")
    assert (await readiness(bus, namespace, "hosts")).ok
    await bus.registry.put(RECORD, namespace, {"hosts": 2, "code": "two"})
    await beating[0].leave()
    beating[0] = Heartbeat(namespace, "host-0", bus, "two")
    await reports(bus, 2)
    assert (await readiness(bus, namespace)).ok
    await asyncio.gather(*(each.leave() for each in beating))


async def test_processes_of_another_namespace_do_not_count(bus: JetStreamBus, namespace: str) -> None:
    await bus.ensure_streams()
    await bus.registry.put(RECORD, namespace, {"dispatchers": 1})
    other = Heartbeat(f"{namespace}-other", "dispatcher-0", bus)
    await reports(bus, 1)
    assert failing(await readiness(bus, namespace)) == {"dispatchers"}
    await other.leave()


@pytest.mark.parametrize("arguments", [("probe", "live"), ("probe", "ready", "--role", "nats")])
def test_a_probe_loads_neither_ray_nor_an_app(nats_server: NatsServer, arguments: tuple[str, ...]) -> None:
    script = (
        "import sys; from plancast.cli import main; code = main(sys.argv[1:]); "
        "print('LOADED', code, {'ray', 'litellm', 'fastapi'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "NATS_URL": nats_server.url, "PLANCAST_RAY__NAMESPACE": f"n-{uuid4().hex}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "LOADED 0 set()"


def test_a_probe_of_a_server_that_is_gone_fails() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "plancast", "probe", "ready", "--nats-url", "nats://127.0.0.1:1", "--json"],
        env={**os.environ, "PLANCAST_NATS__CONNECT_TIMEOUT": "0.3"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, '"ok": false' in done.stdout) == (1, True)
