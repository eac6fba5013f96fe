"""Limits the imports of a dedicated host, and what it builds of them."""

from __future__ import annotations

import base64
import json
import pickle
import subprocess
import sys

from plancast import Settings

HEAVY = ("aiohttp", "litellm", "starlette.routing", "plancast.console", "tenacity", "difflib", "opentelemetry.sdk")
SCRIPT = """
import base64, json, pickle, sys
import plancast_actors.hosting.leased_actor, plancast_bus.jetstream
settings = pickle.loads(base64.b64decode(sys.argv[1]))
lean = sorted(name for name in sys.argv[2:] if name in sys.modules)
sections = [settings, *(getattr(settings, name) for name in type(settings).model_fields)]
built = sorted(type(each).__name__ for each in sections if getattr(type(each), "__pydantic_complete__", False))
copied = settings.model_copy(update={"hosts": settings.hosts.model_copy(update={"count": 7})}).hosts.count
import aiohttp, nats
print(json.dumps([lean, built, copied, bool(aiohttp.ClientSession)]))
"""


def imported() -> list[object]:
    settings = base64.b64encode(pickle.dumps(Settings())).decode()
    command = [sys.executable, "-c", SCRIPT, settings, *HEAVY]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return list(json.loads(done.stdout))


def test_a_dedicated_host_imports_no_library_that_its_plans_do_not_need_and_builds_no_schema_of_settings() -> None:
    assert imported() == [[], [], 7, True]
