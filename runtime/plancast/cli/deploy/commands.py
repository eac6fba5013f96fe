"""`plancast deploy`, `upgrade` and `drain`: an app on an existing Ray cluster."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from plancast.cli.apps.validate import load_valid
from plancast.cli.connection import joined, load_settings, open_bus
from plancast.cli.deploy.code import Code, Exclude, NoShip, Pip, Requirements, WorkingDir, shipped_code
from plancast.cli.deploy.ray_job import is_dashboard, run_in_cluster
from plancast.cli.deploy.upgrade_check import check_upgrade
from plancast.cli.errors import DONE, FAILED, CommandFailed, usage_error
from plancast.cli.options import AppAddress, AsJson, LogFormat, NatsUrl, RayAddress, Verbose
from plancast.terminal.output import duration, note, plural, print_json, print_line

if TYPE_CHECKING:
    from plancast.app import App
    from plancast.settings import Settings
    from plancast_actors.deployment.deployment import Deployment
    from plancast_actors.ray.process import Blueprint
    from plancast_actors.release import Release
    from plancast_bus.ports.bus import Bus

KINDS = ("dispatchers", "hosts", "workers", "reasoners")
HERE: Final = "here"
"""Stands for the id of the node on which a command runs."""
NoWorkers = Annotated[
    bool, typer.Option("--no-workers", help="Do not start the app's workers; `plancast worker` runs them.")
]
CodeName = Annotated[str, typer.Option("--code", hidden=True)]  # digest of the code that was submitted with this job
Timeout = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Maximum time for work in flight to finish.")]


def deploy(
    app: AppAddress,
    address: RayAddress = None,
    nats_url: NatsUrl = None,
    no_workers: NoWorkers = False,
    working_dir: WorkingDir = None,
    exclude: Exclude = None,
    pip: Pip = None,
    requirements: Requirements = None,
    no_ship: NoShip = False,
    code_name: CodeName = "",
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Stay; deploy again when Ray was lost, rebalance when a node has come."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Deploy even if Ray was lost with other code than this running.")
    ] = False,
    as_json: AsJson = False,
    verbose: Verbose = 0,
    log_format: LogFormat = None,
) -> int:
    """Deploy an app on a Ray cluster and return; the app runs until `plancast stop --address`.

    The code is shipped to all nodes. With an address such as http://head:8265, a job in the cluster deploys it.
    Refused when other code runs, or ran last, as after an upgrade.
    """
    loaded, settings = _load(app, working_dir, address, nats_url)
    with shipped_code(app, working_dir, exclude, pip, requirements, no_ship, code_name) as code:
        document = asyncio.run(deployed(loaded, app, settings, code, no_workers, no_ship, force))
        if as_json:
            print_json(document)
        else:
            print_line(f"deployed {document['app']}: {_counted(document)}; namespace={document['namespace']}")
        if watch:
            from plancast.cli.deploy import deployer

            note("watching: deploys again when no process reports, rebalances for new nodes; ends with `plancast stop`")
            asyncio.run(deployer.watch(app, settings, code, document["code"], no_workers, no_ship))
            note("the deployment was stopped")
    return DONE


async def deployed(
    app: App, address: str, settings: Settings, code: Code, no_workers: bool, no_ship: bool, force: bool = False
) -> dict[str, Any]:
    """Deploy an app, from here or by a job in the cluster; returns what runs.

    Raises:
        CommandFailed: other code runs, or ran last, or the job has failed.
        BusUnavailable: NATS or Ray cannot be used.
    """
    if is_dashboard(settings.ray.address):
        command = ["deploy", address, *_flags(no_workers, no_ship, code), *(["--force"] if force else [])]
        return await asyncio.to_thread(run_in_cluster, command, settings, code)
    return await _deploy(app, address, settings, code, not no_workers, force)


async def _deploy(app: App, address: str, settings: Settings, code: Code, workers: bool, force: bool) -> dict[str, Any]:
    async with open_bus(settings) as bus:  # fails early, and here, when NATS cannot be used
        await bus.ensure_streams()
        note(f"deploying {app.name} on {settings.ray.address} …")
        from plancast_actors.deployment import preflight
        from plancast_actors.deployment.deployment import Deployment
        from plancast_actors.deployment.lease import DeploymentLease

        async with joined(settings, code.runtime_env):
            blueprint = await _blueprint(app, address, settings, code)
            await preflight.check(blueprint)
            purpose = f"deploy of {blueprint.release}"
            async with DeploymentLease(bus.registry, settings.ray.namespace, purpose, say=note):
                await _refuse_other_code(bus, settings, blueprint.release, force)
                deployment = await Deployment.up(
                    address,
                    settings,
                    workers=workers,
                    import_paths=code.import_paths,
                    release=blueprint.release,
                    runtime_env=blueprint.runtime_env,
                )
            counts = await _count(deployment)
    about = {"code": blueprint.release.code, "plancast": blueprint.release.plancast}
    return {"deployed": True, "app": app.name, "namespace": settings.ray.namespace, **about, **counts}


async def _refuse_other_code(bus: Bus, settings: Settings, release: Release, force: bool) -> None:
    """Refuse to deploy over other code: running hosts would keep it, and a late deployment would undo an upgrade."""
    from plancast_actors.deployment.deployment import Deployment
    from plancast_actors.release import RECORD

    running = await Deployment.find(settings)
    hosts = (await running.status())["hosts"] if running is not None else []
    codes = [each.get("code", "") for each in hosts if each["alive"]]
    record = None if force else await bus.registry.get(RECORD, settings.ray.namespace)
    refusal = release.refusal(codes, record)
    if refusal:
        raise CommandFailed(
            f"the namespace {settings.ray.namespace!r} {refusal}",
            hint="`plancast upgrade` replaces it while plans continue"
            + ("." if codes else "; with --force, this code is deployed anyway."),
        )


def upgrade(
    app: AppAddress,
    address: RayAddress = None,
    nats_url: NatsUrl = None,
    no_workers: NoWorkers = False,
    working_dir: WorkingDir = None,
    exclude: Exclude = None,
    pip: Pip = None,
    requirements: Requirements = None,
    no_ship: NoShip = False,
    code_name: CodeName = "",
    check: Annotated[
        bool,
        typer.Option("--check", help="Change nothing: judge all live plans against the new code. Exits 1 unless same."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Upgrade even if running plans will fail.")] = False,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
    verbose: Verbose = 0,
    log_format: LogFormat = None,
) -> int:
    """Replace the code of a deployment while its plans continue; if the new code does not start, restore the old one.

    Refused when the new app lacks a planner or goal that running plans need.
    """
    loaded, settings = _load(app, working_dir, address, nats_url, needs_ray=not check)
    with shipped_code(app, working_dir, exclude, pip, requirements, no_ship, code_name) as code:
        if check:
            return check_upgrade(loaded, app, settings, code, _flags(no_workers, no_ship, code), as_json)
        if is_dashboard(settings.ray.address):
            flags = [*_flags(no_workers, no_ship, code), *(["--force"] if force else []), "--timeout", f"{timeout:g}"]
            document = run_in_cluster(["upgrade", app, *flags], settings, code)
        else:
            document = asyncio.run(_upgrade(loaded, app, settings, code, not no_workers, force, timeout))
    if as_json:
        print_json(document)
        return DONE
    before, after = document["before"], document["after"]
    print_line(
        f"upgraded {document['app']} from {before['code'] or 'unknown'} to {after['code']}, {document['mode']}, "
        f"in {duration(document['seconds'])}: {_counted(document)}; namespace={document['namespace']}"
    )
    return DONE


async def _upgrade(
    app: App, address: str, settings: Settings, code: Code, workers: bool, force: bool, timeout: float
) -> dict[str, Any]:
    from plancast_actors.deployment.upgrade import Upgrade

    async with open_bus(settings) as bus, joined(settings, code.runtime_env):
        deployment = await _upgradable(bus, settings)
        blueprint = await _blueprint(app, address, settings, code)
        options: dict[str, Any] = {"workers": workers, "force": force, "timeout": timeout, "say": note}
        done = await Upgrade(deployment, app, blueprint, bus, **options).run()
        counts = await _count(deployment)
    if not done.drained:
        note(f"not all work in flight finished within {timeout:g} s; the rest was started again")
    releases = {"before": done.before, "after": done.after}
    stamps = {key: {"code": each.code, "plancast": each.plancast} for key, each in releases.items()}
    about = {"app": app.name, "namespace": settings.ray.namespace, "mode": done.mode, "drained": done.drained}
    return {"upgraded": True, **about, "seconds": round(done.seconds, 3), **stamps, **counts}


async def _upgradable(bus: Bus, settings: Settings) -> Deployment:
    """Find the deployment; one whose actors an upgrade has ended before it was killed has only its record."""
    from plancast_actors.deployment.deployment import Deployment
    from plancast_actors.release import RECORD

    if await Deployment.find(settings) is None and await bus.registry.get(RECORD, settings.ray.namespace) is not None:
        return Deployment("", settings)
    return await found_deployment(settings)


def drain(
    address: RayAddress = None,
    nats_url: NatsUrl = None,
    node: Annotated[
        str,
        typer.Option(
            "--node",
            metavar=f"ID|{HERE}",
            help="Only move the actors of this Ray node to others, before it stops; plans continue.",
        ),
    ] = "",
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Stop accepting work and finish what is in flight. Plans wait in NATS until the next `plancast deploy`.

    With --node, plans continue on other nodes; Ray places nothing on the node any more, and it has to be stopped.
    """
    settings = load_settings(address=address, nats_url=nats_url)
    if not settings.ray.address:
        raise usage_error("draining requires the Ray cluster's address", "Give it with --address or RAY_ADDRESS.")
    if node:
        from plancast.cli.deploy.nodes import move

        document = move(settings, node, timeout)
        done = f"drained the node {document['node']}: {plural(len(document['moved']), 'actor')} moved to other nodes"
    else:
        if is_dashboard(settings.ray.address):
            document = run_in_cluster(["drain", "--timeout", f"{timeout:g}"], settings)
        else:
            document = asyncio.run(_drain(settings, timeout))
        done = f"drained {document['namespace']}: it accepts no work until it is deployed again"
    if as_json:
        print_json(document)
    elif document["drained"]:
        print_line(done)
    elif not node:
        note(f"not all work finished within {timeout:g} s; the rest starts again when the app is deployed again")
    return DONE if document["drained"] else FAILED


async def _drain(settings: Settings, timeout: float) -> dict[str, Any]:
    async with joined(settings):
        drained = await (await found_deployment(settings)).quiesce(timeout)
    return {"drained": drained, "namespace": settings.ray.namespace}


async def found_deployment(settings: Settings) -> Deployment:
    """Find the deployment in the settings' namespace.

    Raises:
        CommandFailed: there is none.
    """
    from plancast_actors.deployment.deployment import Deployment

    deployment = await Deployment.find(settings)
    if deployment is None:
        raise CommandFailed(
            f"nothing is deployed in the namespace {settings.ray.namespace!r} of {settings.ray.address}",
            hint="`plancast deploy MODULE:APP` deploys an app; PLANCAST_RAY__NAMESPACE selects another namespace.",
        )
    return deployment


async def _blueprint(app: App, address: str, settings: Settings, code: Code) -> Blueprint:
    from plancast_actors.deployment.deployment import blueprint_of
    from plancast_actors.ray import connection
    from plancast_actors.release import Release

    release = Release(code=code.digest, deployed_at=time.time())
    made = blueprint_of(app, address, settings, code.import_paths)
    return dataclasses.replace(made, release=release, runtime_env=connection.shipped())


def _load(
    app: str, working_dir: Path | None, address: str | None, nats_url: str | None, *, needs_ray: bool = True
) -> tuple[App, Settings]:
    if working_dir is not None:
        sys.path.insert(0, str(working_dir.resolve()))
    loaded = load_valid(app)
    settings = load_settings(base=loaded.settings, nats_url=nats_url, address=address)
    if not settings.nats.url:
        raise usage_error(
            "a deployment requires a nats-server", "Give its URL, as seen from all nodes, with --nats-url or NATS_URL."
        )
    if needs_ray and not settings.ray.address:
        raise usage_error(
            "a deployment requires a Ray cluster",
            "Give it with --address or RAY_ADDRESS; `auto` is the one that `ray start --head` started here.",
        )
    return loaded, settings


def _flags(no_workers: bool, no_ship: bool, code: Code) -> list[str]:
    flags = [("--no-workers", no_workers), ("--no-ship", no_ship)]
    return [flag for flag, wanted in flags if wanted] + ["--code", code.digest]


async def _count(deployment: Deployment) -> dict[str, int]:
    found = await deployment.status()
    return {kind: len(found.get(kind, ())) for kind in KINDS}


def _counted(document: dict[str, Any]) -> str:
    return ", ".join(plural(document[kind], kind.removesuffix("s")) for kind in KINDS)
