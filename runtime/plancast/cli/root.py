"""The root command. A command's module is imported when it is called, so that the others start fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, ClassVar

import typer

from plancast.cli.command_table import MARKUP, CommandTable
from plancast.cli.errors import DONE, INTERRUPTED, report
from plancast.cli.options import LogFormat, Verbose
from plancast.terminal import logging
from plancast.terminal.output import print_line

EPILOG = (
    "Settings are environment variables such as PLANCAST_HOSTS__COUNT and PLANCAST_NATS__PASSWORD. "
    "Exit codes: 0 done, 1 the plan failed or a check found faults, 2 invalid usage, 3 connection failed."
)


class RootCommands(CommandTable):
    """The commands, in the order of the help."""

    places: ClassVar = {
        "new": ("Apps", "plancast.cli.apps.new:new"),
        "validate": ("Apps", "plancast.cli.apps.validate:validate"),
        "run": ("Apps", "plancast.cli.run.run:run"),
        "worker": ("Apps", "plancast.cli.run.run:worker"),
        "status": ("Apps", "plancast.cli.deploy.status:status"),
        "stop": ("Apps", "plancast.cli.deploy.status:stop"),
        "nats-config": ("Cluster", "plancast.cli.deploy.nats_config:nats_config"),
        "deploy": ("Cluster", "plancast.cli.deploy.commands:deploy"),
        "upgrade": ("Cluster", "plancast.cli.deploy.commands:upgrade"),
        "scale": ("Cluster", "plancast.cli.deploy.scale:scale"),
        "rebalance": ("Cluster", "plancast.cli.deploy.nodes:rebalance"),
        "drain": ("Cluster", "plancast.cli.deploy.commands:drain"),
        "backup": ("Cluster", "plancast.cli.deploy.backup:backup"),
        "restore": ("Cluster", "plancast.cli.deploy.backup:restore"),
        "probe": ("Cluster", "plancast.cli.diagnose.probe:probe"),
        "submit": ("Plans", "plancast.cli.plans.submit:submit"),
        "console": ("Operations", "plancast.cli.run.console:console"),
        "doctor": ("Operations", "plancast.cli.diagnose.doctor:doctor"),
        "demo": ("Operations", "plancast.cli.run.demo:demo"),
        "help": ("Operations", "plancast.cli.root:help_on"),
        "plans": ("Plans", "plancast.cli.plans.commands:plans"),
        "approvals": ("Plans", "plancast.cli.plans.approvals:approvals"),
        "effects": ("Plans", "plancast.cli.plans.effects:effects"),
        "schedules": ("Plans", "plancast.cli.plans.schedules:schedules"),
        "serve": ("Apps", "plancast.cli.run.serve:serve"),
        "mcp": ("Apps", "plancast.cli.run.serve:mcp"),
        "bridge": ("Apps", "plancast.cli.run.bridge:bridge"),
        "deadletters": ("Operations", "plancast.cli.diagnose.dead_letters:deadletters"),
    }


app = typer.Typer(
    name="plancast",
    cls=RootCommands,
    no_args_is_help=True,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=MARKUP,
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
