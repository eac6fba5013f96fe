"""Goals of the deployed apps, by which a client checks what it submits."""

from __future__ import annotations

import asyncio
import time
from difflib import get_close_matches
from typing import Any

from plancast.errors import InvalidApp, InvalidGoal, UnknownGoal
from plancast_bus.errors import AccessDenied, BusError, BusUnavailable
from plancast_bus.ports.registry import Registry

GOALS_SECONDS = 3.0
"""Seconds for which the list of known goals is cached."""


class DeployedGoals:
    """The goals that apps have registered, with the schemas of their data; cached."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._names: frozenset[str] | None = None
        """Known goals; None when no app is deployed, or this user may not read."""
        self._schemas: dict[str, Any] = {}
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def require(self, goal: str, data: Any) -> None:
        """Check that a goal is taken, and that its data follow its schema, as far as this user may know.

        Raises:
            UnknownGoal: apps are deployed, and none takes the goal.
            InvalidGoal: the data break the goal's schema.
            BusUnavailable: the registry cannot be read.
        """
        if not self._surely_taken(goal):
            async with self._reading:
                if not self._surely_taken(goal):
                    await self._read()
                    if self._names is not None and goal not in self._names:
                        raise UnknownGoal(f"no planner takes the goal {goal!r}; {_known(goal, self._names)}")
        if goal in self._schemas:
            self._check(goal, data)

    async def _read(self) -> None:
        try:
            apps = await self._registry.list("app")
        except AccessDenied:  # a user that may only publish gets no error for an unknown goal
            self._names, self._read_at = None, time.monotonic()
            return
        except BusUnavailable:
            raise
        except BusError:  # nothing was ever deployed on this server; publishing raises a better error
            self._names = None
            return
        self._names = frozenset(each for app in apps.values() for each in app.get("goals", ())) if apps else None
        self._schemas = {goal: each for app in apps.values() for goal, each in app.get("schemas", {}).items()}
        self._read_at = time.monotonic()

    def _check(self, goal: str, data: Any) -> None:
        from plancast.json_values.schemas import checked_schema, faults_at  # needs the libraries for schemas

        try:
            schema = checked_schema(self._schemas[goal], f"goal {goal}")  # what the registry holds is not trusted
        except InvalidApp:
            return  # the plan's host decides
        if faults := faults_at("goal_data", schema, data):
            raise InvalidGoal(goal, faults)

    def _surely_taken(self, goal: str) -> bool:
        fresh = time.monotonic() - self._read_at < GOALS_SECONDS
        return fresh and (self._names is None or goal in self._names)


def _known(goal: str, goals: frozenset[str]) -> str:
    """List the known goals, those with similar spelling first."""
    if not goals:
        return "the deployed apps take no goals"
    close = get_close_matches(goal, goals, n=3, cutoff=0.5)
    others = sorted(goals.difference(close))
    shown = [*close, *others][:20]
    more = f" and {len(goals) - len(shown)} more" if len(goals) > len(shown) else ""
    guess = f"did you mean {close[0]!r}? " if close else ""
    return f"{guess}known goals: {', '.join(shown)}{more}"
