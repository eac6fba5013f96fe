"""What the demos with a model show: progress, then the orders, one plan's decisions, and what the model took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from plancast.demo.display import PLAIN_STEPS, Board
from plancast.demo.driver import Account, Spent, Step
from plancast.demo.orders_driver import OrderDrive, OrderRun
from plancast.terminal.output import cell, duration, plain, plural, table

STYLES = {"shipped": "green", "rejected": "magenta", "expired": "yellow", "refused": "red", "plan failed": "bold red"}
WORD_STYLES = {"wait": "yellow", "delegate": "magenta", "complete": "green"}
OUTCOMES = ("under way", "asked", "shipped", "rejected", "expired", "refused")


class OrderBoard(Board):
    """A board that shows how orders stand."""

    _orders: OrderDrive | None = None

    def watch(self, drive: OrderDrive) -> None:
        """Show the progress of these orders from now on."""
        self._orders = drive

    def plan_ended(self) -> None:
        """Without a terminal, say from time to time how far the orders are."""
        drive = self._orders
        if drive is None or self._live is not None:
            return
        ended = sum(run.ended_at > 0 for run in drive.runs)
        if ended * PLAIN_STEPS // drive.planned > self._told:
            self._told = ended * PLAIN_STEPS // drive.planned
            self.note(f"{ended} of {plural(drive.planned, 'order')} ended")

    def _draw(self) -> RenderableType:
        parts: list[RenderableType] = [Text(line, style="dim") for line in self._notes]
        if self._orders is not None:
            ended = sum(run.ended_at > 0 for run in self._orders.runs)
            row = Table.grid(padding=(0, 1))
            bar = ProgressBar(total=self._orders.planned, completed=ended, width=40)
            row.add_row(bar, f"{ended}/{self._orders.planned} orders")
            counts = Counter(run.outcome for run in self._orders.runs)
            line = Text()
            for outcome in dict.fromkeys([*OUTCOMES, *counts]):
                style = STYLES.get(outcome, "cyan") if counts[outcome] else "dim"
                line.append(f"{outcome} {counts[outcome]}  ", style=style)
            parts += [row, line]
        return Group(*parts)


def print_orders(console: Console, runs: Sequence[OrderRun]) -> None:
    """A row for each order: what it is, the decisions taken, its end, and what it took."""
    right = ("amount", "tokens", "cost", "time")
    shown = table("order", "amount", "by", "decisions", "outcome", "tokens", "cost", "time", "", right=right)
    for run in runs:
        good = not run.faults
        account = run.account
        shown.add_row(
            cell(run.case.order_id),
            cell(f"${run.case.amount:,.2f}"),
            cell(run.case.method),
            _way(account.steps),
            cell(run.outcome, STYLES.get(run.outcome, "")),
            cell(f"{account.spent.tokens:,}"),
            cell(dollars(account.spent.cost)),
            cell(duration(run.seconds) if run.ended_at else "–"),
            cell("✓" if good else "✗", "green" if good else "bold red"),
        )
    console.print(shown)


def print_decisions(console: Console, title: str, account: Account, since: float) -> None:
    """Every decision of one plan: what it came after, what was decided, and why."""
    console.print(Text(plain(title), style="bold"))
    shown = table("turn", "after", "event", "decision", "reasoning", right=("turn", "after"))
    for step in account.steps:
        shown.add_row(
            str(step.revision),
            cell(duration(step.time - since)),
            cell(step.trigger, "cyan"),
            cell(f"{step.kind} {step.object}".strip(), WORD_STYLES.get(step.kind, "")),
            cell(step.reasoning),
        )
    console.print(shown)


def print_spent(console: Console, model: str, spent: Spent, *, stand_in: bool) -> None:
    """What the model has taken, and which it was."""
    repaired = f", {plural(spent.repairs, 'answer')} sent back" if spent.repairs else ", no answer sent back"
    each = duration(spent.seconds / spent.calls) if spent.calls else "–"
    price = "at no known price" if spent.cost is None else f"for {dollars(spent.cost)}"
    console.print(
        Text(
            f"{plural(spent.calls, 'call')} of {model}{repaired}; {spent.prompt_tokens:,} tokens read and "
            f"{spent.completion_tokens:,} written, {price}; {each} a call"
        )
    )
    if stand_in:
        console.print(
            Text(
                "These decisions are not a model's: a program that follows the example's rules stood in for one, asked "
                "by litellm over HTTP. Its tokens are characters divided by four. For a real one: --model gpt-4o",
                style="yellow",
            )
        )


def print_order_faults(console: Console, runs: Sequence[OrderRun]) -> None:
    """What did not go by the rules."""
    for run in runs:
        for fault in run.faults:
            console.print(Text(plain(f"{run.case.order_id} (plan {run.handle.plan_id}) {fault}"), style="red"))


def dollars(cost: float | None) -> str:
    """A price for people."""
    return "–" if cost is None else f"${cost:.4f}"


def _way(steps: Sequence[Step]) -> Text:
    text = Text()
    for index, step in enumerate(steps):
        text.append(" → " if index else "", style="dim")
        text.append(plain(step.word), style=WORD_STYLES.get(step.kind, ""))
    return text
