"""`plancast approvals`: what plans wait for people to decide, and the answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from plancast.cli import completion
from plancast.cli.connection import open_client, read_object
from plancast.cli.errors import DONE, CommandFailed, describe, report, usage_error
from plancast.cli.options import AsJson, NatsUrl, Verbose
from plancast.errors import NotAwaited, PlancastError
from plancast.plan.status import WAITING
from plancast.terminal.output import cell, duration, iso, note, out, print_json, report_line, table
from plancast.terminal.progress import working

if TYPE_CHECKING:
    from rich.text import Text

    from plancast.client.client import Client
    from plancast.client.handle import PlanHandle
    from plancast.plan_store.approvals import Approval
    from plancast_bus.ports.checkpoints import PlanSummary

    _Found = tuple[PlanSummary, Approval, dict[str, Any]]

_T = TypeVar("_T")
AT_ONCE = 16
"""Plans that are read or answered at once."""
MOST_DATA = 120
"""Longest data in a table, in characters."""

approvals = typer.Typer(
    rich_markup_mode="markdown", no_args_is_help=True, help="See and answer what plans wait for people to decide."
)
Plans = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID...", help="Ids of the plans.", show_default=False, autocompletion=completion.plan_ids),
]
Data = Annotated[
    str, typer.Option("--data", "-d", metavar="JSON", help="Further fields of the answer: a JSON object, @file, or -.")
]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", show_default=False, help="Why, for the plan.")]
UserId = Annotated[str, typer.Option("--user-id", metavar="ID", show_default=False, help="Who answers.")]
TenantId = Annotated[str | None, typer.Option(metavar="ID", help="Only plans of this tenant.")]
SessionId = Annotated[str | None, typer.Option(metavar="ID", help="Only plans of this session.")]
Goal = Annotated[
    str | None, typer.Option(metavar="EVENT", help="Only plans with this goal.", autocompletion=completion.goals)
]
Matching = Annotated[
    str | None, typer.Option("--text", metavar="TEXT", help="Only plans with this text in their ids, goal or state.")
]


@dataclass(frozen=True, slots=True)
class _Filter:
    """Selects among the plans that wait for people; None selects any."""

    tenant_id: str | None = None
    session_id: str | None = None
    goal_event: str | None = None
    text: str | None = None

    async def plans(self, client: Client, limit: int | None = None) -> list[PlanSummary]:
        return list(await client.plans(status=WAITING, limit=limit, **asdict(self)))


@approvals.command("list")
def list_approvals(
    tenant_id: TenantId = None,
    session_id: SessionId = None,
    goal: Goal = None,
    text: Matching = None,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Maximum number of plans; 0 for all.")] = 50,
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """List what plans wait for people to decide, the most recently updated first."""
    only = _Filter(tenant_id, session_id, goal, text)

    async def look(handle: PlanHandle) -> tuple[Approval | None, dict[str, Any]]:
        return await handle.approval(), await handle.state()

    async def read() -> list[_Found]:
        async with open_client(nats_url) as client:
            plans = await only.plans(client, limit or None)
            found = await _each([client.plan(each.plan_id) for each in plans], look)
        looked = [(plan, each) for plan, each in zip(plans, found, strict=True) if not isinstance(each, PlancastError)]
        return [(plan, approval, state) for plan, (approval, state) in looked if approval is not None]

    with working("reading approvals"):
        found = asyncio.run(read())
    if as_json:
        print_json([_document(*each) for each in found])
    else:
        _show(found, time.time())
    return DONE


def _command(approved: bool, help_text: str) -> Callable[..., int]:
    """The command of one of the two answers; both take the same options."""

    def answer(
        plans: Plans = None,
        data: Data = "{}",
        reason: Reason = "",
        user_id: UserId = "",
        tenant_id: TenantId = None,
        session_id: SessionId = None,
        goal: Goal = None,
        text: Matching = None,
        everything: Annotated[bool, typer.Option("--all", help="Answer all plans that wait for people.")] = False,
        nats_url: NatsUrl = None,
        as_json: AsJson = False,
        verbose: Verbose = 0,
    ) -> int:
        only = _Filter(tenant_id, session_id, goal, text)
        said = _Answer(approved, read_object(data), reason, user_id)
        return _answer(nats_url, plans or [], only, everything, said, as_json)

    answer.__doc__ = help_text
    return answer


approve = _command(True, "Answer what plans wait for people to decide with yes.")
reject = _command(False, "Answer what plans wait for people to decide with no; they go on. `plans cancel` ends a plan.")
approvals.command("approve")(approve)
approvals.command("reject")(reject)


@dataclass(frozen=True, slots=True)
class _Answer:
    approved: bool
    data: dict[str, Any]
    reason: str
    user_id: str

    async def send(self, handle: PlanHandle) -> None:
        answered = handle.approve if self.approved else handle.reject
        outcome = await answered(data=self.data, reason=self.reason, user_id=self.user_id)
        if outcome == "ignored":
            raise NotAwaited(
                f"plan {handle.plan_id} did not take this answer: it was answered before, or waits for another user; "
                "`plancast plans history` says why"
            )


def _answer(
    nats_url: str | None, ids: list[str], only: _Filter, everything: bool, answer: _Answer, as_json: bool
) -> int:
    if bool(ids) == (everything or only != _Filter()):
        raise usage_error(
            "give either ids of plans, or which to answer: --tenant-id, --session-id, --goal, --text, or --all",
            "`plancast approvals list` shows them.",
        )
    if not all(ids):
        raise usage_error("the plan id is empty")
    names = list(dict.fromkeys(ids))
    with working("answering"):
        outcomes = asyncio.run(_send(nats_url, names, only, answer))
    if not outcomes:
        raise CommandFailed("no plan that waits for people matches", hint="`plancast approvals list` shows them.")
    failed = {plan: error for plan, error in outcomes.items() if error is not None}
    if len(names) == 1 and failed:
        raise failed[names[0]]
    sent = "sent the approval" if answer.approved else "sent the rejection"
    if as_json:
        said = [
            {"plan_id": plan, "sent": error is None} | ({"error": str(error)} if error is not None else {})
            for plan, error in outcomes.items()
        ]
        print_json(said[0] if len(names) == 1 else said)
    else:
        for plan in outcomes.keys() - failed.keys():
            report_line(f"plan {plan}: {sent}", good=True)
        for error in failed.values():
            report(error)
    codes = [describe(error)[2] for error in failed.values()]
    return max(codes, default=DONE)


async def _send(
    nats_url: str | None, ids: list[str], only: _Filter, answer: _Answer
) -> dict[str, PlancastError | None]:
    """The error of each plan, or None where its answer was sent."""
    async with open_client(nats_url) as client:
        plans = ids or [each.plan_id for each in await only.plans(client)]
        sent = await _each([client.plan(each) for each in plans], answer.send)
        return dict(zip(plans, sent, strict=True))


async def _each(handles: list[PlanHandle], step: Callable[[PlanHandle], Awaitable[_T]]) -> list[_T | PlancastError]:
    """The outcome of a step for each plan, several at once."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(handle: PlanHandle) -> _T | PlancastError:
        async with slots:
            try:
                return await step(handle)
            except PlancastError as error:
                return error

    return await asyncio.gather(*map(one, handles))


def _document(plan: PlanSummary, approval: Approval, state: dict[str, Any]) -> dict[str, Any]:
    from plancast.json_values.normalize import plain

    return {
        "plan_id": plan.plan_id,
        "goal_event": plan.goal_event,
        "goal_data": state.get("goal_data") or {},
        "current_state": plan.current_state,
        "tenant_id": plan.tenant_id,
        "session_id": plan.session_id,
        "user_id": plan.user_id,
        "reason": approval.reason,
        "payload": plain(approval.payload),
        "expected_event": approval.expected_event,
        "refusal_event": approval.refusal_event,
        "request_id": approval.request_id,
        "can_refuse": approval.can_refuse,
        "description": approval.description,
        "answer_schema": plain(approval.schema),
        "updated_at": iso(plan.updated_at),
        "due": iso(approval.due or 0),
    }


def _show(found: list[_Found], now: float) -> None:
    if not found:
        note("no plan waits for people")
        return
    made = table("plan", "goal", "asks", "data", "answered by", "due", "moved", right=["due", "moved"])
    made.columns[0].no_wrap = True
    for plan, approval, state in found:
        made.add_row(
            cell(plan.plan_id),
            cell(plan.goal_event),
            cell(approval.reason),
            cell(_about(approval, state)),
            cell(approval.expected_event or "a resume", "cyan"),
            _due(approval.due, now),
            cell(f"{duration(now - plan.updated_at)} ago", "dim"),
        )
    out().print(made)


def _about(approval: Approval, state: dict[str, Any]) -> str:
    """The data that an approval shows, without what it asks; else those of the goal."""
    from plancast.json_values.normalize import plain

    shown = {name: each for name, each in approval.payload.items() if each != approval.reason}
    return json.dumps(plain(shown or state.get("goal_data") or {}), ensure_ascii=False)[:MOST_DATA]


def _due(due: float | None, now: float) -> Text:
    if due is None:
        return cell("never", "dim")
    return cell(f"in {duration(due - now)}") if due > now else cell("overdue", "red")
