"""Deploys an example on its own nats-server and Ray."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from plancast.demo import stub_model
from plancast.settings import ConsoleSettings, HostSettings, RaySettings, ReasonerSettings, Settings, WorkerSettings
from plancast.testing.model_server.server import ModelServer
from plancast_bus.settings import NatsSettings

if TYPE_CHECKING:
    from plancast_actors.deployment.local import LocalRuntime

HOSTS = 2


@contextlib.asynccontextmanager
async def deployed(
    address: str,
    *,
    hosts: int = HOSTS,
    reasoners: ReasonerSettings | None = None,
    workers: WorkerSettings | None = None,
    console: ConsoleSettings | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[LocalRuntime]:
    """Deploy the app at an address in a temporary folder, independent of the environment's settings.

    The examples read the environment, so it is set before Ray starts, whose processes inherit it.
    """
    from plancast_actors.deployment.local import LocalRuntime

    with tempfile.TemporaryDirectory(prefix="plancast-demo-", ignore_cleanup_errors=True) as folder:
        settings = Settings(
            nats=NatsSettings(), ray=RaySettings(), hosts=HostSettings(count=hosts), data_dir=Path(folder)
        )
        settings.reasoners = reasoners or settings.reasoners
        settings.workers = workers or settings.workers
        settings.console = console or settings.console
        # Ray prints events such as the death of a host on stdout, between the tables or into the JSON.
        with _environment(environment or {}), contextlib.redirect_stdout(io.StringIO()):
            async with LocalRuntime(address, settings) as runtime:
                yield runtime


STAND_IN_SECONDS = 0.15
"""Latency of the stand-in."""


@contextlib.asynccontextmanager
async def deployed_with_model(
    name: str,
    model: str | None,
    environment: Mapping[str, str] | None = None,
    *,
    module: str = "",
    app: str = "app",
    workers: WorkerSettings | None = None,
) -> AsyncIterator[LocalRuntime]:
    """Deploy an example that a model decides; None uses the stand-in, served in this process.

    ``app`` is the name of the app in the ``module`` of the apps (by default that of the example's name).
    """
    variables = {**(environment or {}), f"{name.upper()}_MODEL": model or stub_model.MODEL}
    with contextlib.ExitStack() as exit_stack:
        if model is None:
            server = exit_stack.enter_context(ModelServer(rule=stub_model.answer, latency=STAND_IN_SECONDS))
            variables |= {"OPENAI_API_BASE": server.url, "OPENAI_API_KEY": "the-stand-in-needs-none"}
        reasoners = ReasonerSettings(min=1, max=2)
        address = f"plancast.demo.apps.{module or name}:{app}"
        async with deployed(address, reasoners=reasoners, workers=workers, environment=variables) as runtime:
            yield runtime


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
