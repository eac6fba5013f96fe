"""What a dedicated host imports."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import json, sys
from plancast_actors.hosting.leased_actor import import_lean_client
import_lean_client(sys.argv[1])
lean = sorted(name for name in ("aiohttp", "litellm", "starlette.routing", "plancast.console") if name in sys.modules)
import aiohttp, nats
print(json.dumps([lean, bool(aiohttp.ClientSession)]))
"""


def imported(url: str) -> list[object]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, url], capture_output=True, text=True, check=True, timeout=120)
    return list(json.loads(done.stdout))


def test_a_dedicated_host_imports_no_library_that_its_plans_do_not_need() -> None:
    assert imported("tls://user:secret@nats:4222") == [[], True]


def test_with_websockets_what_they_need_is_imported() -> None:
    assert imported("wss://nats:443") == [["aiohttp"], True]
