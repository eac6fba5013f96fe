"""Arguments and options shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from plancast.cli import completion
from plancast.terminal import logging

AppAddress = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:APP", help="The app, such as examples.research:app.", autocompletion=completion.apps
    ),
]

PlanId = Annotated[str, typer.Argument(metavar="ID", help="The plan's id.", autocompletion=completion.plan_ids)]

NatsUrl = Annotated[
    str | None,
    typer.Option(
        "--nats-url",
        metavar="URL",
        help="nats-server to connect to.  \\[default: $NATS_URL, else that of the `plancast run` in the data folder]",
        show_default=False,
    ),
]

OwnNatsUrl = Annotated[
    str | None,
    typer.Option(
        "--nats-url",
        metavar="URL",
        help="nats-server to use.  \\[default: $NATS_URL, else an embedded one]",
        show_default=False,
    ),
]

RayAddress = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="ADDRESS",
        help="Ray cluster to use.  \\[default: $RAY_ADDRESS]",
        show_default=False,
    ),
]

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="FOLDER",
        help="Data folder of `plancast run`.  \\[default: $PLANCAST_DATA_DIR, else ./.plancast]",
        show_default=False,
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

LogFormat = Annotated[
    Literal["text", "json"] | None,
    typer.Option(
        "--log-format",
        show_default=False,
        callback=logging.ask_format,
        help="Format of log records on stderr.  \\[default: $PLANCAST_TELEMETRY__LOG_FORMAT, else text]",
    ),
]

Verbose = Annotated[
    int,
    typer.Option(
        "-v",
        "--verbose",
        "--debug",
        count=True,
        show_default=False,
        callback=logging.configure,
        help="Log more to stderr and show tracebacks; -vv logs everything.",
    ),
]
