"""Drives a run in memory as the runtime does, with an immediate, successful response to every action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from plancast.decisions.actions import AwaitAction, DelegateAction, ParallelAction, PublishAction, WaitAction
from plancast.decisions.decision import PlannerDecision
from plancast.errors import TaskError
from plancast.planners.contract import RunContext, TrajectoryEntry
from plancast.state_machine.machine import base_of
from plancast.tasks.model import GroupState, TaskState
from plancast.tasks.registry import TaskRegistry
from plancast.tasks.spec import SpawnSpec
from plancast.testing.conformance.harness import ACTIONS

MOST_STEPS: Final = 10
"""Maximum number of decisions of a run."""


class Drive:
    """A run between decisions."""

    def __init__(self, run: RunContext, answers: Mapping[str, Any]) -> None:
        self.run = run
        """The run for the planner's next call."""
        self.ended = False
        """True when no further response can arrive."""
        self.refused = ""
        """Error of a delegation that could not be started."""
        self._answers = answers

    @property
    def tasks(self) -> TaskRegistry:
        assert self.run.tasks is not None  # set by the bench
        return self.run.tasks

    def take(self, decision: object) -> None:
        """Execute a decision and respond to it; anything else ends the run."""
        if not isinstance(decision, PlannerDecision) or not isinstance(decision.next_action, ACTIONS):
            self.ended = True
            return
        action = decision.next_action
        self._note(TrajectoryEntry(kind="decision", type=str(action.action), decision=decision, time=self.run.now))
        if isinstance(action, PublishAction):
            self.answer(self._answer_to(action))
        elif isinstance(action, ParallelAction):
            for branch in action.branches:
                self.answer(self._answer_to(branch))
        elif isinstance(action, WaitAction):
            self.answer(action.expected_event)
        elif isinstance(action, DelegateAction):
            self._delegate(action)
        elif isinstance(action, AwaitAction):
            self._finish(action)
        else:
            self.ended = True

    def answer(self, event_type: str) -> None:
        """Deliver a response: it becomes a result and the next trigger."""
        data = self._answers.get(event_type, {"success": True})
        known = {**self.run.results, event_type: data}
        entry = TrajectoryEntry(type=event_type, data=data, event_id=f"answer-{len(known)}", time=self.run.now)
        self.run = replace(self.run, results=known, trigger=entry)
        self._note(entry)

    def _delegate(self, action: DelegateAction) -> None:
        if not action.group_id:
            self.answer(f"{action.goal_event}.completed")
            return
        try:
            self._start(action, action.group_id)
        except TaskError as error:
            self.ended, self.refused = True, str(error)

    def _start(self, action: DelegateAction, group_id: str) -> None:
        """Start the tasks delegated into a group; register one unless the planner has."""
        if not self.tasks.is_group(group_id):
            self.tasks.open_group(group_id)
        group = self.tasks.group(group_id)
        if not group.members:
            spec = action.spec or SpawnSpec(event_type=action.goal_event, data=action.goal_data)
            self.tasks.spawn(spec, group_id)
        for member in group.members:
            if self.tasks.task(member).state is TaskState.PENDING:
                self.tasks.start(member)

    def complete(self, members: list[str], group_id: str) -> None:
        """Complete the tasks of a group, and seal it."""
        for member in members:
            if not self.tasks.task(member).state.finished:
                self.tasks.complete(member, {"success": True})
        if group_id and self.tasks.group(group_id).state is GroupState.OPEN:
            self.tasks.seal_group(group_id)

    def _finish(self, action: AwaitAction) -> None:
        """Complete what is awaited; awaiting something unknown ends the run."""
        tasks = self.tasks
        if action.task_id in tasks.task_ids:
            task = tasks.task(action.task_id)
            members, group_id = ([task.task_id], task.group_id)
        elif action.group_id in tasks.group_ids:
            members, group_id = (tasks.group(action.group_id).members, action.group_id)
        else:
            self.ended = True
            return
        spec = next((tasks.task(each).spec for each in members), None)
        self.complete(members, group_id)
        self.answer(f"{spec.event_type}.completed" if spec else f"{group_id}.completed")

    def _answer_to(self, action: PublishAction) -> str:
        declared = {event.event_type: event.response_event for event in self.run.events}.get(action.event_type)
        base = base_of(action.event_type) or action.event_type
        return action.response_event or declared or f"{base}.completed"

    def _note(self, entry: TrajectoryEntry) -> None:
        self.run = replace(self.run, trajectory=(*self.run.trajectory, entry))
