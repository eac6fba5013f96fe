"""The API, fuzzed from its own schema: whatever it is sent, it answers as the schema says, and never fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.runtime.console.desk import Api, large_data

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES = 20
ENDLESS = "/api/v1/plans/stream"


def operations(url: str) -> Iterator[Any]:
    schema = schemathesis.openapi.from_url(f"{url}/api/v1/openapi.json")
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path != ENDLESS:
            yield operation


def cases(operation: Any) -> st.SearchStrategy[Any]:
    """Requests as the schema allows them, and as it does not."""
    asked = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    if not operation.body and not len(operation.path_parameters) and not len(operation.query):
        return asked
    return asked | operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)


def fuzz(
    operation: Any, plans: list[str], content: str, task: str, schedule: str, headers: dict[str, str]
) -> Counter[int]:
    """Sends requests to unknown plans and to those that there are: the first has this content, the last this effect.

    Returns how often each status was answered.
    """
    sent: Counter[int] = Counter()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases(operation), plan=st.sampled_from([plans[1], plans[1], *plans, ""]))
    def attempt(case: Any, plan: str) -> None:
        if operation.path == "/api/v1/plans" and plan and isinstance(case.body, dict):
            case.body["event_type"] = "order.goal"
        if operation.path == "/api/v1/session" and plan and isinstance(case.body, dict):
            case.body["token"] = headers["Authorization"].removeprefix("Bearer ")
        if operation.path.endswith(("/stream", "/retry")):
            plan = plan and plans[0]  # a plan under way has a stream without an end, and nothing to try again
        if plan and "sha256" in (case.path_parameters or {}):
            plan, case.path_parameters["sha256"] = plans[0], content
        if plan and "task" in (case.path_parameters or {}):
            plan, case.path_parameters["task"] = plans[-1], task
        if plan and operation.path.startswith("/api/v1/schedules"):
            case.query = {}
            if "name" in (case.path_parameters or {}):
                case.path_parameters["name"] = schedule
            elif isinstance(case.body, dict):
                case.body = {"name": f"s{uuid4().hex}", "event_type": "order.goal", "every": 3600}
            if operation.path.endswith("/backfill"):
                case.body = {"begin": "2025-01-01T00:00", "end": "2025-01-01T02:00"}
        if plan and "plan_id" in (case.path_parameters or {}):
            case.path_parameters["plan_id"] = plan
        if "wait" in (case.query or {}):
            case.query["wait"] = 0
        sent[case.call_and_validate(checks=CHECKS, timeout=20, headers=headers).status_code] += 1

    attempt()
    return sent


@pytest.mark.timeout(400)
async def test_whatever_is_sent_is_answered_as_the_schema_says(api: Api) -> None:
    ended = await api.failed()
    content = await large_data(api, ended, {"text": "x" * 2_000_000}, tenant_id="t")
    unresolved, task = await api.unknown(uuid4().hex)
    asked = await asyncio.to_thread(lambda: list(operations(api.url)))
    waiting = [await api.submit("ticket.goal", {"id": "7"}) for _ in asked]  # for each its own: some end what they get
    schedules = [await api.schedule() for _ in asked]
    for plan in waiting:
        await api.until(plan, lambda found: found["status"] == "paused")

    token = {"Authorization": api.http.headers["Authorization"]}

    def run() -> dict[str, Counter[int]]:
        return {
            f"{each.method} {each.path}": fuzz(each, [ended, plan, unresolved], content, task, schedule, token)
            for each, plan, schedule in zip(asked, waiting, schedules, strict=True)
        }

    answered = await asyncio.to_thread(run)
    done = {where for where, statuses in answered.items() if any(status < 300 for status in statuses)}
    letters = {
        "get /api/v1/dead-letters/{number}",
        "post /api/v1/dead-letters/{number}/replay",
    }  # other tests leave some
    assert done - letters == answered.keys() - letters
    assert len(done) > 25
    assert any(status == 422 for statuses in answered.values() for status in statuses)
