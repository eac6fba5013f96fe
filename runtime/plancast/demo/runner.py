"""An example deployed for a demo, on a nats-server and a Ray of its own."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from plancast.settings import HostSettings, RaySettings, ReasonerSettings, Settings
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
