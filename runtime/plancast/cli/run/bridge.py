"""`plancast bridge`: connect plancast with what is there already."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from plancast.cli.connection import open_bus, reachable_settings
from plancast.cli.errors import DONE, usage_error
from plancast.cli.foreground import Foreground, run_in_foreground
from plancast.cli.options import AsJson, NatsUrl, Verbose
from plancast.terminal.output import note, print_json, print_line, public_url

if TYPE_CHECKING:
    from plancast.integrations.soorma.bridge import SoormaOptions
    from plancast.settings import Settings

bridge = typer.Typer(
    rich_markup_mode="markdown", no_args_is_help=True, help="Connect plancast with what is there already."
)


@bridge.command()
def soorma(
    nats_url: NatsUrl = None,
    soorma_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="nats-server of Soorma, of any version; a login goes into the URL, best in the environment.  "
            "\\[default: $SOORMA_NATS_URL, else that of plancast]",
            envvar="SOORMA_NATS_URL",
            show_envvar=False,
            show_default=False,
        ),
    ] = None,
    from_subject: Annotated[
        str, typer.Option(metavar="SUBJECT", help="Where its events are; the last token is the topic.")
    ] = "soorma.events.>",
    goal: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EVENT",
            help="A goal to take also while no app is deployed that takes it; those of deployed apps always are. "
            "May be given several times.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EVENT",
            help="A task of plancast's that Soorma's workers are to do. May be given several times.",
            show_default=False,
        ),
    ] = None,
    task_seconds: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="With --task: ask again after so long without an answer.")
    ] = 300.0,
    facts: Annotated[bool, typer.Option("--facts/--no-facts", help="Hand business facts over, too.")] = True,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Let a Soorma publisher drive plans and receive their responses. Stays in the foreground.

    Its requests that are goals of deployed apps become plans; answers, signals and facts reach them; final responses
    go back on its own subjects, under the response_event and correlation_id that it asked for. Several bridges share
    the work. What Soorma publishes while no bridge runs is lost: core NATS delivers at most once.
    """
    from plancast.integrations.soorma.bridge import SoormaOptions
    from plancast_bus.subjects import check_event_type

    root = from_subject.removesuffix(".>").removesuffix(".*")
    if root == from_subject or not root or "*" in root or ">" in root or any(c.isspace() for c in root):
        raise usage_error("--from-subject must end with .> and have no other wildcard", "Such as soorma.events.>")
    goals, tasks = (tuple(map(check_event_type, each or ())) for each in (goal, task))
    settings = reachable_settings(nats_url)
    options = SoormaOptions(root, goals, facts)
    return run_in_foreground(_soorma(settings, soorma_url, options, tasks, task_seconds, as_json))


async def _soorma(
    settings: Settings,
    soorma_url: str | None,
    options: SoormaOptions,
    tasks: tuple[str, ...],
    task_seconds: float,
    as_json: bool,
) -> int:
    from plancast.integrations.soorma.bridge import SoormaBridge
    from plancast.integrations.soorma.workers import SoormaTasks
    from plancast_bus.jetstream.core_nats import connect_core
    from plancast_bus.settings import NatsSettings

    foreground, told = Foreground(), ""
    there = NatsSettings(url=soorma_url) if soorma_url else settings.nats
    nats, prefix = public_url(settings.nats.url), settings.bus.prefix
    note(f"bridging {options.root}.> on {public_url(there.url)} and {prefix} on {nats} …")
    try:
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
            if as_json:
                print_json({"ready": True, "nats": nats, "from": f"{options.root}.>", "tasks": tasks}, compact=True)
            else:
                print_line(f"ready nats={nats} from={options.root}.>")
            await foreground.until_asked()
            told = _told(running.status())
    except asyncio.CancelledError:
        if not foreground.asked_to_end:
            raise
    note("ended" + told)
    return DONE


def _told(counts: dict[str, int]) -> str:
    return "".join(f", {count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)
