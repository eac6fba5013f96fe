"""`plancast deploy --watch`: deploys again and rebalances, each in a process of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import sys
import tempfile
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plancast.cli.apps.validate import load_valid
from plancast.cli.connection import open_bus
from plancast.cli.deploy.commands import deployed
from plancast.cli.deploy.nodes import moved
from plancast.cli.errors import CommandFailed
from plancast.terminal import logging
from plancast.terminal.output import note

if TYPE_CHECKING:
    from plancast.cli.deploy.code import Code
    from plancast.settings import Settings

REBALANCE_SECONDS = 60.0
"""Seconds for which a rebalance drains each actor, and waits for another change to end."""
_spawning = multiprocessing.get_context("spawn")


async def watch(app: str, settings: Settings, code: Code, release: str, *flags: bool) -> None:
    """Watch a deployment of a release until it is stopped.

    Args:
        app: Address of the app.
        code: What is deployed again.
        release: The hash of its code.
        flags: The last arguments of :func:`~plancast.cli.deploy.commands.deployed`.

    Raises:
        DeploymentReplaced: other code was deployed since.
    """
    from plancast_actors.deployment.watch import DeploymentWatch

    with tempfile.TemporaryDirectory(prefix="plancast-watch-") as scratch:
        folder = _unpacked(code, Path(scratch))

        async def redeploy() -> None:
            await apart(_deploy, app, folder, settings, code, *flags)

        async def rebalance() -> None:
            await apart(moved, settings, "", REBALANCE_SECONDS)

        async with open_bus(settings) as bus:
            await DeploymentWatch(bus, settings.ray.namespace, release, redeploy, rebalance, note).run()


async def apart(action: Callable[..., Coroutine[Any, Any, object]], *arguments: Any) -> None:
    """Await a function in a process of its own: Ray ends a process whose cluster is lost while it is connected.

    Raises:
        CommandFailed: it has failed, or its process was ended.
    """
    receiving, sending = _spawning.Pipe(duplex=False)
    process = _spawning.Process(target=_run, args=(sending, action, arguments), daemon=True)
    await asyncio.to_thread(process.start)
    sending.close()
    error = await asyncio.to_thread(_told, process, receiving)
    if error is None:
        raise CommandFailed(f"its process was ended with {process.exitcode}, as Ray does when a cluster is lost")
    if error:
        raise CommandFailed(error)


def _told(process: BaseProcess, receiving: Connection) -> str | None:
    """Wait for the end of a process; return its error, empty for none, and None if it was ended before. Blocks."""
    try:
        return str(receiving.recv())
    except EOFError:
        return None
    finally:
        receiving.close()
        process.join()


def _run(sending: Connection, action: Callable[..., Coroutine[Any, Any, object]], arguments: tuple[Any, ...]) -> None:
    try:
        asyncio.run(action(*arguments))
    except KeyboardInterrupt:  # the watch has it, too
        return
    except Exception as error:
        sending.send(str(error) or type(error).__name__)
    else:
        sending.send("")


async def _deploy(app: str, folder: str, settings: Settings, code: Code, *flags: bool) -> None:
    logging.use_format(settings.telemetry.log_format)
    if folder:
        sys.path.insert(0, folder)
    await deployed(load_valid(app), app, settings, code, *flags)


def _unpacked(code: Code, scratch: Path) -> str:
    """The folder with the code that was shipped, since the user's files change meanwhile; empty without such code."""
    archive = (code.runtime_env or {}).get("working_dir")
    if archive is None:
        return ""
    shutil.unpack_archive(archive, scratch)
    return str(scratch)
