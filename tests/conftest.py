"""What tests of the shell stand on: a real nats-server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from plancast_bus.nats_server.process import NatsServer


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One nats-server for the whole run: give streams, subjects and buckets names of your own."""
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def fresh_nats(tmp_path: Path) -> Iterator[NatsServer]:
    """A nats-server of a test's own, to be killed, restarted or filled up."""
    with NatsServer(tmp_path / "nats") as server:
        yield server
