"""`plancast demo`."""

from __future__ import annotations

from typing import Annotated

import typer

from plancast.cli.options import AsJson, Verbose
from plancast.demo import DemoName, PlannerKind


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
            help="orders, feedback, triage with --planner llm: the litellm model that decides, such as gpt-4o; its key "
            "comes from the environment.  "
            "\\[default: a stand-in that follows the example's rules and needs no key]",
            show_default=False,
        ),
    ] = None,
    plans: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of concurrent plans.  \\[default: research 40, orders 30, feedback 3, triage 30]",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of an earlier run to repeat.")] = None,
    kill: Annotated[
        bool, typer.Option("--kill/--no-kill", help="research, triage: kill a plan host halfway through.")
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
    tickets of triage are decided by a decision tree, a model or a state machine, with the same results.
    """
    from plancast.demo import run_demo

    if topic is not None and name != "research":
        raise typer.BadParameter(f"the {name} demo has no topic", param_hint="--topic")
    if model is not None and name == "research":
        raise typer.BadParameter("the research demo uses no model; try orders or feedback", param_hint="--model")
    if planner is not None and name != "triage":
        raise typer.BadParameter(f"the {name} demo has its own planner; try triage", param_hint="--planner")
    if model is not None and name == "triage" and planner != "llm":
        raise typer.BadParameter("only --planner llm uses a model", param_hint="--model")
    return run_demo(
        topic=topic, plans=plans, seed=seed, kill=kill, json_output=as_json, name=name, model=model,
        planner=planner or "tree",
    )  # fmt: skip
