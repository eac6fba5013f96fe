"""The root command. Commands import heavy packages when they run, so that the others start fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from plancast.cli.apps import new, validate
from plancast.cli.deploy import commands as deployment
from plancast.cli.deploy import nats_config, status
from plancast.cli.diagnose import dead_letters, doctor, probe
from plancast.cli.errors import DONE, INTERRUPTED, report
from plancast.cli.options import LogFormat, Verbose
from plancast.cli.plans import approvals, submit
from plancast.cli.plans import commands as plans
from plancast.cli.run import bridge, console, demo, run
from plancast.terminal import logging
from plancast.terminal.output import print_line

EPILOG = (
    "Settings are environment variables such as PLANCAST_HOSTS__COUNT and PLANCAST_NATS__PASSWORD. "
    "Exit codes: 0 done, 1 the plan failed or a check found faults, 2 invalid usage, 3 connection failed."
)

app = typer.Typer(
    name="plancast",
    no_args_is_help=True,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # without it, paragraphs would keep the line breaks of the source
    epilog=EPILOG,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print_line(f"plancast {version('plancast')}")
        raise typer.Exit


@app.callback()
def plancast(
    verbose: Verbose = 0,
    log_format: LogFormat = None,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Durable plans as actors: events over NATS JetStream, turns on Ray."""


for _panel, _commands in (
    ("Apps", (new.new, validate.validate, run.run, run.worker, status.status, status.stop)),
    ("Cluster", (nats_config.nats_config, deployment.deploy, deployment.upgrade, deployment.drain, probe.probe)),
    ("Plans", (submit.submit,)),
    ("Operations", (console.console, doctor.doctor, demo.demo)),
):
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)
app.add_typer(plans.plans, name="plans", rich_help_panel="Plans")
app.add_typer(approvals.approvals, name="approvals", rich_help_panel="Plans")
app.add_typer(bridge.bridge, name="bridge", rich_help_panel="Apps")
app.add_typer(dead_letters.deadletters, name="deadletters", rich_help_panel="Operations")


@app.command("help", rich_help_panel="Operations")
def help_on(
    command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND", help="Such as: plans show.")] = None,
) -> int:
    """Show the help of a command."""
    return run_command_line([*(command or ()), "--help"])


def run_command_line(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default the arguments of the process, and return its exit code."""
    logging.reset()
    try:
        code = app(args=arguments, prog_name="plancast", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader has closed its end, as in `plancast plans list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:
        return report(error)
    return code if isinstance(code, int) else DONE
