"""Workers whose tasks act at the provider, each protected in another way, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import aiohttp
from tests.chaos.effects.strikes import Strikes

from plancast import Effect, Outcome, RetryableError, TaskContext, Worker
from plancast.demo.provider import FLIGHTS, HOTELS, KEY_HEADER, PAYMENTS

Kind = Literal["key", "ledger key", "look-up", "never", "control"]
KINDS: Final[tuple[Kind, ...]] = ("key", "ledger key", "look-up", "never", "control")
SERVICES: Final[Mapping[Kind, str]] = {
    "key": PAYMENTS,
    "ledger key": PAYMENTS,
    "look-up": FLIGHTS,
    "never": HOTELS,
    "control": HOTELS,
}
"""The service that tasks of each kind use: with idempotency keys, with a look-up, or with neither."""
_EFFECTS: Final[Mapping[Kind, Effect | None]] = {
    "key": None,
    "ledger key": Effect(key="{{data.key}}"),
    "look-up": Effect(key="{{data.key}}"),
    "never": Effect(key="{{data.key}}", repeat="never"),
    "control": None,
}


def account_of(kind: Kind) -> str:
    """The provider's account of tasks of a kind."""
    return kind.replace(" ", "-")


def task_type(lane: str, kind: Kind) -> str:
    """The type of a lane's tasks of a kind."""
    return f"{lane}.{account_of(kind)}.requested"


def make_worker(lane: str, provider: str, strikes: Strikes) -> Worker:
    """The worker of a lane, with a task of each kind."""
    worker = Worker(lane, max_attempts=1000)
    for kind in KINDS:
        _add(worker, lane, kind, f"{provider}/{account_of(kind)}/{SERVICES[kind]}", strikes)
    return worker


def _add(worker: Worker, lane: str, kind: Kind, url: str, strikes: Strikes) -> None:
    event_type = task_type(lane, kind)

    @worker.on_task(event_type, f"{event_type.removesuffix('requested')}completed", effect=_EFFECTS[kind])
    async def act(task: TaskContext, context: Any) -> Any:
        strikes.pass_point("act.before")
        headers = {KEY_HEADER: task.idempotency_key} if SERVICES[kind] == PAYMENTS else {}
        answer = await call("POST", url, json={"reference": task.data["reference"]}, headers=headers)
        strikes.pass_point("act.after")
        return answer

    if kind == "look-up":

        @worker.reconcile(event_type)
        async def look_up(task: TaskContext, context: Any) -> Outcome:
            found = await call("GET", f"{url}/{task.data['reference']}")
            return Outcome.not_done() if found is None else Outcome.done(found)

    if _EFFECTS[kind] is not None:

        @worker.compensate(event_type)
        async def undo(task: TaskContext, result: Any, context: Any) -> None:
            strikes.pass_point("act.before")
            await call("DELETE", f"{url}/{result['confirmation']}")
            strikes.pass_point("act.after")


async def call(method: str, url: str, **options: Any) -> Any:
    """Call the provider; None when it knows no such thing.

    Raises:
        RetryableError: the answer was lost.
    """
    try:
        async with aiohttp.ClientSession() as session, session.request(method, url, **options) as response:
            return None if response.status == 404 else await response.json()
    except (TimeoutError, aiohttp.ClientError) as error:
        raise RetryableError(f"no answer of the provider: {error}", retry_after=0.05) from error
