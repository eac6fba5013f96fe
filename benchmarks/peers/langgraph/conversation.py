"""A process of LangGraph with W8's plan: an agent's loop over ``messages``, one node for the calls.

The reducer of ``messages`` is ``add_messages``, as LangGraph's documentation has it for a conversation (variant
``messages``), or a ``DeltaChannel``, in beta, with its default snapshot every 100 updates (variant ``delta``). The
checkpointer is ``AsyncPostgresSaver``; ``durability="sync"`` has each step durable before the next one starts. A call
is made within its node, so there is one step for each call; an agent with a model has two.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Annotated, Any, TypedDict

import uvloop
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages


def append(messages: list[AnyMessage], writes: list[list[AnyMessage]]) -> list[AnyMessage]:
    """Append messages: the reducer of the ``DeltaChannel``."""
    return [*messages, *(message for write in writes for message in write)]


class Messages(TypedDict):
    """State with the recommended reducer."""

    messages: Annotated[list[AnyMessage], add_messages]


class Deltas(TypedDict):
    """State whose checkpoints hold what is new."""

    messages: Annotated[list[AnyMessage], DeltaChannel(append)]


STATES: dict[str, Any] = {"messages": Messages, "delta": Deltas}


def message(role: str, content: str, number: int) -> AnyMessage:
    """Build a message of the conversation."""
    if role == "tool":
        return ToolMessage(content, tool_call_id=str(number), id=str(number))
    return (HumanMessage if role == "user" else AIMessage)(content, id=str(number))


async def run(saver: Any, variant: str, plan: str, held: list[dict[str, str]], answers: list[str]) -> dict[str, Any]:
    """Run one plan; return the seconds from each answer to the next request, and the number of answers that it kept."""
    gaps: list[float] = []
    ended, done = 0.0, 0

    async def call(state: Any) -> dict[str, Any]:
        nonlocal ended, done
        if done:
            gaps.append(time.perf_counter() - ended)
        answer = message("tool", answers[done], len(state["messages"]))
        done += 1
        ended = time.perf_counter()
        return {"messages": [answer]}

    graph = StateGraph(STATES[variant])
    graph.add_node("call", call)
    graph.add_edge(START, "call")
    graph.add_conditional_edges("call", lambda state: "call" if done < len(answers) else END, ["call", END])
    compiled = graph.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": plan}, "recursion_limit": len(answers) + 10}
    given = [message(each["role"], each["content"], number) for number, each in enumerate(held)]
    await compiled.ainvoke({"messages": given}, config, durability="sync")
    kept = (await compiled.aget_state(config)).values["messages"][len(given) :]
    return {"gaps": gaps, "kept": sum(each.content == answer for each, answer in zip(kept, answers, strict=True))}


async def main(url: str) -> None:
    """Run the plan on each line of the input."""
    async with AsyncPostgresSaver.from_conn_string(url) as saver:
        await saver.setup()
        print(json.dumps({"ready": True}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                reply = await run(saver, **json.loads(line))
            except Exception as error:
                reply = {"failed": repr(error)}
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    uvloop.run(main(**json.loads(sys.argv[1])))
