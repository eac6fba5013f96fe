"""An example deployed for a demo, on a nats-server and a Ray of its own, with a model or the stand-in for one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING

from plancast.demo import stub_model
from plancast.demo.runner import deployed
from plancast.settings import ReasonerSettings
from plancast.testing.model_server.server import ModelServer

if TYPE_CHECKING:
    from plancast_actors.deployment.local import LocalRuntime

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
