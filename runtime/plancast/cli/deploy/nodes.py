"""`plancast drain --node` and `plancast rebalance`: actors move to other nodes while plans go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from plancast.cli.connection import joined, load_settings, open_bus
from plancast.cli.deploy.commands import HERE, Timeout, found_deployment
from plancast.cli.deploy.ray_job import is_dashboard, run_in_cluster
from plancast.cli.errors import DONE, usage_error
from plancast.cli.options import AsJson, LogFormat, NatsUrl, RayAddress, Verbose
from plancast.terminal.output import note, plural, print_json, print_line

if TYPE_CHECKING:
    from plancast.settings import Settings


def rebalance(
    address: RayAddress = None,
    nats_url: NatsUrl = None,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
    verbose: Verbose = 0,
    log_format: LogFormat = None,
) -> int:
    """Move actors so that no node has more than its share of a role, as after a node was added, while plans continue.

    Run it again if it was interrupted.
    """
    document = move(load_settings(address=address, nats_url=nats_url), "", timeout)
    if as_json:
        print_json(document)
    else:
        print_line(f"moved {plural(len(document['moved']), 'actor')}; namespace={document['namespace']}")
    return DONE


def move(settings: Settings, node: str, timeout: float) -> dict[str, Any]:
    """Move all actors off a node, by its id or :data:`HERE`, or without one, those that crowd nodes."""
    if not settings.ray.address or not settings.nats.url:
        raise usage_error(
            "moving actors requires the Ray cluster and the nats-server of the deployment",
            "Give them with --address or RAY_ADDRESS, and --nats-url or NATS_URL.",
        )
    if is_dashboard(settings.ray.address) and node == HERE:
        raise usage_error(
            "a job in the cluster does not know the node of this machine",
            f"Give the node's id with --node, or run this on the node with `--node {HERE} --address auto`.",
        )
    return asyncio.run(moved(settings, node, timeout))


async def moved(settings: Settings, node: str, timeout: float) -> dict[str, Any]:
    """Do what :func:`move` does, from an event loop."""
    if is_dashboard(settings.ray.address):
        command = ["drain", "--node", node] if node else ["rebalance"]
        return await asyncio.to_thread(run_in_cluster, [*command, "--timeout", f"{timeout:g}"], settings)
    from plancast_actors.deployment.relocation import Relocation
    from plancast_actors.ray import connection

    async with open_bus(settings) as bus, joined(settings):
        node = connection.own_node() if node == HERE else node
        relocation = Relocation(await found_deployment(settings), bus, timeout=timeout, say=note)
        done = await (relocation.drain(node) if node else relocation.rebalance())
    if not done.drained:
        note(
            f"not all work of moved actors finished within {timeout:g} s; their successors have started the rest again"
        )
    about = {"node": node} if node else {}
    return {"drained": done.drained, "namespace": settings.ray.namespace, **about, "moved": list(done.names)}
