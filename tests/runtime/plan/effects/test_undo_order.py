"""The order in which a rollback undoes what a plan has done."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plancast.plan.effects.undo_order import Step, may_depend, ready_steps, sent_revision
from plancast.plan.requests import effect_id


@st.composite
def any_steps(draw: st.DrawFn) -> list[Step]:
    steps = []
    for number in range(draw(st.integers(0, 12))):
        sent = draw(st.integers(1, 12))
        answered = draw(st.one_of(st.just(0), st.integers(sent + 1, 14)))
        steps.append(Step(f"p:{sent}-{number}", sent, answered))
    return steps


@given(any_steps(), st.randoms(use_true_random=False))
def test_nothing_is_undone_before_what_may_depend_on_it(steps: list[Step], random: object) -> None:
    unsettled, under_way, undone = dict.fromkeys(steps), set[Step](), list[Step]()
    while unsettled:
        ready = ready_steps(unsettled)
        assert ready, "a rollback that cannot go on"
        for step in ready:
            assert not any(may_depend(other, step) for other in unsettled)
        under_way |= set(ready)
        settled = random.choice(sorted(under_way))  # type: ignore[attr-defined]
        under_way.remove(settled)
        del unsettled[settled]
        undone.append(settled)
    for at, step in enumerate(undone):
        assert not any(may_depend(later, step) for later in undone[at + 1 :])
    assert sorted(undone) == sorted(steps)


@given(any_steps())
def test_what_ran_side_by_side_at_the_end_is_undone_side_by_side(steps: list[Step]) -> None:
    newest = max((step.sent for step in steps), default=0)
    last = {step for step in steps if step.sent == newest}
    assert last <= set(ready_steps(steps))


def test_a_chain_is_undone_from_its_end() -> None:
    chain = [Step(f"p:{turn}-0", turn, turn + 1) for turn in range(1, 5)]
    assert ready_steps(chain) == chain[-1:]
    assert ready_steps(chain[:-1]) == [chain[2]]


def test_branches_are_undone_together_and_after_what_followed_them() -> None:
    first, left, right = Step("p:1-0", 1, 2), Step("p:2-0", 2, 3), Step("p:2-1", 2, 4)
    after = Step("p:4-0", 4, 5)
    assert ready_steps([first, left, right, after]) == [after]
    assert ready_steps([first, left, right]) == [left, right]
    assert ready_steps([first]) == [first]


def test_what_has_no_answer_yet_holds_up_only_what_it_may_depend_on() -> None:
    first, second, open_one = Step("p:1-0", 1, 2), Step("p:1-1", 1, 4), Step("p:3-0", 3)
    assert ready_steps([first, second, open_one]) == [open_one, second]


def test_the_turn_of_a_request_is_in_its_id() -> None:
    assert sent_revision(effect_id("a:b plan", 17, 3)) == 17
    assert [sent_revision(each) for each in ("", "x", "p:wait:7", "p:a-1", "p:1-b")] == [0] * 5
