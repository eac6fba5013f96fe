"""Whatever happens to a plan: any valid state machine, any events in any order, each turn leaves a legal plan."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from plancast import App, PlanContext, Planner, PlanStatus, RetryPolicy, StateAction, StateConfig, StateTransition
from plancast.errors import InvalidStateMachine
from plancast.plan.moves.state_moves import is_assigned
from plancast.plan.serialization import pack_state, to_state
from plancast.settings import PlanSettings
from plancast.state_machine.machine import Machine, validate_state_machine
from plancast.turn.turn import Turn, TurnEnvironment, TurnOutcome
from plancast_bus.events import codec
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.ports.effects import CancelTimer, Effect, Publish, Respond, SetTimer, to_fields
from plancast_bus.subjects import Subjects

BASES = ["a", "b", "c"]
ENDINGS = ["completed", "failed", "timeout", "odd"]
SIGNALS = ["go", "stop"]
CONDITIONS = [None, None, None, "event.data.n > 1", "has(results.start) || event.data.n < 3"]
KEPT = 3


# Any valid machine.


@st.composite
def a_state(draw: st.DrawFn, name: str, names: list[str]) -> StateConfig:
    targets = st.sampled_from([*names[:-2], *names[:-2], *names])  # rather on than out
    kind = draw(st.sampled_from(["ask", "ask", "ask", "ask", "wait", "wait", "pass"]))
    transitions, action = [], None
    if kind == "ask":
        base = draw(st.sampled_from(BASES))
        action = StateAction(
            event_type=f"{base}.requested",
            response_event=f"{base}.completed",
            data=draw(st.sampled_from([None, {"n": "{{goal_data.n}}"}, {"all": "{{results}}"}])),
            timeout_seconds=draw(st.sampled_from([None, 5.0, 5.0])),
            retry=draw(st.sampled_from([None, RetryPolicy(attempts=2, backoff_seconds=1.0)])),
        )
        transitions.append(StateTransition(on_event=f"{base}.completed", to_state=draw(targets)))
        for ending in draw(st.lists(st.sampled_from(ENDINGS), max_size=2)):
            condition = draw(st.sampled_from(CONDITIONS))
            transitions.insert(
                0, StateTransition(on_event=f"{base}.{ending}", to_state=draw(targets), condition=condition)
            )
    if kind == "wait" or draw(st.booleans()):
        signal = draw(st.sampled_from([*SIGNALS, "a.completed"]))
        transitions.append(StateTransition(on_event=signal, to_state=draw(targets)))
    default = draw(targets) if kind == "pass" or draw(st.booleans()) else None
    if kind == "pass":
        transitions = []
    return StateConfig(state_name=name, action=action, transitions=transitions, default_next=default)


@st.composite
def a_machine(draw: st.DrawFn) -> dict[str, StateConfig]:
    inner = ["start", *[f"s{number}" for number in range(draw(st.integers(1, 4)))]]
    names = [*inner, "done", "failed"]
    states = {name: draw(a_state(name, names[1:])) for name in inner}
    states |= {name: StateConfig(state_name=name, is_terminal=True) for name in names[-2:]}
    return _reachable(states)


def _reachable(states: dict[str, StateConfig]) -> dict[str, StateConfig]:
    reached, ahead = set(), ["start"]
    while ahead:
        name = ahead.pop()
        if name not in reached:
            reached.add(name)
            state = states[name]
            ahead += [each.to_state for each in state.transitions] + (
                [state.default_next] if state.default_next else []
            )
    kept = {name: state for name, state in states.items() if name in reached}
    try:
        validate_state_machine(kept)
    except InvalidStateMachine:  # an endless loop of default_next
        return {
            "start": StateConfig(state_name="start", default_next="done"),
            "done": StateConfig(state_name="done", is_terminal=True),
        }
    return kept


# What may happen, as seen from outside; which request an answer is to is found when it happens.


@dataclass(frozen=True)
class Happening:
    kind: str
    name: str = ""
    pick: int = 0
    n: int = 0
    wait: float = 0.0


happenings = st.lists(
    st.builds(
        Happening,
        kind=st.sampled_from(
            ["answer"] * 6
            + ["signal"] * 3
            + ["plain"] * 2
            + ["timer"] * 3
            + ["repeat"] * 3
            + ["old"] * 2
            + ["pause", "resume", "resume", "cancel", "goal", "foreign", "fact"]
        ),
        name=st.sampled_from([*ENDINGS, "completed", "completed"]),
        pick=st.integers(0, 5),
        n=st.integers(0, 4),
        wait=st.sampled_from([0.0, 1.0, 6.0]),
    ),
    min_size=5,
    max_size=30,
)


def an_environment(machine: dict[str, StateConfig]) -> TurnEnvironment:
    planner = Planner("p")
    planner.add_goal("x.goal", machine)
    return TurnEnvironment(
        app=App("app", planners=[planner]),
        subjects=Subjects(),
        encode=lambda event: (codec.encode(event), codec.MSGPACK_TYPE),
        memory=None,  # type: ignore[arg-type]
        settings=PlanSettings(max_kept_events=KEPT),
    )


@dataclass
class World:
    """One plan, the events that it was given, and everything that it has sent."""

    machine: dict[str, StateConfig]
    environment: TurnEnvironment
    now: float = 1000.0
    revision: int = 0
    stored: bytes | None = None
    count: int = 0
    given: list[tuple[EventEnvelope, bool]] = field(default_factory=list)
    processed: set[str] = field(default_factory=set)
    """Ids that the checkpoint remembers: plan actors drop these before there is a turn."""
    requests: dict[str, EventEnvelope] = field(default_factory=dict)
    timers: dict[str, SetTimer] = field(default_factory=dict)
    final: list[Respond] = field(default_factory=list)
    visited: set[str] = field(default_factory=lambda: {"start"})
    entries: list[bytes] = field(default_factory=list)
    outboxes: list[tuple[Effect, ...]] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)

    def event(self, event_type: str, topic: str = EventTopic.PLAN_EVENTS, **fields: Any) -> EventEnvelope:
        self.count += 1
        said = {"id": f"e{self.count}", "source": "test", "correlation_id": "p1"}
        return EventEnvelope(type=event_type, topic=EventTopic(topic), **said | fields)

    @property
    def plan(self) -> PlanContext:
        assert self.stored is not None
        state = codec.unpack(self.stored)
        return PlanContext.from_dict(state | {"state_machine": Machine.compile(self.machine)})

    def find(self, happening: Happening) -> tuple[EventEnvelope, bool] | None:
        """The event that a happening comes to, and whether it is a timer."""
        data, pick = {"n": happening.n, "error": "e"}, happening.pick
        match happening.kind:
            case "answer" | "old":
                asked = list(self.plan.requests) if happening.kind == "answer" else list(self.requests)
                if not asked:
                    return None
                request = self.requests[asked[pick % len(asked)]]
                base = request.type.rpartition(".")[0]
                answer = f"{base}.{happening.name}"
                return self.event(answer, EventTopic.ACTION_RESULTS, data=data, parent_event_id=request.id), False
            case "plain":
                return self.event(f"{BASES[pick % 3]}.{happening.name}", EventTopic.ACTION_RESULTS, data=data), False
            case "signal":
                return self.event([*SIGNALS, "junk"][pick % 3], data=data), False
            case "fact":
                parent = next(iter(self.requests), None)
                fact = self.event("go", EventTopic.BUSINESS_FACTS, data=data, parent_event_id=parent)
                return fact, False
            case "timer":
                due = [timer for timer in self.timers.values() if timer.due <= self.now]
                if not due:
                    return None
                timer = due[pick % len(due)]
                del self.timers[timer.name]
                return codec.decode(timer.payload, timer.content_type), True
            case "repeat":
                return self.given[pick % len(self.given)]
            case "goal":
                return self.event("x.goal", EventTopic.ACTION_REQUESTS, data={"n": 9}), False
            case "foreign":
                return self.event("go", tenant_id="other", data=data), False
            case control:
                return self.event(f"plan.{control}", data={"reason": "r", "input": 1}), False

    async def happen(self, happening: Happening) -> Turn | None:
        self.now += happening.wait
        found = self.find(happening)
        return None if found is None else await self.take(*found)

    async def take(self, event: EventEnvelope, is_timer: bool = False) -> Turn | None:
        self.given.append((event, is_timer))
        if event.id in self.processed:
            return None
        turn, verdict = await a_turn(
            self.environment, event, self.plan if self.stored else None, self.revision + 1, self.now, is_timer
        )
        if verdict is TurnOutcome.COMMIT:
            self.commit(turn)
        else:
            assert turn.reason
        return turn

    def commit(self, turn: Turn) -> None:
        assert turn.plan is not None
        self.revision += 1
        self.processed.add(turn.event.id)
        self.visited.update(turn.plan.moves)
        self.entries.append(codec.pack(turn.entry()))
        assert turn.packed_entry() == self.entries[-1]
        if not turn.is_timer:
            turn.packed_event = codec.encode(turn.event)
            assert codec.unpack(turn.packed_entry()) == codec.unpack(self.entries[-1])
        self.outboxes.append(tuple(turn.effects))
        self.stored = codec.pack(to_state(turn.plan))
        assert pack_state(turn.plan, "") == self.stored
        assert codec.unpack(pack_state(turn.plan, "a hash")) == codec.unpack(self.stored) | {"machine": "a hash"}
        self.states.append(self.stored)
        for effect in turn.effects:
            match effect:
                case Publish():
                    sent = codec.decode(effect.payload, effect.content_type)
                    assert sent.id not in self.requests, "an id is given once"
                    self.requests[sent.id] = sent
                case Respond():
                    self.final.append(effect)
                case SetTimer():
                    self.timers[effect.name] = effect
                case CancelTimer():
                    self.timers.pop(effect.name, None)


async def a_turn(
    environment: TurnEnvironment,
    event: EventEnvelope,
    plan: PlanContext | None,
    revision: int,
    now: float,
    is_timer: bool,
) -> tuple[Turn, TurnOutcome]:
    before = plan.to_dict() if plan is not None else None
    turn = Turn(environment, "p1", event, plan, revision, now, is_timer=is_timer)
    try:
        verdict = await turn.run()
    except Exception as error:
        again = PlanContext.from_dict(before) if before is not None else None
        turn = Turn(environment, "p1", event, again, revision, now, is_timer=is_timer)
        verdict = await turn.fail(error)
    if verdict is not TurnOutcome.COMMIT and plan is not None:
        assert plan.to_dict() == before, "a turn that is not committed changes nothing"
        assert not turn.effects
    return turn, verdict


async def lived(machine: dict[str, StateConfig], happened: list[Happening], check: Any = None) -> World:
    world = World(machine, an_environment(machine))
    await world.take(world.event("x.goal", EventTopic.ACTION_REQUESTS, id="goal", data={"n": 1}))
    for happening in [None, *happened]:
        turn = await world.happen(happening) if happening is not None else None
        if check is not None:
            check(world, turn)
    return world


def check_legal(world: World, turn: Turn | None) -> None:
    plan = world.plan
    assert plan.current_state in world.machine
    assert plan.status in set(PlanStatus) - {PlanStatus.PENDING}
    assert set(plan.results) <= world.visited | {"user_input"}
    assert len(plan.kept) <= KEPT
    assert (plan.pause_reason is not None) == (plan.status is PlanStatus.PAUSED)
    here = world.machine[plan.current_state]
    assert all(request.state == plan.current_state for request in plan.requests.values())
    assert len(plan.requests) <= 1
    assert set(plan.requests) <= set(world.requests)
    if plan.status.finished:
        assert not plan.requests
        assert not plan.kept
        assert not world.timers, "nothing wakes a finished plan"
        assert (plan.error is None) == (plan.status is PlanStatus.COMPLETED)
    elif plan.status is PlanStatus.RUNNING:
        assert not here.is_terminal
        waits = bool(plan.requests) if here.action else bool(here.transitions)
        assert waits, "a plan that runs waits for something"
        assert all(request.due is None or world.timers for request in plan.requests.values())
    assert len(world.final) == int(plan.status.finished)
    if world.final:
        said = codec.decode(world.final[0].payload, world.final[0].content_type)
        assert said.data["status"] == plan.status


def check_round_trips(world: World, turn: Turn | None) -> None:
    plan = world.plan
    assert PlanContext.from_dict(plan.to_dict()) == plan
    assert PlanContext.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert PlanContext.from_dict(codec.unpack(codec.pack(plan.to_dict()))) == plan
    for back in (json.loads(json.dumps(to_state(plan))), codec.unpack(codec.pack(to_state(plan)))):
        assert PlanContext.from_dict(back | {"state_machine": plan.machine}) == plan
    if turn is not None and turn.plan is not None and world.stored == codec.pack(to_state(turn.plan)):
        assert PlanContext.from_dict(turn.plan.to_dict()) == turn.plan
        assert is_assigned(turn.plan) is False


@settings(max_examples=250, deadline=None)
@given(a_machine(), happenings)
def test_every_turn_leaves_a_legal_plan(machine: dict[str, StateConfig], happened: list[Happening]) -> None:
    asyncio.run(lived(machine, happened, check_legal))


@settings(max_examples=100, deadline=None)
@given(a_machine(), happenings)
def test_a_plan_survives_both_codecs_after_every_turn(
    machine: dict[str, StateConfig], happened: list[Happening]
) -> None:
    asyncio.run(lived(machine, happened, check_round_trips))


@settings(max_examples=150, deadline=None)
@given(a_machine(), happenings)
def test_the_timeline_replayed_gives_the_same_states_and_effects(
    machine: dict[str, StateConfig], happened: list[Happening]
) -> None:
    asyncio.run(_replay(machine, happened))


async def _replay(machine: dict[str, StateConfig], happened: list[Happening]) -> None:
    world = await lived(machine, happened)
    environment = an_environment(machine)
    plan: PlanContext | None = None
    for number, packed in enumerate(world.entries):
        entry = codec.unpack(packed)
        assert entry["revision"] == number + 1
        event = EventEnvelope.model_validate(entry["event"])
        # The plan stays in memory between these turns; it was stored and loaded between the others.
        turn, verdict = await a_turn(
            environment, event, plan, entry["revision"], entry["time"], bool(entry.get("timer"))
        )
        plan = turn.plan
        assert verdict is TurnOutcome.COMMIT
        assert plan is not None
        assert codec.unpack(codec.pack(to_state(plan))) == codec.unpack(world.states[number])
        assert [to_fields(each) for each in turn.effects] == [to_fields(each) for each in world.outboxes[number]]
        assert codec.unpack(codec.pack(turn.entry())) == entry


@settings(max_examples=150, deadline=None)
@given(a_machine(), st.lists(st.integers(0, 4), min_size=40, max_size=40))
def test_a_plan_whose_requests_are_answered_never_stalls(machine: dict[str, StateConfig], numbers: list[int]) -> None:
    """Whoever answers what is asked, and signals what is waited for, sees every plan move on."""
    asyncio.run(_answered(machine, numbers))


async def _answered(machine: dict[str, StateConfig], numbers: list[int]) -> None:
    world = await lived(machine, [])
    for number in numbers:
        plan = world.plan
        if plan.status.finished:
            break
        before = world.revision, plan.current_state
        if plan.requests:
            ((request_id, request),) = plan.requests.items()
            answer, parent = request.response_event, request_id
        else:
            answer, parent = machine[plan.current_state].transitions[0].on_event, None
        event = world.event(answer, EventTopic.ACTION_RESULTS, data={"n": number}, parent_event_id=parent)
        turn = await world.take(event)
        check_legal(world, turn)
        assert world.revision == before[0] + 1
        assert turn is not None
        assert turn.plan is not None
        assert turn.plan.moves or turn.plan.status.finished


@settings(max_examples=100, deadline=None)
@given(a_machine(), happenings)
def test_a_paused_plan_that_goes_on_ends_as_if_it_had_not_been_paused(
    machine: dict[str, StateConfig], happened: list[Happening]
) -> None:
    """Answers that come during a pause count after it."""
    asyncio.run(_paused(machine, [each for each in happened if each.kind == "answer"]))


async def _paused(machine: dict[str, StateConfig], happened: list[Happening]) -> None:
    straight = {name: state.model_copy(update={"default_next": None}) if state.action else state
                for name, state in machine.items()}  # fmt: skip
    try:
        validate_state_machine(straight)
    except InvalidStateMachine:
        return
    through, paused = await lived(straight, []), await lived(straight, [])
    for happening in happened:
        if through.plan.status.finished or not through.plan.requests:
            break
        await through.happen(happening)
        await paused.happen(Happening("pause"))
        await paused.happen(happening)
        await paused.happen(Happening("resume"))
        ends = []
        for world in (through, paused):
            plan = world.plan
            results = {name: value for name, value in plan.results.items() if name != "user_input"}
            asked = [(each.event_type, each.attempt, each.asking_again) for each in plan.requests.values()]
            ends.append((plan.status, plan.current_state, results, asked))
        if any("results" in str(state.action) for state in straight.values() if state.action):
            assert ends[0][1] == ends[1][1]
        else:
            assert ends[0] == ends[1]
