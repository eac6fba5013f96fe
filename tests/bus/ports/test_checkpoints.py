"""Checkpoints and summaries as bytes and back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plancast_bus.errors import InvalidEnvelope
from plancast_bus.events.codec import deflate, pack, unpack
from plancast_bus.ports.checkpoints import DEFLATED, FOLDED, FORMAT, Checkpoint, PlanFilter, PlanSummary, sealed_part
from plancast_bus.ports.effects import CancelTimer, DropAlias, Effect, Publish, SealHistory, Share

seconds = st.floats(0, 1e12)
summaries = st.builds(
    PlanSummary,
    *([st.text()] * 4),
    st.integers(0, 2**53),
    *([st.text()] * 5),
    seconds,
    seconds,
    st.none() | st.text(),
    st.none() | st.dictionaries(st.text(), st.text() | st.integers(-(2**53), 2**53) | st.booleans(), min_size=1),
    st.none() | st.booleans(),
)
effects = (
    st.builds(Publish, st.text(), st.binary(), st.text(), st.text())
    | st.builds(CancelTimer, st.text(), st.text())
    | st.builds(DropAlias, st.text(), st.text(), st.floats(0, 1e10))
    | st.builds(Share, st.text(), st.binary())
    | st.builds(SealHistory, st.text(), st.integers(1, 10**6), st.binary())
)


def tuples(items: st.SearchStrategy[Effect] | st.SearchStrategy[bytes]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(items, max_size=4).map(tuple)


checkpoints = st.builds(
    Checkpoint,
    correlation_id=st.text(min_size=1),
    revision=st.integers(1, 2**53),
    epoch=st.text(),
    state=st.binary(),
    summary=summaries,
    outbox=tuples(effects),
    processed=st.binary(),
    timeline=tuples(st.binary()),
    sealed=st.integers(0, 10**6),
    expires_after=seconds,
)
checkpoints |= st.builds(
    lambda made, before: replace(made, is_folded=True, processed_before=before), checkpoints, st.binary()
)
SUMMARY = PlanSummary("p", "running", "goal", "start", 1)


def test_a_filter_takes_plans_by_goal_and_by_text() -> None:
    line = PlanSummary("plan-A", "running", "order.goal", "paying", 3, session_id="s1", planner="Orders").to_header()
    for wanted in (PlanFilter(goal_event="order.goal"), PlanFilter(text="PLAN-a"), PlanFilter(text="pay")):
        assert wanted.read(line) is not None
    assert PlanFilter("running", "s1", goal_event="order.goal", text="orders").read(line) is not None
    for wanted in (PlanFilter(goal_event="order"), PlanFilter(text="running"), PlanFilter("failed", text="pay")):
        assert wanted.read(line) is None


def test_a_filter_takes_plans_by_search_attributes() -> None:
    attributes = {"customer": 'Åse "B"', "amount": 40, "rush": True}
    line = PlanSummary("p", "running", "g", "s", 3, attributes=attributes).to_header()
    for having in (("customer", 'Åse "B"'), ("amount", "40"), ("rush", "true")):
        assert PlanFilter(attributes=(having,)).read(line) is not None
    assert PlanFilter(attributes=(("amount", "40"), ("rush", "true")), text="åse").read(line) is not None
    for having in (("customer", "40"), ("amount", "4"), ("rush", "True"), ("p", "running"), ("g", "")):
        assert PlanFilter(attributes=(having,)).read(line) is None
    assert PlanFilter(attributes=(("amount", "40"),)).read(SUMMARY.to_header()) is None


def test_a_summary_without_attributes_is_as_earlier_versions_write_and_read_it() -> None:
    line = PlanSummary("p", "running", "g", "s", 1, machine="m").to_header()
    assert json.loads(line) == ["p", "running", "g", "s", 1, *[""] * 5, 0.0, 0.0, "m"]
    assert PlanSummary.from_header(line).attributes is None


def test_whether_a_paused_plan_asks_people_is_where_earlier_versions_read_attributes() -> None:
    line = PlanSummary("p", "paused", "g", "s", 1, machine="", attributes={"amount": 4}, asks_people=True).to_header()
    assert json.loads(line)[13] == {"amount": 4, "asks people": True}
    read = PlanSummary.from_header(line)
    assert (read.attributes, read.asks_people) == ({"amount": 4}, True)
    line = PlanSummary("p", "paused", "g", "s", 1, machine="", asks_people=False).to_header()
    read = PlanSummary.from_header(line)
    assert (read.attributes, read.asks_people) == (None, False)


@given(checkpoints, st.integers(1, 2**53))
def test_a_checkpoint_comes_back_as_it_was(checkpoint: Checkpoint, version: int) -> None:
    summary = PlanSummary.from_header(checkpoint.summary.to_header())
    decoded = Checkpoint.decode(checkpoint.correlation_id, checkpoint.encode(), summary, version)
    assert decoded == checkpoint
    assert decoded.version == version


@given(summaries)
def test_a_summary_is_one_line_of_ascii_and_comes_back(summary: PlanSummary) -> None:
    line = summary.to_header()
    assert line.isascii()
    assert line.isprintable()
    assert PlanSummary.from_header(line) == summary


@pytest.mark.parametrize(
    "fields",
    [None, 1, {}, [], ["p"], [*range(13)], ["p", "running", "g", "s", True, *[""] * 5, 0.0, 0.0, ""],
     ["p", "running", "g", "s", 1, *[""] * 5, 0.0, 0.0, "", ""], ["p", "running", "g", "s", 1, *[""] * 5, "0", 0.0, ""],
     ["p", "running", "g", "s", 1, *[""] * 5, float("inf"), 0.0, ""],
     ["p", "running", "g", "s", 1, *[""] * 5, 0.0, 0.0, "", {"a": []}],
     ["p", "running", "g", "s", 1, *[""] * 5, 0.0, 0.0, "", {"a": 1}, {}],
     ["p", "running", "g", "s", 1, *[""] * 5, 0.0, 0.0, {"a": 1}]],
)  # fmt: skip
def test_a_line_that_is_no_summary_is_refused(fields: object) -> None:
    with pytest.raises(InvalidEnvelope):
        PlanSummary.from_header(json.dumps(fields))


@given(st.text())
@example("")
@example("[" * 100_000)
@example("1" * 5_000)
def test_no_text_is_taken_for_a_summary(line: str) -> None:
    with pytest.raises(InvalidEnvelope):
        PlanSummary.from_header(line)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        pack(None),
        pack([]),
        pack({}),
        pack("text"),
        pack([FORMAT]),
        pack([DEFLATED + 1, *range(8)]),
        pack([FORMAT, 1, "e", b"", [["no_such_effect"]], b"", [], 0, 0.0]),
        pack([FORMAT, 1, "e", b"", 5, b"", [], 0, 0.0]),
        pack([FORMAT, 1, "e", b"", [], b"", 5, 0, 0.0]),
    ],
)
def test_what_is_no_checkpoint_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidEnvelope):
        Checkpoint.decode("p", body, SUMMARY, 1)


def test_a_folded_checkpoint_that_is_not_compressed_is_read_too() -> None:
    made = Checkpoint("p", 3, "e", b"state", SUMMARY, (), b"12345678", (b"entry",), 2, 0.0, True, 7)
    body = pack([FOLDED, 3, "e", b"state", [], b"12345678", [b"entry"], 2, 0.0])
    assert Checkpoint.decode("p", body, SUMMARY, 7) == made
    assert unpack(made.encode())[0] == DEFLATED


@pytest.mark.parametrize(
    "body", [[DEFLATED], [DEFLATED, b"no zlib"], [DEFLATED, deflate(pack([1]))], [DEFLATED, b"", 1]]
)
def test_a_damaged_compressed_checkpoint_is_refused(body: list[Any]) -> None:
    with pytest.raises(InvalidEnvelope):
        Checkpoint.decode("p", pack(body), SUMMARY, 1)


def test_a_small_checkpoint_is_not_compressed() -> None:
    assert unpack(Checkpoint("p", 1, "e", b"s", SUMMARY).encode()) == [FORMAT, 1, "e", b"s", [], b"", [], 0, 0.0]


@pytest.mark.parametrize("compress", [True, False])
def test_sealed_parts_of_both_forms_are_joined(compress: bool) -> None:
    made = Checkpoint("p", 3, "e", b"s", SUMMARY, timeline=(b"3",), sealed=1)
    assert made.whole_timeline({1: sealed_part([b"1", b"2"], compress=compress)}) == [b"1", b"2", b"3"]


def test_a_later_format_is_named_together_with_the_plan() -> None:
    body = unpack(Checkpoint("p", 1, "e", b"", SUMMARY).encode())
    with pytest.raises(InvalidEnvelope, match=f"plan p has format {DEFLATED + 1}; .* {FORMAT} to {DEFLATED}"):
        Checkpoint.decode("p", pack([DEFLATED + 1, *body[1:]]), SUMMARY, 1)
