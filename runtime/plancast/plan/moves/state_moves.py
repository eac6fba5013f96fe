"""Moves of a plan through its state machine: enter states, send their requests, finish."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plancast.errors import InterpolationError, InvalidStateMachine, TerminalError
from plancast.plan.branches import Branches
from plancast.plan.effects.entries import HELD
from plancast.plan.effects.undo_list import ROLLED_BACK, begin_rollback
from plancast.plan.event_fields import answered_request, error_text, event_data
from plancast.plan.moves import early_events
from plancast.plan.moves.transitions import data_of, is_stale, target_of
from plancast.plan.record import HELD_WAIT, HOLD, WAIT_TIMEOUT, WAITING_FOR, PlanRecord, is_held
from plancast.plan.requests import DELAY, DELAY_OVER, JOIN, WAIT, Request, effect_id
from plancast.plan.staged_events import StagedEvents
from plancast.plan.status import COMPLETED, PAUSED, RUNNING, PlanStatus
from plancast.plan.task_responses import close_request
from plancast.state_machine.machine import base_of
from plancast.state_machine.states import StateAction
from plancast_bus.events.envelope import EventEnvelope, EventTopic

MAX_MOVES = 1_000
"""States that one call may pass through before the machine counts as an endless loop."""
MAX_BRANCHES = 100_000
"""Most items of a ``for_each``."""
_PARALLEL = 100
"""Requests of a ``for_each`` that are open at once, unless its action says otherwise."""
_BYTES_A_TURN = 256 * 1024
"""Bytes of a turn's events from which it sends no further requests of a ``for_each``: a checkpoint holds them all."""


def accept(plan: PlanRecord, event: Any) -> str | None:
    """The state that the event leads to; stores its data as a result and closes its request.

    A handler may have assigned the target to ``current_state`` already: the event is looked up from the state that was
    entered last.
    """
    origin, parent = plan._entered, answered_request(event)
    if parent is not None and is_stale(plan, parent):
        return None
    target = target_of(plan, origin, event)
    if target is None or (plan.current_state != origin and target != plan.current_state):
        origin = plan.current_state
        target = target_of(plan, origin, event)
    if target is not None:
        store_result(plan, origin, event)
    return target


def store_result(plan: PlanRecord, name: str, event: Any) -> None:
    """Store an event's data as the result of this name, and close the request that it answers."""
    plan.results[name] = data_of(plan, event)
    parent = answered_request(event)
    if parent is not None:
        close_request(plan, parent, event)


async def enter(plan: PlanRecord, target: str, *, by_hand: bool = False) -> None:
    """Enter a state, pass through states without action or transitions, and repeat while early events match.

    ``by_hand``: a handler chose the state; if it has sent the request of the state's action too, that is not repeated.
    """
    next_target: str | None = target
    for _ in range(MAX_MOVES):
        if next_target is None:
            return
        await _enter_one(plan, next_target, by_hand)
        by_hand = False
        next_target = _take_early(plan) if plan.kept and not (plan.status.finished or plan.rollback) else None
    raise InvalidStateMachine([f"plan {plan.plan_id} went through {MAX_MOVES} states without waiting"])


async def drain_early(plan: PlanRecord) -> None:
    """Move on an early event that the current state waits for, if there is one."""
    target = _take_early(plan)
    if target is not None:
        await enter(plan, target)


def _take_early(plan: PlanRecord) -> str | None:
    if plan._has_handler or (found := early_events.take_for_state(plan)) is None:
        return None
    event, target = found
    store_result(plan, plan.current_state, event)
    return target


async def _enter_one(plan: PlanRecord, target: str, by_hand: bool) -> None:
    if target not in plan.state_machine:
        raise InvalidStateMachine([f"there is no state {target!r}"])
    path = plan.machine.resolve_passthrough(target)
    plan.moves.extend(path)
    plan.current_state = plan._entered = path[-1]
    if plan.status is PAUSED:
        end_wait(plan)
    plan.status = RUNNING
    plan.pause_reason = None
    plan.unmoved = ""
    _close_requests_of_states(plan)
    state = plan.state_machine[plan.current_state]
    if state.action is None and state.transitions and plan.current_state in plan.results:
        plan.revisits[plan.current_state] = plan.revisits.get(plan.current_state, 0) + 1
    if state.is_terminal:
        outcome = state.outcome or ("failed" if plan.current_state == "failed" else "completed")
        if outcome == ROLLED_BACK:
            begin_rollback(plan, _failure_of_results(plan))
            return
        if outcome == "failed" and plan.error is None:
            plan.error = _failure_of_results(plan)
        await finish(plan, PlanStatus(outcome))
    elif state.delay_seconds:
        _open(plan, Request(DELAY, DELAY_OVER, timeout=state.delay_seconds))
    elif state.action is not None and not (by_hand and _claim_request(plan, state.action)):
        await _begin_action(plan, state.action)


async def end_delay(plan: PlanRecord, request_id: str) -> None:
    """Go on when the delay of the current state is over."""
    del plan.requests[request_id]
    state = plan.state_machine[plan.current_state]
    if state.action is not None:
        await _begin_action(plan, state.action)
    elif not state.transitions and state.default_next is not None:
        await enter(plan, state.default_next)
        return
    await drain_early(plan)


async def _begin_action(plan: PlanRecord, action: StateAction) -> None:
    """Send the request of the current state's action, or the first ones of its branches."""
    if action.for_each is None or plan._context is None:
        await send_request(plan, plan.current_state)
        return
    items = _items(plan)
    if not items:  # the answer of none comes at once, before all that has come early
        event = EventEnvelope(
            id=_next_id(plan), source=plan.planner or "plancast", type=action.response_event,
            topic=EventTopic.ACTION_RESULTS, correlation_id=plan.correlation_id, data=[],
        )  # fmt: skip
        if target_of(plan, plan.current_state, event) is None:
            raise TerminalError(
                f"no transition of state {plan.current_state!r} takes {event.type}, which comes at once with an empty "
                "list: its for_each has no items"
            )
        plan.kept.insert(0, event.to_wire())
        return
    plan.branches = Branches.of(plan.current_state, items)
    if action.join_timeout_seconds is not None:
        answer = f"{base_of(action.response_event) or 'branches'}.joined"
        _open(plan, Request(JOIN, answer, timeout=action.join_timeout_seconds))
    await send_branches(plan)


def _items(plan: PlanRecord) -> list[Any]:
    """The items of the current state's ``for_each``.

    Raises:
        InterpolationError: it is no list, or has too many items.
    """
    template, state = plan.machine.list_template(plan.current_state), plan.current_state
    assert template is not None
    try:
        items = template.render(_scope(plan))
    except InterpolationError as error:
        raise InterpolationError(f"state {state!r}: {error}") from None
    path = template.placeholders[0].path
    if not isinstance(items, (list, tuple)):
        kind = (
            "an object" if isinstance(items, Mapping) else "nothing" if items is None else f"a {type(items).__name__}"
        )
        raise InterpolationError(f"state {state!r}: for_each {path!r} gives {kind}, not a list")
    if len(items) > MAX_BRANCHES:
        raise InterpolationError(
            f"state {state!r}: for_each {path!r} gives {len(items):,} items, {MAX_BRANCHES:,} at most are allowed"
        )
    return list(items)


async def send_branches(plan: PlanRecord) -> None:
    """Send further requests of the current state's branches, as many as may be open."""
    branches = plan.branches
    if branches is None or branches.sent == branches.count or plan.status is not RUNNING or plan._context is None:
        return
    action, bus = plan.state_machine[branches.state].action, plan._context.bus
    assert action is not None
    is_open = sum(each.branch is not None for each in plan.requests.values())
    while branches.sent < branches.count and is_open < (action.max_parallel or _PARALLEL):
        if is_open and type(bus) is StagedEvents and bus.staged_bytes > _BYTES_A_TURN:
            return
        await send_request(plan, branches.state, branch=branches.sent)
        branches.sent += 1
        is_open += 1


async def take_branch(plan: PlanRecord, event: Any) -> None:
    """Take the answer of a branch that is not the last one, and send further requests."""
    request_id = answered_request(event)
    assert request_id is not None
    index, branches = plan.requests[request_id].branch, plan.branches
    assert index is not None
    assert branches is not None
    branches.add(index, event_data(event))
    close_request(plan, request_id, event)
    await send_branches(plan)


def _open(plan: PlanRecord, request: Request) -> None:
    """Open a request of the current state that is not sent, but has a timer."""
    request.state = plan.current_state
    plan.requests[_next_id(plan)] = request


def _next_id(plan: PlanRecord) -> str:
    bus = plan._context.bus if plan._context is not None else None
    return bus.next_id() if type(bus) is StagedEvents else effect_id(plan.plan_id, 0, len(plan.moves))


async def enter_assigned(plan: PlanRecord, event: Any = None) -> None:
    """Enter the state that was assigned to ``current_state``."""
    if event is not None:
        store_result(plan, plan._entered, event)
    await enter(plan, plan.current_state, by_hand=True)


def stay_in_assigned(plan: PlanRecord, event: Any = None) -> None:
    """Take the assigned ``current_state`` as entered without its action: the plan was paused in it."""
    if event is not None:
        store_result(plan, plan._entered, event)
    plan.moves.append(plan.current_state)
    plan._entered = plan.current_state
    _close_requests_of_states(plan)


def is_assigned(plan: PlanRecord) -> bool:
    """True if ``current_state`` was assigned and not entered."""
    return plan.current_state != plan._entered


async def send_request(
    plan: PlanRecord, state: str, attempt: int = 1, first: str = "", branch: int | None = None
) -> None:
    """Send the request of a state's action, as this attempt at it.

    Args:
        plan: The plan.
        state: The state.
        attempt: Number of the attempt.
        first: Id of the first attempt's request; empty for that one.
        branch: Index of the item that it is sent for.
    """
    action = plan.state_machine[state].action
    if action is None or plan._context is None:
        return
    data, bus = _rendered(plan, state, branch), plan._context.bus
    if type(bus) is StagedEvents:
        request_id = bus.stage_request(action.event_type, data, action.response_event, plan.correlation_id, first)
    else:
        request_id = await bus.request(
            event_type=action.event_type,
            data=data,
            response_event=action.response_event,
            correlation_id=plan.correlation_id,
        )
    if isinstance(request_id, str):
        request = plan.requests.get(request_id)
        if request is None:  # a double has sent it
            request = plan.requests[request_id] = Request(action.event_type, action.response_event)
        request.state, request.attempt, request.first, request.branch = state, attempt, first, branch


def _rendered(plan: PlanRecord, state: str, branch: int | None) -> Any:
    """The data of a request of a state's action."""
    template, scope = plan.machine.action_template(state), _scope(plan)
    if template is None:
        return {}
    if branch is None:
        return template.render(scope)
    assert plan.branches is not None
    try:
        return template.render(scope | {"item": plan.branches.item(branch), "index": branch})
    except InterpolationError as error:
        raise InterpolationError(f"state {state!r}, item {branch} of its for_each: {error}") from None


def _claim_request(plan: PlanRecord, action: StateAction) -> bool:
    """Take a request that a handler has sent in this turn as that of the current state's action."""
    bus = plan._context.bus if plan._context is not None else None
    claimable = bus.sent if type(bus) is StagedEvents and action.for_each is None else ()
    for event_type, event_id in claimable:
        request = plan.requests.get(event_id)
        if event_type != action.event_type or (request is not None and request.state is not None):
            continue
        if request is None:  # published without a response event
            request = plan.requests[event_id] = Request(action.event_type, action.response_event)
        request.state = plan.current_state
        return True
    return False


async def retry_request(plan: PlanRecord, request_id: str) -> None:
    """Send a state's request again under a new id; an answer to the old id is stale."""
    request = plan.requests.pop(request_id)
    if request.state is not None:
        first = request.first or request_id
        await send_request(plan, request.state, request.attempt + 1, first, request.branch)


def _close_requests_of_states(plan: PlanRecord) -> None:
    plan.branches = None
    if not plan.requests:  # nearly always: an answer has just been taken
        return
    for request_id in [key for key, request in plan.requests.items() if request.state is not None]:
        del plan.requests[request_id]


def end_wait(plan: PlanRecord) -> None:
    """End a pause or WAIT: the plan runs, and the WAIT's request is closed."""
    plan.status, plan.pause_reason = RUNNING, None
    plan.results.pop(WAITING_FOR, None)
    plan.results.pop(WAIT_TIMEOUT, None)
    plan.control.pop(HELD, None)
    if is_held(plan):
        plan.control.pop(HOLD)
        plan.control.pop(HELD_WAIT, None)
    for request_id in [key for key, request in plan.requests.items() if request.event_type == WAIT]:
        del plan.requests[request_id]


async def finish(plan: PlanRecord, status: PlanStatus) -> None:
    """Set a final status and send the final response."""
    plan.status = status
    plan.pause_reason = None
    plan.kept.clear()
    if plan._context is None:
        return
    ending = "completed" if status is COMPLETED else "failed"
    await plan._context.bus.respond(
        event_type=plan.response_event or f"{plan.goal_event}.{ending}",
        data=response_data(plan),
        correlation_id=plan.reply_to or plan.parent_plan_id or plan.correlation_id,
    )


def response_data(plan: PlanRecord) -> dict[str, Any]:
    """Data of the final response: ``plan_id``, ``status``, ``result`` and ``error``."""
    result = plan.results if plan.result is None and plan.status is COMPLETED else plan.result
    return {"plan_id": plan.plan_id, "status": str(plan.status), "result": result, "error": plan.error}


def _failure_of_results(plan: PlanRecord) -> str:
    """The error of the newest result that carries one: why the machine reached its failed state."""
    for data in reversed(list(plan.results.values())):
        if isinstance(data, Mapping) and data.get("error"):
            return error_text(data["error"])
    return f"the plan reached the state {plan.current_state!r}"


def _scope(plan: PlanRecord) -> dict[str, Any]:
    """Roots of the placeholders in an action's data."""
    return {
        "goal_data": plan.goal_data,
        "results": plan.results,
        "plan_id": plan.plan_id,
        "correlation_id": plan.correlation_id,
        "session_id": plan.session_id,
        "user_id": plan.user_id,
        "tenant_id": plan.tenant_id,
    }
