"""The app of W2: plans that send ten requests at once to a trivial worker, and join the ten responses.

A plan has 22 events (its goal, ten requests, ten responses, its final response) and eleven turns, each with a durable
checkpoint: the goal's, which sends all requests; and one for each response, the last of which sends the final response.
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
"""Turns of a plan, each with a checkpoint."""


class FanOut:
    """Publishes all requests as one group, and completes with their responses when the group is resolved."""

    name = "w2"
    goals = (GOAL,)
    wake_mode = WakeMode.PUSH

    async def next(self, run: RunContext) -> PlannerDecision:
        """Return the group's requests; once they are answered, the responses."""
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
    """Return the request unchanged."""
    return task.data


app = App("w2", planners=[FanOut()], workers=[worker])
