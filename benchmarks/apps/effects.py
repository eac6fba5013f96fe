"""W1's plans, and the same with recorded effects: each of their requests is an act that is never repeated blindly."""

from __future__ import annotations

from benchmarks.apps import w1
from plancast import App, Effect, Planner, Worker

GOAL = "recorded.goal"
REQUEST = "record.requested"
ANSWER = "record.completed"
RESPONSE = f"{GOAL}.completed"

planner = Planner("recorded")
planner.add_goal(GOAL, w1.machine(REQUEST, ANSWER))

worker = Worker("echo", concurrency=1000)
worker.on_task(w1.REQUEST, w1.ANSWER)(w1.echo)
worker.on_task(REQUEST, ANSWER, effect=Effect(repeat="never"))(w1.echo)

app = App("effects", planners=[w1.planner, planner], workers=[worker])
