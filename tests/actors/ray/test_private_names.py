"""The private names of Ray that are replaced or used; those of nats-py are in tests/bus/jetstream/client."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import ray
import ray._private.authentication.authentication_token_setup as token_setup
import ray._private.services as services
import ray._private.state as state
import ray._private.worker as worker
from ray._common import utils
from ray._private.node import Node
from ray._raylet import GcsClient, InnerGcsClient  # type: ignore[attr-defined]
from ray.actor import ActorHandle
from ray.exceptions import RayError

USED = [
    (services, ("canonicalize_bootstrap_address", "get_node", "resolve_ip_for_localhost")),
    (worker, ("print_to_stdstream",)),
    (token_setup, ("AuthenticationTokenLoader", "Config", "maybe_enable_token_auth_if_token_available")),
    (token_setup.AuthenticationTokenLoader, ("instance", "reset_cache")),
    (token_setup.Config, ("initialize",)),
    (utils, ("get_default_system_temp_dir",)),
    (Node, ("kill_all_processes", "live_processes", "start_ray_processes")),
    (state, ("actors", "state")),
    (state.state, ("available_resources_per_node", "get_draining_nodes")),
    (GcsClient, ("__getattr__",)),
    (InnerGcsClient, ("drain_node",)),
]
OPTIONS = ("_metrics_export_port", "_node_ip_address", "_temp_dir")
"""Arguments of ``ray.init`` that are not documented."""


@pytest.mark.parametrize(("owner", "names"), USED, ids=lambda each: getattr(each, "__name__", ""))
def test_ray_still_has_the_private_names_that_are_used(owner: Any, names: tuple[str, ...]) -> None:
    gone = [name for name in names if not hasattr(owner, name)]
    assert not gone, (
        f"this version of Ray no longer has {', '.join(gone)}, which plancast_actors.ray uses: pin the version before "
        "it, or mend connection.py, process.py and placement.py"
    )


def test_ray_still_calls_what_is_replaced() -> None:
    """A function that is never called any more could be replaced without effect."""
    sources = "".join(inspect.getsource(each) for each in (services, worker, inspect.getmodule(Node)))
    for call in ("resolve_ip_for_localhost(", "canonicalize_bootstrap_address(", "print_to_stdstream("):
        assert sources.count(call) > 1, f"Ray no longer calls {call}...): replacing it has no effect"


def test_ray_still_takes_the_private_options() -> None:
    assert not [each for each in OPTIONS if each not in inspect.getsource(ray.init)]


def test_an_actor_handle_still_has_its_id() -> None:
    assert "_actor_id" in inspect.getsource(ActorHandle)


def test_ray_still_says_that_a_node_is_late_in_words_that_are_known() -> None:
    for source, words in ((Node, "timed out during startup"), (services, "waiting for node to startup")):
        text = inspect.getsource(inspect.getmodule(source) or services)
        assert words in text, f"connection.start_node no longer knows late nodes by {words!r}"
    assert issubclass(RayError, Exception)
