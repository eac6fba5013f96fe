"""`plancast submit`: starts a plan, and optionally waits for its result."""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plancast.cli import completion
from plancast.cli.connection import open_client, read_object
from plancast.cli.errors import DONE, FAILED, CommandFailed, usage_error
from plancast.cli.options import AsJson, NatsUrl, Verbose
from plancast.errors import PlanCancelled, PlanFailed
from plancast.plan.status import PlanStatus
from plancast.terminal.output import note, print_json, print_line
from plancast.terminal.progress import Tell, working

if TYPE_CHECKING:
    from plancast.client.handle import PlanHandle


def submit(
    event: Annotated[
        str,
        typer.Argument(
            metavar="EVENT", help="Event type of the goal, such as research.goal.", autocompletion=completion.goals
        ),
    ],
    data: Annotated[
        str,
        typer.Option("--data", "-d", metavar="JSON", help="Data of the goal: a JSON object, @file, or - for stdin."),
    ] = "{}",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the plan ends, and print its result.")] = False,
    timeout: Annotated[float | None, typer.Option(min=0, metavar="SECONDS", help="With --wait: maximum wait.")] = None,
    response_event: Annotated[
        str | None, typer.Option(metavar="EVENT", help="Event type of the final response.")
    ] = None,
    correlation_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Id of the plan; a goal that is submitted twice with it starts one plan."),
    ] = None,
    reuse: Annotated[
        bool,
        typer.Option("--reuse", help="Take the plan that has the id, whatever its goal and data."),
    ] = False,
    session_id: Annotated[str | None, typer.Option(metavar="ID", help="Session of the plan.")] = None,
    tenant_id: Annotated[str, typer.Option(metavar="ID", show_default=False, help="Tenant of the plan.")] = "",
    user_id: Annotated[str, typer.Option(metavar="ID", show_default=False, help="User of the plan.")] = "",
    deadline: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time in which the plan has to end; then it fails.")
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID",
            help="A plan that has to end before this one begins; may be given several times.",
            autocompletion=completion.plan_ids,
        ),
    ] = None,
    nats_url: NatsUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Submit a goal and print the plan's id, or with --wait its result. Exits 1 when the plan fails."""
    if deadline is not None and not 0 < deadline < inf:
        raise usage_error(f"--deadline needs a number of seconds, more than 0, not {deadline:g}")
    if correlation_id is not None and correlation_id in (after or ()):
        raise usage_error(f"plan {correlation_id} cannot begin after itself")
    options = {
        "response_event": response_event,
        "correlation_id": correlation_id,
        "reuse": reuse,
        "session_id": session_id,
        "tenant_id": tenant_id,
        "user_id": user_id,
        "deadline": deadline,
        "after": after or (),
    }
    goal = read_object(data)
    return asyncio.run(_submit(nats_url, event, goal, options, wait, timeout, as_json))


async def _submit(
    nats_url: str | None,
    event: str,
    data: dict[str, Any],
    options: dict[str, Any],
    wait: bool,
    timeout: float | None,
    as_json: bool,
) -> int:
    async with open_client(nats_url) as client:
        handle = await client.submit(event, data, **options)
        if not wait:
            if as_json:
                print_json({"plan_id": handle.plan_id})
            else:
                print_line(handle.plan_id)
            return DONE
        note(f"plan {handle.plan_id}")
        answer: dict[str, Any] = {
            "plan_id": handle.plan_id,
            "status": PlanStatus.COMPLETED,
            "result": None,
            "error": None,
        }
        try:
            answer["result"] = await _result(handle, timeout)
        except TimeoutError:
            raise CommandFailed(
                f"plan {handle.plan_id} has not ended after {timeout:g} s; it continues",
                hint=f"`plancast plans show {handle.plan_id}` shows its state.",
            ) from None
        except (PlanFailed, PlanCancelled) as error:
            if not as_json:
                raise
            failed = isinstance(error, PlanFailed)
            answer["status"] = PlanStatus.FAILED if failed else PlanStatus.CANCELLED
            answer["error"] = str(error)
    print_json(answer if as_json else answer["result"])
    return DONE if answer["status"] == PlanStatus.COMPLETED else FAILED


async def _result(handle: PlanHandle, timeout: float | None) -> Any:
    """Wait for the plan's result; a terminal shows its progress."""
    with working(f"plan {handle.plan_id} starts") as tell:
        following = asyncio.create_task(_follow(handle, tell)) if tell is not None else None
        try:
            return await handle.result(timeout=timeout)
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)


async def _follow(handle: PlanHandle, tell: Tell) -> None:
    from plancast.cli.plans.history_view import said_of
    from plancast.client.changes import TaskReport

    async for change in handle.watch():
        if isinstance(change, TaskReport):
            tell(f"plan {handle.plan_id}: {change.event_type} {said_of(change)}")
        else:
            tell(f"plan {handle.plan_id}: {change.current_state}, turn {change.revision}, after {change.event_type}")
