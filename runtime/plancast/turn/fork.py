"""Forks: new plans that start from the state of another plan after one of its turns.

A fork is one event that carries this state, handled in a turn of its own, so that it is committed as a whole or not at
all. The event is published as a timer, which requires the permissions of the runtime: clients that may only submit,
signal or answer cannot start a plan in a state of their choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from plancast.decisions.executor import WAITING_EVENT
from plancast.errors import CannotReplay, PlanFinished
from plancast.plan.context import PlanContext
from plancast.plan.control_events import FORK
from plancast.plan.effects.entries import HELD
from plancast.plan.event_fields import answered_request
from plancast.plan.moves.state_moves import send_branches, send_request
from plancast.plan.record import HOLD, WAIT_TIMEOUT, WAITING_FOR
from plancast.plan.requests import DELAY, JOIN, WAIT, Request, effect_id, wait_request
from plancast.plan.status import PAUSED, PENDING, RUNNING, PlanStatus
from plancast.state_machine.machine import base_of
from plancast.tasks.model import group_of_step
from plancast.turn.effects import is_answer_of_unknown
from plancast.turn_record.environment import TurnOutcome
from plancast.turn_record.record import TurnRecord
from plancast_bus.events.envelope import EventEnvelope, EventTopic

_SENT_AGAIN: Final = ("data", "topic", "metadata", "payload_schema_name", "response_schema_name")
"""Fields of a request that are sent again when no state's action defines them."""


class ForkData(BaseModel):
    """Data of the event that starts a fork."""

    plan_id: str
    """Id of the forked plan."""
    revision: int
    """Revision of that plan."""
    state: dict[str, Any]
    """Fields of the new plan, with the requests that were open at that revision."""
    asked: dict[str, dict[str, Any]] = {}
    """Events that had sent these requests, by request id; a WAIT's event under ``plan.waiting_for_input``."""


def require_unfinished(plan_id: str, revision: int, status: str) -> None:
    """Check that a plan can be forked at this revision.

    Raises:
        PlanFinished: the plan was finished at this revision.
    """
    if not PlanStatus(status).finished:
        return
    earlier = f"fork it at an earlier one, 1 to {revision - 1}" if revision > 1 else "submit its goal again"
    raise PlanFinished(f"plan {plan_id} was {status} at revision {revision}, with nothing left to do: {earlier}")


def fork_event(
    fork_id: str,
    revision: int,
    state: Mapping[str, Any],
    asked: Mapping[str, Mapping[str, Any]],
    *,
    data: Mapping[str, Any] | None = None,
    notify: str = "",
) -> EventEnvelope:
    """Create the event that starts a fork.

    Args:
        fork_id: Id and correlation id of the new plan.
        revision: Revision of the forked plan.
        state: Its fields at that revision, as ``plancast.plan.serialization.to_state`` writes them.
        asked: The events that had sent its open requests, by request id.
        data: Fields of the goal's data to replace.
        notify: Address on which the client waits for the final response.

    Raises:
        PlanFinished: the plan was finished then.
        CannotReplay: the event of an open request is unknown.
    """
    plan_id = str(state["plan_id"])
    if state.get("rollback"):
        raise PlanFinished(f"plan {plan_id} was being rolled back at revision {revision}: fork it at an earlier one")
    require_unfinished(plan_id, revision, str(state["status"]))
    sent = {WAITING_EVENT: asked[WAITING_EVENT]} if WAITING_EVENT in asked else {}
    for key, values in (state.get("requests") or {}).items():
        request = Request(*values)
        if request.state is None and request.event_type != WAIT:
            if key not in asked:
                raise CannotReplay(plan_id, revision, f"the data of its open request {request.event_type} is not known")
            sent[key] = asked[key]
    resent = {key: {name: event[name] for name in _SENT_AGAIN if name in event} for key, event in sent.items()}
    fork_data = ForkData(plan_id=plan_id, revision=revision, state=forked_state(state, fork_id, data), asked=resent)
    return EventEnvelope(
        id=effect_id(fork_id, 0, 0),
        source="plancast",
        type=FORK,
        topic=EventTopic.PLAN_EVENTS,
        correlation_id=fork_id,
        tenant_id=str(state.get("tenant_id") or "") or None,
        user_id=str(state.get("user_id") or "") or None,
        session_id=state.get("session_id"),
        data=fork_data.model_dump(),
        metadata={"notify": notify} if notify else {},
    )


async def start_fork(turn: TurnRecord) -> TurnOutcome:
    """Handle the event that starts a fork: the first turn of the new plan."""
    try:
        fork_data = ForkData.model_validate(turn.event.data)
    except ValidationError as error:
        return turn.refused(f"a fork's data cannot be read: {error.errors()[0]['msg']}")
    source = await turn.context.memory.get_plan_context(fork_data.plan_id)
    plan = create_fork(turn, fork_data, (source or {}).get("state_machine") or {})
    missing = turn.environment.missing_code(plan)
    if source is None:
        await plan.fail(f"plan {fork_data.plan_id}, which this one was to be forked from, is gone")
    elif missing is not None:
        await plan.fail(missing)
    elif plan.status is PENDING:
        await plan.fail(f"plan {fork_data.plan_id} waited for other plans then: submit its goal instead of forking it")
    else:
        turn.environment.check_goal(plan.goal_event, plan.goal_data)
        await _resend_requests(turn, plan, fork_data)
    return TurnOutcome.COMMIT


def create_fork(turn: TurnRecord, fork_data: ForkData, machine: Mapping[str, Any]) -> PlanContext:
    """Create the fork as the turn's own plan, without sending its requests."""
    event = turn.event
    own = {
        "plan_id": turn.correlation_id,
        "correlation_id": turn.correlation_id,
        "goal_id": event.id,
        "trace_id": event.trace_id or event.id,
        "tenant_id": event.tenant_id or "",
        "notify": event.metadata.get("notify") if event.metadata else None,
        "state_machine": machine,
    }
    plan = PlanContext.from_dict({**fork_data.state, "requests": {}, **own})
    plan.parent_plan_id = plan.reply_to = None
    plan.created_at = 0.0
    plan.deadline = turn.deadline_of(plan.goal_event)
    turn.outbox.begun = True
    turn.adopt(plan)
    plan._has_handler = turn.environment.transition_handler(plan) is not None
    turn.state_before = plan.current_state
    turn.notes.append(f"forked from plan {fork_data.plan_id} at revision {fork_data.revision}")
    return plan


async def _resend_requests(turn: TurnRecord, plan: PlanContext, fork_data: ForkData) -> None:
    """Send the open requests again under new ids, except those with an early answer."""
    ids: dict[str, str] = {}
    for request_id, values in fork_data.state["requests"].items():
        request = Request(*values)
        if request.event_type == WAIT:
            continue
        if _is_answered(plan, request_id, request):
            ids[request_id] = new_id = turn.next_id()
            plan.requests[new_id] = request
        elif request.event_type in (DELAY, JOIN):
            plan.requests[turn.next_id()] = request  # its time begins anew
        elif request.state is not None:
            before, attempt = set(plan.requests), request.attempt + request.asking_again
            await send_request(plan, request.state, attempt, branch=request.branch)
            ids[request_id] = next(each for each in plan.requests if each not in before)
        else:
            fields = dict(fork_data.asked.get(request_id) or {})
            ids[request_id] = new_id = await turn.context.bus.request(
                request.event_type, fields.pop("data", None), request.response_event, **fields
            )
            asked = plan.requests[new_id]
            asked.attempt, asked.timeout, asked.task = request.attempt, request.timeout, request.task
    await send_branches(plan)
    plan.kept = [_readdressed(each, ids, plan.correlation_id) for each in plan.kept]
    if plan.status is PAUSED and WAITING_FOR in plan.results:
        await _resend_wait(turn, plan, fork_data)


def _is_answered(plan: PlanContext, request_id: str, request: Request) -> bool:
    """True if an early answer to the request arrived during the pause."""
    if plan.status is not PAUSED:
        return False
    answers = [str(each.get("type")) for each in plan.kept if answered_request(each) == request_id]
    base = base_of(request.response_event)
    return any(plan.decider or base_of(answer) == base for answer in answers)


async def _resend_wait(turn: TurnRecord, plan: PlanContext, fork_data: ForkData) -> None:
    """Announce again what the plan waits for, and set the WAIT's timeout."""
    expected, timeout = plan.results[WAITING_FOR], plan.results.get(WAIT_TIMEOUT)
    seconds, until = (None, {"until": timeout}) if isinstance(timeout, str) else (timeout, {})
    announced = {"reason": plan.pause_reason, "expected_event": expected, "timeout_seconds": seconds} | until
    announced |= (fork_data.asked.get(WAITING_EVENT) or {}).get("data") or {}
    own = {"plan_id": plan.plan_id, "correlation_id": plan.correlation_id}
    event_id = await turn.context.bus.publish(WAITING_EVENT, announced | own, topic=EventTopic.SYSTEM_EVENTS)
    if timeout is not None:
        plan.requests[event_id] = wait_request(expected, timeout)


def _readdressed(event: dict[str, Any], ids: Mapping[str, str], correlation_id: str) -> dict[str, Any]:
    """An early event with the fork's ids."""
    parent = event.get("parent_event_id")
    own = {"correlation_id": correlation_id}
    return event | own | ({"parent_event_id": ids[parent]} if parent is not None and parent in ids else {})


_OWN: Final = frozenset(
    ("aliases", "children", "created_at", "deadline", "dependencies", "depth", "effects", "goal_id", "lent", "machine",
     "notify", "parent_plan_id", "reply_to", "root", "state_machine", "trace_id", "unanswered", "unlisted")
)  # fmt: skip
"""Fields of the forked plan that the fork does not take over."""

_NAMING: Final = ("group_id", "task_id")
"""Fields of an action that hold ids of tasks and groups."""


def forked_state(state: Mapping[str, Any], plan_id: str, data: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Rewrite a plan's stored state under a new plan id, ids of tasks and groups included.

    Args:
        state: As ``plancast.plan.serialization.to_state`` writes it.
        plan_id: The new id.
        data: Fields of the goal's data to replace.
    """
    fields = {name: value for name, value in state.items() if name not in _OWN}
    names = _Names(str(state["plan_id"]), plan_id, state.get("tasks") or {})
    fields |= {"plan_id": plan_id, "correlation_id": plan_id}
    if state.get("effects"):
        _act_anew(fields)
    requests = {key: Request(*value) for key, value in (state.get("requests") or {}).items()}
    for request in requests.values():
        request.task, request.sequence, request.due = names.of(request.task), 0, None
        request.alias = request.first = ""  # its events belong to the forked plan, and its acts are others
    fields["requests"] = {key: request.to_list() for key, request in requests.items()}
    if state.get("awaiting"):
        fields["awaiting"] = names.of(state["awaiting"])
    if state.get("tasks") is not None:
        fields["tasks"] = names.in_tasks(state["tasks"])
    if state.get("trajectory"):
        fields["trajectory"] = [names.in_step(each) for each in state["trajectory"]]
    if data is not None:
        fields["goal_data"] = {**(state.get("goal_data") or {}), **data}
        if fields.get("decider"):  # its planner sees it, as after a redirect
            fields["control"] = {**(fields.get("control") or {}), "redirect_goal": fields["goal_data"]}
    return fields


def _act_anew(fields: dict[str, Any]) -> None:
    """Let a fork repeat the acts of open requests whose outcomes are not known, instead of waiting for them."""
    fields["kept"] = [each for each in fields.get("kept") or () if not is_answer_of_unknown(each)]
    control = dict(fields.get("control") or {})
    if control.pop(HELD, None) is None:
        return
    fields["control"] = control
    if HOLD not in control:
        fields["status"], fields["pause_reason"] = str(RUNNING), None


class _Names:
    """Rewrites ids that contain a plan's id to another plan's."""

    def __init__(self, old: str, new: str, tasks: Mapping[str, Any]) -> None:
        self._old = old
        self._new = new
        self._prefixes = {f"{old}/": f"{new}/"}
        for run_id, step_id, *_ in tasks.get("steps") or ():
            if run_id == old:
                self._prefixes[group_of_step(old, step_id)] = group_of_step(new, step_id)

    def of(self, name: Any) -> Any:
        if not isinstance(name, str):
            return name
        for old in sorted(self._prefixes, key=len, reverse=True):
            if name.startswith(old) and (old.endswith("/") or name[len(old) :][:1] in ("", "/")):
                return self._prefixes[old] + name[len(old) :]
        return name

    def in_tasks(self, tasks: Mapping[str, Any]) -> dict[str, Any]:
        of = self.of
        return {
            **tasks,
            "tasks": [
                [of(key), spec, kind, of(group), *rest] for key, spec, kind, group, *rest in tasks.get("tasks") or ()
            ],
            "groups": [[of(key), *rest, [*map(of, members)]] for key, *rest, members in tasks.get("groups") or ()],
            "steps": [
                [self._new if run == self._old else run, step, of(group), of(task), *rest]
                for run, step, group, task, *rest in tasks.get("steps") or ()
            ],
        }

    def in_step(self, step: Mapping[str, Any]) -> dict[str, Any]:
        """Rewrite an entry of the trajectory."""
        decision = step.get("decision")
        if not isinstance(decision, Mapping) or not isinstance(decision.get("next_action"), Mapping):
            return dict(step)
        action = dict(decision["next_action"])
        action |= {name: self.of(action[name]) for name in _NAMING if name in action}
        return {**step, "decision": {**decision, "next_action": action}}
