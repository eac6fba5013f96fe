"""planner_conformance: whether a planner can be trusted with plans, check by check."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from plancast.planners.contract import RunContext
from plancast.testing.conformance.checks import (
    check_cancelled,
    check_closed_union,
    check_identity,
    check_keeps_nothing,
    check_known_shape,
    check_name,
    check_past_deadline,
    check_wake_mode,
)
from plancast.testing.conformance.harness import Bench, NotConforming, PlannerFactory, told
from plancast.testing.conformance.imports import MODELS, RUNTIME, modules_of, reached
from plancast.testing.conformance.output_checks import check_bounds, check_malformed, check_parallel
from plancast.testing.conformance.task_checks import (
    check_64_at_once,
    check_128_on_one_step,
    check_spawn_await_go_on,
    left_over,
)

__all__ = ["Check", "ConformanceReport", "planner_conformance"]

_MOST_DETAIL: Final = 400


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked."""

    name: str
    passed: bool
    detail: str = ""
    """What was seen, or what is wrong, on one line."""


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """What the conformance kit found; printed, it is a line for each check and one for all."""

    planner: str
    """The planner's name."""
    checks: tuple[Check, ...]
    """In the order in which they were made."""

    @property
    def passed(self) -> bool:
        """Whether all checks passed."""
        return not self.failed

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that did not pass."""
        return tuple(check for check in self.checks if not check.passed)

    def __getitem__(self, name: str) -> Check:
        """The check of this name.

        Raises:
            KeyError: there is none.
        """
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(name)

    def __str__(self) -> str:
        width = max((len(check.name) for check in self.checks), default=0)
        lines = [
            f"{'ok' if check.passed else 'FAIL':<4}  {check.name:<{width}} — {check.detail}" for check in self.checks
        ]
        count = f"{len(self.failed)} of {len(self.checks)} checks failed" if self.failed else "all checks passed"
        return "\n".join([*lines, f"planner {self.planner!r}: {count}"])

    def require(self) -> None:
        """Check that all passed.

        Raises:
            AssertionError: some did not; the text is the whole report.
        """
        if not self.passed:
            raise AssertionError(f"\n{self}")


async def planner_conformance(
    factory: PlannerFactory,
    *,
    timeout: float = 5.0,
    run: RunContext | None = None,
    answers: Mapping[str, Any] | None = None,
) -> ConformanceReport:
    """Check that a planner does what the runtime relies on, whoever wrote it; nothing else should run on the loop.

    A planner that asks its model by the runtime's port (`ChoreographyPlanner` does) is given a stand-in, which
    answers well and badly. One that asks no model passes what is checked of models. Calls that hang are given up
    after ``timeout``, unless they block the event loop.

    Args:
        factory: Gives a fresh planner with each call, at once or awaited.
        timeout: Seconds for each call of the planner.
        run: What the planner's runs look like (goal, results, events), when it needs more than any run has. The
            identity, and a goal's ``token``, are the kit's.
        answers: Data of answers that the planner reads, by event type; others are ``{"success": True}``.

    Raises:
        TypeError: factory cannot be called.
    """
    if not callable(factory):
        raise TypeError(f"factory is a {type(factory).__name__}, allowed: a function that gives a fresh planner")
    before = asyncio.all_tasks()
    bench = Bench(factory, timeout, run, answers or {})
    checks = tuple([await _made(name, check, bench) for name, check in _CHECKS.items()])
    for task in await left_over(before):
        task.cancel()
    return ConformanceReport(await _name_of(bench), checks)


async def _made(name: str, check: Callable[[Bench], Awaitable[str]], bench: Bench) -> Check:
    try:
        return Check(name, True, await check(bench))
    except Exception as error:
        detail = told(error)
        return Check(name, False, detail if len(detail) <= _MOST_DETAIL else f"{detail[: _MOST_DETAIL - 3]}...")


async def _name_of(bench: Bench) -> str:
    try:
        return str(getattr(await bench.fresh(), "name", ""))
    except Exception:
        return ""


async def _check_imports(bench: Bench) -> str:
    """What the planner reaches by import runs no plans; a decision tree asks no models either."""
    planner = await bench.fresh()
    modules = modules_of(planner)
    forbidden = RUNTIME + MODELS if "plancast.planners.decision_tree.planner" in modules else RUNTIME
    result = reached(modules, forbidden)
    if result.found:
        raise NotConforming(f"reaches what planners must not: {'; '.join(result.found)}")
    if not result.files:
        raise NotConforming(f"no file was read: {type(planner).__module__} has none; write the planner into a module")
    return f"{len(result.files)} files read"


async def _check_import_check(bench: Bench) -> str:
    """The check of imports is one: it finds what is planted."""
    return _planted()


def _planted() -> str:
    with tempfile.TemporaryDirectory() as folder:
        planted = Path(folder, "planted.py")
        planted.write_text("def later() -> None:\n    import ray\n")
        result = reached({"planted": planted})
    if result.files != [planted] or result.found != ["planted -> ray"]:
        raise NotConforming(f"a planted import of ray was not found: {result}")
    return "a planted import is found"


_CHECKS: Final[dict[str, Callable[[Bench], Awaitable[str]]]] = {
    "name": check_name,
    "wake mode": check_wake_mode,
    "known shape": check_known_shape,
    "closed union": check_closed_union,
    "identity": check_identity,
    "cancelled run": check_cancelled,
    "past deadline": check_past_deadline,
    "malformed model output": check_malformed,
    "parallel": check_parallel,
    "spawn, await, go on": check_spawn_await_go_on,
    "64 at once": check_64_at_once,
    "128 on one step": check_128_on_one_step,
    "keeps nothing": check_keeps_nothing,
    "bounds": check_bounds,  # after those that give it decisions to look at
    "imports": _check_imports,
    "import check reads files": _check_import_check,
}
