"""`plancast demo`."""

from __future__ import annotations

from typing import Annotated

import typer

from plancast.cli.options import AsJson, Verbose
from plancast.demo import DemoName, PlannerKind


def demo(
    name: Annotated[DemoName, typer.Argument(help="Which example.", show_default=True)] = "research",
    topic: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="research: ask one question of your own instead, such as coroutines."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="orders, feedback, triage by llm: the litellm model that decides, such as gpt-4o; its key is in the "
            "environment.  "
            "\\[default: a stand-in that follows the example's rules, without a key]",
            show_default=False,
        ),
    ] = None,
    plans: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Plans that run at once.  \\[default: research 40, orders 30, feedback 3, triage 30]",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Repeat the run of this seed.")] = None,
    kill: Annotated[bool, typer.Option("--kill/--no-kill", help="research, triage: kill a plan host halfway.")] = True,
    planner: Annotated[
        PlannerKind | None,
        typer.Option(help="triage: who decides.  \\[default: tree]", show_default=False),
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Run an example's plans through real NATS and real Ray.

    research and triage have a plan host killed on the way; in orders and feedback a model decides each step. The
    tickets of triage are decided by a decision tree, a model or a state machine, and end the same.
    """
    from plancast.demo import run_demo

    if topic is not None and name != "research":
        raise typer.BadParameter(f"the {name} demo has no topic", param_hint="--topic")
    if model is not None and name == "research":
        raise typer.BadParameter("the research demo asks no model; try orders or feedback", param_hint="--model")
    if planner is not None and name != "triage":
        raise typer.BadParameter(f"the {name} demo has its own planner; try triage", param_hint="--planner")
    if model is not None and name == "triage" and planner != "llm":
        raise typer.BadParameter("only the planner llm asks a model", param_hint="--model")
    return run_demo(
        topic=topic, plans=plans, seed=seed, kill=kill, json_output=as_json, name=name, model=model,
        planner=planner or "tree",
    )  # fmt: skip
