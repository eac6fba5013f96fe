"""Preflight: loads an app in the cluster with the shipped code before anything is changed."""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError, RuntimeEnvSetupError

from plancast.app import load_app
from plancast.errors import InvalidApp
from plancast_actors.ray.process import Blueprint
from plancast_actors.release import Abilities
from plancast_bus.errors import BusUnavailable

IMPORT_SECONDS = 20.0
"""Timeout for the import of the app, once its code is there."""
SECONDS = 300.0
"""Timeout for a node to fetch the code and install its requirements."""


def load_abilities(app_address: str, import_paths: tuple[str, ...]) -> Abilities:
    """Load and validate the app; returns its abilities."""
    app = load_app(app_address, import_paths)
    app.validate()
    return Abilities.of(app)


def set_up() -> bool:
    """Return when a process runs with the shipped code and its requirements."""
    return True


_set_up = ray.remote(num_cpus=0, max_retries=0)(set_up)
# One process per check: a later version of the code must be imported anew.
_load_abilities = ray.remote(max_calls=1, num_cpus=0, max_retries=0)(load_abilities)


async def check(blueprint: Blueprint) -> Abilities:
    """Load an app in a process of the cluster; returns its abilities.

    Raises:
        InvalidApp: it cannot be loaded there, or is invalid.
        BusUnavailable: Ray starts no process in time.
    """
    options: dict[str, Any] = {"runtime_env": blueprint.runtime_env} if blueprint.runtime_env else {}
    try:
        async with asyncio.timeout(SECONDS):
            await _set_up.options(**options).remote()
            # In a Ray client the reference is no coroutine, but awaitable.
            loading: Any = _load_abilities.options(**options).remote(blueprint.app_address, blueprint.import_paths)
            return await _loaded(loading, blueprint.app_address)
    except RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, InvalidApp):
            raise cause from None
        why = f"{type(cause).__name__}: {cause}" if cause is not None else str(error).strip().splitlines()[-1]
        raise InvalidApp(f"{blueprint.app_address} cannot be loaded in the cluster: {why}") from None
    except RuntimeEnvSetupError as error:
        raise InvalidApp(f"the cluster cannot set up the code that was shipped: {_short(error)}") from None
    except TimeoutError:
        raise BusUnavailable(f"the Ray cluster has not begun to load the app within {SECONDS:g} s") from None
    except RayError as error:
        raise BusUnavailable(f"the Ray cluster cannot load the app: {_short(error)}") from error


async def _loaded(loading: Any, app_address: str) -> Abilities:
    async def wait() -> Abilities:
        found: Abilities = await loading
        return found

    waiting = asyncio.ensure_future(wait())
    await asyncio.wait([waiting], timeout=IMPORT_SECONDS)
    if waiting.done():
        return waiting.result()
    ray.cancel(loading, force=True)
    waiting.cancel()
    raise InvalidApp(f"{app_address} cannot be loaded in the cluster: its import takes more than {IMPORT_SECONDS:g} s")


def _short(error: Exception) -> str:
    """The last lines of Ray's message, which have the error of pip or of the archive."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-600:]
