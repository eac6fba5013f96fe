"""Tools: the goals of the deployed apps, and tools for plans that a client has begun before."""

from __future__ import annotations

from typing import Any, Final

from mcp import MCPError
from mcp_types import INVALID_PARAMS, ListToolsResult, Tool

from plancast.agents.definitions import EventDefinition
from plancast.console.service.backend import Backend
from plancast.json_values.normalize import plain

PAGE: Final = 200
"""Tools of a page."""
RESULT, ANSWER, CANCEL = "plan_result", "plan_answer", "plan_cancel"
"""Tools for plans. An app that has a goal of such a name hides the tool."""
_PLAN: Final = {"type": "string", "description": "Id of the plan, as an earlier call has returned it."}
PLAN_TOOLS: Final = (
    Tool(
        name=RESULT,
        description="Wait for the result of a plan that was begun before, and return it.",
        input_schema={"type": "object", "properties": {"plan_id": _PLAN}, "required": ["plan_id"]},
    ),
    Tool(
        name=ANSWER,
        description="Give a plan the input that it waits for, and wait for its result. Approvals are for people: they "
        "cannot be given here.",
        input_schema={
            "type": "object",
            "properties": {"plan_id": _PLAN, "data": {"type": "object", "description": "The input."}},
            "required": ["plan_id", "data"],
        },
    ),
    Tool(
        name=CANCEL,
        description="Cancel a plan.",
        input_schema={
            "type": "object",
            "properties": {"plan_id": _PLAN, "reason": {"type": "string"}},
            "required": ["plan_id"],
        },
    ),
)


async def tools_page(backend: Backend, cursor: str | None) -> ListToolsResult:
    """A page of the tools, behind the tool that the cursor names."""
    goals = await backend.goals()
    tools = [*map(_tool, goals.values()), *(tool for tool in PLAN_TOOLS if tool.name not in goals)]
    first = 0
    if cursor is not None:
        first = next((index for index, tool in enumerate(tools, 1) if tool.name == cursor), -1)
        if first < 0:
            raise MCPError(INVALID_PARAMS, "the cursor is that of a tool which is gone: list the tools anew")
    page = tools[first : first + PAGE]
    return ListToolsResult(tools=page, next_cursor=page[-1].name if first + PAGE < len(tools) else None)


def _tool(goal: EventDefinition) -> Tool:
    schema: dict[str, Any] = plain(goal.payload_schema) if goal.payload_schema is not None else {}
    return Tool(
        name=goal.event_type,
        description=goal.description or f"Run a plan for the goal {goal.event_type}.",
        input_schema={**schema, "type": "object"},
    )
