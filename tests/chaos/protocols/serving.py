"""A `plancast serve` process that is killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Final

from plancast import Settings

USER: Final = "ada"
TOKEN: Final = "ada-0123456789abcdef"
START_SECONDS: Final = 600.0


class Serving:
    """Serves a deployment; each start has another port.

    Args:
        settings: Of the deployment.
        folder: Its working directory, with the log of all its starts.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._environment = {
            **os.environ,
            "PLANCAST_BUS__PREFIX": settings.bus.prefix,
            "PLANCAST_CONSOLE__TOKENS": json.dumps({USER: TOKEN}),
        }
        self._nats_url = settings.nats.url
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.kills = 0

    async def url(self) -> str:
        """Return where it is served, once it is."""
        return await asyncio.shield(self._url)

    async def start(self) -> None:
        arguments = ["serve", "--nats-url", self._nats_url, "--port", "0", "--json"]
        with (self._folder / "serve.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "plancast", *arguments,
                cwd=self._folder, env=self._environment, stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self._process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"plancast serve has ended: {(self._folder / 'serve.log').read_text()[-2000:]}")
        self._url.set_result(json.loads(line)["console"])

    async def kill(self) -> None:
        """Kill it, and wait until it is dead."""
        self.kills += 1
        self._url = asyncio.get_running_loop().create_future()
        await self.end()

    async def end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
