"""Answers to requests under the names of events that others send, such as a person's approval."""

from __future__ import annotations

from typing import Any

from plancast.plan.record import PlanRecord
from plancast.plan.requests import WAIT, Request
from plancast.state_machine.machine import failed_event
from plancast.turn.retries import is_failure, says_unknown
from plancast.turn_record.environment import TurnEnvironment


async def is_foreign_answer(environment: TurnEnvironment, plan: PlanRecord, request: Request, event: Any) -> bool:
    """True if an answer to a request has the name of an event that people or agents of other tasks send.

    Names that a planner ``expects`` are those of people, unless the request itself is to be answered by one. Names that
    other agents produce are theirs, unless a transition of the plan's machine takes them.
    """
    if request.event_type == WAIT or is_failure(request, event) or says_unknown(plan, request, event):
        return False
    if request.response_event in environment.expected:
        return False
    if event.type in environment.expected:
        return True
    if environment.registry is None or event.type in plan.machine.event_types:
        return False
    producers = [agent for agent in await environment.registry.agents() if event.type in agent.produces]
    return bool(producers) and not any(request.event_type in agent.consumes for agent in producers)


def as_failure(request: Request, event: Any) -> Any:
    """The failure of a request that was answered under the name of an event that others send."""
    error = f"{request.event_type} was answered with {event.type}, which a person or another agent sends"
    data = {"success": False, "error": error}
    return event.model_copy(update={"type": failed_event(request.response_event), "data": data})
