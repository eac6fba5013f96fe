"""Agent: a remote agent as a goal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

from plancast.a2a_client.options import AgentOptions
from plancast.a2a_client.tasks import FollowTask, SendTask
from plancast.planners.planner import Planner
from plancast.state_machine.states import StateAction, StateConfig, StateTransition
from plancast.worker import Worker
from plancast_bus.subjects import check_event_type

MAX_ATTEMPTS: Final = 12
"""Attempts at a message to an agent that is away: about five minutes."""


class Agent:
    """A remote agent, for ``App(agents=[...])``. Made by :meth:`from_a2a`.

    Args:
        planner: The planner of its goal.
        worker: The worker of its tasks.
    """

    def __init__(self, planner: Planner, worker: Worker) -> None:
        self.planner: Planner = planner
        self.worker: Worker = worker

    @property
    def name(self) -> str:
        """Name of the agent, its planner and its worker."""
        return self.planner.name

    @property
    def goal(self) -> str:
        """The goal that is delegated to the agent: ``<name>.goal``."""
        return next(iter(self.planner.goals))

    @classmethod
    def from_a2a(
        cls,
        name: str,
        card_url: str,
        *,
        skill: str | None = None,
        headers: Mapping[str, str] | None = None,
        description: str = "",
        schema: Any = None,
        concurrency: int = 100,
    ) -> Self:
        """Make a remote agent that speaks A2A a goal: ``<name>.goal``, which can be submitted and delegated.

        A plan of the goal sends its data as a message, and follows the agent's task, also across restarts of either
        side. Its result is that of the task; what the task reports is shown as progress. Where the agent asks for
        input, the plan waits for ``<name>.input``, and passes it on. Cancelling the plan cancels the task. Needs
        ``pip install 'plancast[a2a]'``.

        A message is sent again, with the same id, where its answer was lost, unless the agent lists its task: an agent
        that forgets what it has begun does it again.

        Args:
            name: Name of the agent, its planner and its worker, unique in the app.
            card_url: Address of its card, or of its host.
            skill: The skill that messages name in their metadata; None: the only one that the card has, if so.
            headers: Headers of each request, such as ``Authorization``; only the card's host gets them.
            description: What it does, for planners that may delegate to it.
            schema: A JSON Schema or pydantic model of the goal's data.
            concurrency: Most of its tasks that one process follows.

        Raises:
            InvalidApp: an argument is invalid.
            InvalidSubject: the name cannot be part of an event type.
        """
        check_event_type(name)
        options = AgentOptions(name, card_url, skill, dict(headers or {}))
        return cls(_planner(options, description, schema), _worker(options, concurrency))


def _worker(options: AgentOptions, concurrency: int) -> Worker:
    name = options.name
    worker = Worker(name, concurrency=concurrency, max_attempts=MAX_ATTEMPTS)
    worker.on_task(f"{name}.send.requested", f"{name}.send.completed", description=f"Send a message to {name}")(
        SendTask(options, f"{name}.send.replied")
    )
    worker.on_task(f"{name}.follow.requested", f"{name}.follow.completed", description=f"Follow a task of {name}")(
        FollowTask(options, f"{name}.follow.asked")
    )
    return worker


def _planner(options: AgentOptions, description: str, schema: Any) -> Planner:
    name = options.name
    planner = Planner(name, description=description or f"Delegate to the remote agent {name}")
    sent = {f"{name}.send.completed": "following", f"{name}.send.replied": "done"}
    task = {"task": "{{results.start.task}}", "context": "{{results.start.context}}"}
    states = [
        _state("start", f"{name}.send", {"data": "{{goal_data}}"}, sent),
        _state(
            "following", f"{name}.follow", task, {f"{name}.follow.completed": "done", f"{name}.follow.asked": "asking"}
        ),
        StateConfig(
            state_name="asking",
            description=f"{name} asks for input",
            action=StateAction(
                event_type="notification.human_input",
                response_event=f"{name}.input",
                data={"question": "{{results.following.question}}", "data": "{{results.following.data}}"},
            ),
            transitions=[StateTransition(on_event=f"{name}.input", to_state="answering")],
        ),
        _state("answering", f"{name}.send", {**task, "data": "{{results.asking}}"}, sent),
        StateConfig(state_name="done", description="The agent's task has ended", is_terminal=True),
    ]
    planner.add_goal(f"{name}.goal", {each.state_name: each for each in states}, schema=schema)
    planner.expects(f"{name}.input", f"What the remote agent {name} asks for")

    @planner.on_transition()
    async def finish(transition: Any, context: Any) -> None:
        """Give the plan the result of the agent's task."""
        await transition.plan.execute_next(transition.event)
        if transition.next_state == "done":
            await transition.plan.finalize(transition.data["result"])

    return planner


def _state(name: str, base: str, data: dict[str, Any], transitions: Mapping[str, str]) -> StateConfig:
    return StateConfig(
        state_name=name,
        description=base,
        action=StateAction(event_type=f"{base}.requested", response_event=f"{base}.completed", data=data),
        transitions=[StateTransition(on_event=event, to_state=state) for event, state in transitions.items()],
    )
