"""Whether `plancast deploy` may put its code where other code runs, or ran last."""

from __future__ import annotations

from typing import Any

import pytest

from plancast.cli.deploy.commands import _refuse_other_code
from plancast.cli.errors import CommandFailed
from plancast.settings import Settings
from plancast_actors.deployment.deployment import Deployment
from plancast_actors.release import RECORD, Release
from plancast_bus.memory import MemoryBus

OLD, NEW = Release("old", "0.1.0"), Release("new", "0.1.0")


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Reports of the hosts in Ray; none after the loss of Ray."""
    reports: list[dict[str, Any]] = []

    async def find(settings: Settings) -> Any:
        return Deployment("", settings) if reports else None

    async def status(self: Deployment) -> dict[str, Any]:
        return {"hosts": reports}

    monkeypatch.setattr(Deployment, "find", find)
    monkeypatch.setattr(Deployment, "status", status)
    return reports


@pytest.fixture
async def bus() -> MemoryBus:
    made = MemoryBus()
    await made.registry.put(RECORD, "plancast", NEW.to_record("shop", "shop:app"))
    return made


async def test_code_that_an_upgrade_has_replaced_is_refused_after_the_loss_of_ray_unless_it_is_forced(
    bus: MemoryBus, hosts: list[dict[str, Any]]
) -> None:
    with pytest.raises(CommandFailed, match=r"last .*: code new, plancast 0\.1\.0; this is code old") as refused:
        await _refuse_other_code(bus, Settings(), OLD, False)
    assert "--force" in refused.value.hint
    await _refuse_other_code(bus, Settings(), OLD, True)
    await _refuse_other_code(bus, Settings(), NEW, False)


async def test_force_does_not_deploy_beside_hosts_that_would_keep_other_code(
    bus: MemoryBus, hosts: list[dict[str, Any]]
) -> None:
    hosts += [{"name": "host-0", "alive": True, "code": "new"}, {"name": "host-1", "alive": False}]
    for force in (False, True):
        with pytest.raises(CommandFailed, match="already runs other code: new") as refused:
            await _refuse_other_code(bus, Settings(), OLD, force)
        assert "--force" not in refused.value.hint
    await _refuse_other_code(bus, Settings(), NEW, False)


async def test_a_first_deployment_and_one_over_unknown_code_that_is_gone_are_not_refused(
    hosts: list[dict[str, Any]],
) -> None:
    bus = MemoryBus()
    await _refuse_other_code(bus, Settings(), OLD, False)
    await bus.registry.put(RECORD, "plancast", Release().to_record("shop", "shop:app"))
    await _refuse_other_code(bus, Settings(), OLD, False)
