"""The app of W2: plans that ask ten things at once of a trivial worker, and join the ten answers.

A plan has 22 events (its goal, ten requests, ten answers, its final response) and eleven turns, each with a durable
checkpoint: the goal's, which sends all requests; and one for each answer, the last of which gives the final response.
"""

from __future__ import annotations

from typing import Any

from plancast import App, CompleteAction, ParallelAction, PlannerDecision, PublishAction, RunContext, WakeMode, Worker

GOAL = "w2.goal"
REQUEST = "w2.echo.requested"
ANSWER = "w2.echo.completed"
RESPONSE = f"{GOAL}.completed"
BRANCHES = 10
TURNS = BRANCHES + 1
"""Turns of a plan, and so its checkpoints."""


class FanOut:
    """Publishes all requests as one group, and completes with their answers when the group is resolved."""

    name = "w2"
    goals = (GOAL,)
    wake_mode = WakeMode.PUSH

    async def next(self, run: RunContext) -> PlannerDecision:
        """The group's requests; then, once they are answered, the answers."""
        if run.tasks is None or not run.tasks.groups:
            data = [{"n": run.goal["n"], "branch": branch} for branch in range(BRANCHES)]
            requests = [PublishAction(event_type=REQUEST, data=each, response_event=ANSWER) for each in data]
            return PlannerDecision(next_action=ParallelAction(branches=requests), reasoning="all can be asked at once")
        completion = run.tasks.watch_group(run.tasks.groups[0])
        answers = [member.result for member in completion.members] if completion is not None else []
        return PlannerDecision(next_action=CompleteAction(result={"answers": answers}), reasoning="all have answered")


worker = Worker("echo", concurrency=1000)


@worker.on_task(REQUEST, ANSWER)
async def echo(task: Any, context: Any) -> Any:
    """Give back what was asked."""
    return task.data


app = App("w2", planners=[FanOut()], workers=[worker])
