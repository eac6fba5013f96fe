from typing import Any

import msgpack
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from plancast.errors import IdempotencyConflict, IllegalTaskMove, TaskError, UnknownTask
from plancast.tasks.model import LEGAL_MOVES, GroupCompletion, GroupState, MemberOutcome, StepState, TaskState
from plancast.tasks.registry import MAX_RESOLVED, TaskRegistry
from plancast.tasks.spec import SpawnSpec

SPEC = SpawnSpec(event_type="report.write", data={"about": "tides"}, priority=3)
FAIL_FAST = SpawnSpec(event_type="report.write", fail_fast=True)
MOVES = {
    TaskState.RUNNING: TaskRegistry.start,
    TaskState.PAUSED: TaskRegistry.pause,
    TaskState.COMPLETE: TaskRegistry.complete,
    TaskState.FAILED: TaskRegistry.fail,
    TaskState.CANCELLED: TaskRegistry.cancel,
}
WAYS = {
    TaskState.PENDING: [],
    TaskState.RUNNING: [TaskState.RUNNING],
    TaskState.PAUSED: [TaskState.RUNNING, TaskState.PAUSED],
    **{ended: [ended] for ended in (TaskState.COMPLETE, TaskState.FAILED, TaskState.CANCELLED)},
}


def group_of(count: int, spec: SpawnSpec | None = SPEC, *, sealed: bool = True, **options: Any) -> TaskRegistry:
    """A registry with a group `g` of tasks `t0`, `t1`, ..."""
    registry = TaskRegistry()
    registry.open_group("g", **options)
    for number in range(count):
        registry.spawn(spec, "g", task_id=f"t{number}")
    if sealed:
        registry.seal_group("g")
    return registry


def reread(registry: TaskRegistry) -> TaskRegistry:
    return TaskRegistry.from_state(msgpack.unpackb(msgpack.packb(registry.to_state())))


# Tasks.


@pytest.mark.parametrize("target", MOVES)
@pytest.mark.parametrize("origin", TaskState)
def test_a_task_moves_as_the_table_says_and_no_other_way(origin: TaskState, target: TaskState) -> None:
    registry = TaskRegistry()
    task = registry.spawn(SPEC, task_id="t")
    for step in WAYS[origin]:
        MOVES[step](registry, task)
    assert task.state is origin
    if target in LEGAL_MOVES[origin]:
        assert MOVES[target](registry, "t").state is target
    else:
        with pytest.raises(IllegalTaskMove, match=f"task 't' is {origin} and cannot become {target}"):
            MOVES[target](registry, "t")
        assert task.state is origin


def test_the_table_ends_where_tasks_are_finished() -> None:
    assert {state for state in TaskState if state.finished} == {"complete", "failed", "cancelled"}
    assert all(state not in LEGAL_MOVES[state] and TaskState.PENDING not in LEGAL_MOVES[state] for state in TaskState)


def test_what_became_of_a_task_is_kept() -> None:
    registry = group_of(4, sealed=False)
    registry.complete("t0", {"pages": 3})
    registry.fail("t1", "no ink", {"pages": 1})
    registry.cancel("t2", "not wanted")
    assert [registry.task(f"t{n}").outcome() for n in range(4)] == [
        MemberOutcome("t0", TaskState.COMPLETE, {"pages": 3}),
        MemberOutcome("t1", TaskState.FAILED, {"pages": 1}, "no ink"),
        MemberOutcome("t2", TaskState.CANCELLED, None, "not wanted"),
        MemberOutcome("t3", TaskState.PENDING),
    ]
    assert registry.task("t1").outcome().to_dict() == {
        "task_id": "t1",
        "status": "failed",
        "result": {"pages": 1},
        "error": "no ink",
    }
    assert registry.task_ids == ("t3",)


def test_ids_are_given_and_may_be_chosen_once() -> None:
    registry = TaskRegistry()
    registry.spawn(task_id="task-1")
    assert registry.spawn().task_id == "task-2"
    with pytest.raises(IllegalTaskMove, match="there is a task 'task-2' already"):
        registry.spawn(task_id="task-2")
    assert registry.open_group().group_id != registry.open_group().group_id
    assert repr(registry) == "TaskRegistry(tasks=2, groups=2)"


def test_an_idempotency_key_gives_the_same_task_and_conflicts_with_another_request() -> None:
    registry = group_of(0, sealed=False)
    task = registry.spawn(SPEC, "g", idempotency_key="k")
    assert registry.spawn(SPEC, "g", idempotency_key="k") is task
    registry.seal_group("g")
    registry.complete(task)
    assert registry.spawn(SPEC, registry.group("g"), idempotency_key="k") is task
    assert reread(registry).spawn(SPEC, "g", idempotency_key="k").state is TaskState.COMPLETE
    for spec, group, kind in ((FAIL_FAST, "g", "background"), (SPEC, None, "background"), (SPEC, "g", "another")):
        with pytest.raises(IdempotencyConflict, match="'k'"):
            registry.spawn(spec, group, kind=kind, idempotency_key="k")
    assert registry.tasks == (task,)


def test_names_that_do_not_exist_are_refused_with_those_that_do() -> None:
    registry = group_of(1)
    for look in (registry.task, registry.start, registry.pause, registry.complete, registry.fail, registry.cancel):
        with pytest.raises(UnknownTask, match=r"no task 'x', there are: 't0'"):
            look("x")
    for ask in (registry.group, registry.watch_group, registry.seal_group, registry.cancel_group):
        with pytest.raises(UnknownTask, match=r"no group 'x', there are: 'g'"):
            ask("x")
    with pytest.raises(UnknownTask, match="no group 'x'"):
        registry.spawn(SPEC, "x")
    assert registry.is_task("t0")
    assert registry.is_group("g")
    assert not registry.is_task("g")
    assert not registry.is_group("t0")


# Groups.


@pytest.mark.parametrize(
    ("join", "n"), [("n", None), ("n", 0), ("all", 1), ("first_success", 1), ("keyed", None), ("most", None)]
)
def test_a_join_that_does_not_exist_is_refused(join: Any, n: int | None) -> None:
    with pytest.raises(ValueError, match="join"):
        TaskRegistry().open_group("g", join=join, n=n)


def test_an_open_group_is_found_again_as_it_was_opened() -> None:
    registry = TaskRegistry()
    group = registry.open_group("g", join="n", n=2, fail_fast=True)
    assert registry.open_group("g", join="n", n=2, fail_fast=True) is group
    with pytest.raises(IdempotencyConflict, match="'g' is open with another join"):
        registry.open_group("g")
    registry.seal_group("g")
    with pytest.raises(IllegalTaskMove, match="cannot be opened again"):
        registry.open_group("g", join="n", n=2, fail_fast=True)


def test_a_sealed_group_takes_no_more_members_and_is_sealed_once() -> None:
    registry = group_of(1)
    with pytest.raises(IllegalTaskMove, match="'g' is sealed and takes no more members"):
        registry.spawn(SPEC, "g")
    with pytest.raises(IllegalTaskMove, match="'g' is sealed and cannot be sealed"):
        registry.seal_group("g")
    assert registry.group("g").members == ["t0"]
    assert len(registry.tasks) == 1


def test_an_empty_group_is_resolved_when_it_is_sealed() -> None:
    assert group_of(0).watch_group("g") == GroupCompletion("g", "completed", "no members")


def test_an_open_group_is_not_resolved_though_all_its_members_are_finished() -> None:
    registry = group_of(1, sealed=False)
    registry.complete("t0")
    assert registry.watch_group("g") is None
    registry.seal_group("g")
    completion = registry.watch_group("g")
    assert completion is not None
    assert completion.succeeded


@pytest.mark.parametrize(
    ("join", "n", "ends", "reason"),
    [
        ("all", None, "ccc", "3 of 3 members succeeded"),
        ("all", None, "cfx", "1 of 3 members succeeded"),
        ("first_success", None, "fc", "1 of 1 successes are there"),
        ("first_success", None, "ffx", "0 of 3 members succeeded"),
        ("n", 2, "cfc", "2 of 3 members succeeded"),
        ("n", 2, "cc", "2 of 2 successes are there"),
        ("n", 2, "ff", "2 successes are out of reach"),
        ("n", 4, "", "4 successes are out of reach"),
    ],
)
@pytest.mark.parametrize("sealed_last", [False, True])
def test_a_group_is_resolved_as_soon_as_its_join_is_decided(
    join: Any, n: int | None, ends: str, reason: str, sealed_last: bool
) -> None:
    registry = group_of(3, sealed=False, join=join, n=n)
    ways = {"c": registry.complete, "f": registry.fail, "x": registry.cancel}
    if not sealed_last:
        registry.seal_group("g")
    for number, end in enumerate(ends):
        assert registry.watch_group("g") is None
        ways[end](f"t{number}")
    if sealed_last:
        assert registry.watch_group("g") is None
        registry.seal_group("g")
    completion = registry.watch_group("g")
    assert completion is not None
    assert (completion.status, completion.reason) == ("completed", reason)
    assert completion.succeeded is (ends == "ccc")
    rest = [each.status for each in completion.members[len(ends) :]]
    assert rest == [TaskState.CANCELLED] * (3 - len(ends))


@pytest.mark.parametrize(("spec", "group_fails_fast"), [(SPEC, True), (FAIL_FAST, False), (None, True)])
@pytest.mark.parametrize("sealed", [False, True])
def test_with_fail_fast_a_failure_cancels_the_rest(
    spec: SpawnSpec | None, group_fails_fast: bool, sealed: bool
) -> None:
    registry = group_of(3, spec, sealed=sealed, fail_fast=group_fails_fast)
    registry.complete("t0", 1)
    registry.fail("t1", "no ink")
    completion = registry.watch_group("g")
    assert completion is not None
    assert (completion.status, completion.reason) == ("cancelled", "t1 failed: no ink")
    assert [each.status for each in completion.members] == ["complete", "failed", "cancelled"]
    assert not completion.succeeded
    with pytest.raises(IllegalTaskMove):
        registry.complete("t2")


def test_without_fail_fast_a_failure_leaves_the_rest_alone() -> None:
    registry = group_of(2)
    registry.fail("t0")
    assert registry.watch_group("g") is None
    assert registry.task("t1").state is TaskState.PENDING


def test_a_group_is_cancelled_with_its_unfinished_members_once() -> None:
    registry = group_of(2)
    registry.complete("t0", 1)
    registry.cancel_group("g", "plan changed")
    completion = registry.watch_group("g")
    assert completion is not None
    assert (completion.status, completion.reason) == ("cancelled", "plan changed")
    assert [each.status for each in completion.members] == ["complete", "cancelled"]
    registry.cancel_group("g", "again")
    assert registry.watch_group("g") == completion
    with pytest.raises(IllegalTaskMove, match="completed and cannot be cancelled"):
        group_of(0).cancel_group("g")


def test_a_late_look_sees_the_same_completion() -> None:
    registry = group_of(1)
    registry.complete("t0", {"pages": 3})
    first = registry.watch_group("g")
    assert first is not None
    assert registry.watch_group(registry.group("g")) == first
    assert reread(registry).watch_group("g") == first
    assert registry.group_ids == ()


# What steps keep, and what is forgotten.


def test_steps_are_kept_per_run() -> None:
    registry = TaskRegistry()
    kept = registry.keep_step("r", "s", StepState("g", "t"))
    assert registry.step("r", "s") is kept
    assert registry.step("other", "s") is None
    assert registry.step("r", "other") is None


@pytest.mark.parametrize("finished", [False, True])
def test_a_step_that_is_forgotten_takes_its_task_and_group_along(finished: bool) -> None:
    registry = group_of(1)
    registry.keep_step("r", "s", StepState("g", "t0"))
    if finished:
        registry.complete("t0")
    registry.forget_step("r", "s")
    registry.forget_step("r", "s")
    assert registry.to_state() == TaskRegistry().to_state()


def test_a_step_that_is_forgotten_leaves_what_others_put_into_the_group() -> None:
    registry = group_of(2)
    registry.keep_step("r", "s", StepState("g", "t1"))
    registry.forget_step("r", "s")
    assert registry.group("g").members == ["t0"]
    assert registry.group("g").state is GroupState.OPEN
    assert not registry.is_task("t1")


def test_a_step_that_has_not_spawned_leaves_the_group_alone() -> None:
    registry = group_of(1)
    before = registry.to_state()
    registry.keep_step("r", "s", StepState("g", "t1", busy=True))
    assert registry.to_state() == before  # after a restart it begins anew
    registry.forget_step("r", "s")
    assert registry.to_state() == before


def test_a_completion_that_others_have_seen_is_not_changed_by_a_step_that_is_forgotten() -> None:
    registry = group_of(2)
    registry.keep_step("r", "s", StepState("g", "t1"))
    registry.cancel_group("g")
    before = registry.watch_group("g")
    registry.forget_step("r", "s")
    assert registry.watch_group("g") == before
    assert registry.step("r", "s") is None


def test_the_oldest_of_what_is_over_is_forgotten() -> None:
    registry = TaskRegistry()
    for number in range(MAX_RESOLVED + 2):
        registry.spawn(SPEC, registry.open_group(f"g{number}"), task_id=f"in-{number}")
        registry.seal_group(f"g{number}")
        registry.spawn(SPEC, task_id=f"out-{number}")
        if number:
            registry.complete(f"in-{number}")
            registry.complete(f"out-{number}")
    registry.prune()
    assert len(registry.groups) == MAX_RESOLVED + 1
    assert [each for each in ("g0", "g1", "g2") if registry.is_group(each)] == ["g0", "g2"]
    assert [each for each in ("in-0", "in-1", "out-0", "out-1", "out-2") if registry.is_task(each)] == [
        "in-0",
        "out-0",
        "out-2",
    ]


def test_what_a_step_has_yet_to_look_at_is_not_forgotten() -> None:
    registry = group_of(1)
    state = registry.keep_step("r", "s", StepState("g", "t0"))
    registry.complete("t0")
    registry.prune(keep=0)
    assert registry.watch_group("g") is not None
    state.resolved = True
    registry.prune(keep=0)
    assert (registry.tasks, registry.groups) == ((), ())


def test_what_is_written_does_not_change_afterwards() -> None:
    registry = group_of(1, sealed=False)
    registry.keep_step("r", "s", StepState("g", "t0"))
    written = registry.to_state()
    copied = msgpack.packb(written)
    registry.spawn(SPEC, "g")
    registry.complete("t0", 1)
    registry.seal_group("g")
    registry.forget_step("r", "s")
    assert msgpack.packb(written) == copied


# Whatever is done to it.

NAMES = st.sampled_from(["a", "b", "c"])
RESULTS = st.none() | st.dictionaries(NAMES, st.integers(-5, 5) | st.text(max_size=3), max_size=2)


class Registry(RuleBasedStateMachine):
    """Calls of all kinds, legal or not: what is refused changes nothing, and what is resolved stays so."""

    groups = Bundle("groups")
    tasks = Bundle("tasks")

    def __init__(self) -> None:
        super().__init__()
        self.registry = TaskRegistry()
        self.seen: dict[str, GroupCompletion] = {}
        self.finished: dict[str, MemberOutcome] = {}

    def attempt(self, call: Any, *given: Any, **options: Any) -> Any:
        before = msgpack.packb(self.registry.to_state())
        try:
            return call(*given, **options)
        except TaskError:
            assert msgpack.packb(self.registry.to_state()) == before, "a refused call has left a trace"
            return None

    @initialize(target=groups)
    def begin(self) -> Any:
        return multiple("nowhere", self.registry.open_group().group_id)

    @rule(
        target=groups,
        group_id=st.none() | NAMES,
        join=st.sampled_from(["all", "first_success", "n"]),
        n=st.integers(1, 3),
        fail_fast=st.booleans(),
    )
    def open_group(self, group_id: str | None, join: Any, n: int, fail_fast: bool) -> Any:
        n_if = n if join == "n" else None
        group = self.attempt(self.registry.open_group, group_id, join=join, n=n_if, fail_fast=fail_fast)
        return group.group_id if group is not None else multiple()

    @rule(
        target=tasks,
        group_id=st.none() | groups,
        task_id=st.none() | NAMES,
        spec=st.sampled_from([None, SPEC, FAIL_FAST]),
        key=st.sampled_from(["", "", "k1", "k2"]),
    )
    def spawn(self, group_id: str | None, task_id: str | None, spec: SpawnSpec | None, key: str) -> Any:
        task = self.attempt(self.registry.spawn, spec, group_id, task_id=task_id, idempotency_key=key)
        if task is None:
            return multiple()
        assert (task.spec, task.group_id) == (spec, group_id or "")
        return task.task_id

    @rule(group_id=groups)
    def seal(self, group_id: str) -> None:
        self.attempt(self.registry.seal_group, group_id)

    @rule(group_id=groups, reason=NAMES)
    def cancel_group(self, group_id: str, reason: str) -> None:
        self.attempt(self.registry.cancel_group, group_id, reason)

    @rule(task_id=tasks, way=st.sampled_from([*MOVES]), result=RESULTS)
    def move(self, task_id: str, way: TaskState, result: Any) -> None:
        if not self.registry.is_task(task_id):
            with pytest.raises(UnknownTask):
                MOVES[way](self.registry, task_id)
            return
        legal = way in LEGAL_MOVES[self.registry.task(task_id).state]
        given = (result,) if way is TaskState.COMPLETE else ()
        moved = self.attempt(MOVES[way], self.registry, task_id, *given)
        assert (moved is not None) is legal
        assert moved is None or moved.state is way

    @rule(run_id=NAMES, group_id=groups, task_id=tasks, resolved=st.booleans())
    def keep_step(self, run_id: str, group_id: str, task_id: str, resolved: bool) -> None:
        self.registry.keep_step(run_id, "step", StepState(group_id, task_id, resolved))

    @rule(run_id=NAMES)
    def forget_step(self, run_id: str) -> None:
        self.registry.forget_step(run_id, "step")
        assert self.registry.step(run_id, "step") is None
        self.forgotten()

    @rule(keep=st.integers(0, 3))
    def prune(self, keep: int) -> None:
        self.registry.prune(keep)
        self.forgotten()

    @rule()
    def restart(self) -> None:
        self.registry = reread(self.registry)

    def forgotten(self) -> None:
        self.seen = {key: each for key, each in self.seen.items() if self.registry.is_group(key)}
        self.finished = {key: each for key, each in self.finished.items() if self.registry.is_task(key)}

    @invariant()
    def members_and_tasks_agree(self) -> None:
        listed = [(group.group_id, member) for group in self.registry.groups for member in group.members]
        assert sorted(listed) == sorted((task.group_id, task.task_id) for task in self.registry.tasks if task.group_id)

    @invariant()
    def groups_resolve_once_and_when_their_join_is_decided(self) -> None:
        for group in self.registry.groups:
            states = [self.registry.task(each).state for each in group.members]
            ahead = sum(not each.finished for each in states)
            completion = self.registry.watch_group(group.group_id)
            if completion is not None:
                assert ahead == 0
                assert completion == self.seen.setdefault(group.group_id, completion)
                assert completion.status == group.state
                assert completion.reason
                continue
            assert group.group_id not in self.seen
            failed_fast = group.fail_fast or any(
                task.spec is not None and task.spec.fail_fast and task.state is TaskState.FAILED
                for task in map(self.registry.task, group.members)
            )
            assert not (failed_fast and TaskState.FAILED in states)
            if group.state is GroupState.SEALED:
                done = states.count(TaskState.COMPLETE)
                assert ahead > 0
                assert not group.needed or done < group.needed <= done + ahead

    @invariant()
    def what_is_finished_stays_so(self) -> None:
        for task in self.registry.tasks:
            if task.state.finished:
                assert task.outcome() == self.finished.setdefault(task.task_id, task.outcome())
            else:
                assert task.task_id not in self.finished

    @invariant()
    def it_is_read_as_it_is_written(self) -> None:
        again = reread(self.registry)
        assert again.to_state() == self.registry.to_state()
        assert again.tasks == self.registry.tasks
        assert again.groups == self.registry.groups
        assert again.task_ids == self.registry.task_ids
        assert again.group_ids == self.registry.group_ids
        assert again.step("a", "step") == self.registry.step("a", "step")


TestRegistry = Registry.TestCase
TestRegistry.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
