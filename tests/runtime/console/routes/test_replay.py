"""Plans as they were, and what is made of them anew, over the API."""

from __future__ import annotations

from uuid import uuid4

import pytest
from tests.runtime.console.desk import Api

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_plans_data_is_told_as_of_each_turn(api: Api) -> None:
    plan = await api.waiting()
    first = await api.get(f"/plans/{plan}/data", params={"revision": 1})
    second = await api.get(f"/plans/{plan}/data", params={"revision": 2})
    assert (first["known"], first["results"], first["current_state"]) == (True, {}, "checking")
    assert (second["results"], second["current_state"]) == ({"checking": {"in_stock": True}}, "approving")
    assert second["goal_data"] == {"item": "lamp"}
    await api.get(f"/plans/{plan}/data", 404, params={"revision": 9})
    await api.get("/plans/unknown/data", 404, params={"revision": 1})


async def test_a_history_that_is_run_again_leads_where_it_led(api: Api) -> None:
    plan = await api.failed()
    found = await api.post(f"/plans/{plan}/replay", {}, 200)
    assert (found["outcome"], [turn["outcome"] for turn in found["turns"]]) == ("same", ["same", "same"])
    assert [turn["event"] for turn in found["turns"]] == ["order.goal", "stock.check.failed"]


async def test_a_plan_begins_where_another_one_stood(api: Api) -> None:
    plan, key = await api.waiting(), {"Idempotency-Key": uuid4().hex}
    forked = await api.post(f"/plans/{plan}/fork", {"revision": 2, "data": {"item": "chair"}}, 201, headers=key)
    assert (forked["forked_from"], forked["revision"]) == (plan, 2)
    shown = await api.until(forked["plan_id"], lambda found: found["current_state"] == "approving")
    assert shown["goal"]["data"] == {"item": "chair"}
    assert shown["results"] == {"checking": {"in_stock": True}}
    again = await api.post(f"/plans/{plan}/fork", {"revision": 2, "data": {"item": "chair"}}, 201, headers=key)
    assert again["plan_id"] == forked["plan_id"]
    written = (await api.get("/writes"))["items"][0]
    assert (written["what"], written["by"]) == ("fork", (await api.get("/session"))["user"])
    await api.post(f"/plans/{await api.failed()}/fork", {"revision": 2}, 409)
    await api.post(f"/plans/{plan}/fork", {"revision": 7}, 404)
