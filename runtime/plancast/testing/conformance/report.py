"""planner_conformance: runs all checks on a planner and reports the results."""

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
from plancast.testing.conformance.harness import Bench, NotConforming, PlannerFactory, error_text
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
    """The result of a check."""

    name: str
    passed: bool
    detail: str = ""
    """Observation or fault, on one line."""


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """Results of all checks; its text has a line per check and a summary."""

    planner: str
    """The planner's name."""
    checks: tuple[Check, ...]
    """In execution order."""

    @property
    def passed(self) -> bool:
        """True if all checks passed."""
        return not self.failed

    @property
    def failed(self) -> tuple[Check, ...]:
        """The failed checks."""
        return tuple(check for check in self.checks if not check.passed)

    def __getitem__(self, name: str) -> Check:
        """The check with this name.

        Raises:
            KeyError: there is no such check.
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
        """Raise unless all checks passed.

        Raises:
            AssertionError: a check failed; the text is the whole report.
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
    """Check that a planner satisfies the runtime's contract; nothing else should run on the event loop.

    A planner that calls its model through the runtime's port, as `ChoreographyPlanner` does, gets a scripted model with
    valid and malformed answers. A planner without a model passes the checks of model answers. Calls are cancelled after
    ``timeout``, unless they block the event loop.

    Args:
        factory: Returns a fresh planner with each call; sync or async.
        timeout: Seconds for each call of the planner.
        run: Sample of the planner's runs (goal, results, events) for planners that need specific fields. The kit sets
            the identity and the goal's ``token``.
        answers: Data of responses that the planner reads, by event type; others are ``{"success": True}``.

    Raises:
        TypeError: factory is not callable.
    """
    if not callable(factory):
        raise TypeError(f"factory is a {type(factory).__name__}, expected a function that returns a planner")
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
        detail = error_text(error)
        return Check(name, False, detail if len(detail) <= _MOST_DETAIL else f"{detail[: _MOST_DETAIL - 3]}...")


async def _name_of(bench: Bench) -> str:
    try:
        return str(getattr(await bench.fresh(), "name", ""))
    except Exception:
        return ""


async def _check_imports(bench: Bench) -> str:
    """The planner imports no modules that run plans; a decision tree imports no modules that call models."""
    planner = await bench.fresh()
    modules = modules_of(planner)
    forbidden = RUNTIME + MODELS if "plancast.planners.decision_tree.planner" in modules else RUNTIME
    result = reached(modules, forbidden)
    if result.found:
        raise NotConforming(f"forbidden imports: {'; '.join(result.found)}")
    if not result.files:
        raise NotConforming(f"{type(planner).__module__} has no source file; define the planner in a module")
    return f"{len(result.files)} files read"


async def _check_import_check(bench: Bench) -> str:
    """The import check works: it finds a planted import."""
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
    "bounds": check_bounds,  # uses the decisions of the checks above
    "imports": _check_imports,
    "import check reads files": _check_import_check,
}
