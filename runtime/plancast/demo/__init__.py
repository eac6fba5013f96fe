"""Demos: example apps on real NATS and Ray."""

from __future__ import annotations

from typing import Literal

__all__ = ["DemoName", "PlannerKind", "run_demo"]

DemoName = Literal["research", "orders", "feedback", "triage"]
PlannerKind = Literal["tree", "llm", "machine"]
_PLANS = {"research": 40, "orders": 30, "feedback": 3, "triage": 30}


def run_demo(
    topic: str | None = None,
    plans: int | None = None,
    seed: int | None = None,
    kill: bool = True,
    json_output: bool = False,
    *,
    name: DemoName = "research",
    model: str | None = None,
    planner: PlannerKind = "tree",
) -> int:
    """Run the plans of an example on an embedded nats-server and a local Ray.

    Args:
        topic: research: run a single plan with this question, and print its answer.
        plans: Number of concurrent plans; by default 40, 30, 3 and 30.
        seed: research, orders, triage: repeats the order of an earlier run.
        kill: research, triage: kill a plan host with SIGKILL halfway through.
        json_output: Print one JSON document instead of tables.
        name: The app: ``plancast/demo/apps/<name>.py``.
        model: orders, feedback, triage with an LLM: a litellm model string; None uses the stand-in, which needs no key.
        planner: triage: kind of planner.

    Returns:
        0 when every plan ended as expected; else 1.
    """
    import asyncio

    count = _PLANS[name] if plans is None else plans
    if name == "orders":
        from plancast.demo.orders import process_orders

        return asyncio.run(process_orders(count, seed, model=model, json_output=json_output))
    if name == "feedback":
        from plancast.demo.feedback import report_feedback

        return asyncio.run(report_feedback(count, model=model, json_output=json_output))
    if name == "triage":
        from plancast.demo.triage import triage_tickets

        return asyncio.run(
            triage_tickets(count, seed, planner=planner, model=model, kill=kill, json_output=json_output)
        )
    from plancast.demo.research import ask, demonstrate

    if topic is not None:
        return asyncio.run(ask(topic, json_output=json_output))
    return asyncio.run(demonstrate(count, seed, kill=kill, json_output=json_output))
