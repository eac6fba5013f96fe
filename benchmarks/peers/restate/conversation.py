# mypy: disable-error-code="import-not-found,untyped-decorator"
"""W8's plans as Restate services, served by hypercorn; both forms are those of Restate's documentation for agents.

``agent.journal`` is an agent's loop in one invocation: the conversation is its input, each call a ``ctx.run`` whose
answer rests in the journal. ``session.call`` is a chat session: a virtual object that keeps the conversation as its
state ``memory``, and is invoked for each call; it reads and sets that state as a whole.

The answers of ``agent.journal`` come from a file: what a call returns is no part of the request.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import restate

agent = restate.Service("agent")
session = restate.VirtualObject("session")


def answers_of(plan: str) -> list[str]:
    """Read the answers of a plan, which is the path of their file."""
    found: list[str] = json.loads(Path(plan).read_text())
    return found


@agent.handler()
async def journal(ctx: restate.Context, goal: dict[str, Any]) -> dict[str, Any]:
    """Append the answer of each call to the conversation."""
    answers, conversation = answers_of(goal["plan"]), list(goal["held"])
    gaps: list[float] = []
    ended = 0.0

    async def call(number: int) -> str:
        nonlocal ended
        if number:
            gaps.append(time.perf_counter() - ended)
        ended = time.perf_counter()
        return answers[number]

    for number in range(len(answers)):
        conversation.append({"role": "tool", "content": await ctx.run_typed("call", call, number=number)})
    return {"gaps": gaps, "kept": len(conversation) - len(goal["held"])}


@session.handler()
async def begin(ctx: restate.ObjectContext, held: list[dict[str, str]]) -> None:
    """Set the conversation."""
    ctx.set("memory", held)


@session.handler()
async def call(ctx: restate.ObjectContext, answer: str) -> int:
    """Append the answer of one call; return the length of the conversation."""
    memory = await ctx.get("memory", type_hint=list) or []

    async def take() -> str:
        return answer

    memory.append({"role": "tool", "content": await ctx.run_typed("call", take)})
    ctx.set("memory", memory)
    return len(memory)


app = restate.app([agent, session])
