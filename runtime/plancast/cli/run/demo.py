"""`plancast demo`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, Final

import typer

from plancast.cli.options import AsJson, Verbose
from plancast.demo import DemoName, PlannerKind

PLANS: Final[dict[DemoName, int]] = {"research": 40, "orders": 30, "feedback": 3, "triage": 30, "travel": 12, "desk": 1}


def demo(
    name: Annotated[DemoName, typer.Argument(help="Example to run.", show_default=True)] = "research",
    topic: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="research: ask a single question of your own, such as coroutines."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="orders, feedback, travel, triage with --planner llm: the litellm model that decides, such as "
            "gpt-4o; its key comes from the environment.  "
            "\\[default: a stand-in that follows the example's rules and needs no key]",
            show_default=False,
        ),
    ] = None,
    plans: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of concurrent plans.  \\[default: research 40, orders 30, feedback 3, triage 30, travel 12]",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of an earlier run to repeat.")] = None,
    kill: Annotated[
        bool,
        typer.Option(
            "--kill/--no-kill", help="research, triage: kill a plan host halfway through; travel: the worker."
        ),
    ] = True,
    planner: Annotated[
        PlannerKind | None,
        typer.Option(help="triage: kind of planner.  \\[default: tree]", show_default=False),
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Run the plans of an example on real NATS and real Ray.

    In research and triage a plan host is killed on the way; in orders and feedback a model decides each step. The
    tickets of triage are decided by a decision tree, a model or a state machine, with the same results. The trips of
    travel are booked at a provider that loses answers, with `Effect` and without, and the worker is killed. The desk
    looks answers up with an MCP server, is asked over AG-UI, over A2A and by a schedule, and asks a person by webhook.
    """
    if topic is not None and name != "research":
        raise typer.BadParameter(f"the {name} demo has no topic", param_hint="--topic")
    if model is not None and name in ("research", "desk"):
        raise typer.BadParameter(f"the {name} demo uses no model; try orders or feedback", param_hint="--model")
    if plans is not None and name == "desk":
        raise typer.BadParameter("the desk demo has its own plans", param_hint="--plans")
    if planner is not None and name != "triage":
        raise typer.BadParameter(f"the {name} demo has its own planner; try triage", param_hint="--planner")
    if model is not None and name == "triage" and planner != "llm":
        raise typer.BadParameter("only --planner llm uses a model", param_hint="--model")
    return asyncio.run(_demonstration(name, topic, model, plans or PLANS[name], seed, kill, planner or "tree", as_json))


def _demonstration(
    name: DemoName,
    topic: str | None,
    model: str | None,
    plans: int,
    seed: int | None,
    kill: bool,
    planner: PlannerKind,
    json_output: bool,
) -> Coroutine[Any, Any, int]:
    if name == "orders":
        from plancast.demo.orders import process_orders

        return process_orders(plans, seed, model=model, json_output=json_output)
    if name == "feedback":
        from plancast.demo.feedback import report_feedback

        return report_feedback(plans, model=model, json_output=json_output)
    if name == "triage":
        from plancast.demo.triage import triage_tickets

        return triage_tickets(plans, seed, planner=planner, model=model, kill=kill, json_output=json_output)
    if name == "travel":
        from plancast.demo.travel import book_trips

        return book_trips(plans, seed, model=model, kill=kill, json_output=json_output)
    if name == "desk":
        from plancast.demo.desk.day import keep_desk

        return keep_desk(json_output=json_output)
    from plancast.demo.research import ask, demonstrate

    if topic is not None:
        return ask(topic, json_output=json_output)
    return demonstrate(plans, seed, kill=kill, json_output=json_output)
