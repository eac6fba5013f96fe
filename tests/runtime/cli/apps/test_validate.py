"""`plancast validate`: all faults at once, each with file and line in the user's code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from plancast.cli import main

Validate = Callable[[str, str], tuple[int, list[str]]]
MACHINE = """{
    "start": StateConfig(state_name="start", default_next="paying"),
    "paying": StateConfig(
        state_name="paying", action=StateAction(event_type="pay.requested", response_event="pay.done"),
        transitions=[StateTransition(on_event="pay.done", to_state=%r), StateTransition(on_event=%r, to_state="done")],
    ),
    "done": StateConfig(state_name="done", is_terminal=True),
}"""
HEAD = """from plancast import App, Effect, Planner, StateAction, StateConfig, StateTransition, Worker
planner = Planner("till")
worker = Worker("bank")
"""
FAULTY = f"""{HEAD}
planner.add_goal("order.received", {MACHINE % ("shipped", "pay.late")})
planner.add_goal("second.goal", {{"start": {{"state_name": "start", "transitions": [
    {{"on_event": "a.b", "to_state": "start", "condition": "1 +"}}]}}}})

@planner.on_goal("other.goal")
async def other(goal): ...

@planner.on_transition()
async def moved(transition, context, plan): ...

@planner.on_event("some.fact")
async def heard(*, event): ...

@worker.on_task("pay.requested")
async def pay(): ...

@worker.on_task("sum.requested", effect=Effect(
    key=lambda: "total"))
async def total(task, context): ...

app = App("shop", planners=[planner], workers=[worker, Worker("bank")])
"""


@pytest.fixture
def validate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Validate:
    monkeypatch.chdir(tmp_path)

    def run(module: str, code: str) -> tuple[int, list[str]]:
        (tmp_path / f"{module}.py").write_text(code)
        return main(["validate", f"{module}:app"]), capsys.readouterr().out.splitlines()

    return run


def test_all_faults_are_named_at_once_with_their_lines(validate: Validate) -> None:
    code, lines = validate("shop_with_faults", FAULTY)
    assert (code, lines[0]) == (1, "✗ app 'shop' has 8 faults")
    place = {name: f"  - shop_with_faults.py:{number}: " for number, line in enumerate(FAULTY.splitlines(), 1)
             for name in ("order.received", "second.goal", "other(", "moved(", "heard(", "pay(", "key=", "app =")
             if name in line}  # fmt: skip
    said = "\n".join(lines)
    for name, fault in {
        "order.received": "planner 'till', goal 'order.received': state 'paying': its transition on 'pay.done' leads",
        "second.goal": "planner 'till', goal 'second.goal': state 'start': condition '1 +' does not compile",
        "key=": "worker 'bank', key of task 'sum.requested': <lambda>() cannot be called with (task)",
        "app =": "two workers are named 'bank'",
    }.items():
        assert f"{place[name]}{fault}" in said
    before = {
        name: f"  - shop_with_faults.py:{int(place[name].split(':')[1]) - 1}: " for name in place
    }  # the decorator
    for name, fault in {
        "other(": "planner 'till', handler of goal 'other.goal': other(goal) cannot be called with (goal, context)",
        "moved(": "planner 'till', handler of transitions: moved(transition, context, plan) cannot be called with",
        "heard(": "planner 'till', handler of an event: heard(*, event) cannot be called with (event, context)",
        "pay(": "worker 'bank', handler of task 'pay.requested': pay() cannot be called with (task, context)",
    }.items():
        assert f"{before[name]}{fault}" in said


def test_what_is_raised_while_the_app_is_declared_has_its_line(validate: Validate) -> None:
    text = f'{HEAD}planner.add_goal("a.goal")\napp = App("shop", planners=[planner])\n'
    assert validate("shop_that_raises", text) == (1, [
        "✗ app 'shop' has 1 fault",
        "  - shop_that_raises.py:4: planner 'till': goal 'a.goal' takes either a state machine or decided_by",
    ])  # fmt: skip


def test_refused_declarations_and_the_end_of_the_import_are_named_with_all_other_faults(validate: Validate) -> None:
    machine = MACHINE.replace("to_state=%r)", 'to_state="shipped", condition="1 +")', 1) % "pay.late"
    text = f"""{HEAD}
planner.add_goal("order.received", {machine})
planner.add_goal("order.received", decided_by=None)
planner.on_goal(print)(lambda goal, context: None)
planner.on_transition()(lambda event, context: None)
planner.on_transition()(lambda event, context: None)
planner.expects("pay.late", schema={{"type": "nothing"}})
for _ in range(2):
    worker.on_task("pay.requested")(lambda task, context: None)
worker.compensate("pay.requested")(lambda task, result, context: None)
app = App("shop", planners=[planner], workers=[worker])
"""
    begun = text.count("\n", 0, text.index("planner.add_goal")) + 1
    expected = [
        (0, "planner 'till', goal 'order.received': state 'paying': its transition on 'pay.done' leads to unknown"),
        (0, "planner 'till', goal 'order.received': state 'paying': condition '1 +' does not compile"),
        (8, "planner 'till': goal 'order.received' takes either a state machine or decided_by"),
        (9, "<built-in function print> is no event type"),
        (11, "planner 'till' has a transition handler already"),
        (12, "planner 'till' expects 'pay.late': schema is no JSON Schema"),
        (14, "worker 'bank' takes the task 'pay.requested' twice"),
        (15, "worker 'bank': compensate('pay.requested') needs the task first"),
    ]
    for ending, last in (
        ("", []),
        ("Path(None)\n", ["  - cannot import the module of refusing_2:app: refusing_2.py:"]),
    ):
        module = f"refusing_{1 + bool(ending)}"
        code, (_, *lines) = validate(module, text + ending)
        begins = [f"  - {module}.py:{begun + line}: {fault}" for line, fault in expected] + last
        assert (code, len(lines)) == (1, len(begins)), "\n".join(lines)
        for line, begin in zip(lines, begins, strict=True):
            assert line.startswith(begin)


@pytest.mark.parametrize(
    ("event", "more", "warned"),
    [
        ("manager.agreed", "", True),
        ("manager.agreed", 'planner.expects("manager.agreed")', False),
        ("pay.late", "", False),  # another response to the request of the state
        ("bank.closed", 'worker.on_task("bank.open.requested", "bank.opened")(lambda task, context: None)', False),
        ("bank.closed", "", True),
    ],
)
def test_events_that_nothing_sends_are_warned_of(validate: Validate, event: str, more: str, warned: bool) -> None:
    tail = 'worker.on_task("pay.requested")(lambda task, context: None)\n'
    tail += 'app = App("shop", planners=[planner], workers=[worker])'
    text = f'{HEAD}planner.add_goal("order.received", {MACHINE % ("done", event)})\n{more}\n{tail}\n'
    code, lines = validate(f"shop_{event.replace('.', '_')}_{len(more)}", text)
    assert code == 0
    warning = (
        f"planner 'till', goal 'order.received': state 'paying' waits for {event}, which nothing in this app sends"
    )
    assert [warning in line for line in lines if line.startswith("!")] == ([True] if warned else [])


@pytest.mark.parametrize("name", ["research", "orders", "feedback"])
def test_the_demos_have_no_faults_and_no_warnings(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", f"plancast.demo.apps.{name}:app"]) == 0
    assert "!" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('StateConfig(state_name="start", default_nxt="done")', "StateConfig: default_nxt: Extra inputs are not"),
        ('StateAction(event_type="pay me", response_event="paid")', "StateAction: event_type: an event type is one or"),
        ('planner.on_event("a.fact", topic="facts")', "ValueError: 'facts' is not a valid EventTopic"),
        ("App('shop', planners=planner)", "TypeError: 'Planner' object is not iterable"),
        ("Path(None)", "TypeError: "),
    ],
)
def test_what_a_library_refuses_is_named_with_the_line_of_the_app(
    wrong: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = f"from pathlib import Path\n{HEAD}{wrong}\napp = App('shop', planners=[planner])\n"
    (tmp_path / "refused.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "refused", raising=False)
    assert main(["validate", "refused:app"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: cannot import the module of refused:app: refused.py:5: {said}")
    assert "errors.pydantic.dev" not in error
