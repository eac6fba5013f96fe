"""Deployments on several nats-servers and Ray nodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.cluster.nats_cluster import NatsCluster
from tests.cluster.ray_nodes import RayNodes

from plancast import Settings
from plancast_actors.deployment.deployment import Deployment

APPS = str(Path(__file__).parent.parent / "apps")
Deploy = Callable[..., Awaitable[Deployment]]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a small deployment."""
    made = Settings(data_dir=tmp_path / "plancast")
    made.hosts.count = 2
    made.dispatchers.count = 2
    made.dispatchers.ack_wait = 10.0
    return made


@pytest.fixture
def nats_cluster(tmp_path: Path, settings: Settings) -> Iterator[NatsCluster]:
    """Three nats-servers, which the settings name, with three replicas of everything."""
    with NatsCluster(tmp_path / "cluster") as running:
        settings.nats.url = running.url
        settings.bus.replicas = 3
        yield running


@pytest.fixture
def ray_nodes(settings: Settings) -> Iterator[RayNodes]:
    """A Ray cluster, to be started."""
    made = RayNodes(settings)
    yield made
    made.stop()


@pytest.fixture
def deploy(settings: Settings) -> Deploy:
    """Deploys an app of the walks."""

    async def up(app: str = "walk_app:app") -> Deployment:
        return await Deployment.up(app, settings, import_paths=[APPS])

    return up
