"""`plancast effects`: what plans' tasks have done outside, and what a person has found out where that is unknown."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plancast.cli import completion
from plancast.cli.connection import open_client, read_json
from plancast.cli.errors import DONE, FAILED, usage_error
from plancast.cli.options import AsJson, NatsUrl, Verbose
from plancast.cli.plans.approvals import MOST_DATA, Goal, Matching, SessionId, TenantId, UserId
from plancast.plan.requests import plan_of_request
from plancast.terminal.output import cell, duration, iso, note, out, print_json, report_line, table
from plancast.terminal.progress import working

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from plancast.client.signals import SignalOutcome
    from plancast.plan_store.effects import ListedEffect, PlanEffect
    from plancast_bus.ports.checkpoints import PlanSummary

effects = typer.Typer(
    rich_markup_mode="markdown",
    no_args_is_help=True,
    help="See what plans' tasks have done outside, and resolve unknown outcomes.",
)
OUTCOME_STYLES = {"pending": "cyan", "done": "green", "failed": "red", "unknown": "bright_yellow", "undone": "magenta"}


class ListedOutcome(StrEnum):
    """Outcomes to list."""

    UNKNOWN = "unknown"
    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"
    UNDONE = "undone"
    ALL = "all"


@effects.command("list")
def list_effects(
    outcome: Annotated[ListedOutcome, typer.Option(help="Only effects with this outcome.")] = ListedOutcome.UNKNOWN,
    tenant_id: TenantId = None,
    session_id: SessionId = None,
    goal: Goal = None,
    text: Matching = None,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Maximum number of effects; 0 for all.")] = 50,
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """List effects of plans' tasks, those of the most recently updated plans first."""

    async def read() -> list[ListedEffect]:
        from plancast.plan_store.effects import effect_types, list_effects

        async with open_client(nats_url) as client:
            listed = list_effects(
                client.bus.checkpoints,
                outcome=None if outcome is ListedOutcome.ALL else outcome,
                tenant_id=tenant_id,
                session_id=session_id,
                goal_event=goal,
                text=text,
                types=await effect_types(client.bus),
            )
            found: list[ListedEffect] = []
            async with aclosing(listed):
                async for each in listed:
                    found.append(each)
                    if len(found) == limit:
                        break
            return found

    with working("reading effects"):
        found = asyncio.run(read())
    if as_json:
        print_json([_document(*each) for each in found])
    elif found:
        _show(found, time.time())
    else:
        note("no effects" if outcome is ListedOutcome.ALL else f"no {outcome} effects")
    return DONE


@effects.command()
def resolve(
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="The effect's task, as `plancast effects list` shows it.")
    ],
    done: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            show_default=False,
            help="It was done; with what the task would have returned: JSON, @file, or -.",
        ),
    ] = None,
    not_done: Annotated[bool, typer.Option("--not-done", help="It was not done: the task is begun again.")] = False,
    give_up: Annotated[bool, typer.Option("--give-up", help="The task fails; what it may have done remains.")] = False,
    about: Annotated[
        str | None,
        typer.Option(
            metavar="ABOUT",
            show_default=False,
            help="What `plancast effects list --json` has shown as `about`; refused if that has changed since.",
        ),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            show_default=False,
            help="The plan; by default that of the task.",
            autocompletion=completion.plan_ids,
        ),
    ] = None,
    user_id: UserId = "",
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Tell a plan the outcome of an effect that is unknown: it was done, it was not done, or it is given up."""
    if (done is not None) + not_done + give_up != 1:
        raise usage_error("give one of --done JSON, --not-done and --give-up")
    plan_id = plan or plan_of_request(task)
    if plan_id is None:
        raise usage_error(f"{task!r:.80} is no task of a plan", "`plancast effects list` shows them, such as PLAN:3-0.")
    seen = int(about) if about is not None and about.isdecimal() else about
    said: dict[str, Any] = {"not_done": not_done, "give_up": give_up, "about": seen}
    if done is not None:
        said["done"] = read_json(done, "--done")

    async def send() -> SignalOutcome:
        async with open_client(nats_url) as client:
            return await client.plan(plan_id).resolve_effect(task, user_id=user_id, **said)

    outcome = asyncio.run(send())
    ignored = str(outcome) == "ignored"
    if as_json:
        print_json({"plan_id": plan_id, "task": task, "sent": True, "outcome": outcome})
    elif ignored:
        report_line(f"plan {plan_id} did not take this for {task}; `plancast plans history` says why", good=False)
    else:
        words = "it was done" if done is not None else "it was not done" if not_done else "it is given up"
        report_line(f"plan {plan_id}: sent for {task}: {words}", good=True)
    return FAILED if ignored else DONE


def effect_document(effect: PlanEffect) -> dict[str, Any]:
    """The JSON of an effect."""
    fields = asdict(effect)
    return {"plan_id": fields.pop("plan")} | fields


def effects_table(effects: Iterable[PlanEffect], *columns: str, indent: str = "") -> Table:
    """A table of effects, to which rows may be added."""
    made = table(f"{indent}task", "effect", "key", "outcome", "result or reason", *columns, right=columns)
    for each in effects:
        made.add_row(*effect_cells(each, indent))
    return made


def effect_cells(effect: PlanEffect, indent: str = "") -> list[Any]:
    """The cells of an effect's row."""
    said = effect.reason or ("" if effect.result is None else json.dumps(effect.result, ensure_ascii=False))
    decided = f" ({effect.decision.replace('_', ' ')} was sent)" if effect.decision else ""
    return [
        cell(indent + effect.task),
        cell(effect.event_type, "cyan"),
        cell(effect.key),
        cell(effect.outcome + decided, OUTCOME_STYLES.get(effect.outcome, "")),
        cell(said[:MOST_DATA]),
    ]


def _document(plan: PlanSummary, effect: PlanEffect) -> dict[str, Any]:
    return effect_document(effect) | {
        "goal_event": plan.goal_event,
        "tenant_id": plan.tenant_id,
        "session_id": plan.session_id,
        "user_id": plan.user_id,
        "updated_at": iso(plan.updated_at),
    }


def _show(found: list[ListedEffect], now: float) -> None:
    made = effects_table((), "moved")
    made.columns[0].no_wrap = True
    for plan, effect in found:
        made.add_row(*effect_cells(effect), cell(f"{duration(now - plan.updated_at)} ago", "dim"))
    out().print(made)
