"""Names of the design that plancast began with, and what to use instead."""

from __future__ import annotations

from typing import Final

REPLACED: Final = {
    "create_child_request": "await context.bus.request(event_type, data, response_event), which publishes it as well",
    "publish_envelope": "await context.bus.publish(event_type, data, topic=...)",
    "create_plan": "await PlanContext.create_from_goal(goal, state_machine)",
    "update_plan_context": "await plan.save()",
    "WorkflowState": "PlanContext: its results, state and history are stored with every turn",
    "discovered_events": "nothing: a planner reads the registry; custom_context adds to the prompt",
    "_build_prompt": "system_instructions=, custom_context= or template=PromptTemplate(...)",
}
"""Replacements, by the replaced name."""


def missing(owner: str, name: str) -> AttributeError:
    """The error for a name that ``owner`` does not have."""
    return AttributeError(f"{owner} has no {name!r}{instead_of(name)}")


def instead_of(name: str) -> str:
    """The end of an error: what to use instead of a name that was replaced; empty for others."""
    return f"; use {REPLACED[name]}" if name in REPLACED else ""
