"""Nothing that plancast starts by itself listens beyond this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.isolation.listening import addresses_of, is_loopback

from plancast_bus.nats_server.process import NatsServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="sockets are read from /proc"),
]

RAY = """
import ray
from plancast.settings import RaySettings
from plancast_actors.ray import connection as cluster

cluster.connect(RaySettings(namespace="listening"), num_cpus=1)

@ray.remote
class Actor:
    def ready(self):
        return True

actor = Actor.remote()
ray.get(actor.ready.remote())
print("ready", ray.get_runtime_context().gcs_address, cluster.own_token_path(), flush=True)
input()
cluster.disconnect()
"""
JOIN = """
import sys

import ray
from plancast.settings import RaySettings
from plancast_actors.ray import connection as cluster

cluster.connect(RaySettings(namespace="listening", address=sys.argv[1], auth_token_path=sys.argv[2]))

@ray.remote(num_cpus=0)
def run():
    return "ran"

print(ray.get(run.remote()))
"""


def test_the_embedded_nats_listens_on_the_loopback_alone(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats") as server:
        found = {address: name for address, name in addresses_of(os.getpid()).items() if "nats" in name}

        assert any(address.endswith(server.url.rpartition(":")[2]) for address in found)
        assert [address for address in found if not is_loopback(address)] == []


def test_ray_as_run_starts_it_listens_on_the_loopback_alone_and_is_found_there(ray_folder: str) -> None:
    environment = {**os.environ, "RAY_TMPDIR": ray_folder}
    environment.pop("RAY_ADDRESS", None)
    with subprocess.Popen(
        [sys.executable, "-c", RAY], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            said = process.stdout.readline().split()
            assert said[:1] == ["ready"]
            found = addresses_of(process.pid)
            joined = subprocess.run(
                [sys.executable, "-c", JOIN, *said[1:]],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            process.stdin.close()
            process.terminate()

    assert len(found) > 3
    assert {address: name for address, name in found.items() if not is_loopback(address)} == {}
    assert joined.stdout.strip() == "ran", joined.stderr
