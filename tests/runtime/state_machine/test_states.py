import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from plancast.errors import InvalidStateMachine, PlanCancelled, PlancastError, PlanFailed, RetryableError
from plancast.state_machine.states import RetryPolicy, StateAction, StateConfig, StateTransition


def test_a_state_needs_only_its_name() -> None:
    state = StateConfig(state_name="start")
    assert (state.description, state.action, state.transitions) == ("", None, [])
    assert (state.default_next, state.is_terminal, state.outcome) == (None, False, None)


def test_nested_dicts_are_read_as_definitions() -> None:
    state = StateConfig.model_validate(
        {
            "state_name": "search",
            "action": {"event_type": "a.b", "response_event": "a.c", "retry": {"attempts": 2}},
            "transitions": [{"on_event": "a.c", "to_state": "done"}],
        }
    )
    assert state.action is not None
    assert state.action.retry == RetryPolicy(attempts=2)
    assert state.transitions == [StateTransition(on_event="a.c", to_state="done")]


@pytest.mark.parametrize("model", [StateConfig, StateTransition, StateAction, RetryPolicy])
def test_unknown_fields_are_refused(model: type[BaseModel]) -> None:
    with pytest.raises(ValidationError, match="surprise"):
        model.model_validate({"surprise": 1})


@pytest.mark.parametrize("name", ["done", "web.search.completed", "A-b_c.1", "0"])
def test_event_types_are_dot_separated_tokens(name: str) -> None:
    assert StateTransition(on_event=name, to_state="x").on_event == name


@pytest.mark.parametrize("name", ["", ".", "a.", ".a", "a..b", "*", "a.>", "a b", "a.b\n", "é", "a/b"])
def test_other_event_types_are_refused_with_an_explanation(name: str) -> None:
    with pytest.raises(ValidationError, match="letters, digits"):
        StateTransition(on_event=name, to_state="x")
    with pytest.raises(ValidationError, match="letters, digits"):
        StateAction(event_type=name, response_event="a")
    with pytest.raises(ValidationError, match="letters, digits"):
        StateAction(event_type="a", response_event=name)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_timeout_is_a_positive_number_of_seconds(seconds: float) -> None:
    with pytest.raises(ValidationError):
        StateAction(event_type="a", response_event="b", timeout_seconds=seconds)


def test_an_outcome_is_completed_or_failed() -> None:
    assert StateConfig(state_name="x", is_terminal=True, outcome="failed").outcome == "failed"
    with pytest.raises(ValidationError):
        StateConfig.model_validate({"state_name": "x", "outcome": "perhaps"})


@pytest.mark.parametrize("attempts", [0, 101, -1])
def test_attempts_are_bounded(attempts: int) -> None:
    with pytest.raises(ValidationError):
        RetryPolicy(attempts=attempts)


def test_the_wait_grows_and_is_capped() -> None:
    assert RetryPolicy(4, 2.5) == RetryPolicy(attempts=4, backoff=2.5) == RetryPolicy(attempts=4, backoff_seconds=2.5)
    assert RetryPolicy.model_validate({"attempts": 4, "backoff": 2.5}).model_dump()["backoff_seconds"] == 2.5
    for wrong in ({"backoff": 1, "backoff_seconds": 1}, {"backof": 1}, {"backoff": -1}):
        with pytest.raises(ValueError, match="backof"):
            RetryPolicy(**wrong)
    policy = RetryPolicy(attempts=9, backoff_seconds=1, multiplier=3, max_backoff_seconds=20)
    assert [policy.delay(attempt) for attempt in (1, 2, 3, 4, 5)] == [1, 3, 9, 20, 20]


def test_tries_are_counted_from_one() -> None:
    with pytest.raises(ValueError, match="from 1"):
        RetryPolicy().delay(0)


@given(
    policy=st.builds(
        RetryPolicy,
        backoff_seconds=st.floats(0, 1e300),
        multiplier=st.floats(1, 100),
        max_backoff_seconds=st.floats(0, 1e300),
    ),
    attempt=st.integers(1, 10**6),
)
def test_a_wait_is_never_negative_never_over_the_cap_and_never_shrinks(policy: RetryPolicy, attempt: int) -> None:
    assert 0 <= policy.delay(attempt) <= policy.delay(attempt + 1) <= policy.max_backoff_seconds


def test_a_change_is_checked_like_a_new_value() -> None:
    state = StateConfig(state_name="a")
    with pytest.raises(ValidationError):
        state.is_terminal = "perhaps"  # type: ignore[assignment]
    with pytest.raises(ValidationError):
        RetryPolicy().attempts = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    "error",
    [
        InvalidStateMachine(["one", "two"]),
        PlanFailed("p-1", "no answer", "deadline_exceeded"),
        PlanCancelled("p-1", "changed my mind"),
        RetryableError("busy", retry_after=2.5),
    ],
)
def test_errors_cross_process_borders_whole(error: PlancastError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_errors_say_which_plan_and_why() -> None:
    assert str(PlanFailed("p-1", "no answer", "no_path")) == "plan p-1 failed (no_path): no answer"
    assert str(PlanCancelled("p-1", "enough")) == "plan p-1 was cancelled: enough"
    assert str(InvalidStateMachine(["one"])) == "invalid state machine: one"
    assert str(InvalidStateMachine(["one", "two"])).splitlines()[1:] == ["- one", "- two"]
