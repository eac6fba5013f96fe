"""Client: submits goals, and finds the plans that came of them."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import deque
from collections.abc import Generator, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

from plancast.errors import UnknownGoal
from plancast.handle import PlanHandle
from plancast.plain import plain
from plancast.settings import Settings
from plancast.status import PlanStatus
from plancast.waiting import Endings
from plancast_bus.checkpoints import PlanSummary
from plancast_bus.contracts import Bus
from plancast_bus.envelope import EventEnvelope, EventTopic
from plancast_bus.errors import BusError, BusUnavailable
from plancast_bus.subjects import check_event_type, encode_token

RUN_FILE = "run.json"
"""In the data folder: what ``plancast run`` notes of itself, ``{"nats_url": ...}``."""
GOALS_SECONDS = 3.0
"""How long the list of known goals is taken to be up to date."""


class Client:
    """Submits goals and follows plans. Make one with :meth:`connect`.

    Args:
        bus: The connection to work over; who made it closes it.
        first_look: Seconds until the first look at the checkpoint of a plan whose result is awaited.
        longest_look: Seconds between two such looks at most.
    """

    def __init__(self, bus: Bus, *, first_look: float = 1.0, longest_look: float = 15.0) -> None:
        self.bus = bus
        self.endings = Endings(bus, first_look=first_look, longest_look=longest_look)
        self.closed = False
        self._owns_bus = False
        self._goals: frozenset[str] | None = None
        """The goals that the deployed apps take; None while no app is deployed."""
        self._goals_read = float("-inf")
        self._reading_goals = asyncio.Lock()

    @classmethod
    def connect(
        cls, url: str | None = None, *, settings: Settings | None = None, data_dir: Path | str | None = None
    ) -> Connecting:
        """Connect to a deployment: ``await Client.connect(url)``, or ``async with Client.connect(url) as client``.

        Args:
            url: ``nats://host:port``. Without one: that of the settings, else ``NATS_URL``, else what
                ``plancast run`` left in the data folder.
            settings: Instead of those of the environment.
            data_dir: The data folder of ``plancast run``; ``.plancast`` unless the settings say otherwise.

        Raises:
            BusUnavailable: no URL is known, or nothing answers there.
            UnsupportedServer: the server is too old or runs without JetStream.
        """
        return Connecting(cls, url, settings, data_dir)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop waiting, and close the connection that :meth:`connect` made."""
        if self.closed:
            return
        self.closed = True
        try:
            await self.endings.close()
        finally:
            if self._owns_bus:
                await self.bus.close()

    async def submit(
        self,
        event_type: str,
        data: Any = None,
        *,
        response_event: str | None = None,
        correlation_id: str | None = None,
        session_id: str | None = None,
        user_id: str = "",
        tenant_id: str = "",
        response_topic: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> PlanHandle:
        """Publish a goal; returns when it is durable.

        Args:
            event_type: Type of the goal.
            data: What the goal says: a JSON object, or a pydantic model.
            response_event: Type of the final response; ``<goal>.completed`` or ``.failed`` without.
            correlation_id: The plan's id. One that was used already gives the plan that there is.
            session_id: Groups plans.
            user_id: For whom.
            tenant_id: For which tenant. Only events of the same tenant move the plan.
            response_topic: Where the final response is published; ``action-results`` without.
            metadata: Further fields for the goal's handler.

        Raises:
            UnknownGoal: apps are deployed, and none takes the goal. With no app deployed the goal waits for one.
            InvalidSubject: an event type, or the correlation id, cannot be part of a subject.
            PublishRefused, PayloadTooLarge: the goal was not accepted.
            BusUnavailable: it may have been accepted all the same; submit again with the same correlation id.
        """
        check_event_type(event_type)
        if response_event is not None:
            check_event_type(response_event)
        goal_id = uuid4().hex if correlation_id is None else f"goal:{encode_token(correlation_id)}"
        plan_id = goal_id if correlation_id is None else correlation_id
        topic = None if response_topic is None else str(EventTopic(response_topic))
        await self._require_goal(event_type)
        event = EventEnvelope(
            id=goal_id,
            source="client",
            type=event_type,
            topic=EventTopic.ACTION_REQUESTS,
            data={} if data is None else plain(data),
            correlation_id=plan_id,
            response_event=response_event,
            response_topic=topic,
            session_id=session_id,
            user_id=user_id or None,
            tenant_id=tenant_id or None,
            metadata={**(metadata or {}), "notify": await self.endings.inbox()},
        )
        ending = self.endings.of(plan_id, noticed=True)
        await self.bus.publish(event)
        return PlanHandle(self, ending, submitted=True, tenant_id=tenant_id)

    def plan(self, plan_id: str) -> PlanHandle:
        """The plan with this id, or the one that events with this correlation id belong to.

        Nothing is looked up yet: what is asked of the handle raises PlanNotFound when there is none.
        """
        return PlanHandle(self, self.endings.of(plan_id))

    async def plans(
        self,
        *,
        session_id: str | None = None,
        status: PlanStatus | str | None = None,
        tenant_id: str | None = None,
        limit: int | None = None,
    ) -> list[PlanSummary]:
        """Summaries of the plans that are stored, children included, the one changed last first.

        Args:
            session_id: Only plans of this session.
            status: Only plans of this status.
            tenant_id: Only plans of this tenant.
            limit: At most so many, of those changed last.

        Raises:
            BusUnavailable: the store cannot be reached.
        """
        wanted = None if status is None else str(PlanStatus(status))
        newest: deque[PlanSummary] = deque(maxlen=limit)
        async for summary in self.bus.checkpoints.summaries(status=wanted, session_id=session_id, tenant_id=tenant_id):
            newest.append(summary)
        return list(reversed(newest))

    async def _require_goal(self, goal: str) -> None:
        if self._surely_taken(goal):
            return
        async with self._reading_goals:
            if self._surely_taken(goal):
                return
            try:
                apps = await self.bus.registry.list("app")
            except BusUnavailable:
                raise
            except BusError:  # nothing was ever deployed on this server; publishing says it better
                return
            self._goals = frozenset(each for app in apps.values() for each in app.get("goals", ())) if apps else None
            self._goals_read = time.monotonic()
        if self._goals is not None and goal not in self._goals:
            raise UnknownGoal(f"no planner takes the goal {goal!r}; {_known(goal, self._goals)}")

    def _surely_taken(self, goal: str) -> bool:
        fresh = time.monotonic() - self._goals_read < GOALS_SECONDS
        return fresh and (self._goals is None or goal in self._goals)


class Connecting:
    """What :meth:`Client.connect` returns: to be awaited, or entered with ``async with``."""

    def __init__(
        self, kind: type[Client], url: str | None, settings: Settings | None, data_dir: Path | str | None
    ) -> None:
        self._kind = kind
        self._url = url
        self._settings = settings
        self._data_dir = data_dir
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, None, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._connect()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connect(self) -> Client:
        from plancast_bus.jetstream import connect  # a slow import that tests in memory do without

        settings = self._settings or Settings.load()
        url, hint = self._url or settings.nats.url or os.environ.get("NATS_URL", ""), ""
        if not url:
            run_file = Path(self._data_dir or settings.data_dir) / RUN_FILE
            url, hint = _noted_url(run_file), f" (the URL is from {run_file}: does `plancast run` still run?)"
        try:
            bus = await connect(settings.nats.model_copy(update={"url": url}), settings.bus)
        except BusUnavailable as error:
            raise BusUnavailable(f"{error}{hint}") from error
        client = self._kind(bus)
        client._owns_bus = True
        return client


def _noted_url(run_file: Path) -> str:
    try:
        noted = json.loads(run_file.read_bytes())
        return str(noted["nats_url"])
    except FileNotFoundError:
        why = f"{run_file} does not exist"
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{run_file} cannot be read ({type(error).__name__})"
    raise BusUnavailable(
        f"no NATS server is known: give a URL, or set NATS_URL, or start `plancast run` in this folder ({why})"
    )


def _known(goal: str, goals: frozenset[str]) -> str:
    """The goals that there are, those that are spelled alike first."""
    if not goals:
        return "the deployed apps take no goals"
    close = get_close_matches(goal, goals, n=3, cutoff=0.5)
    others = sorted(goals.difference(close))
    shown = [*close, *others][:20]
    more = f" and {len(goals) - len(shown)} more" if len(goals) > len(shown) else ""
    guess = f"did you mean {close[0]!r}? " if close else ""
    return f"{guess}known goals: {', '.join(shown)}{more}"
