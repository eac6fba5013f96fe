"""An example deployed for a demo, on a nats-server and a Ray of its own, with a model or the stand-in for one."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from plancast.demo import offline_model
from plancast.settings import HostSettings, RaySettings, ReasonerSettings, Settings
from plancast.testing.model_server import ModelServer
from plancast_bus.settings import NatsSettings

if TYPE_CHECKING:
    from plancast_actors.local import LocalRuntime

HOSTS = 2
STAND_IN_SECONDS = 0.15
"""How long the stand-in takes for an answer."""


@contextlib.asynccontextmanager
async def deployed_with_model(
    name: str, model: str | None, environment: Mapping[str, str] | None = None
) -> AsyncIterator[LocalRuntime]:
    """The example of this name, decided by a model; None takes the stand-in, served in this process.

    The examples read the environment, so it is set while Ray is started, whose processes inherit it.
    """
    from plancast_actors.local import LocalRuntime

    said = {**(environment or {}), f"{name.upper()}_MODEL": model or offline_model.MODEL}
    with contextlib.ExitStack() as exit_stack:
        if model is None:
            server = exit_stack.enter_context(ModelServer(rule=offline_model.answer, latency=STAND_IN_SECONDS))
            said |= {"OPENAI_API_BASE": server.url, "OPENAI_API_KEY": "the-stand-in-needs-none"}
        exit_stack.enter_context(_environment(said))
        folder = exit_stack.enter_context(
            tempfile.TemporaryDirectory(prefix="plancast-demo-", ignore_cleanup_errors=True)
        )
        settings = Settings(
            nats=NatsSettings(),
            ray=RaySettings(),
            hosts=HostSettings(count=HOSTS),
            reasoners=ReasonerSettings(min=1, max=2),
            data_dir=Path(folder),
        )
        # What Ray prints of its own on stdout would stand in the tables, or the JSON.
        with contextlib.redirect_stdout(io.StringIO()):
            async with LocalRuntime(f"plancast.demo.{name}:app", settings) as runtime:
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
