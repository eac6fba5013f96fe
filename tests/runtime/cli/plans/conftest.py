"""Commands that are run in this process, over the app that is deployed by the module's ``desk``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from tests.runtime.console.desk import Desk

from plancast.cli import main


class Result(NamedTuple):
    """Result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Invoke = Callable[..., Awaitable[Result]]


@pytest.fixture
def invoke(desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Runs a command in a thread: it has an event loop of its own."""
    monkeypatch.setenv("NATS_URL", desk.settings.nats.url)
    monkeypatch.setenv("PLANCAST_BUS__PREFIX", desk.settings.bus.prefix)

    async def run(*arguments: str) -> Result:
        code = await asyncio.to_thread(main, arguments)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run
