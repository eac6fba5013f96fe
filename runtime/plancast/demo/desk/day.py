"""A day at the support desk: it is asked by a customer, by another agent and by a schedule, and asks its manager."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import Any, Final
from uuid import uuid4

import aiohttp
from pydantic import SecretStr
from rich.text import Text

from plancast.client.client import Client
from plancast.demo.desk.inbox import Inbox, approve_by
from plancast.demo.desk.terminal import Terminal
from plancast.demo.runner import deployed
from plancast.errors import PlancastError
from plancast.settings import ConsoleSettings, Settings
from plancast.terminal.output import cell, duration, err, out, plain, print_json, table

APP: Final = "plancast.demo.apps.desk:app"
QUESTION, MORNING, EVERY_MORNING = "desk.question", "desk.morning", "0 8 * * MON-FRI"
USER: Final = "ada"
CHARGED_TWICE: Final = {
    "customer": "Ada", "question": "I was charged twice for one order. May I have my money back?",
    "order": "1042", "amount": 25.0,
}  # fmt: skip
PASSWORD: Final = {"customer": "Bob", "question": "How do I reset my password?"}
PATIENCE: Final = 300.0
"""Seconds after which an answer counts as lost."""
AGAIN_SECONDS: Final = 0.1
NEEDED: Final = {"mcp": "mcp", "a2a": "a2a", "ag_ui": "agui"}
"""Packages, and the extras that bring them."""


@dataclass(frozen=True)
class Held:
    """A promise of the demo, and whether it was kept."""

    what: str
    held: bool
    detail: str


@dataclass
class Day:
    """The promises of a day at the desk, and which of them were kept."""

    began: float = field(default_factory=time.monotonic)
    account: list[Held] = field(default_factory=list)
    quiet: bool = False

    def tell(self, text: str) -> None:
        """Show a line with the seconds since the start."""
        if not self.quiet:
            line = f"{time.monotonic() - self.began:5.1f} s  {plain(text)}"
            err().print(Text(line, style="dim"), soft_wrap=True)

    def note(self, what: str, held: bool, detail: str) -> None:
        self.account.append(Held(what, held, detail))

    @property
    def good(self) -> bool:
        """True if all was as promised."""
        return bool(self.account) and all(each.held for each in self.account)


async def keep_desk(*, json_output: bool) -> int:
    """Deploy the desk, let it be asked from all sides, and show the account; 0 when everything held."""
    if missing := [extra for package, extra in NEEDED.items() if find_spec(package) is None]:
        err().print(Text(f"the desk needs pip install 'plancast[{','.join(missing)}]'"))
        return 1
    day = Day(quiet=json_output)
    try:
        async with asyncio.timeout(5 * PATIENCE):
            await _keep(day)
    except (aiohttp.ClientError, PlancastError, TimeoutError) as error:
        day.note("the day", False, f"ended early: {str(error) or type(error).__name__}")
    if json_output:
        seconds = round(time.monotonic() - day.began, 3)
        print_json({"good": day.good, "seconds": seconds, "account": [asdict(each) for each in day.account]})
    else:
        _show(day)
    return 0 if day.good else 1


async def _keep(day: Day) -> None:
    secret = secrets.token_urlsafe(24)
    async with Inbox(secret) as inbox:
        day.tell("starting nats-server, Ray, and the desk with its MCP server")
        environment = {"DESK_WEBHOOK": inbox.url, "DESK_WEBHOOK_SECRET": secret}
        async with deployed(APP, console=desk_console(), environment=environment) as runtime:
            await ask_all(day, runtime.settings, inbox)
            day.tell("everything was answered; stopping")


def desk_console() -> ConsoleSettings:
    """Settings of a console on a port that is free now: the links in webhooks name it before it is served."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        port = int(tried.getsockname()[1])
    tokens = {USER: SecretStr(secrets.token_urlsafe(24))}
    return ConsoleSettings(port=port, public_url=f"http://127.0.0.1:{port}", tokens=tokens)


async def ask_all(day: Day, settings: Settings, inbox: Inbox) -> None:
    """Serve the desk that is deployed, and have it asked from all sides.

    Args:
        day: Gets the account.
        settings: Of the deployment, with those of :func:`desk_console`.
        inbox: Where the desk sends its webhooks.
    """
    from plancast.console.server import ConsoleServer
    from plancast_bus.jetstream import connect

    url, token = settings.console.public_url, settings.console.tokens[USER].get_secret_value()
    headers, patience = {"Authorization": f"Bearer {token}"}, aiohttp.ClientTimeout(PATIENCE)
    async with AsyncExitStack() as stack:
        bus = await connect(settings.nats, settings.bus)
        stack.push_async_callback(bus.close)
        await stack.enter_async_context(ConsoleServer(bus, settings))
        http = await stack.enter_async_context(aiohttp.ClientSession(headers=headers, timeout=patience))
        client = await stack.enter_async_context(Client(bus))
        day.tell(f"served at {url}: /agui for front ends, /a2a for agents, /mcp for models")
        await asyncio.gather(
            _ask_in_terminal(day, http, url, inbox, client), _ask_as_agent(day, http, url), _schedule(day, client)
        )


async def _ask_in_terminal(day: Day, http: aiohttp.ClientSession, url: str, inbox: Inbox, client: Client) -> None:
    """Ask over AG-UI, have the manager decide by the link of a webhook, and show how the plan goes on."""
    terminal = Terminal(http, url, lambda line: day.tell(f"Ada's terminal  {line}"))
    day.tell(f"Ada's terminal  asks: {CHARGED_TWICE['question']}")
    end = await terminal.run(QUESTION, CHARGED_TWICE)
    asked = not _is_over(end)
    day.note("AG-UI shows the run up to the question", asked, f"{len(terminal.seen)} events, {_path(terminal)}")
    if not asked:
        return
    [interrupt] = end["outcome"]["interrupts"]
    async with asyncio.timeout(PATIENCE):
        notice = await inbox.next()
    day.tell(f"the manager gets a webhook: {notice['text']}")
    approved = await approve_by(notice["link"], "a mistake of ours")
    by_link = approved and not inbox.refused
    day.note("a person decides by the link of a signed webhook", by_link, str(notice["text"]))
    async with asyncio.timeout(PATIENCE):
        while not _is_over(end):  # the plan may not have taken the answer yet
            await asyncio.sleep(AGAIN_SECONDS)
            end = await terminal.go_on(interrupt)
    result = end.get("result") or {}
    refunded = (result.get("refunding") or {}).get("refunded")
    by = (result.get("asking") or {}).get("by")
    held = refunded == CHARGED_TWICE["amount"] and by == "link:manager"
    day.note("the plan goes on by that decision", held, f"refunded {refunded} USD, decided by {by}")
    day.note("each event of AG-UI was shown once", len(set(terminal.seen)) == len(terminal.seen), _path(terminal))
    _looked_up(day, "the answer to Ada", result, "Charged twice")
    plans = await client.plans(session_id=terminal.thread)
    day.note("one plan for Ada's question", len(plans) == 1, ", ".join(each.plan_id for each in plans))


def _is_over(end: dict[str, Any]) -> bool:
    """Return whether a run has ended for another reason than a question."""
    return (end.get("outcome") or {}).get("type") != "interrupt"


def _path(terminal: Terminal) -> str:
    return " → ".join(terminal.steps)


async def _ask_as_agent(day: Day, http: aiohttp.ClientSession, url: str) -> None:
    """Find the desk by its card, and ask over A2A; the message that is sent twice is one task."""
    async with http.get(f"{url}/.well-known/agent-card.json") as response:
        response.raise_for_status()
        card = await response.json()
    skills = {each["id"] for each in card["skills"]}
    message = {
        "messageId": uuid4().hex,
        "role": "ROLE_USER",
        "metadata": {"skill": QUESTION},
        "parts": [{"data": PASSWORD}],
    }
    day.tell(f"another agent asks over A2A: {PASSWORD['question']}")
    first, again = [await _send(http, f"{url}/a2a", message) for _ in range(2)]
    done = first["status"]["state"] == "TASK_STATE_COMPLETED" and first == again
    day.note("A2A: one task for a message that was sent twice", done and QUESTION in skills, f"task {first['id']}")
    result = first["artifacts"][0]["parts"][0]["data"] if first.get("artifacts") else {}
    day.tell(f"the desk answers it: {(result.get('writing') or {}).get('text')}")
    _looked_up(day, "the answer over A2A", result, "Reset a password")


async def _send(http: aiohttp.ClientSession, url: str, message: dict[str, Any]) -> dict[str, Any]:
    request = {"jsonrpc": "2.0", "id": uuid4().hex, "method": "SendMessage", "params": {"message": message}}
    async with http.post(url, json=request, headers={"A2A-Version": "1.0"}) as response:
        response.raise_for_status()
        answer = await response.json()
    if "error" in answer:
        raise PlancastError(f"A2A: {answer['error'].get('message')}")
    return dict(answer["result"]["task"])


def _looked_up(day: Day, what: str, result: dict[str, Any], title: str) -> None:
    article = (result.get("reading") or {}).get("title")
    day.note(f"{what} was looked up by MCP", article == title, f"article {article!r}")


async def _schedule(day: Day, client: Client) -> None:
    """Have the desk work every morning, and once now."""
    schedule = await client.schedules.create(
        "morning", event_type=MORNING, cron=EVERY_MORNING, timezone="Europe/Berlin"
    )
    handle = await client.schedules.trigger("morning")
    result = await handle.result(PATIENCE)
    titles = (result.get("reading") or {}).get("titles") or ()
    [run] = await client.schedules.runs("morning")
    detail = f"{schedule.times}, next at {schedule.next_at:%Y-%m-%d %H:%M}Z; run now: {len(titles)} articles"
    day.tell(f"the schedule has run: {detail}")
    held = schedule.next_at is not None and run.status == "completed" and len(titles) > 0
    day.note("a cron schedule runs it every morning", held, detail)


def _show(day: Day) -> None:
    console = out()
    console.print()
    shown = table("", "promise", "")
    for each in day.account:
        sign = cell("✓", "green") if each.held else cell("✗", "bold red")
        shown.add_row(sign, cell(each.what), cell(each.detail, "dim"))
    console.print(shown)
    console.print()
    kept = sum(each.held for each in day.account)
    text = f"{kept} of {len(day.account)} promises kept in {duration(time.monotonic() - day.began)}"
    console.print(cell(text, "bold green" if day.good else "bold red"))
