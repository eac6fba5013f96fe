"""The connections of all actors end for good: Ray starts each anew, and plans go on. On real Ray."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from uuid import uuid4

import pytest
from tests.attack.running import PATIENCE, PROTOCOL_ERROR, Proxy
from tests.attack.test_lost_connection import APPS, command

from plancast import Client, Settings
from plancast_actors.deployment.local import LocalRuntime
from plancast_actors.ray.process import restarts_of
from plancast_bus.nats_server.process import NatsServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.attack(
    who="stranger", what="all connections of a deployment end for good", expected="actors anew, plans go on"
)
async def test_actors_come_back_and_plans_go_on(nats_server: NatsServer, tmp_path: Path) -> None:
    async with Proxy.before(nats_server.url) as proxy:
        settings = Settings(data_dir=tmp_path)
        settings.nats.url = proxy.url
        settings.bus.prefix = f"r{uuid4().hex}"
        settings.hosts.count = 1
        direct = settings.model_copy(deep=True)
        direct.nats.url = nats_server.url
        async with LocalRuntime("chain_app:app", settings, import_paths=[str(APPS)]) as running:
            async with Client.connect(settings=direct) as client:
                before = await client.submit("chain.goal", {"n": 1})
                assert (await before.result(timeout=PATIENCE))["three"] == {"n": 4}
                asking = await client.submit("ask.goal", {})
                names = await running.deployment.names()
                pids = {name: await _pid(running, name) for name in names}
                proxy.say_error(PROTOCOL_ERROR)
                meanwhile = [await client.submit("chain.goal", {"n": n}) for n in range(20)]
                results = await asyncio.gather(*(each.result(timeout=2 * PATIENCE) for each in meanwhile))
                assert [each["three"]["n"] for each in results] == [n + 3 for n in range(20)]
                await asking.signal("person.answered", {"ok": True})
                await asking.result(timeout=PATIENCE)
            for name in names:
                assert await _pid(running, name) != pids[name], name
            restarted = await asyncio.to_thread(restarts_of, running.namespace, names)
            assert set(restarted.values()) == {1}


async def _pid(running: LocalRuntime, name: str) -> int:
    import ray

    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return int(await ray.get_actor(name, namespace=running.namespace).pid.remote())
            except ray.exceptions.RayError:
                await asyncio.sleep(0.2)


@pytest.mark.attack(who="stranger", what="the connection of `plancast run` ends for good", expected="it ends, aloud")
async def test_run_ends_with_its_connection(nats_server: NatsServer, tmp_path: Path) -> None:
    async with Proxy.before(nats_server.url) as proxy:
        arguments = ("run", "chain_app:app", "--nats-url", proxy.url, "--data-dir", str(tmp_path), "--hosts", "1")
        with command(*arguments, "--json", PLANCAST_BUS__PREFIX=f"r{uuid4().hex}") as process:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            assert json.loads(line)["ready"]
            proxy.say_error(PROTOCOL_ERROR)
            try:
                _, said = await asyncio.to_thread(process.communicate, timeout=2 * PATIENCE)
            except Exception:
                process.send_signal(signal.SIGTERM)
                raise
        assert process.returncode == 3, said
        assert "closed for good: maximum control line exceeded" in said
