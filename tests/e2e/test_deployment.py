"""A real deployment does what the documents say: plain NATS clients, people, timers, children, scaling."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats
import pytest
import ray
from tests.isolation.listening import addresses_of, is_loopback

from plancast import Client, PlanCancelled, PlanFailed, PlanHandle, PlanStatus
from plancast_actors.deployment.deployment import Deployment
from plancast_actors.deployment.local import LocalRuntime
from plancast_bus.jetstream import connect

pytestmark = [pytest.mark.asyncio(loop_scope="session")]
PATIENCE = 60.0


async def until(condition: Any, what: str) -> Any:
    """Wait until an async condition holds, and return what it gave."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await condition()
            if found:
                return found
            await asyncio.sleep(0.05)
    raise AssertionError(what)


async def waiting_in(handle: PlanHandle, state: str) -> bool:
    return bool((await handle.state())["current_state"] == state)


async def has_status(handle: PlanHandle, status: PlanStatus) -> bool:
    return await handle.status() is status


async def has_control(handle: PlanHandle, name: str) -> bool:
    return name in (await handle.state()).get("control", {})


async def has_kept(handle: PlanHandle, event_type: str) -> bool:
    return event_type in [each["type"] for each in (await handle.state()).get("kept", ())]


async def has_note(handle: PlanHandle, note: str) -> bool:
    return note in str([entry.get("notes") for entry in await handle.history()])


async def test_a_plan_runs_from_goal_to_answer(client: Client) -> None:
    handle = await client.submit("chain.goal", {"n": 1}, session_id="s-1", user_id="u", tenant_id="t")
    result = await handle.result(timeout=PATIENCE)
    assert result == {"one": {"n": 2}, "two": {"n": 3}, "three": {"n": 4}}
    assert await handle.status() is PlanStatus.COMPLETED
    history = await handle.history()
    assert [entry["revision"] for entry in history] == [1, 2, 3, 4]
    assert [entry["path"] for entry in history] == [["one"], ["two"], ["three"], ["done"]]
    mine = await client.plans(session_id="s-1", tenant_id="t")
    assert [plan.plan_id for plan in mine] == [handle.plan_id]


async def test_dispatchers_have_lines_to_their_hosts_that_nobody_else_can_reach(
    client: Client, runtime: LocalRuntime
) -> None:
    handles = [await client.submit("chain.goal", {"n": n}) for n in range(20)]
    await asyncio.gather(*(handle.result(timeout=PATIENCE) for handle in handles))
    status = await runtime.deployment.status()
    assert [each["line"] for each in status["dispatchers"]] == ["direct"]
    for host in status["hosts"]:
        actor: Any = ray.get_actor(host["name"], runtime.namespace)
        offer = await actor.endpoint.remote()
        listening = addresses_of(host["pid"])
        assert str(offer) in listening
        assert [address for address in listening if not is_loopback(address)] == []


async def test_any_nats_client_can_submit_and_hear_the_answer(runtime: LocalRuntime) -> None:
    connection = await nats.connect(runtime.nats_url)
    answers = await connection.subscribe("plancast.action-results.plain-1.chain.goal.completed")
    await connection.publish("plancast.action-requests.plain-1.chain.goal", json.dumps({"data": {"n": 5}}).encode())
    message = await answers.next_msg(timeout=PATIENCE)
    assert message.header is not None
    assert "Content-Type" in message.header
    await connection.close()
    async with Client.connect(runtime.nats_url) as client:
        assert (await client.plan("plain-1").result(timeout=PATIENCE))["three"] == {"n": 8}


async def test_submitting_twice_starts_one_plan(client: Client) -> None:
    first = await client.submit("chain.goal", {"n": 1}, correlation_id="twice / with spaces.and.dots")
    second = await client.submit("chain.goal", {"n": 1}, correlation_id="twice / with spaces.and.dots")
    assert first.plan_id == second.plan_id == "twice / with spaces.and.dots"
    assert await first.result(timeout=PATIENCE) == await second.result(timeout=PATIENCE)
    assert len(await first.history()) == 4


async def test_a_person_answers_by_signal(client: Client) -> None:
    handle = await client.submit("ask.goal", {})
    await until(lambda: waiting_in(handle, "asking"), "the plan asks")
    await handle.signal("person.answered", {"text": "yes"})
    assert await handle.result(timeout=PATIENCE) == {"asking": {"text": "yes"}}


async def test_a_signal_that_overtakes_its_plan_is_not_lost(client: Client) -> None:
    handle = await client.submit("ask.goal", {}, correlation_id="hasty")
    await handle.signal("person.answered", {"text": "at once"})
    assert await handle.result(timeout=PATIENCE) == {"asking": {"text": "at once"}}


async def test_an_answered_question_does_not_stay_in_the_queue(client: Client, runtime: LocalRuntime) -> None:
    handle = await client.submit("ask.goal", {})
    await until(lambda: waiting_in(handle, "asking"), "the plan asks")
    await handle.signal("person.answered", {})
    await handle.result(timeout=PATIENCE)
    bus = await connect(runtime.settings.nats, runtime.settings.bus)

    async def nothing_left() -> bool:
        return bool((await bus.health())["streams"]["PLANCAST_REQUESTS"]["messages"] == 0)

    await until(nothing_left, "the question is withdrawn")
    await bus.close()


async def test_a_request_that_nobody_answers_is_asked_again_and_then_times_out(client: Client) -> None:
    handle = await client.submit("timed.goal", {})
    result = await handle.result(timeout=PATIENCE)
    assert "error" in result["waiting"]
    history = await handle.history()
    assert [entry["event"]["type"] for entry in history] == [
        "timed.goal",
        "nobody.does.timeout",
        "nobody.does.timeout",
        "nobody.does.timeout",
    ]


async def test_a_child_plan_answers_its_parent(client: Client) -> None:
    handle = await client.submit("nested.goal", {"n": 3}, session_id="family", tenant_id="t")
    result = await handle.result(timeout=PATIENCE)
    child = result["child"]
    assert child["result"]["three"] == {"n": 6}
    assert child["plan_id"] != handle.plan_id
    family = {plan.plan_id: plan for plan in await client.plans(session_id="family")}
    assert family[child["plan_id"]].parent_plan_id == handle.plan_id


async def test_cancel_is_heard_by_the_requester(client: Client) -> None:
    handle = await client.submit("ask.goal", {})
    await until(lambda: waiting_in(handle, "asking"), "the plan asks")
    await handle.cancel("no longer wanted")
    with pytest.raises(PlanCancelled, match="no longer wanted"):
        await handle.result(timeout=PATIENCE)


async def test_a_paused_plan_goes_on_when_it_is_resumed(client: Client) -> None:
    handle = await client.submit("ask.goal", {})
    await until(lambda: waiting_in(handle, "asking"), "the plan asks")
    await handle.pause("lunch")

    async def status_is(status: str) -> bool:
        return str(await handle.status()) == status

    await until(lambda: status_is("paused"), "the plan is paused")
    assert (await handle.state())["pause_reason"] == "lunch"
    await handle.resume({"by": "me"})
    await until(lambda: status_is("running"), "the plan goes on")
    await handle.signal("person.answered", {"text": "ok"})
    assert (await handle.result(timeout=PATIENCE))["asking"] == {"text": "ok"}


async def test_a_handler_pauses_for_a_person_an_operator_holds_it_and_its_result_is_the_response(
    client: Client,
) -> None:
    handle = await client.submit("approved.goal", {"n": 1})
    await until(lambda: has_status(handle, PlanStatus.PAUSED), "it pauses")
    await handle.pause("lunch")
    await until(lambda: has_control(handle, "pause"), "it is held")
    await handle.signal("person.agreed", {"by": "Ada"})
    await until(lambda: has_kept(handle, "person.agreed"), "the answer is kept")
    assert await handle.status() is PlanStatus.PAUSED
    await handle.resume(None)
    assert await handle.result(timeout=PATIENCE) == {"n": 2, "by": "Ada"}
    assert (await handle.replay()).outcome == "unknown", "without the app its handlers cannot be run"


async def test_what_nothing_waits_for_shows_in_the_history(client: Client) -> None:
    handle = await client.submit("ask.goal", {})
    await until(lambda: waiting_in(handle, "asking"), "it asks")
    await handle.signal("person.anwsered", {"yes": True})
    await until(lambda: has_note(handle, "no state waits for person.anwsered"), "the misspelt signal shows")
    await handle.signal("person.answered", {"yes": True})
    await handle.result(timeout=PATIENCE)


async def test_a_value_that_cannot_be_stored_fails_the_plan_at_once(client: Client) -> None:
    handle = await client.submit("approved.goal", {"n": 1, "broken": True})
    with pytest.raises(PlanFailed, match=r"goal_data\.since: datetime is no JSON"):
        await handle.result(timeout=PATIENCE)
    assert len(await handle.history()) == 1


async def test_a_dedicated_plan_has_a_process_of_its_own_and_gives_it_back(
    client: Client, runtime: LocalRuntime
) -> None:
    handle = await client.submit("handled.goal", {"n": 1}, correlation_id="heavy")
    assert (await handle.result(timeout=PATIENCE))["three"] == {"n": 4}

    async def given_back() -> bool:
        status = await runtime.deployment.status()
        return status["pools"][0]["granted"] >= 1 and not any(actor["plan"] for actor in status["dedicated"])

    await until(given_back, "the plan has given its host back")
    assert await runtime.deployment.plan_host("heavy") is None


async def test_a_goal_that_fails_in_its_template_says_which_path(client: Client) -> None:
    handle = await client.submit("chain.goal", {"wrong": 1})
    with pytest.raises(PlanFailed, match=r"goal_data\.n"):
        await handle.result(timeout=PATIENCE)


async def test_what_is_no_event_is_put_aside_and_blocks_nothing(client: Client, runtime: LocalRuntime) -> None:
    connection = await nats.connect(runtime.nats_url)
    for payload in (b"\xff\xfe not json", b'{"data": {}, "topic": "no-such-topic"}', b"[1, 2]"):
        await connection.publish("plancast.action-results.broken-1.some.event", payload)
    await connection.publish("plancast.action-results.nobodys-plan.some.event", b"{}")
    await connection.close()
    handle = await client.submit("chain.goal", {"n": 0}, correlation_id="broken-1")
    assert (await handle.result(timeout=PATIENCE))["three"] == {"n": 3}
    bus = await connect(runtime.settings.nats, runtime.settings.bus)

    async def reasons() -> list[str] | None:
        found = sorted([letter.reason async for letter in bus.dead_letters.list()])
        return found if len(found) >= 4 else None

    assert await until(reasons, "four dead letters") == ["no-plan", "undecodable", "undecodable", "undecodable"]
    await bus.close()


async def test_the_busiest_tenant_is_named(client: Client, runtime: LocalRuntime) -> None:
    async def named() -> bool:
        handles = [await client.submit("chain.goal", {"n": n}, tenant_id="busy") for n in range(50)]
        await asyncio.gather(*(handle.result(timeout=PATIENCE) for handle in handles))
        dispatchers = (await runtime.deployment.status())["dispatchers"]
        return any("busy" in each["hot"]["tenants"][1] for each in dispatchers)

    await until(named, "one event in 64 is counted")


@pytest.mark.slow
async def test_the_deployment_is_found_again_and_scaled_while_plans_run(client: Client, runtime: LocalRuntime) -> None:
    assert await Deployment.find(runtime.settings) is not None
    handles = [await client.submit("chain.goal", {"n": n}) for n in range(100)]
    for hosts, dispatchers in ((3, 2), (2, 1)):
        settings = runtime.settings.model_copy(deep=True)
        settings.hosts.count, settings.dispatchers.count = hosts, dispatchers
        await Deployment.up(runtime.app_address, settings, import_paths=runtime.import_paths)
        handles += [await client.submit("chain.goal", {"n": n}) for n in range(100)]
        status = await runtime.deployment.status()
        assert len(status["hosts"]) == hosts
        assert len(status["dispatchers"]) == dispatchers
    results = await asyncio.gather(*(handle.result(timeout=PATIENCE) for handle in handles))
    assert [result["three"]["n"] for result in results] == [n + 3 for n in range(100)] * 3


async def test_idle_plans_leave_memory_and_come_back(client: Client, runtime: LocalRuntime) -> None:
    handle = await client.submit("ask.goal", {})
    await until(lambda: waiting_in(handle, "asking"), "the plan asks")

    async def passivated() -> bool:
        return not any(host.get("live_plans", 1) for host in (await runtime.deployment.status())["hosts"])

    await until(passivated, "no plan is in memory")
    await handle.signal("person.answered", {"text": "still there"})
    assert await handle.result(timeout=PATIENCE) == {"asking": {"text": "still there"}}


async def test_a_state_waits_asks_for_each_item_and_joins_the_answers_in_order(client: Client) -> None:
    plan = await client.submit("fan.goal", {"items": [{"n": n} for n in range(30)]})
    assert await plan.result(timeout=PATIENCE) == {"adding": [{"n": n + 1} for n in range(30)]}
