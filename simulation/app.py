"""Builds the app of a workload: state machines, planners and worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from plancast.app import App
from plancast.decisions.actions import (
    AwaitAction,
    CompleteAction,
    DelegateAction,
    FinishReason,
    ParallelAction,
    PauseReason,
    PlannerAction,
    PublishAction,
    WaitAction,
)
from plancast.decisions.decision import PlannerDecision
from plancast.errors import RetryableError, TerminalError
from plancast.plan.context import PlanContext
from plancast.planners.contract import RunContext, WakeMode
from plancast.planners.decision_tree.planner import DecisionTreeStep, DeterministicPlanner
from plancast.planners.decision_tree.steps import FinishStep, PauseStep, SpawnAndAwaitStep
from plancast.planners.planner import Planner
from plancast.state_machine.machine import timeout_event
from plancast.state_machine.states import RetryPolicy, StateAction, StateConfig, StateTransition
from plancast.tasks.model import GroupCompletion
from plancast.tasks.spec import SpawnSpec
from plancast.worker import TaskContext, Worker
from simulation.acts import Service, act_type, add_acts
from simulation.workload import LISTS, PlanSpec, Step, Workload

WORK = "work.requested"
DONE = "work.completed"
FAILED = "work.failed"
UNKNOWN = "work.unknown"

Note = Callable[[TaskContext, str], None]
"""Called when a worker's handler starts, with an empty text, and when it ends, with its outcome."""


def make_app(workload: Workload, worker: Worker) -> App:
    """Create an app with all plans of a workload."""
    machines = Planner("machines")
    planners: list[Any] = [machines]
    scripts: dict[bool, dict[str, PlanSpec]] = {False: {}, True: {}}
    handled: dict[str, PlanSpec] = {}
    for plan in workload.all_plans:
        match plan.kind:
            case "machine":
                machines.add_goal(plan.goal, machine_of(plan))
            case "handler":
                handled[plan.goal] = plan
            case "script":
                scripts[plan.poll][plan.goal] = plan
            case "tree":
                planners.append(DeterministicPlanner(_tree_of(plan), name=f"tree.{plan.key}", goals=[plan.goal]))
    planners += [ScriptedPlanner(plans, poll) for poll, plans in scripts.items() if plans]
    planners += [_handlers(handled)] if handled else []
    return App("simulated", planners=planners, workers=[worker])


# State machines.


def machine_of(plan: PlanSpec) -> dict[str, StateConfig]:
    """The state machine of a plan: a state for each step, two for a branch."""
    states: dict[str, StateConfig] = {}
    names = [state_of(number) for number in range(len(plan.steps))]
    for number, step in enumerate(plan.steps):
        after = names[number + 1] if number + 1 < len(names) else "end"
        for state in _states(plan, number, step, after):
            states[state.state_name] = state
        if step.delay:
            states[names[number]] = states[names[number]].model_copy(update={"delay_seconds": step.delay})
    end = StateConfig(state_name="end", is_terminal=True, outcome="rolled_back" if plan.rolls_back else None)
    return states | {"end": end}


def state_of(number: int) -> str:
    """The state in which a step is done."""
    return f"s{number}" if number else "start"


def _states(plan: PlanSpec, number: int, step: Step, after: str) -> list[StateConfig]:
    name = state_of(number)
    to = [StateTransition(on_event=DONE, to_state=after)]
    match step.kind:
        case "wait":
            went = [StateTransition(on_event=plan.signal(number), to_state=after)]
            return [StateConfig(state_name=name, transitions=went)]
        case "pass":
            return [StateConfig(state_name=name, default_next=after)]
        case "child" if step.child is not None:
            child = step.child
            data = {"n": step.n, **LISTS}
            action = StateAction(event_type=child.goal, response_event=f"{child.goal}.completed", data=data)
            ways = [
                StateTransition(on_event=f"{child.goal}.{ending}", to_state=after) for ending in ("completed", "failed")
            ]
            return [StateConfig(state_name=name, action=action, transitions=ways)]
        case "timeout":
            action = StateAction(
                event_type="nobody.requested", response_event="nobody.completed", timeout_seconds=step.seconds
            )
            ways = [StateTransition(on_event=f"nobody.{ending}", to_state=after) for ending in ("completed", "timeout")]
            return [StateConfig(state_name=name, action=action, transitions=ways)]
        case "branch":
            second = f"{name}-more"
            ways = [StateTransition(on_event=DONE, to_state=second, condition="event.data.n > 4"), *to]
            return [
                StateConfig(state_name=name, action=_action(plan, name, step), transitions=ways),
                StateConfig(state_name=second, action=_action(plan, second, step), transitions=to),
            ]
        case "race":
            ways = [*to, StateTransition(on_event="work.timeout", to_state=after)]
            timeout = step.seconds + 0.25 * step.times
            action = _action(plan, name, step).model_copy(update={"timeout_seconds": timeout})
            return [StateConfig(state_name=name, action=action, transitions=ways)]
        case "fan":
            action = _action(plan, f"{name}/{{{{item}}}}", step)
            many = {"for_each": f"{{{{goal_data.lists.{step.n}}}}}", "max_parallel": step.at_once}
            failed = [StateTransition(on_event=FAILED, to_state=after)] if step.do == "fail" else []
            return [StateConfig(state_name=name, action=action.model_copy(update=many), transitions=[*to, *failed])]
        case "retry":
            policy = RetryPolicy(attempts=step.times + 2, backoff_seconds=0.3)
            action = _action(plan, name, step).model_copy(update={"retry": policy})
            return [StateConfig(state_name=name, action=action, transitions=to)]
    ways = [*to, StateTransition(on_event=FAILED, to_state=after)] if step.do == "fail" else to
    if step.takes_unknown:
        ways = [*ways, StateTransition(on_event=UNKNOWN, to_state=after)]
    return [StateConfig(state_name=name, action=_action(plan, name, step), transitions=ways)]


def _action(plan: PlanSpec, state: str, step: Step) -> StateAction:
    return StateAction(event_type=task_of(step), response_event=DONE, data=task_data(f"{plan.key}/{state}", step))


def task_of(step: Step) -> str:
    """The type of a step's task."""
    return WORK if step.effect is None else act_type(step.effect)


def task_data(key: str, step: Step) -> dict[str, Any]:
    """The data of a step's task, which tell :func:`make_worker` what to do and to answer."""
    do = "first fail" if step.kind == "retry" else step.do
    data = {"key": key, "n": step.n, "do": do, "times": step.times, "seconds": step.seconds, "document": step.document}
    return data | ({"undo": step.undo} if step.effect is not None else {})


# Handlers.


def _handlers(plans: dict[str, PlanSpec]) -> Planner:
    """Handlers that request the tasks of each step at once, and then roll their plan back."""
    planner = Planner("handlers")

    async def begin(plan: PlanContext, context: Any) -> None:
        spec, number = plans[plan.goal_event], plan.results["step"]
        if number == len(spec.steps):
            await plan.compensate("the script says so")
            return
        members = spec.steps[number].members
        plan.results |= {"step": number + 1, "open": len(members)}
        for index, member in enumerate(members):
            await context.bus.request(task_of(member), task_data(f"{spec.key}/{number}/{index}", member), DONE)

    async def on_goal(goal: Any, context: Any) -> None:
        plan = await PlanContext.create_from_goal(goal, {})
        plan.results["step"] = 0
        await begin(plan, context)
        await plan.save()

    for event_type in plans:
        planner.on_goal(event_type)(on_goal)

    @planner.on_transition()
    async def on_answer(transition: Any, context: Any) -> None:
        plan = transition.plan
        plan.results["open"] -= 1
        if not plan.results["open"]:
            await begin(plan, context)
        await plan.save()

    return planner


class ScriptedPlanner:
    """Stateless planner that derives the next step of a script from the run."""

    def __init__(self, plans: dict[str, PlanSpec], poll: bool) -> None:
        self.wake_mode = WakeMode.POLL if poll else WakeMode.PUSH
        self.name = f"scripted.{self.wake_mode}"
        self.goals = tuple(plans)
        self._plans = plans

    async def next(self, run: RunContext) -> PlannerDecision:
        await asyncio.sleep(0)
        plan = self._plans[run.goal_event]
        return PlannerDecision(next_action=self._action(plan, run), reasoning="scripted")

    def _action(self, plan: PlanSpec, run: RunContext) -> PlannerAction:
        outcomes: list[Any] = []
        groups = 0
        for number, step in enumerate(plan.steps):
            if step.kind in ("wait", "lapse"):
                expected = plan.signal(number)
                lapsed = any(entry.type == timeout_event(expected) for entry in run.trajectory)
                if expected not in run.results and not lapsed:
                    seconds = step.seconds if step.kind == "lapse" else None
                    return WaitAction(reason="a signal", expected_event=expected, timeout_seconds=seconds)
                outcomes.append("lapsed" if lapsed else dict(run.results[expected]))
                continue
            action = _grouped(plan, number, groups, run)
            if action is not None:
                return action
            assert run.tasks is not None
            outcomes.append([dict(each) for each in run.results[run.tasks.groups[groups].group_id]])
            groups += 1
        if plan.rolls_back:
            return CompleteAction(result=None, reason=FinishReason.ROLLED_BACK)
        return CompleteAction(result={"steps": outcomes})


def _grouped(plan: PlanSpec, number: int, groups: int, run: RunContext) -> PlannerAction | None:
    """The next action of a step with a group, after this number of earlier groups; None when it is resolved."""
    tasks, step = run.tasks, plan.steps[number]
    assert tasks is not None
    group = tasks.groups[groups] if groups < len(tasks.groups) else None
    if group is not None and group.state.resolved:
        return None
    members = step.members or (step,)
    if step.kind == "parallel" and group is None:
        branches = [
            PublishAction(
                event_type=task_of(member), data=task_data(f"{plan.key}/{number}/{each}", member), response_event=DONE
            )
            for each, member in enumerate(members)
        ]
        return ParallelAction(branches=branches, join=step.join, n=step.n if step.join == "n" else None)
    started = len(group.members) if group is not None else 0
    if started < len(members):
        return DelegateAction(spec=_spec(plan, number, started, step), group_id=f"step-{number}")
    return AwaitAction(group_id=group.group_id if group is not None else "")


def _spec(plan: PlanSpec, number: int, index: int, step: Step) -> SpawnSpec:
    member = (step.members or (step,))[index]
    if member.child is not None:
        return SpawnSpec(event_type=member.child.goal, data={"n": member.n, **LISTS}, fail_fast=step.fail_fast)
    data = task_data(f"{plan.key}/{number}/{index}", member)
    return SpawnSpec(event_type=task_of(member), data=data, fail_fast=step.fail_fast)


def _tree_of(plan: PlanSpec) -> list[DecisionTreeStep]:
    steps: list[DecisionTreeStep] = []
    for number, step in enumerate(plan.steps):
        if step.kind == "wait":
            steps.append(_pause(plan.signal(number)))
        else:
            steps.append(_spawn(plan, number, step))

    def payload(run: RunContext) -> dict[str, Any]:
        outcomes: list[Any] = []
        for number, step in enumerate(plan.steps):
            if step.kind == "wait":
                outcomes.append(dict(run.results[plan.signal(number)]))
            else:
                outcomes.append([dict(each) for each in run.results[f"{run.run_id}/step-{number}"]])
        return {"steps": outcomes}

    return [*steps, FinishStep("rolled_back") if plan.rolls_back else FinishStep("goal", payload)]


def _pause(expected: str) -> PauseStep:
    return PauseStep(PauseReason.EXTERNAL_EVENT, expected_event=expected, when=lambda run: expected not in run.results)


def _spawn(plan: PlanSpec, number: int, step: Step) -> SpawnAndAwaitStep:
    def resolved(run: RunContext, completion: GroupCompletion) -> None:
        return None

    spec = _spec(plan, number, 0, step)
    return SpawnAndAwaitStep(lambda run: spec, resolved, step_id=f"step-{number}")


class Refusals:
    """Requests that an external service has refused; outlives workers."""

    def __init__(self) -> None:
        self._refused: dict[str, list[str]] = {}

    def refuses(self, key: str, request: str, times: int) -> bool:
        """True for the first ``times`` requests of a key and their repetitions."""
        refused = self._refused.setdefault(key, [])
        if request not in refused and len(refused) < times:
            refused.append(request)
        return request in refused


def make_worker(refusals: Refusals, service: Service, note: Note) -> Worker:
    """Create the worker for all tasks, which follows their data."""
    worker = Worker("worker", max_attempts=5)

    @worker.on_task(WORK, DONE)
    async def work(task: TaskContext, context: Any) -> dict[str, Any]:
        note(task, "")
        try:
            answer = await _work(task, refusals)
        except Exception as error:
            note(task, f"{type(error).__name__}: {error}")
            raise
        note(task, "completed")
        return answer

    add_acts(worker, service, note, lambda data: answer_of(data["key"], data["n"], data["document"]))
    return worker


async def _work(task: TaskContext, refusals: Refusals) -> dict[str, Any]:
    data = task.data
    await asyncio.sleep(data["seconds"] if data["do"] == "slow" else 0.0)
    if data["do"] in ("fail", "die"):
        raise TerminalError("scripted")
    if data["do"] == "first fail" and refusals.refuses(data["key"], task.event.id, data["times"]):
        raise TerminalError("not yet")
    if data["do"] == "flaky" and task.attempt <= data["times"]:
        raise RetryableError("try again", retry_after=0.2)
    return answer_of(data["key"], data["n"], data["document"])


def answer_of(key: str, n: int, document: int) -> dict[str, Any]:
    """The worker's answer: a text of this length begins as those of other answers do, and differs from all of them."""
    answer: dict[str, Any] = {"key": key, "n": n}
    return answer | {"document": "the same " * (document // 9) + key} if document else answer
