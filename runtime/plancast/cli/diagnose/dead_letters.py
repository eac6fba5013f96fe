"""`plancast deadletters`: lists and replays messages that could not be processed."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plancast.cli.connection import open_deployed
from plancast.cli.errors import DONE, FAILED, usage_error
from plancast.cli.options import AsJson, NatsUrl, Verbose
from plancast.terminal.output import (
    cell,
    duration,
    fields,
    iso,
    note,
    out,
    plural,
    print_json,
    report_line,
    shorten,
    size,
    table,
    timestamp,
)
from plancast.terminal.progress import working

if TYPE_CHECKING:
    from plancast_bus.ports.bus import DeadLetter

deadletters = typer.Typer(
    rich_markup_mode="markdown", no_args_is_help=True, help="Inspect and replay messages that could not be processed."
)

Number = Annotated[int, typer.Argument(metavar="N", min=1, help="Number of the dead letter.")]


@deadletters.command("list")
def list_letters(
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Maximum number of dead letters; 0 for all.")] = 100,
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """List dead letters, oldest first."""
    letters, count = asyncio.run(_letters(nats_url, limit or None))
    if as_json:
        print_json({"count": count, "letters": [_document(letter) for letter in letters]})
        return DONE
    if not letters:
        note("no dead letters")
        return DONE
    made = table("#", "age", "reason", "subject", "size", "detail", right=["#", "age", "size"])
    now = time.time()
    for letter in letters:
        made.add_row(
            str(letter.number),
            cell(duration(now - letter.time), "dim"),
            cell(letter.reason, "yellow"),
            cell(letter.subject),
            size(len(letter.payload) if letter.cut_from is None else letter.cut_from),
            cell(f"{letter.detail} (and {letter.more:,} more like it)" if letter.more else letter.detail),
        )
    out().print(made)
    shown = sum(1 + letter.more for letter in letters)
    if count > shown:
        note(f"{count - shown:,} more; --limit 0 shows all")
    return DONE


async def _letters(nats_url: str | None, limit: int | None) -> tuple[list[DeadLetter], int]:
    async with open_deployed(nats_url) as bus:
        return [letter async for letter in bus.dead_letters.list(limit=limit)], await bus.dead_letters.count()


@deadletters.command()
def show(number: Number, nats_url: NatsUrl = None, as_json: AsJson = False, verbose: Verbose = 0) -> int:
    """Show a dead letter with its payload."""
    letter = asyncio.run(_letter(nats_url, number))
    if as_json:
        print_json(_document(letter, with_payload=True))
        return DONE
    about = fields()
    about.add_row("number", str(letter.number))
    about.add_row("reason", cell(letter.reason, "yellow"))
    about.add_row("detail", cell(letter.detail))
    about.add_row("subject", cell(letter.subject))
    about.add_row("message id", cell(letter.message_id or "–"))
    about.add_row("content type", cell(letter.content_type or "– (read as JSON)"))
    about.add_row("stored", cell(f"{timestamp(letter.time)} UTC"))
    about.add_row("size", size(len(letter.payload) if letter.cut_from is None else letter.cut_from))
    if letter.more:
        about.add_row("more", f"{letter.more:,} messages stored with it, which are replayed with it")
    if letter.cut_from is not None:
        about.add_row("cut", f"only the first {size(len(letter.payload))} were stored; it cannot be replayed")
    console = out()
    console.print(about)
    console.print()
    console.print(cell(_readable(letter)), soft_wrap=True)
    return DONE


async def _letter(nats_url: str | None, number: int) -> DeadLetter:
    from plancast_bus.event_data import letter_in_full

    async with open_deployed(nats_url) as bus:
        return await letter_in_full(bus, number)


@deadletters.command()
def replay(
    number: Annotated[int | None, typer.Argument(metavar="N", min=1, help="Number of the dead letter.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Replay all current dead letters.")] = False,
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Publish a dead letter again and remove it. It returns if it fails again.

    One that was too large to be stored whole cannot be replayed, and stays.
    """
    if (number is None) is not everything:
        raise usage_error("give the number of a dead letter, or --all")
    with working("replaying"):
        replayed, failed = asyncio.run(_replay(nats_url, number))
    if as_json:
        print_json({"replayed": replayed, "failed": failed})
    else:
        for refused, why in failed.items():
            report_line(f"dead letter {refused} stays: {why}", good=False)
        report_line(f"replayed {plural(len(replayed), 'dead letter')}", good=True)
    return FAILED if failed else DONE


async def _replay(nats_url: str | None, number: int | None) -> tuple[list[int], dict[int, str]]:
    from plancast_bus.errors import PayloadTooLarge, PublishRefused

    replayed: list[int] = []
    failed: dict[int, str] = {}
    async with open_deployed(nats_url) as bus:
        if number is not None:
            await bus.dead_letters.replay(number)
            return [number], failed
        for each in [letter.number async for letter in bus.dead_letters.list()]:
            try:
                await bus.dead_letters.replay(each)
                replayed.append(each)
            except (PublishRefused, PayloadTooLarge) as error:
                failed[each] = str(error) or type(error).__name__
    return replayed, failed


def _document(letter: DeadLetter, *, with_payload: bool = False) -> dict[str, Any]:
    document: dict[str, Any] = {
        "number": letter.number,
        "reason": letter.reason,
        "detail": letter.detail,
        "subject": letter.subject,
        "content_type": letter.content_type,
        "message_id": letter.message_id,
        "time": iso(letter.time),
        "bytes": len(letter.payload),
        "cut_from": letter.cut_from,
        "more": letter.more,
    }
    if with_payload:
        document["payload_base64"] = base64.b64encode(letter.payload).decode()
        document["payload"] = _decoded(letter)
    return document


def _decoded(letter: DeadLetter) -> Any:
    """The payload as a value or text; None when it is neither."""
    from plancast_bus.errors import InvalidEnvelope
    from plancast_bus.events.codec import load

    try:
        return load(letter.payload, letter.content_type)
    except InvalidEnvelope:
        try:
            return letter.payload.decode()
        except UnicodeDecodeError:
            return None


def _readable(letter: DeadLetter) -> str:
    value = _decoded(letter)
    if value is None:
        return f"{letter.payload[:512]!r}"
    if isinstance(value, str):
        return value
    return json.dumps(value, indent=2, ensure_ascii=False, default=lambda other: shorten(repr(other), 200))
