"""What a handler writes into its plan can be read again as it was, or fails the turn with the path."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plancast import App, PlanContext, Planner
from plancast.errors import UnstorablePlan
from plancast.testing import PlancastTest
from plancast.turn.turn import Turn
from plancast.turn_record.serialization_check import packed_and_checked
from plancast_bus.events.codec import unpack
from plancast_bus.events.envelope import EventEnvelope, EventTopic


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


class Text(str):
    __slots__ = ()


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**66), 2**66)
    | st.floats()
    | st.text(st.characters())
    | st.binary(max_size=4)
    | st.sampled_from([Colour.RED, Size.BIG, Text("t"), datetime(2026, 1, 1), object(), {1, 2}, bytearray(b"x"), 1j])
    | st.builds(Text, st.text(max_size=3)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.none() | st.binary(max_size=2), inner, max_size=3)
    ),
    max_leaves=12,
)


async def a_turn() -> Turn:
    planner = Planner("p")

    @planner.on_goal("x.goal")
    async def on_goal(goal: Any, context: Any) -> None:
        await (await PlanContext.create_from_goal(goal, {})).finalize({})

    async with PlancastTest(App("app", planners=[planner])) as env:
        host = env.hosts[0].start()
        event = EventEnvelope(
            source="t", type="x.goal", topic=EventTopic.ACTION_REQUESTS, correlation_id="plan-1", data={"n": 1}
        )
        turn = Turn(host.environment, "plan-1", event, None, 1, 1.0)
        await turn.run()
        return turn


def plainly(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, dict):
        return {str(key): plainly(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plainly(item) for item in value]
    return value


@pytest.fixture(scope="module")
def turn() -> Turn:
    return asyncio.run(a_turn())


@given(value=anything, field=st.sampled_from(["results", "goal_data", "result"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_it_round_trips_or_names_the_path(turn: Turn, value: Any, field: str) -> None:
    plan = turn.plan
    assert plan is not None
    plan.results, plan.goal_data, plan.result = {}, {}, None
    written = {"found": value}
    setattr(plan, field, written)
    refused = ""
    try:
        state, entry = packed_and_checked(turn, "")
    except UnstorablePlan as error:
        refused = str(error)
    plan.results, plan.goal_data, plan.result = {}, {}, None
    if refused:
        assert refused.startswith(f"plan plan-1 cannot be stored: {field}.found")
        return
    read = PlanContext.from_dict(unpack(state) | {"state_machine": {}})
    assert getattr(read, field) == plainly(written)
    assert unpack(entry)["revision"] == 1


def test_what_is_as_deep_as_an_event_may_be_can_be_kept(turn: Turn) -> None:
    plan, deep = turn.plan, None
    assert plan is not None
    for _ in range(64):
        deep = [deep]
    plan.results = {"found": deep}
    packed_and_checked(turn, "")
    for _ in range(1_000):
        deep = [deep]
    plan.results = {"found": deep}
    with pytest.raises(UnstorablePlan, match=r"results\.found\[0\].*nested deeper"):
        packed_and_checked(turn, "")


@pytest.mark.parametrize("depth", [400, 500, 505, 508, 509, 510, 511, 512])
def test_what_is_deeper_is_read_again_as_far_as_it_is_written(turn: Turn, depth: int) -> None:
    plan, deep = turn.plan, None
    assert plan is not None
    for _ in range(depth):
        deep = [deep]
    plan.results, plan.goal_data = {"found": deep}, {}
    with contextlib.suppress(UnstorablePlan):
        state, _ = packed_and_checked(turn, "")
        assert unpack(state)["results"] == {"found": deep}
    plan.results = {}


@pytest.mark.parametrize("number", [0xCB7FF0, 0xCBFFF8000000, 0xC400, 0xC700, 0xC4000000])
def test_a_number_that_looks_like_what_is_no_json_is_one_all_the_same(turn: Turn, number: int) -> None:
    plan = turn.plan
    assert plan is not None
    plan.results, plan.goal_data = {"found": [number, {"x": number}]}, {}
    state, _ = packed_and_checked(turn, "")
    assert unpack(state)["results"] == plan.results
    plan.results = {}


@pytest.mark.parametrize("value", [b"", {b"": 1}, msgpack.ExtType(5, b""), msgpack.Timestamp(1), bytearray()])
def test_bytes_without_any_are_refused_too(turn: Turn, value: Any) -> None:
    plan = turn.plan
    assert plan is not None
    plan.results, plan.goal_data = {"found": value}, {}
    with pytest.raises(UnstorablePlan, match=r"results\.found"):
        packed_and_checked(turn, "")
    plan.results = {}


@pytest.mark.parametrize("field", ["results", "goal_data"])
@pytest.mark.parametrize("value", [None, [], "text"])
def test_fields_that_are_objects_stay_so(turn: Turn, field: str, value: Any) -> None:
    plan = turn.plan
    assert plan is not None
    plan.results, plan.goal_data = {}, {}
    setattr(plan, field, value)
    with pytest.raises(UnstorablePlan, match=f"{field} is a"):
        packed_and_checked(turn, "")
    plan.results, plan.goal_data = {}, {}


def test_a_key_that_is_no_text_is_shown_shortened(turn: Turn) -> None:
    plan = turn.plan
    assert plan is not None
    plan.results, plan.goal_data = {"\n": {("x" * 500,): 1}}, {}
    with pytest.raises(UnstorablePlan) as refused:
        packed_and_checked(turn, "")
    assert len(str(refused.value)) < 300
    assert "\n" not in str(refused.value)
