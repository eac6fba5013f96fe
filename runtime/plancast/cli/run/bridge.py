"""`plancast bridge`: connects plancast with other systems."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from plancast.cli.connection import open_bus, reachable_settings
from plancast.cli.errors import usage_error
from plancast.cli.foreground import Foreground, announce, run_in_foreground
from plancast.cli.options import AsJson, NatsUrl, Verbose
from plancast.terminal.output import note, public_url

if TYPE_CHECKING:
    from plancast.integrations.soorma.bridge import SoormaOptions
    from plancast.settings import Settings

bridge = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True, help="Connect plancast with other systems.")


@bridge.command()
def soorma(
    nats_url: NatsUrl = None,
    soorma_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Soorma's nats-server, of any version; put a login into the URL, preferably in the environment.  "
            "\\[default: $SOORMA_NATS_URL, else plancast's own server]",
            envvar="SOORMA_NATS_URL",
            show_envvar=False,
            show_default=False,
        ),
    ] = None,
    from_subject: Annotated[
        str, typer.Option(metavar="SUBJECT", help="Subjects of Soorma's events; the last token is the topic.")
    ] = "soorma.events.>",
    goal: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EVENT",
            help="Accept this goal even while no deployed app has it; goals of deployed apps are always accepted. "
            "Repeatable.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EVENT",
            help="A task of plancast that Soorma's workers do. Repeatable.",
            show_default=False,
        ),
    ] = None,
    task_seconds: Annotated[
        float,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help="With --task: seconds without a response after which the task is requested again.",
        ),
    ] = 300.0,
    facts: Annotated[bool, typer.Option("--facts/--no-facts", help="Also forward business facts.")] = True,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Let Soorma publishers start plans and receive their responses. Runs in the foreground.

    Requests for goals of deployed apps become plans, which receive responses, signals and facts. Final responses are
    published on Soorma's subjects with the requested response_event and correlation_id. Several bridges share the
    work. Events that are published while no bridge runs are lost: core NATS delivers at most once.
    """
    from plancast.integrations.soorma.bridge import SoormaOptions
    from plancast_bus.subjects import check_event_type

    root = from_subject.removesuffix(".>").removesuffix(".*")
    if root == from_subject or not root or "*" in root or ">" in root or any(c.isspace() for c in root):
        raise usage_error("--from-subject must end with .> and contain no other wildcard", "Example: soorma.events.>")
    goals, tasks = (tuple(map(check_event_type, each or ())) for each in (goal, task))
    settings = reachable_settings(nats_url)
    options = SoormaOptions(root, goals, facts)
    return run_in_foreground(
        lambda foreground: _soorma(foreground, settings, soorma_url, options, tasks, task_seconds, as_json)
    )


async def _soorma(
    foreground: Foreground,
    settings: Settings,
    soorma_url: str | None,
    options: SoormaOptions,
    tasks: tuple[str, ...],
    task_seconds: float,
    as_json: bool,
) -> str:
    from plancast.integrations.soorma.bridge import SoormaBridge
    from plancast.integrations.soorma.workers import SoormaTasks
    from plancast_bus.jetstream.core_nats import connect_core
    from plancast_bus.settings import NatsSettings

    there = NatsSettings(url=soorma_url) if soorma_url else settings.nats
    nats, prefix = public_url(settings.nats.url), settings.bus.prefix
    note(f"bridging {options.root}.> on {public_url(there.url)} and {prefix} on {nats} …")
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(open_bus(settings))
        foreground.depend_on(bus)
        await bus.ensure_streams()
        theirs = await connect_core(there)
        foreground.depend_on(theirs)
        stack.push_async_callback(theirs.close)
        running = SoormaBridge(bus, theirs, options)
        stack.push_async_callback(running.stop)
        await running.start()
        if tasks:
            from plancast_actors.workers.runner import TaskRunner

            there_done = SoormaTasks(theirs, tasks, prefix=prefix, root=options.root, seconds=task_seconds)
            await there_done.start()
            limit = settings.bus.max_event_bytes
            runner = TaskRunner([there_done.worker], bus, settings.workers, max_event_bytes=limit)
            stack.push_async_callback(runner.stop)
            await runner.start()
        ready = {"nats": nats, "from": f"{options.root}.>", "tasks": tasks}
        announce(f"nats={nats} from={options.root}.>", ready, as_json=as_json)
        await foreground.until_asked()
        return _counts_text(running.status())


def _counts_text(counts: dict[str, int]) -> str:
    return "".join(f", {count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)
