"""A process of DBOS with W8's plan: a workflow whose input is the conversation, and a step for each call.

A step's output, the answer, is durable before the workflow goes on. The conversation grows in the workflow's memory, as
DBOS rebuilds it from inputs and outputs.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import uvloop
from dbos import DBOS, DBOSConfig, SetWorkflowID

plans: dict[str, Plan] = {}


class Plan:
    """The answers of a plan, and the times of its calls; not part of what DBOS stores."""

    def __init__(self, answers: list[str]) -> None:
        self.answers = answers
        self.gaps: list[float] = []
        self.ended = 0.0


@DBOS.step()
async def call(number: int) -> str:
    """Return an answer."""
    plan = plans[str(DBOS.workflow_id)]
    if number:
        plan.gaps.append(time.perf_counter() - plan.ended)
    answer = plan.answers[number]
    plan.ended = time.perf_counter()
    return answer


@DBOS.workflow(name="w8")
async def converse(held: list[dict[str, str]], calls: int) -> int:
    """Append the answer of each call to the conversation."""
    conversation = list(held)
    for number in range(calls):
        conversation.append({"role": "tool", "content": await call(number)})
    return len(conversation) - len(held)


async def run(variant: str, plan: str, held: list[dict[str, str]], answers: list[str]) -> dict[str, Any]:
    """Run one plan; return the seconds from each answer to the next request, and the number of answers that it kept."""
    known = plans[plan] = Plan(answers)
    with SetWorkflowID(plan):
        handle = await DBOS.start_workflow_async(converse, held, len(answers))
    return {"kept": await handle.get_result(), "gaps": known.gaps}


async def main(url: str) -> None:
    """Run the plan on each line of the input."""
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url,
        "application_version": "1",
        "log_level": "WARNING",
    }
    DBOS(config=config)
    DBOS.launch()
    print(json.dumps({"ready": True}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            reply = await run(**json.loads(line))
        except Exception as error:
            reply = {"failed": repr(error)}
        print(json.dumps(reply), flush=True)
    DBOS.destroy()


if __name__ == "__main__":
    uvloop.run(main(**json.loads(sys.argv[1])))
