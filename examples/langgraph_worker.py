"""A LangGraph agent as a worker: it answers the questions of plans in as many steps as it needs.

    pip install langgraph langchain-openai                     # or another provider of LangChain's
    export AGENT_MODEL=openai:gpt-4o OPENAI_API_KEY=...        # without AGENT_MODEL it uses canned answers
    plancast run examples.langgraph_worker:app
    plancast submit research.question --data '{"question": "What is a tide?"}' --wait

The worker is the ten lines of `answer`. The task is kept alive while the agent works; an exception, its own timeout
included, fails the task, and the plan receives its text. If the process dies, the task is redelivered to another one,
where a LangGraph checkpointer can continue the agent's thread by its `thread_id`.
"""

import asyncio
import os
from typing import Any

from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from plancast import App, Planner, StateAction, StateConfig, StateTransition, TaskContext, Worker

CANNED = ["The sea rises and falls.", "Add what moves it.", "The sea rises and falls, moved by the moon.", "GOOD"]
SECONDS = 120.0


def chat_model() -> BaseChatModel:
    """The model in the environment, or one that needs no key."""
    if name := os.environ.get("AGENT_MODEL"):
        from langchain.chat_models import init_chat_model

        return init_chat_model(name)
    return FakeListChatModel(responses=CANNED)


def make_agent(model: BaseChatModel) -> Any:
    """A graph of a writer and a reviewer, which loop until the answer is good."""

    async def write(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke([("system", "Answer in a sentence."), *state["messages"]])]}

    async def read(state: MessagesState) -> dict[str, Any]:
        asked = ("system", "Say GOOD, or what to change in the last answer.")
        return {"messages": [("user", (await model.ainvoke([asked, *state["messages"]])).text)]}

    graph = StateGraph(MessagesState)
    graph.add_node("write", write)
    graph.add_node("read", read)
    graph.add_edge(START, "write")
    graph.add_edge("write", "read")
    graph.add_conditional_edges("read", lambda state: "__end__" if state["messages"][-1].text == "GOOD" else "write")
    return graph.compile()


agent = make_agent(chat_model())
worker = Worker("answerer", concurrency=20)


class Question(BaseModel):
    question: str


@worker.on_task("question.asked", "question.answered", description="Answer a question", schema=Question)
async def answer(task: TaskContext, context: Any) -> dict[str, Any]:
    options = {"configurable": {"thread_id": task.event.id}, "recursion_limit": 10}
    async with asyncio.timeout(SECONDS):
        done = await agent.ainvoke({"messages": [("user", task.data["question"])]}, options)
    return {"answer": done["messages"][-2].text, "drafts": len(done["messages"]) // 2}


planner = Planner("research")
planner.add_goal("research.question", {
    "start": StateConfig(
        state_name="start",
        action=StateAction(event_type="question.asked", response_event="question.answered",
                           data={"question": "{goal_data.question}"}, timeout_seconds=300),
        transitions=[StateTransition(on_event="question.answered", to_state="done")],
    ),
    "done": StateConfig(state_name="done", is_terminal=True),
})  # fmt: skip

app = App("langgraph-worker", planners=[planner], workers=[worker])
