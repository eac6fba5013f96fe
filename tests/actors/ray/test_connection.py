"""The start of Ray on this machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from plancast_actors.ray import connection
from plancast_bus.errors import BusUnavailable

LATE = "The current node timed out during startup. This could happen because of anything."
PROGRAM = """
import ray
import ray._private.node as ray_node
import ray._private.services as services
from plancast.settings import RaySettings
from plancast_actors.ray import connection

get_node, started = services.get_node, []

def get_node_late(*arguments):
    services.get_node = get_node
    raise Exception("The current node timed out during startup. This could happen because of anything.")

def start_processes(node):
    started.append(node)
    start_ray_processes(node)

services.get_node = get_node_late
start_ray_processes = ray_node.Node.start_ray_processes
ray_node.Node.start_ray_processes = start_processes
connection.connect(RaySettings(namespace="late"), num_cpus=1)
print(*(len(node.live_processes()) > 0 for node in started))
connection.disconnect()
"""


@pytest.mark.slow
def test_a_node_that_is_not_up_in_time_is_ended_and_started_once_more(ray_folder: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**environment, "RAY_TMPDIR": ray_folder},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.strip() == "False True", ended.stderr


@pytest.mark.parametrize(
    ("reasons", "expected", "starts"),
    [
        ([LATE, LATE], (BusUnavailable, "cannot be started on this machine"), 2),
        (["no such folder"], (RuntimeError, "no such folder"), 1),
        ([LATE, "no such folder"], (RuntimeError, "no such folder"), 2),
    ],
)
def test_only_a_node_that_was_late_is_started_again_and_only_once(
    reasons: list[str], expected: tuple[type[Exception], str], starts: int
) -> None:
    left = list(reasons)

    def start() -> None:
        raise RuntimeError(left.pop(0))

    with pytest.raises(expected[0], match=expected[1]):
        connection.start_node(start)
    assert len(reasons) - len(left) == starts
