"""A scripted model for the conformance kit, with valid and malformed answers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from zlib import crc32

from plancast.agents.definitions import AgentDefinition, EventDefinition
from plancast.decisions.actions import MAX_BRANCHES
from plancast.errors import ModelUnavailable, ReasonerUnavailable
from plancast.models.port import ReasonReply, ReasonRequest, Usage
from plancast.planners.contract import RunContext

Script = Callable[[ReasonRequest, RunContext], str]
"""Answers a request of a run; may raise the errors of a reasoner port."""

LOOK: Final = EventDefinition(
    "conformance.look", description="Looks something up.", response_event="conformance.look.completed"
)
"""An event that every run may publish."""
RESEARCH: Final = "conformance.research"
"""A goal that every run may delegate."""
APPROVED: Final = "conformance.approved"
"""An event that every run may wait for."""
AGENT: Final = AgentDefinition(
    "conformance-agent", "researcher", (LOOK.event_type, RESEARCH), ("conformance.look.completed",)
)
"""The agent that handles them."""
GROUP: Final = "conformance-group"
"""Group of the script's delegation."""
TOKEN: Final = re.compile(r"token-k\d{3}")
"""Unique token in a run's goal."""


class ScriptedReasoner:
    """A `ReasonerPort` for one call of a planner."""

    def __init__(self, script: Script, run: RunContext) -> None:
        self._script = script
        self._run = run
        self.questions = 0
        """Number of requests."""

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        self.questions += 1
        for _ in range(1 + crc32(self._run.run_id.encode()) % 5):
            await asyncio.sleep(0)  # reorder concurrent calls
        return ReasonReply(self._script(request, self._run), Usage(1, 1, 0.0), request.model)


def _decision(action: str, **fields: Any) -> str:
    return json.dumps({"next_action": {"action": action, **fields}, "reasoning": "the script says so"})


def completing(request: ReasonRequest, run: RunContext) -> str:
    """Complete with the token in the request."""
    text = "\n".join(str(message.get("content", "")) for message in request.messages)
    found = TOKEN.search(text)
    return _decision("complete", result={"token": found.group() if found else ""})


def at_first(answer: str) -> Script:
    """Give this answer at the goal, then complete."""

    def script(request: ReasonRequest, run: RunContext) -> str:
        at_goal = run.trigger is not None and run.trigger.type == run.goal_event
        return answer if at_goal else completing(request, run)

    return script


def parallel(branches: int) -> str:
    """A parallel with this number of branches."""
    look = {"event_type": LOOK.event_type, "data": {}}
    return _decision("parallel", branches=[look] * branches, join="all")


def waiting(payload: Mapping[str, Any]) -> str:
    fields = {"expected_event": APPROVED, "timeout_seconds": 60, "payload": payload}
    return _decision("wait", reason="the kit approves", **fields)


def delegating(request: ReasonRequest, run: RunContext) -> str:
    """Delegate into a group, await it, then complete."""
    if run.tasks is None or not run.tasks.is_group(GROUP):
        fields = {"target_planner": AGENT.name, "goal_event": RESEARCH, "goal_data": {}}
        return _decision("delegate", group_id=GROUP, **fields)
    return _decision("await", group_id=GROUP) if GROUP in run.tasks.group_ids else completing(request, run)


GOOD: Final[Mapping[str, Script]] = {
    "complete": completing,
    "publish": at_first(_decision("publish", event_type=LOOK.event_type, data={})),
    "parallel": at_first(parallel(3)),
    "wait": at_first(waiting({"question": "may it?"})),
    "delegate": delegating,
}
"""Scripts with valid answers."""


def saying(text: str) -> Script:
    return lambda request, run: text


def _failing(error: Exception) -> Script:
    def script(request: ReasonRequest, run: RunContext) -> str:
        raise error

    return script


def _nested(levels: int) -> Any:
    value: Any = "the end"
    for _ in range(levels):
        value = {"inner": value}
    return value


OVERSIZED: Final = waiting({"everything": ["x" * 4000] * 10})
"""A wait with a payload over the limit."""
TOO_MANY: Final = parallel(MAX_BRANCHES + 1)
"""A parallel with one branch over the limit."""

BAD: Final[Mapping[str, Script]] = {
    "an empty answer": saying(""),
    "blanks": saying(" \n\t "),
    "prose": saying("I would look it up first, and then complete."),
    "null": saying("null"),
    "a list": saying("[1, 2, 3]"),
    "a number": saying("42"),
    "an object that is no decision": saying('{"weather": "fine", "degrees": 21}'),
    "cut off JSON": saying('{"next_action": {"action": "complete", "result": {"tok'),
    "an action that is a text": saying('{"next_action": "complete", "reasoning": "done"}'),
    "an action that is null": saying('{"next_action": null, "reasoning": "done"}'),
    "a decision without an action's name": saying('{"next_action": {"result": {}}, "reasoning": "done"}'),
    "an unknown action": saying(_decision("dance", tempo="fast")),
    "fields of wrong types": saying(_decision("publish", event_type=7, data="everything")),
    "no branches": saying(parallel(0)),
    "51 branches": saying(TOO_MANY),
    "an unknown join": saying(_decision("parallel", branches=[{"event_type": LOOK.event_type}], join="keyed")),
    "a reserved event": saying(_decision("publish", event_type="plan.finished", data={})),
    "an oversized wait payload": saying(OVERSIZED),
    "data that is nested deeply": saying(_decision("complete", result=_nested(200))),
    "JSON that is nested without end": saying('{"next_action": ' + '{"a":' * 20_000),
    "a huge answer": saying("x" * 1_000_000),
    "a huge decision": saying(_decision("complete", result={"text": "x" * 600_000})),
    "invalid Unicode": saying('\ud800 {"next_action": \ud800'),
    "invalid Unicode in a decision": saying('{"next_action": {"action": "complete", "result": {"a": "\\ud800"}}}'),
    "NaN": saying('{"next_action": {"action": "complete", "result": {"a": NaN}}, "reasoning": "r", "confidence": NaN}'),
    "a model that is unavailable": _failing(ModelUnavailable("conformance/none", "it has failed for good", 401)),
    "no reasoner": _failing(ReasonerUnavailable("no reasoner can take the request now")),
}
"""Scripts with malformed answers or errors, by fault."""
