"""Hosts and dispatchers are added and removed while plans run, also by a command that is killed midway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from ray.util.placement_group import placement_group_table
from tests.cluster.conftest import APPS
from tests.cluster.expedition import Expedition
from tests.cluster.ray_nodes import RayNodes

from plancast import Settings
from plancast_actors.deployment.deployment import Deployment
from plancast_actors.deployment.scaling import host_autoscaler
from plancast_actors.deployment.scaling.host_autoscaler import HostAutoscaler
from plancast_actors.deployment.scaling.host_demand import HostDemand
from plancast_actors.deployment.scaling.scaler import Scaler, ScaleRefused
from plancast_actors.release import RECORD
from plancast_actors.scale import Scale, overridden, scale_of
from plancast_bus.nats_server.process import NatsServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
Deploy = Callable[..., Awaitable[Deployment]]
PATIENCE = 120.0
STEPS = ("pause", "follow", "passivate", "drain")


@pytest.fixture(autouse=True)
def server(fresh_nats: NatsServer, settings: Settings) -> NatsServer:
    settings.nats.url = fresh_nats.url
    return fresh_nats


class Killed(BaseException):
    """The process of the command is killed."""


class KilledAt(Deployment):
    """A deployment whose caller is killed when it has called a method of an actor."""

    def __init__(self, settings: Settings, method: str) -> None:
        super().__init__("", settings)
        self.method = method

    async def call(self, name: str, method: str, *arguments: Any, seconds: float) -> Any:
        await super().call(name, method, *arguments, seconds=seconds)
        if method == self.method:
            raise Killed
        return await super().call(name, method, *arguments, seconds=seconds)


async def numbers(deployment: Deployment, plans: Expedition) -> Any:
    record = await plans.bus.registry.get(RECORD, deployment.namespace)
    return scale_of(record, await deployment.status())


def both(number: int) -> dict[str, int]:
    return {"wanted": number, "actual": number}


async def test_plans_go_on_while_hosts_and_dispatchers_come_and_go(
    ray_nodes: RayNodes, settings: Settings, deploy: Deploy
) -> None:
    ray_nodes.start(nodes=2, num_cpus=2)
    deployment = await deploy()
    async with Expedition(settings) as plans:
        plans.go_on()
        await plans.underway()
        pids = {each["name"]: each["pid"] for each in (await deployment.status())["hosts"]}
        for hosts, dispatchers in ((4, None), (None, 3), (1, 1), (3, 2)):
            began = time.monotonic()
            scaled = await Scaler(deployment, plans.bus, timeout=60).run(Scale(hosts, dispatchers))
            print(scaled, f"{time.monotonic() - began:.1f} s, silent {plans.silence_since(began):.1f} s")
            assert scaled.drained
            found = await numbers(deployment, plans)
            assert found["hosts"] == both(hosts or scaled.numbers["hosts"])
            assert found["dispatchers"] == both(dispatchers or scaled.numbers["dispatchers"])
            await plans.underway()
        status = await deployment.status()
        assert {each["name"]: each["pid"] for each in status["hosts"]}["host-0"] == pids["host-0"]
        assert not any(each["restarts"] for each in (*status["hosts"], *status["dispatchers"]))
        shards = sorted(shard for each in status["dispatchers"] for shard in each["shards"])
        assert shards == list(range(settings.bus.shards))
        turns = {each["name"]: each["turns"] for each in status["hosts"]}
        async with asyncio.timeout(PATIENCE):  # all hosts have plans
            while any(each["turns"] <= turns[each["name"]] for each in (await deployment.status())["hosts"]):
                await plans.underway()
        await plans.arrive()
        groups = {each["name"] for each in placement_group_table().values() if each["state"] != "REMOVED"}
        assert f"{deployment.namespace}/host-0" in groups
        assert f"{deployment.namespace}/host-3" not in groups, "its cores are free again"
        await Deployment.up("walk_app:app", settings, import_paths=[APPS])
        found = await numbers(deployment, plans)
        assert found == {"hosts": both(3), "dispatchers": both(2)}, "a deployment keeps the numbers"
        record = await plans.bus.registry.get(RECORD, deployment.namespace)
        assert overridden(record) == {
            "hosts": {"scale": 3, "settings": 2}, "dispatchers": {"scale": 2, "settings": 2}
        }  # fmt: skip
        assert (await Scaler(deployment, plans.bus).run(Scale(dispatchers=1), reset=True)).drained
        found = await numbers(deployment, plans)
        assert found == {"hosts": both(2), "dispatchers": both(1)}, "the settings, but for what is given"
        await Scaler(deployment, plans.bus).run(Scale(), reset=True)
        assert (await numbers(deployment, plans))["dispatchers"] == both(2)
        assert overridden(await plans.bus.registry.get(RECORD, deployment.namespace)) is None
        with pytest.raises(ScaleRefused, match="17 dispatchers cannot share 16 shards"):
            await Scaler(deployment, plans.bus).run(Scale(dispatchers=17))
    await deployment.down()


async def test_a_change_that_was_killed_midway_loses_nothing_and_is_completed_by_another(
    ray_nodes: RayNodes, settings: Settings, deploy: Deploy
) -> None:
    ray_nodes.start(nodes=1, num_cpus=4)
    deployment = await deploy()
    async with Expedition(settings) as plans:
        plans.go_on()
        await plans.underway()
        for number, step in enumerate(STEPS):
            wanted = (4, 3) if number % 2 == 0 else (2, 1)
            if step == "drain":
                wanted = (1, 1)
            with pytest.raises(Killed):
                await Scaler(KilledAt(settings, step), plans.bus).run(Scale(*wanted))
            await plans.underway()
            await Scaler(deployment, plans.bus).run(Scale(*wanted))
            found = await numbers(deployment, plans)
            assert found == {"hosts": both(wanted[0]), "dispatchers": both(wanted[1])}, step
            await plans.underway()
        for name in ("dispatcher-0", "host-0"):
            await deployment.kill(name)
            await plans.underway()
        found = await numbers(deployment, plans)
        assert found == {"hosts": both(wanted[0]), "dispatchers": both(wanted[1])}, "also after restarts"
        await plans.arrive()
    await deployment.down()


GATE = """
import asyncio
from pathlib import Path
from plancast import App, PlanContext, Planner

planner = Planner("gate")


@planner.on_goal("gate.goal")
async def begin(goal, context):
    while not Path(goal.data["gate"]).exists():
        await asyncio.sleep(0.1)
    plan = await PlanContext.create_from_goal(goal, {"start": {"state_name": "start", "is_terminal": True}})
    await plan.execute_next()


app = App("gate", planners=[planner])
"""


async def test_a_backlog_brings_hosts_and_its_end_removes_them(
    ray_nodes: RayNodes, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_nodes.start(nodes=1, num_cpus=4)
    settings.hosts.count = 1
    monkeypatch.setattr(host_autoscaler, "SECONDS", 0.5)
    (tmp_path / "gate_app.py").write_text(GATE)
    gate = tmp_path / "open"
    deployment = await Deployment.up("gate_app:app", settings, import_paths=[str(tmp_path)])
    said: list[str] = []
    async with Expedition(settings) as plans:

        async def change(hosts: int) -> None:
            await Scaler(deployment, plans.bus).run(Scale(hosts))

        async def until(hosts: int) -> None:
            async with asyncio.timeout(PATIENCE):
                while (await numbers(deployment, plans))["hosts"] != both(hosts):
                    await asyncio.sleep(0.2)

        demand = HostDemand(1, 3, backlog=50, idle_seconds=1.0)
        scaling = HostAutoscaler(plans.bus, settings.ray.namespace, demand, change, said.append)
        running = asyncio.ensure_future(scaling.run())
        handles = [await plans.client.submit("gate.goal", {"gate": str(gate)}) for _ in range(200)]
        await until(3)
        gate.touch()
        await asyncio.gather(*(handle.result(timeout=PATIENCE) for handle in handles))
        await until(1)
        assert [each.partition(": ")[2] for each in said] == [f"scaling to {hosts}" for hosts in (2, 3, 2, 1)]
        assert [len(await handle.history()) for handle in handles] == [1] * 200
        await deployment.down()
        await asyncio.wait_for(running, PATIENCE)
