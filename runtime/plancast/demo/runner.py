"""An example deployed for a demo, on a nats-server and a Ray of its own."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from plancast.demo import stub_model
from plancast.settings import HostSettings, RaySettings, ReasonerSettings, Settings
from plancast.testing.model_server.server import ModelServer
from plancast_bus.settings import NatsSettings

if TYPE_CHECKING:
    from plancast_actors.deployment.local import LocalRuntime

HOSTS = 2


@contextlib.asynccontextmanager
async def deployed(
    address: str, *, hosts: int = HOSTS, reasoners: ReasonerSettings | None = None
) -> AsyncIterator[LocalRuntime]:
    """The app of this address in a temporary folder, whatever the environment says."""
    from plancast_actors.deployment.local import LocalRuntime

    with tempfile.TemporaryDirectory(prefix="plancast-demo-", ignore_cleanup_errors=True) as folder:
        settings = Settings(
            nats=NatsSettings(), ray=RaySettings(), hosts=HostSettings(count=hosts), data_dir=Path(folder)
        )
        settings.reasoners = reasoners or settings.reasoners
        # What Ray prints on stdout, such as the death of a host, would stand in the tables, or the JSON.
        with contextlib.redirect_stdout(io.StringIO()):
            async with LocalRuntime(address, settings) as runtime:
                yield runtime


STAND_IN_SECONDS = 0.15
"""How long the stand-in takes for an answer."""


@contextlib.asynccontextmanager
async def deployed_with_model(
    name: str, model: str | None, environment: Mapping[str, str] | None = None, *, app: str = "app"
) -> AsyncIterator[LocalRuntime]:
    """The example of this name, decided by a model; None takes the stand-in, served in this process.

    ``app`` is what the app is called in the example. The examples read the environment, so it is set while Ray is
    started, whose processes inherit it.
    """
    said = {**(environment or {}), f"{name.upper()}_MODEL": model or stub_model.MODEL}
    with contextlib.ExitStack() as exit_stack:
        if model is None:
            server = exit_stack.enter_context(ModelServer(rule=stub_model.answer, latency=STAND_IN_SECONDS))
            said |= {"OPENAI_API_BASE": server.url, "OPENAI_API_KEY": "the-stand-in-needs-none"}
        exit_stack.enter_context(_environment(said))
        reasoners = ReasonerSettings(min=1, max=2)
        async with deployed(f"plancast.demo.apps.{name}:{app}", reasoners=reasoners) as runtime:
            yield runtime


@contextlib.contextmanager
def _environment(said: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in said}
    os.environ.update(said)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
