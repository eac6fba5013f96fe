"""Subjects: any correlation id becomes one token and comes back."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from plancast_bus.errors import InvalidSubject
from plancast_bus.subjects import (
    MAX_TOKEN,
    MAX_TYPE,
    EventAddress,
    Subjects,
    check_event_type,
    decode_token,
    encode_token,
)

SUBJECTS = Subjects("plancast")
TOKEN = re.compile(r"[A-Za-z0-9_:%-]+")


@given(st.text(min_size=1, max_size=33))
@example("a.b")
@example("100%")
@example("~")
@example("\x00\x7f\n\t ")
@example(">")
@example("*")
def test_any_text_is_one_token_and_comes_back(text: str) -> None:
    token = encode_token(text)
    assert TOKEN.fullmatch(token)
    assert decode_token(token) == text


@given(st.text(min_size=1, max_size=33), st.text(min_size=1, max_size=33))
def test_different_texts_are_different_tokens(one: str, other: str) -> None:
    assume(one != other)
    assert encode_token(one) != encode_token(other)


@pytest.mark.parametrize("text", ["", "\ud800", "a\udfff", "x" * (MAX_TOKEN + 1), " " * (MAX_TOKEN // 3 + 1)])
def test_what_cannot_be_a_token_is_refused(text: str) -> None:
    with pytest.raises(InvalidSubject):
        encode_token(text)


def test_the_longest_token_is_taken() -> None:
    assert encode_token("x" * MAX_TOKEN) == "x" * MAX_TOKEN


@pytest.mark.parametrize("token", ["%ff", "a%C3", "%ED%A0%80"])
def test_a_token_that_is_no_utf8_is_refused(token: str) -> None:
    with pytest.raises(InvalidSubject):
        decode_token(token)


@given(st.text(min_size=1, max_size=33), st.from_regex(r"\A[A-Za-z0-9_-]{1,9}(\.[A-Za-z0-9_-]{1,9}){0,3}\Z"))
def test_an_event_subject_comes_apart_as_it_was_put_together(correlation_id: str, event_type: str) -> None:
    address = EventAddress("action-results", correlation_id, event_type)
    subject = SUBJECTS.event("action-results", correlation_id, event_type)
    assert SUBJECTS.parse_event(subject) == address
    stored = SUBJECTS.stored("action-results", 7, encode_token(correlation_id), event_type)
    assert SUBJECTS.parse_stored(stored) == address
    assert SUBJECTS.published_from_stored(stored) == subject


@given(st.text(min_size=1, max_size=33), st.sampled_from(["t", "a.b", "a:b.c%d", "_"]))
def test_the_subject_of_a_due_timer_names_its_plan(plan: str, name: str) -> None:
    published = SUBJECTS.timer_due(plan, name)
    stored = published.replace(".due.", ".due.3.", 1)
    assert SUBJECTS.parse_stored(stored) == EventAddress("", plan, "")
    assert SUBJECTS.published_from_stored(stored) == published


@pytest.mark.parametrize("name", ["", "a b", "a..b", ".", "a.", "*", "a.>", "a\n", "ü", "x" * 500])
def test_a_timer_name_that_is_no_subject_is_refused(name: str) -> None:
    for subject in (SUBJECTS.timer, SUBJECTS.timer_due):
        with pytest.raises(InvalidSubject):
            subject("plan", name)


@pytest.mark.parametrize(
    "subject", ["", "plancast", "plancast.a.b", "other.a.b.c", "plancast.a..c", "plancast.a.b.c.", "plancast.a.%ff.c"]
)
def test_what_is_no_event_subject_is_refused(subject: str) -> None:
    with pytest.raises(InvalidSubject):
        SUBJECTS.parse_event(subject)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "plancast.a.0.c",
        "other.a.0.c.t",
        "plancast.a.0..t",
        "plancast.a.0.%ff.t",
        "plancast-store.timers.due.0.plan",
        "plancast-store.timers.set.0.plan.name",
        "plancast-store.checkpoints.a.b.c.d",
    ],
)
def test_what_is_no_stored_subject_is_refused(subject: str) -> None:
    with pytest.raises(InvalidSubject):
        SUBJECTS.parse_stored(subject)


def test_the_published_subject_is_found_also_when_the_correlation_id_cannot_be_read() -> None:
    """So that such a message can be put aside and replayed."""
    assert SUBJECTS.published_from_stored("plancast.a.0.%ff.t.u") == "plancast.a.%ff.t.u"
    for subject in ("", "plancast.a", "plancast.a.0", "other.a.0.c.t", "plancast-store.history.a.0.c"):
        with pytest.raises(InvalidSubject):
            SUBJECTS.published_from_stored(subject)


@pytest.mark.parametrize("event_type", ["a", "a.b.c", "A-1_x.y", "x" * MAX_TYPE])
def test_event_types_are_dot_separated_tokens(event_type: str) -> None:
    assert check_event_type(event_type) == event_type


@pytest.mark.parametrize(
    "event_type", ["", ".", "a.", ".a", "a..b", "a b", "a.*", ">", "ü", "a\n", "a/b", "x" * (MAX_TYPE + 1)]
)
def test_what_is_no_event_type_is_refused(event_type: str) -> None:
    with pytest.raises(InvalidSubject, match="event type"):
        check_event_type(event_type)
    with pytest.raises(InvalidSubject):
        SUBJECTS.event("action-results", "c", event_type)


@pytest.mark.parametrize("prefix", ["", "a.b", "a b", "*", ">", "ü", "a\n"])
def test_a_prefix_is_one_plain_token(prefix: str) -> None:
    with pytest.raises(InvalidSubject):
        Subjects(prefix)


@given(st.text(min_size=1, max_size=33))
def test_no_internal_subject_has_an_ambiguous_token(text: str) -> None:
    for subject in (
        SUBJECTS.event("t", text, "a.b"),
        SUBJECTS.checkpoint(text),
        SUBJECTS.history(text, 1),
        SUBJECTS.alias(text),
        SUBJECTS.response("t", text, "a.b"),
        SUBJECTS.timer(text, "n"),
        SUBJECTS.timer_due(text, "n"),
        SUBJECTS.registry("kind", text),
    ):
        assert all(TOKEN.fullmatch(token) for token in subject.split("."))


def test_internal_subjects_do_not_match_wildcards_for_events() -> None:
    assert not SUBJECTS.checkpoint("p").startswith("plancast.")
    assert SUBJECTS.timers_due() == "plancast-store.timers.due.*.*.>"
    assert SUBJECTS.withdrawals("web.search") == "plancast-store.withdrawals.web.search"
