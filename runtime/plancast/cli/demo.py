"""`plancast demo`."""

from __future__ import annotations

from typing import Annotated

import typer

from plancast.cli.options import AsJson, Verbose


def demo(
    topic: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Ask one question of your own instead, such as coroutines.")
    ] = None,
    plans: Annotated[int, typer.Option(min=1, metavar="N", help="Plans that run at once.")] = 40,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Repeat the run of this seed.")] = None,
    kill: Annotated[bool, typer.Option("--kill/--no-kill", help="Kill a plan host halfway.")] = True,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Run research plans through real NATS and real Ray, and kill a plan host on the way."""
    from plancast.demo import run_demo

    return run_demo(topic=topic, plans=plans, seed=seed, kill=kill, json_output=as_json)
