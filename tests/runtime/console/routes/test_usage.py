"""What models have cost, summed over plans."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import uuid4

import pytest
from tests.runtime.console.desk import PATIENCE, Api

from plancast_bus.events.codec import pack
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary

pytestmark = pytest.mark.asyncio(loop_scope="session")


def decided(model: str, tokens: int, cost: float | None, revision: int) -> dict[str, Any]:
    call = {"model": model, "prompt_tokens": tokens - 1, "completion_tokens": 1, "cost": cost}
    call |= {"cached_tokens": tokens // 2} if cost else {}  # histories of earlier versions have none
    action = {"action": "publish", "event_type": "a.requested"}
    decision = {"next_action": action, "reasoning": "it must be", "confidence": 0.5}
    taken = {"planner": "p", "decision": decision, "calls": [call], "repairs": 0, "seconds": 1.5}
    return {"revision": revision, "time": time.time(), "event": {"type": "e"}, "state": "s", "status": "running",
            "decisions": [taken]}  # fmt: skip


def plan(tenant: str, planner: str, entries: list[dict[str, Any]], *, age: float = 0.0) -> Checkpoint:
    name, now = uuid4().hex, time.time() - age
    about = PlanSummary(name, "running", "g", "s", len(entries), tenant, "", "", "", planner, now, now, "")
    calls = [call for entry in entries for taken in entry["decisions"] for call in taken["calls"]]
    spent = {
        "tokens": sum(call["prompt_tokens"] + 1 for call in calls),
        "cost": sum(call["cost"] or 0 for call in calls),
    }
    state = {"plan_id": name, "status": "running", "current_state": "s", "goal_event": "g", "goal_data": {},
             "results": {}, "spent": spent, "decider": planner}  # fmt: skip
    timeline = tuple(pack(entry) for entry in entries)
    return Checkpoint(name, len(entries), "e", pack(state), about, timeline=timeline)


async def test_usage_is_summed_by_model_tenant_and_planner(api: Api) -> None:
    small, large, tenant, planner = (f"{name}-{uuid4().hex}" for name in ("small", "large", "t", "p"))
    first = plan(tenant, planner, [decided(small, 10, 0.5, 1), decided(large, 100, 2.0, 2)])
    second = plan("", planner, [decided(small, 30, None, 1)])
    old = plan(tenant, planner, [decided(small, 1000, 9.0, 1)], age=2 * 3600)
    for each in (first, second, old):
        await api.desk.bus.checkpoints.commit(each)
    async with asyncio.timeout(PATIENCE):
        while len(await api.listed(text=old.correlation_id)) < 1:
            await asyncio.sleep(0.01)

    cached: dict[str, int] = {}

    async def usage(group_by: str, hours: float = 1) -> dict[str, tuple[int, int, float]]:
        found = await api.get("/usage", params={"group_by": group_by, "hours": hours})
        assert found["total"]["tokens"] >= sum(each["tokens"] for each in found["items"] if each["key"] != "")
        cached.update({each["key"]: each["cached_tokens"] for each in found["items"]})
        return {each["key"]: (each["decisions"], each["tokens"], each["cost"]) for each in found["items"]}

    by_model = await usage("model")
    assert (by_model[small], by_model[large]) == ((2, 40, 0.5), (1, 100, 2.0))
    assert (cached[small], cached[large]) == (5, 50)
    assert (await usage("tenant"))[tenant] == (2, 110, 2.5)
    assert cached[tenant] == 55
    assert (await usage("planner"))[planner] == (3, 140, 2.5)
    assert (await usage("model", hours=3))[small] == (3, 1040, 9.5)
    shown = await api.get(f"/plans/{first.correlation_id}")
    assert shown["usage"]["decisions"] == 2
    by = [(each["model"], each["tokens"], each["cached_tokens"]) for each in shown["usage"]["by_model"]]
    assert by == [(large, 100, 50), (small, 10, 5)]
    (turn, _) = (await api.get(f"/plans/{first.correlation_id}/history"))["items"]
    assert turn["decision"] == {
        "action": "publish", "reasoning": "it must be", "model": small, "tokens": 10, "cached_tokens": 5, "cost": 0.5,
        "confidence": 0.5, "confidence_given": True, "event_type": "a.requested", "seconds": 1.5, "repairs": 0,
    }  # fmt: skip


async def test_a_decision_tells_an_omitted_confidence_from_a_given_one(api: Api) -> None:
    entries = [decided("m", 10, 0.5, revision) for revision in (1, 2, 3)]
    recorded: list[dict[str, Any]] = [{"confidence": None}, {"confidence": 1.0}, {}]
    for entry, more in zip(entries, recorded, strict=True):
        entry["decisions"][0] |= more
        entry["decisions"][0]["decision"]["confidence"] = 1.0
    made = plan("", "p", entries)
    await api.desk.bus.checkpoints.commit(made)
    turns = (await api.get(f"/plans/{made.correlation_id}/history"))["items"]
    shown = [(turn["decision"]["confidence_given"], turn["decision"]["confidence"]) for turn in turns]
    assert shown == [(False, None), (True, 1.0), (None, None)]


async def test_usage_is_shown_over_time_by_when_it_was_decided(api: Api) -> None:
    async def slots(hours: float) -> tuple[int, dict[str, int]]:
        found = await api.get("/usage", params={"hours": hours})
        times = [each["at"] for each in found["slots"]]
        assert times == sorted(set(times))
        return found["slot_seconds"], {each["at"]: each["tokens"] for each in found["slots"]}

    before = await slots(24)
    now, earlier = decided("m", 10, 0.5, 2), decided("m", 1000, 2.0, 1)
    earlier["time"] = time.time() - 5 * 3600
    made = plan("", "over-time", [earlier, now])
    await api.desk.bus.checkpoints.commit(made)
    async with asyncio.timeout(PATIENCE):
        while not await api.listed(text=made.correlation_id):
            await asyncio.sleep(0.01)
    seconds, after = await slots(24)
    came = [tokens - before[1].get(at, 0) for at, tokens in after.items() if tokens != before[1].get(at, 0)]
    assert (seconds, came) == (3600, [1000, 10])
    assert len(after) in (25, 26)  # both ends are parts of an hour
    assert ((await slots(1))[0], (await slots(168))[0]) == (300, 86_400)
    assert sum((await slots(1))[1].values()) < sum(after.values())  # without what was decided before
