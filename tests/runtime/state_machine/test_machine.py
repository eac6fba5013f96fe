import json
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plancast.errors import ConditionFailed, InvalidStateMachine
from plancast.state_machine.machine import Machine, base_of, failed_event, timeout_event, validate_state_machine
from plancast.state_machine.states import StateAction, StateConfig, StateMachine, StateTransition


def research() -> StateMachine:
    """A research plan in three states."""

    def to(state: str, on: str) -> StateTransition:
        return StateTransition(on_event=on, to_state=state)

    def ask(event_type: str, response_event: str, data: dict[str, Any] | None = None) -> StateAction:
        return StateAction(event_type=event_type, response_event=response_event, data=data)

    topic = {"query": "{goal_data.topic}"}
    states = [
        StateConfig(state_name="start", description="Initial state", default_next="searching"),
        StateConfig(
            state_name="searching",
            action=ask("web.search.requested", "web.search.completed", topic),
            transitions=[
                to("analyzing", "web.search.completed"),
                to("retry_search", "web.search.failed"),
                to("ask_user", "web.search.no_results"),
            ],
        ),
        StateConfig(
            state_name="retry_search",
            action=ask("web.search.requested", "web.search.completed", {**topic, "broad": True}),
            transitions=[to("analyzing", "web.search.completed"), to("failed", "web.search.failed")],
        ),
        StateConfig(
            state_name="ask_user",
            action=ask("notification.human_input", "user.clarification.provided", {"question": "More?"}),
            transitions=[to("searching", "user.clarification.provided")],
        ),
        StateConfig(
            state_name="analyzing",
            action=ask("content.analyze.requested", "content.analyze.completed"),
            transitions=[to("done", "content.analyze.completed")],
        ),
        StateConfig(state_name="done", is_terminal=True),
        StateConfig(state_name="failed", is_terminal=True),
    ]
    return {state.state_name: state for state in states}


def state(name: str, **fields: Any) -> StateConfig:
    return StateConfig(state_name=name, **fields)


def machine(*states: StateConfig) -> StateMachine:
    return {s.state_name: s for s in states}


def on(event: str, to: str, condition: str | None = None) -> dict[str, Any]:
    return {"on_event": event, "to_state": to, "condition": condition}


DONE = state("done", is_terminal=True)
ACTION = {"event_type": "pay.requested", "response_event": "pay.completed"}


def faults_of(definition: Any) -> list[str]:
    with pytest.raises(InvalidStateMachine) as invalid:
        validate_state_machine(definition)
    assert all(fault in str(invalid.value) for fault in invalid.value.faults)
    return invalid.value.faults


# Validation


def test_the_research_plan_is_valid_as_objects_and_as_dicts() -> None:
    validate_state_machine(research())
    validate_state_machine({name: s.model_dump() for name, s in research().items()})


@pytest.mark.parametrize(
    "start",
    [
        state("start", transitions=[on("go", "done")]),
        state("start", action=ACTION, transitions=[on("pay.completed", "done")]),
        state("start", action=ACTION, transitions=[on("pay.failed", "done")]),
        state(
            "start",
            action=ACTION,
            transitions=[on("pay.rejected", "done"), on("x", "start")],
            default_next="done",
        ),
        state("start", action={**ACTION, "response_event": "paid"}, transitions=[on("timeout", "done")]),
        state("start", transitions=[on("go", "start"), on("go", "done", "event.data.ok")]),
    ],
)
def test_a_start_of_any_shape_is_valid(start: StateConfig) -> None:
    validate_state_machine(machine(start, DONE))


def test_a_start_may_be_the_end() -> None:
    validate_state_machine(machine(state("start", is_terminal=True, outcome="failed")))


@pytest.mark.parametrize(
    ("definition", "fault"),
    [
        ({}, "there is no state 'start'"),
        (machine(DONE), "there is no state 'start'"),
        ({"start": state("begin", default_next="done"), "done": DONE}, "'start': its state_name is 'begin'"),
        (machine(state("start", default_next="nowhere")), "'start': its default_next .*'nowhere'"),
        (
            machine(state("start", transitions=[on("go", "nowhere")])),
            "'start': its transition on 'go' .*'nowhere'",
        ),
        (
            machine(state("start", default_next="done"), DONE, state("x", default_next="done")),
            "'x' cannot be reached",
        ),
        (machine(state("start", default_next="x"), state("x")), "'x': it is a dead end"),
        (machine(state("start", is_terminal=True, default_next="start")), "'start': it is terminal"),
        (machine(state("start", is_terminal=True, action=ACTION)), "'start': it is terminal"),
        (
            machine(state("start", is_terminal=True, transitions=[on("a", "start")])),
            "'start': it is terminal",
        ),
        (machine(state("start", default_next="done", outcome="failed"), DONE), "'start': it has an outcome"),
        (machine(state("start", default_next="start")), "loop: start -> start"),
        (
            machine(state("start", default_next="a"), state("a", default_next="b"), state("b", default_next="a")),
            "loop: a -> b -> a",
        ),
        (
            machine(state("start", transitions=[on("go", "done", "foo >")]), DONE),
            "'start': condition 'foo >'",
        ),
        (
            machine(state("start", transitions=[on("go", "done", "foo > 1")]), DONE),
            "undeclared reference to 'foo'",
        ),
        (
            machine(
                state(
                    "start",
                    action={**ACTION, "data": {"a": ["{foo.bar}"]}},
                    transitions=[on("pay.completed", "done")],
                ),
                DONE,
            ),
            r"'start': unknown placeholder root 'foo' in data.a\[0\]",
        ),
        (
            machine(
                state(
                    "start",
                    action={**ACTION, "data": {"a": "for {{goal_data.name | upper}}"}},
                    transitions=[on("pay.completed", "done")],
                ),
                DONE,
            ),
            r"'start': data.a: '{{goal_data.name \| upper}}' looks like a placeholder and is none; write",
        ),
        (
            machine(state("start", action=ACTION, transitions=[on("go", "done")]), DONE),
            "no transition could answer",
        ),
        (machine(state("start", action=ACTION, default_next="done"), DONE), "no transition could answer"),
        (
            machine(
                state(
                    "start",
                    action={**ACTION, "data": {"a": object()}},
                    transitions=[on("pay.completed", "done")],
                ),
                DONE,
            ),
            "'start': the data of its action is not JSON",
        ),
        ({"start": {"state_name": "start", "defaultnext": "x"}}, "'start': defaultnext: Extra"),
        (
            {"start": {"state_name": "start", "transitions": [on("*", "start")]}},
            r"'start': transitions.0.on_event",
        ),
        ({"start": None}, "'start': it: Input should be"),
        ({"start": state("start", is_terminal=True), 7: DONE}, "a state's name is a string"),
        ([], "maps state names to states; this is a list"),
        (None, "this is a NoneType"),
    ],
)
def test_each_fault_is_named(definition: Any, fault: str) -> None:
    with pytest.raises(InvalidStateMachine, match=fault):
        validate_state_machine(definition)


def test_every_fault_is_named_at_once() -> None:
    broken = research()
    broken["start"].state_name = "begin"
    broken["searching"].transitions[0].to_state = "nowhere"
    broken["searching"].transitions[1].condition = "event.data.x >"
    broken["retry_search"].action = StateAction(event_type="a", response_event="b.c", data={"q": "{secret.key}"})
    broken["analyzing"].transitions = []
    broken["lost"] = state("lost", default_next="lost")
    faults = "\n".join(faults_of(broken))
    for expected in (
        "state_name is 'begin'",
        "unknown state 'nowhere'",
        "'searching': condition 'event.data.x >'",
        "unknown placeholder root 'secret'",
        "'retry_search': no transition could answer",
        "'analyzing': it is a dead end",
        "'analyzing': no transition could answer",
        "'lost' cannot be reached",
        "lost -> lost",
        "'done' cannot be reached",
    ):
        assert expected in faults


def test_a_fault_is_named_once() -> None:
    long = machine(*(state(f"s{n}", default_next=f"s{(n + 1) % 5}") for n in range(5)))
    assert [f for f in faults_of({**long, "start": state("start", default_next="s2")}) if "loop" in f] == [
        "endless default_next loop: s0 -> s1 -> s2 -> s3 -> s4 -> s0"
    ]


def test_an_unreadable_state_does_not_accuse_its_neighbours() -> None:
    definition = {"start": state("start", default_next="mid"), "mid": {"bad": 1}, "done": DONE}
    assert all(fault.startswith("state 'mid'") for fault in faults_of(definition))


def test_states_that_were_changed_behind_the_models_back_are_read_anew() -> None:
    sneaky = machine(state("start", transitions=[on("go", "done")]), DONE)
    sneaky["start"].transitions.append({"on_event": "a b", "to_state": "done"})  # type: ignore[arg-type]
    assert "transitions.1.on_event" in faults_of(sneaky)[0]


def test_a_long_chain_is_no_trouble() -> None:
    chain = machine(*(state(f"s{n}", default_next=f"s{n + 1}") for n in range(2000)), state("s2000", is_terminal=True))
    chain["start"] = state("start", default_next="s0")
    validate_state_machine(chain)
    assert len(Machine.compile(chain).resolve_passthrough("start")) == 2002


NAMES = st.sampled_from(["start", "a", "b", "done", "x y", ""])
EVENTS = st.sampled_from(["go", "pay.completed", "pay.failed", "other.done"])
TEXTS = st.sampled_from(["{goal_data.x}", "{foo}", "plain", "{{results.a.b}}", "{"])
CONDITIONS = st.none() | st.sampled_from(["true", "event.data.ok", "foo", "(", "1", "", "event.data.n > 1"])
STATES = st.builds(
    StateConfig,
    state_name=NAMES,
    action=st.none()
    | st.builds(
        StateAction,
        event_type=EVENTS,
        response_event=EVENTS,
        data=st.none() | st.dictionaries(st.text(max_size=3), TEXTS, max_size=2),
    ),
    transitions=st.lists(st.builds(StateTransition, on_event=EVENTS, to_state=NAMES, condition=CONDITIONS), max_size=3),
    default_next=st.none() | NAMES,
    is_terminal=st.booleans(),
    outcome=st.none() | st.sampled_from(["completed", "failed"]),
)
MACHINES = st.dictionaries(NAMES, STATES, max_size=5)
JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["start", "state_name", "action", "transitions", "data", "on_event"]),
            inner,
            max_size=4,
        )
    ),
)


@settings(max_examples=300, deadline=None)
@given(MACHINES | JUNK)
def test_validation_of_anything_passes_or_names_faults(definition: Any) -> None:
    faults = None
    try:
        validate_state_machine(definition)
    except InvalidStateMachine as invalid:
        faults = invalid.faults
    assert faults is None or faults


@settings(max_examples=300, deadline=None)
@given(MACHINES)
def test_a_valid_machine_compiles_and_every_state_has_a_way_on(definition: StateMachine) -> None:
    try:
        validate_state_machine(definition)
    except InvalidStateMachine:
        return
    compiled = Machine.compile(definition)
    for name, config in definition.items():
        last = compiled.states[compiled.resolve_passthrough(name)[-1]]
        assert last.is_terminal or compiled.awaited(last.state_name)
        template = compiled.action_template(name)
        assert (template is None) == (config.action is None)


@settings(deadline=None)
@given(
    planted=st.sets(
        st.sampled_from(["target", "start", "unreached", "dead end", "loop", "condition", "root", "answer", "name"])
    )
)
def test_every_planted_fault_is_found(planted: set[str]) -> None:
    definition = research()
    expected = []
    if "target" in planted:
        definition["ask_user"].transitions.append(StateTransition(on_event="x", to_state="nowhere"))
        expected.append("unknown state 'nowhere'")
    if "dead end" in planted:
        definition["retry_search"] = state("retry_search")
        expected.append("'retry_search': it is a dead end")
    if "loop" in planted:
        definition["failed"] = state("failed", default_next="failed")
        expected.append("loop: failed -> failed")
    if "condition" in planted:
        definition["searching"].transitions[0].condition = "nonsense("
        expected.append("'nonsense('")
    if "root" in planted:
        definition["ask_user"].action = StateAction(
            event_type="a", response_event="user.clarification.provided", data={"x": "{env.HOME}"}
        )
        expected.append("root 'env'")
    if "answer" in planted:
        definition["analyzing"].transitions[0].on_event = "unrelated"
        expected.append("'analyzing': no transition could answer")
    if "name" in planted:
        definition["done"] = state("fertig", is_terminal=True)
        expected.append("state_name is 'fertig'")
    if "start" in planted:
        del definition["start"]
        expected.append("no state 'start'")
    elif "unreached" in planted:
        definition["lost"] = state("lost", is_terminal=True)
        expected.append("'lost' cannot be reached")
    if not expected:
        validate_state_machine(definition)
        return
    told = "\n".join(faults_of(definition))
    assert all(fault in told for fault in expected)


# The compiled form


def test_transitions_are_found_by_state_and_event() -> None:
    compiled = Machine.compile(research())
    assert [t.to_state for t in compiled.transition("searching", "web.search.failed")] == ["retry_search"]
    assert compiled.transition("searching", "web.search.requested") == ()
    assert compiled.transition("nowhere", "web.search.failed") == ()
    assert compiled.awaited("retry_search") == {"web.search.completed", "web.search.failed"}
    assert compiled.awaited("start") == compiled.awaited("nowhere") == frozenset()
    assert "content.analyze.completed" in compiled.event_types
    assert "content.analyze.requested" not in compiled.event_types


def next_state(compiled: Machine, event_type: str, data: Mapping[str, Any]) -> str | None:
    event = {"type": event_type, "topic": "action-results", "data": data}
    return compiled.next_state(
        "start",
        event_type,
        event=event,
        goal_data={"limit": 5},
        results={},
        plan=lambda: {"status": "running"},
    )


def test_the_first_transition_that_holds_is_taken() -> None:
    compiled = Machine.compile(
        machine(
            state(
                "start",
                transitions=[
                    on("priced", "big", "event.data.amount > goal_data.limit && plan.status == 'running'"),
                    on("priced", "free", "event.data.amount == 0"),
                    on("other", "done"),
                    on("priced", "small"),
                    on("priced", "big"),
                ],
            )
        )
    )
    assert next_state(compiled, "priced", {"amount": 6}) == "big"
    assert next_state(compiled, "priced", {"amount": 0}) == "free"
    assert next_state(compiled, "priced", {"amount": 5}) == "small"
    assert next_state(compiled, "unheard", {"amount": 5}) is None
    with pytest.raises(ConditionFailed, match="no field 'amount'"):
        next_state(compiled, "priced", {})


def test_no_transition_that_holds_is_no_move() -> None:
    compiled = Machine.compile(machine(state("start", transitions=[on("go", "done", "event.data.ok")])))
    assert next_state(compiled, "go", {"ok": False}) is None


def test_views_are_made_only_for_conditions_and_once() -> None:
    calls: list[str] = []

    def view() -> dict[str, Any]:
        calls.append("made")
        return {"data": {"n": 3}}

    transitions = [on("if", "a", "event.data.n == 1"), on("if", "b", "event.data.n == 3"), on("plain", "c")]
    compiled = Machine.compile(machine(state("start", transitions=transitions)))
    assert compiled.next_state("start", "plain", event=view, goal_data={}, results={}, plan={}) == "c"
    assert calls == []
    assert compiled.next_state("start", "if", event=view, goal_data={}, results={}, plan={}) == "b"
    assert calls == ["made"]


def test_states_without_action_and_transitions_are_passed_through() -> None:
    compiled = Machine.compile(
        machine(
            state("start", default_next="a"),
            state("a", default_next="b"),
            state("b", transitions=[on("go", "done")], default_next="done"),
            DONE,
            state("stuck"),
            state("astray", default_next="nowhere"),
            state("loop", default_next="loop"),
        )
    )
    assert compiled.resolve_passthrough("start") == ["start", "a", "b"]
    assert compiled.resolve_passthrough("b") == ["b"]
    assert compiled.resolve_passthrough("done") == ["done"]
    assert compiled.resolve_passthrough("stuck") == ["stuck"]
    for name, told in (
        ("astray", "'nowhere', to which 'astray'"),
        ("loop", "loop -> loop"),
        ("nowhere", "'nowhere'"),
    ):
        with pytest.raises(InvalidStateMachine, match=told):
            compiled.resolve_passthrough(name)


def test_the_data_of_an_action_is_a_template() -> None:
    compiled = Machine.compile(research())
    search = compiled.action_template("searching")
    analyze = compiled.action_template("analyzing")
    assert search is not None
    assert analyze is not None
    assert search.render({"goal_data": {"topic": "AI"}}) == {"query": "AI"}
    assert analyze.render({}) == {}
    assert compiled.action_template("done") is compiled.action_template("nowhere") is None


def test_the_same_states_are_compiled_once() -> None:
    assert Machine.compile(research()) is Machine.compile(research())
    assert Machine.compile(research()) is Machine.decode(Machine.compile(research()).encoded)


def test_a_change_to_the_states_does_not_reach_the_machine() -> None:
    states = research()
    compiled = Machine.compile(states)
    states["searching"].transitions.clear()
    del states["done"]
    assert compiled.transition("searching", "web.search.failed")
    assert set(compiled.states) == set(research())
    assert Machine.compile(states).hash != compiled.hash


def test_a_machine_survives_pickling() -> None:
    compiled = Machine.compile(research())
    assert pickle.loads(pickle.dumps(compiled)).hash == compiled.hash


@pytest.mark.parametrize(
    ("definition", "fault"),
    [
        (machine(state("start", transitions=[on("go", "done", "foo")])), "'start': condition 'foo'"),
        (machine(state("start", action={**ACTION, "data": {"x": float("nan")}})), "not JSON"),
        ({"start": {"state_name": 5}}, "state_name"),
    ],
)
def test_what_cannot_be_compiled_is_refused(definition: Any, fault: str) -> None:
    with pytest.raises(InvalidStateMachine, match=fault):
        Machine.compile(definition)


@pytest.mark.parametrize("encoded", [b"", b"[]", b"{", b'{"a": 1}', b"\xff"])
def test_what_cannot_be_decoded_is_refused(encoded: bytes) -> None:
    with pytest.raises(InvalidStateMachine):
        Machine.decode(encoded)


def test_the_hash_is_that_of_the_content_and_stays_the_same_between_releases() -> None:
    compiled = Machine.compile(machine(state("start", default_next="done"), DONE))
    assert json.loads(compiled.encoded) == {
        "done": {"is_terminal": True, "state_name": "done"},
        "start": {"default_next": "done", "state_name": "start"},
    }
    assert compiled.hash == "84e03ba70910cc7333f421c85cf464ba"


@settings(deadline=None)
@given(MACHINES, st.randoms(use_true_random=False))
def test_encoding_round_trips_and_does_not_depend_on_order(definition: StateMachine, random: Any) -> None:
    try:
        compiled = Machine.compile(definition)
    except InvalidStateMachine:
        return
    names = list(definition)
    random.shuffle(names)
    shuffled = {name: StateConfig.model_validate(definition[name].model_dump()) for name in names}
    for config in shuffled.values():
        if config.action and config.action.data:
            config.action.data = dict(reversed(config.action.data.items()))
    again = Machine.compile(shuffled)
    assert (again.hash, again.encoded) == (compiled.hash, compiled.encoded)
    decoded = Machine.decode(bytes(bytearray(compiled.encoded)))
    assert dict(decoded.states) == definition
    assert decoded.hash == compiled.hash


@pytest.mark.parametrize(
    ("event", "base", "failed", "timeout"),
    [
        ("web.search.completed", "web.search", "web.search.failed", "web.search.timeout"),
        ("pay.done", "pay", "pay.failed", "pay.timeout"),
        ("done", "", "failed", "timeout"),
    ],
)
def test_the_siblings_of_a_response_event(event: str, base: str, failed: str, timeout: str) -> None:
    assert (base_of(event), failed_event(event), timeout_event(event)) == (base, failed, timeout)


def _fan(to: str = "work.completed", **options: Any) -> StateMachine:
    fields = {"data": {"item": "{{item.x}}"}, "for_each": "{{goal_data.items}}"} | options
    action = StateAction(event_type="work.requested", response_event="work.completed", **fields)
    ways = [StateTransition(on_event=to, to_state="done")]
    return {"start": state("start", action=action, transitions=ways), "done": state("done", is_terminal=True)}


@pytest.mark.parametrize(
    ("machine", "what"),
    [
        (_fan(to="work.failed"), "'work.completed', which comes when all"),
        (_fan(for_each="items"), "for_each is 'items'"),
        (_fan(for_each="{{goal_data.a}} {{goal_data.b}}"), "a placeholder of a list and nothing else"),
        (_fan(for_each="{{item}}"), "unknown placeholder root 'item' in for_each"),
        (_fan(for_each=None), "unknown placeholder root 'item' in data.item"),
        (_fan(for_each=None, data=None, max_parallel=2), "its action has max_parallel, but no for_each"),
        (
            _fan(for_each=None, data=None, join_timeout_seconds=2),
            "its action has join_timeout_seconds, but no for_each",
        ),
        (_fan() | {"done": {"state_name": "done", "is_terminal": True, "delay_seconds": 3}}, "no delay_seconds"),
        (_fan() | {"done": {"state_name": "done", "is_terminal": True, "delay_seconds": -3}}, "delay_seconds"),
    ],
)
def test_faults_of_branches_and_delays_are_named(machine: StateMachine, what: str) -> None:
    assert any(what in fault for fault in faults_of(machine)), faults_of(machine)


@pytest.mark.parametrize("most", [0, -1, 1_001])
def test_the_number_of_open_branches_is_bounded(most: int) -> None:
    definition = {name: each.model_dump() for name, each in _fan().items()}
    definition["start"]["action"]["max_parallel"] = most
    assert "state 'start': action.max_parallel" in faults_of(definition)[0]


def test_branches_and_delays_are_valid() -> None:
    validate_state_machine(_fan(max_parallel=3, join_timeout_seconds=60))
    validate_state_machine(
        {"start": state("start", delay_seconds=5, default_next="start2"),
         "start2": state("start2", delay_seconds=5, default_next="start")}
    )  # fmt: skip


def test_a_state_with_a_delay_is_not_passed_through() -> None:
    states = {
        "start": state("start", default_next="wait"),
        "wait": state("wait", delay_seconds=5, default_next="done"),
        "done": state("done", is_terminal=True),
    }
    assert Machine.compile(states).resolve_passthrough("start") == ["start", "wait"]
