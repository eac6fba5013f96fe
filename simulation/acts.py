"""Acts: what simulated workers do outside, and undo, at a service that counts it and outlives them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from plancast.effects.effect import Effect, Outcome
from plancast.errors import RetryableError, TerminalError
from plancast.worker import TaskContext, Worker
from simulation.history import ActFact, ActStep
from simulation.workload import EffectKind, Undo

EFFECTS: Final[dict[EffectKind, Effect]] = {
    "key": Effect(key="{{data.key}}"),
    "look-up": Effect(key="{{data.key}}"),
    "never": Effect(key="{{data.key}}", repeat="never"),
    "final": Effect(key="{{data.key}}"),
}
"""The effect of each kind of task: its service takes idempotency keys, can be asked, or offers neither."""
KEYED: Final[frozenset[EffectKind]] = frozenset(("key", "final"))
"""Kinds whose service drops repetitions by the idempotency key."""
REFUSED: Final[frozenset[Undo]] = frozenset(("again", "by hand", "gives up"))
"""Undos that fail at first."""


def act_type(kind: EffectKind) -> str:
    """The type of the tasks of a kind."""
    return f"act.{kind}.requested"


def kind_of(event_type: str) -> EffectKind:
    """The kind of the tasks of a type."""
    return next(kind for kind in EFFECTS if act_type(kind) == event_type)


class Service:
    """The service outside.

    Args:
        note: Receives each of its facts.
    """

    def __init__(self, note: Callable[[ActFact], None]) -> None:
        self._note = note
        self._idempotency_keys: set[str] = set()
        self._acts: Counter[str] = Counter()
        self._attempts: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._undone: set[str] = set()
        self._watchers: list[Callable[[str], object]] = []
        self.answers: dict[str, Any] = {}
        """Its answers, by key."""
        self.undos: dict[str, Undo] = {}
        """Behaviour of the undos, by key."""

    def has_acted(self, key: str) -> bool:
        """True if it has acted for a key, which customers can ask where there is a look-up, and people can find out."""
        return self._acts[key] > 0

    def has_undone(self, key: str) -> bool:
        """True if it has undone what it did for a key."""
        return key in self._undone

    def step(self, plan: str, key: str, kind: EffectKind, what: ActStep, task: str = "", attempt: int = 0) -> None:
        """Note a step of an attempt."""
        self._note(ActFact(plan, key, kind, what, task, attempt))

    def begin(self, task: TaskContext, kind: EffectKind) -> int:
        """Note that an attempt begins; returns its number."""
        key = task.data["key"]
        self.undos[key] = task.data["undo"]
        self._attempts[key] += 1
        self.step(str(task.plan_id), key, kind, "begins", task.event.id, self._attempts[key])
        for watcher in list(self._watchers):
            watcher(str(task.plan_id))
        return self._attempts[key]

    @contextmanager
    def watched(self, watcher: Callable[[str], object]) -> Iterator[None]:
        """Call a function with the plan of each attempt that begins, by its process."""
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    def act(self, task: TaskContext, kind: EffectKind, answer: Any, attempt: int) -> None:
        """Act for a task; where it takes idempotency keys, once for each."""
        key = task.data["key"]
        self.answers[key] = answer
        if self._is_repeated(task, kind):
            return
        self._acts[key] += 1
        self._undone.discard(key)
        self.step(str(task.plan_id), key, kind, "acts", task.event.id, attempt)

    def undo(self, task: TaskContext, kind: EffectKind) -> None:
        """Undo what was done for a task; where it takes idempotency keys, once for each."""
        if not self._is_repeated(task, kind):
            self._undo(str(task.plan_id), task.data["key"], kind, "is undone")

    def undo_by_hand(self, plan: str, key: str, kind: EffectKind) -> None:
        """Undo what was done for a key, as a person does."""
        self._undo(plan, key, kind, "is undone by hand")

    def loses_answer(self, key: str, times: int) -> bool:
        """True for the first answers of a key."""
        self._lost[key] += 1
        return self._lost[key] <= times

    def _undo(self, plan: str, key: str, kind: EffectKind, what: ActStep) -> None:
        self._undone.add(key)
        self.step(plan, key, kind, what)

    def _is_repeated(self, task: TaskContext, kind: EffectKind) -> bool:
        if kind not in KEYED:
            return False
        is_repeated = task.idempotency_key in self._idempotency_keys
        self._idempotency_keys.add(task.idempotency_key)
        return is_repeated


def add_acts(
    worker: Worker, service: Service, note: Callable[[TaskContext, str], None], answer: Callable[[Any], Any]
) -> None:
    """Add a task of each kind to a worker; ``answer`` makes the answer from a task's data."""
    for kind, effect in EFFECTS.items():
        _add(worker, kind, effect, service, note, answer)
        if kind != "final":
            _add_undo(worker, kind, service)


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
        attempt = service.begin(task, kind)
        pause = data["seconds"] / 2 if data["do"] == "slow" else 0.0
        await asyncio.sleep(pause)
        service.act(task, kind, answer(data), attempt)
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


def _add_undo(worker: Worker, kind: EffectKind, service: Service) -> None:
    @worker.compensate(act_type(kind))
    async def undo(task: TaskContext, result: Any, context: Any) -> None:
        key, how = task.data["key"], task.data["undo"]
        service.step(str(task.plan_id), key, kind, "undo begins", task.event.id)
        await asyncio.sleep(1.0 if how == "slow" else 0.0)
        if how in REFUSED and service.loses_answer(f"refused undo of {key}", 1):
            raise TerminalError("it is too late")
        if how == "flaky" and service.loses_answer(f"early undo of {key}", 1):
            raise RetryableError("not yet", retry_after=0.2)
        service.undo(task, kind)
        await asyncio.sleep(1.0 if how == "slow" else 0.0)
        if how == "flaky" and service.loses_answer(f"undo of {key}", 1):
            raise RetryableError("the answer is lost", retry_after=0.2)
