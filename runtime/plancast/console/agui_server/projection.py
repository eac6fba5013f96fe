"""Projection: the changes of a plan as AG-UI events. The same changes give the same events, wherever they are read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ag_ui.core import (
    ActivitySnapshotEvent,
    BaseEvent,
    StateDeltaEvent,
    StateSnapshotEvent,
    StepFinishedEvent,
    StepStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from plancast.client.changes import DecisionText, TaskChunk, TaskProgress, TaskReport
from plancast.console.views.plans import moved
from plancast.plan.status import PlanStatus
from plancast_bus.events.envelope import EventTopic

Entry = Mapping[str, Any]
Message = tuple[str, int]
"""A task's output: id of the request, or key of the model's reply, and the attempt."""
ACTIVITY: Final = "plancast.progress"
"""Type of the activity that shows a task's progress."""
_STATE: Final = ("status", "current_state", "revision", "pause_reason", "error")


def as_text(value: Any) -> str:
    """A value in a text of the protocol: texts as they are, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class Projection:
    """Messages and calls that a client of a run has open, and the state that it knows, after the projected changes.

    Args:
        plan_id: The plan.
        goal: Type of its goal.
    """

    def __init__(self, plan_id: str, goal: str) -> None:
        self.state: dict[str, Any] = {"plan_id": plan_id, "goal": goal} | dict.fromkeys(_STATE)
        self.state |= {"status": str(PlanStatus.PENDING), "current_state": "", "revision": 0}
        self.calls: dict[str, str] = {}
        """Open requests by id, with the state that has sent them."""
        self._step = ""
        self._messages: dict[Message, str] = {}
        """Open messages with their ids."""
        self._texts: set[Message] = set()
        """Those of them that are replies of models, which end with the next turn."""
        self._answered: set[str] = set()
        """Ids of answered requests, whose output has ended."""

    def snapshot(self) -> list[BaseEvent]:
        """The state as a whole, and the state machine's state as a step."""
        step: list[BaseEvent] = [StepStartedEvent(step_name=self._step)] if self._step else []
        return [StateSnapshotEvent(snapshot=dict(self.state)), *step]

    def turn(self, entry: Entry, arguments: Mapping[str, Any] | None = None) -> list[BaseEvent]:
        """Project a turn.

        Args:
            entry: Its entry in the timeline.
            arguments: Data of the requests that it has sent, by id, as far as they are known.
        """
        moment = round(1000 * float(entry.get("time") or 0))
        results, answered = self._results(entry), self._answered
        ended = [each for each in self._messages if each[0] in answered or each in self._texts]
        events = [*self._end(ended), *results, *self._steps(entry), *self._requests(entry, arguments or {})]
        after = self.state | {name: entry.get(name) for name in ("status", "revision", "pause_reason", "error")}
        after["current_state"] = str(entry.get("state") or "")
        delta = [
            {"op": "replace", "path": f"/{name}", "value": after[name]}
            for name in _STATE
            if after[name] != self.state[name]
        ]
        self.state = after
        events.append(StateDeltaEvent.model_validate({"delta": delta}))
        for each in events:
            each.timestamp = moment
        return events

    def report(self, report: TaskReport) -> list[BaseEvent]:
        """Project the report of a running task."""
        if isinstance(report, TaskProgress):
            content = {
                "event_type": report.event_type,
                "attempt": report.attempt,
                "fraction": report.fraction,
                "message": report.message,
            }
            return [
                ActivitySnapshotEvent(message_id=f"{report.task_id}:progress", activity_type=ACTIVITY, content=content)
            ]
        assert isinstance(report, (TaskChunk, DecisionText))
        message = report.task_id, report.attempt
        begun = self._messages.get(message)
        events = self._end([each for each in self._messages if each[0] == message[0] and each != message])
        if begun is None:
            begun = f"{report.task_id}:{report.attempt}"
            if report.task_id in self._answered:
                begun += f":{report.note}"
            self._messages[message] = begun
            if isinstance(report, DecisionText):
                self._texts.add(message)
            events.append(TextMessageStartEvent(message_id=begun, role="assistant", name=report.event_type))
        said = report.text if isinstance(report, DecisionText) else as_text(report.chunk)
        events.append(TextMessageContentEvent(message_id=begun, delta=said))
        if report.task_id in self._answered:  # it came late
            events += self._end([message])
        for each in events:
            each.timestamp = round(1000 * report.time)
        return events

    def reopening(self) -> list[BaseEvent]:
        """Open again what :meth:`closing` closes, where the run goes on nevertheless."""
        step: list[BaseEvent] = [StepStartedEvent(step_name=self._step)] if self._step else []
        return step + [TextMessageStartEvent(message_id=each, role="assistant") for each in self._messages.values()]

    def closing(self) -> list[BaseEvent]:
        """Close what is open, before the end of the run."""
        events: list[BaseEvent] = [TextMessageEndEvent(message_id=each) for each in self._messages.values()]
        return events + ([StepFinishedEvent(step_name=self._step)] if self._step else [])

    def unanswered(self) -> list[BaseEvent]:
        """Results of the requests that stay without an answer when the plan ends."""
        return [ToolCallResultEvent(message_id=f"{call}:result", tool_call_id=call, content="") for call in self.calls]

    def _end(self, messages: Sequence[Message]) -> list[BaseEvent]:
        self._texts.difference_update(messages)
        return [TextMessageEndEvent(message_id=self._messages.pop(each)) for each in messages]

    def _results(self, entry: Entry) -> list[BaseEvent]:
        """The results of the requests that the turn's event answers, or a person by moving the plan on."""
        event: Entry = entry.get("event") or {}
        parent, moves = str(event.get("parent_event_id") or ""), bool(entry.get("path"))
        answered = [parent] if parent in self.calls else []
        if answered or (parent and event.get("topic") == EventTopic.ACTION_RESULTS):
            self._answered.add(parent)
        elif moves and event.get("topic") == EventTopic.PLAN_EVENTS:
            answered = [call for call, state in self.calls.items() if state == entry.get("from")]
        for call in answered:
            del self.calls[call]
        content = as_text(event.get("data"))
        return [
            ToolCallResultEvent(message_id=f"{call}:result", tool_call_id=call, content=content) for call in answered
        ]

    def _steps(self, entry: Entry) -> list[BaseEvent]:
        """The states that the turn enters, or the decisions of a planner, which are steps that end at once."""
        events: list[BaseEvent] = []
        for action in _actions(entry):
            subject = action.get("event_type") or action.get("goal_event") or action.get("expected_event") or ""
            name = f"{action['action']} {subject}".rstrip()
            events += [StepStartedEvent(step_name=name), StepFinishedEvent(step_name=name)]
        for state in moved(entry):
            if self._step:
                events.append(StepFinishedEvent(step_name=self._step))
            events.append(StepStartedEvent(step_name=state))
            self._step = state
        return events

    def _requests(self, entry: Entry, arguments: Mapping[str, Any]) -> list[BaseEvent]:
        """The requests that the turn sends. The last turn's are answers and announcements, as are the plan's own."""
        if PlanStatus(entry["status"]).finished:
            return []
        events: list[BaseEvent] = []
        said, decided = entry.get("said") or (), _decided(entry)
        for index, (event_type, request) in enumerate(entry.get("sent") or ()):
            if event_type.startswith("plan."):
                continue
            data = said[index] if index < len(said) else arguments.get(request, decided.get(event_type))
            self.calls[request] = str(entry.get("state") or "")
            events += [
                ToolCallStartEvent(tool_call_id=request, tool_call_name=event_type),
                ToolCallArgsEvent(tool_call_id=request, delta=json.dumps({} if data is None else data)),
                ToolCallEndEvent(tool_call_id=request),
            ]
        return events


def _actions(entry: Entry) -> list[Mapping[str, Any]]:
    return [taken["decision"]["next_action"] for taken in entry.get("decisions") or ()]


def _decided(entry: Entry) -> dict[str, Any]:
    """Data of the requests that a planner has decided to send, by type."""
    sent = [(each, each.get("spec") or {}) for each in _actions(entry)]
    return {
        str(action.get("event_type") or action.get("goal_event")): action.get("data") or spec.get("data")
        for action, spec in sent
    }
