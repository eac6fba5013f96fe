"""Limits the imports of a dedicated host."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import json, sys
import plancast_actors.hosting.leased_actor, plancast_bus.jetstream
lean = sorted(name for name in ("aiohttp", "litellm", "starlette.routing", "plancast.console") if name in sys.modules)
import aiohttp, nats
print(json.dumps([lean, bool(aiohttp.ClientSession)]))
"""


def imported() -> list[object]:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=120)
    return list(json.loads(done.stdout))


def test_a_dedicated_host_imports_no_library_that_its_plans_do_not_need() -> None:
    assert imported() == [[], True]
