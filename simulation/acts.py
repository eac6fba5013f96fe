"""Acts: what simulated workers do outside, at a service that counts it and outlives them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from plancast.effects.effect import Effect, Outcome
from plancast.errors import RetryableError
from plancast.worker import TaskContext, Worker
from simulation.history import ActFact, ActStep
from simulation.workload import EffectKind

EFFECTS: Final[dict[EffectKind, Effect]] = {
    "key": Effect(key="{{data.key}}"),
    "look-up": Effect(key="{{data.key}}"),
    "never": Effect(key="{{data.key}}", repeat="never"),
}
"""The effect of each kind of task: its service takes idempotency keys, can be asked, or offers neither."""


def act_type(kind: EffectKind) -> str:
    """The type of the tasks of a kind."""
    return f"act.{kind}.requested"


class Service:
    """The service outside.

    Args:
        note: Receives each of its facts.
    """

    def __init__(self, note: Callable[[ActFact], None]) -> None:
        self._note = note
        self._idempotency_keys: set[str] = set()
        self._acts: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self.answers: dict[str, Any] = {}
        """Its answers, by key."""

    def has_acted(self, key: str) -> bool:
        """True if it has acted for a key, which customers can ask where there is a look-up, and people can find out."""
        return self._acts[key] > 0

    def step(self, plan: str, key: str, kind: EffectKind, what: ActStep) -> None:
        """Note a step of an attempt."""
        self._note(ActFact(plan, key, kind, what))

    def act(self, task: TaskContext, kind: EffectKind, answer: Any) -> None:
        """Act for a task; where it takes idempotency keys, once for each."""
        self.answers[task.data["key"]] = answer
        if kind == "key":
            if task.idempotency_key in self._idempotency_keys:
                return
            self._idempotency_keys.add(task.idempotency_key)
        key = task.data["key"]
        self._acts[key] += 1
        self.step(str(task.plan_id), key, kind, "acts")

    def loses_answer(self, key: str, times: int) -> bool:
        """True for the first answers of a key."""
        self._lost[key] += 1
        return self._lost[key] <= times


def add_acts(
    worker: Worker, service: Service, note: Callable[[TaskContext, str], None], answer: Callable[[Any], Any]
) -> None:
    """Add a task of each kind to a worker; ``answer`` makes the answer from a task's data."""
    for kind, effect in EFFECTS.items():
        _add(worker, kind, effect, service, note, answer)


def _add(
    worker: Worker,
    kind: EffectKind,
    effect: Effect,
    service: Service,
    note: Callable[[TaskContext, str], None],
    answer: Callable[[Any], Any],
) -> None:
    @worker.on_task(act_type(kind), "work.completed", effect=effect)
    async def act(task: TaskContext, context: Any) -> Any:
        data = task.data
        note(task, "")
        service.step(str(task.plan_id), data["key"], kind, "begins")
        pause = data["seconds"] / 2 if data["do"] == "slow" else 0.0
        await asyncio.sleep(pause)
        service.act(task, kind, answer(data))
        await asyncio.sleep(pause)
        if data["do"] == "flaky" and service.loses_answer(data["key"], data["times"]):
            note(task, "the answer is lost")
            raise RetryableError("the answer is lost", retry_after=0.2)
        note(task, "completed")
        return answer(data)

    if kind == "look-up":

        @worker.reconcile(act_type(kind))
        async def look_up(task: TaskContext, context: Any) -> Outcome:
            await asyncio.sleep(0)
            found = service.has_acted(task.data["key"])
            service.step(str(task.plan_id), task.data["key"], kind, "is found" if found else "is not found")
            await asyncio.sleep(0)
            return Outcome.done(answer(task.data)) if found else Outcome.not_done()
