"""The fields of a plan, as a plan of another id has them that is to go on in its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from plancast.plan.requests import Request
from plancast.tasks.model import group_of_step

_OWN: Final = frozenset(
    ("aliases", "created_at", "depth", "goal_id", "machine", "notify", "parent_plan_id", "reply_to", "root",
     "state_machine", "trace_id")
)  # fmt: skip
"""Fields that are the other plan's alone: who asked for it, and when."""
_NAMING: Final = ("group_id", "task_id")
"""Fields of an action that name tasks and groups."""


def carried_over(state: Mapping[str, Any], plan_id: str, data: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields for a plan of this id. Tasks and groups that are named after their plan are named after it.

    Args:
        state: As ``PlanContext.to_state()`` gives them.
        plan_id: The new one.
        data: Fields of the goal's data that are to be others.
    """
    fields = {name: value for name, value in state.items() if name not in _OWN}
    names = _Names(str(state["plan_id"]), plan_id, state.get("tasks") or {})
    fields |= {"plan_id": plan_id, "correlation_id": plan_id}
    requests = {key: Request(*value) for key, value in (state.get("requests") or {}).items()}
    for request in requests.values():
        request.task, request.sequence, request.due = names.of(request.task), 0, None
        request.alias = ""  # events under it are the other plan's
    fields["requests"] = {key: request.to_list() for key, request in requests.items()}
    if state.get("awaiting"):
        fields["awaiting"] = names.of(state["awaiting"])
    if state.get("tasks") is not None:
        fields["tasks"] = names.in_tasks(state["tasks"])
    if state.get("trajectory"):
        fields["trajectory"] = [names.in_step(each) for each in state["trajectory"]]
    if data is not None:
        fields["goal_data"] = {**(state.get("goal_data") or {}), **data}
        if fields.get("decider"):  # its planner is told, as after a redirect
            fields["control"] = {**(fields.get("control") or {}), "redirect_goal": fields["goal_data"]}
    return fields


class _Names:
    """What is named after a plan, named after another one."""

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
        """A step of the trajectory."""
        decision = step.get("decision")
        if not isinstance(decision, Mapping) or not isinstance(decision.get("next_action"), Mapping):
            return dict(step)
        action = dict(decision["next_action"])
        action |= {name: self.of(action[name]) for name in _NAMING if name in action}
        return {**step, "decision": {**decision, "next_action": action}}
