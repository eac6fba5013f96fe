"""Notifier: finds what plans have to tell in their commits, and delivers it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from cachetools import LRUCache

from plancast.agents.definitions import EventDefinition
from plancast.errors import PlancastError
from plancast.notifications.delivery import Delivery, Undelivered
from plancast.notifications.link import LIFETIME, LONGEST, PATH, Link, link_seals
from plancast.notifications.notice import Notice, may_notify, notices_of
from plancast.notifications.outbox import Entry, Outbox
from plancast.notifications.targets import Subscription, Target
from plancast.plan_store.approvals import approval_of
from plancast.plan_store.listed_status import ListedStatuses
from plancast.plan_store.store import plan_fields
from plancast.settings import ConsoleSettings
from plancast.telemetry.redaction import redact
from plancast_bus.clock import Clock
from plancast_bus.errors import BusError, BusUnavailable, CommitConflict
from plancast_bus.events.codec import pack, unpack
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.bus import Delivery as Letter
from plancast_bus.ports.checkpoints import Committed, PlanSummary
from plancast_bus.subjects import encode_token

logger = logging.getLogger(__name__)
LEAD: Final = "notifier"
"""Kind of the registration of the process that notifies, with the version up to which commits were read; by app."""
LEAD_SECONDS: Final = 15.0
"""Seconds after which another process goes on for one that is gone."""
PAUSE: Final = 1.0
"""Seconds between two looks."""
RECENT: Final = 300.0
"""Age up to which commits from before an app's first notifier count, in seconds."""
GIVE_UP_SECONDS: Final = 86_400.0
FIRST_RETRY, LONGEST_RETRY = 5.0, 3_600.0
"""Seconds before a second attempt; the pause doubles up to the longest."""
TRY_SECONDS: Final = 60.0
"""Seconds for which nobody else tries what one process is trying."""
LIST_SECONDS: Final = 30.0
"""Seconds between two readings of all that is to be delivered."""
AT_ONCE: Final = 4
"""Notifications that are tried at once, for each target."""
MOST_PENDING: Final = 1_000
"""Notifications that wait for one target; further ones are given up."""
SAVED_AFTER: Final = 500
"""Commits that are read before the version is stored."""
UNDELIVERED: Final = "notification.undelivered"
"""Type of the event in the dead letter of a notification that was given up."""


@dataclass(frozen=True)
class Audience:
    """The notifications of an app, and the plans that they are about."""

    app: str
    subscriptions: Sequence[Subscription]
    planners: Collection[str]
    """Names of the planners whose plans are notified of."""
    people: Mapping[str, EventDefinition]
    """The events that people send."""

    def has(self, plan: PlanSummary) -> bool:
        """True if the plan is one of these planners'."""
        return plan.planner in self.planners

    def targets_of(self, notice: Notice) -> list[Target]:
        """The targets of a notice. An exhausted budget is a failure for those that are not told of budgets."""
        kinds = {notice.kind, "failed"} if notice.kind == "budget" else {notice.kind}
        return [each.target for each in self.subscriptions if kinds & each.on]


class Notifier:
    """Notifies for an app. One process at a time leads; all others stand by.

    A notification is stored before the version of the commit that has caused it, and marked as delivered after it was
    taken. So none is lost; a process that dies between the delivery and the mark sends the same one again, under the
    same id.

    Args:
        audience: The app's targets, and which plans are the app's.
        bus: A connection with the rights of the runtime.
        console: Where people reach the console, and what signs links; without the former there are none.
        clock: The time.
    """

    def __init__(self, audience: Audience, bus: Bus, console: ConsoleSettings, clock: Clock | None = None) -> None:
        self._audience = audience
        self._app = audience.app
        self._bus = bus
        self._clock = clock or bus.clock
        self._url = console.public_url.rstrip("/")
        self._seals = link_seals(console, bus.seals)
        self._targets = {each.target.id: each.target for each in audience.subscriptions}
        self._outbox = Outbox(bus.registry, audience.app)
        self._statuses = ListedStatuses(bus.checkpoints, self._human_events)
        self._delivery = Delivery()
        self._owner = uuid4().hex
        self._lead: tuple[float, int] | None = None
        """When the lead ends, and the version of its registration; None: another process leads."""
        self._seen = 0
        self._since = self._clock.time() - RECENT
        """Plans that have not changed since then are no news."""
        self._pending: dict[str, Entry] = {}
        self._known: LRUCache[str, None] = LRUCache(10_000)
        """Ids of notifications that were stored, so that further commits of their plans cost nothing."""
        self._listed = float("-inf")
        """When they were read from the store."""
        self._trying: dict[str, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to notify; without targets there is nothing to do."""
        if self._task is None and self._targets:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop at once; what is being tried may be sent again by another process."""
        tasks = [*self._trying.values(), *filter(None, (self._task,))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._task = None
        await self._delivery.close()

    async def _run(self) -> None:
        while True:
            try:
                await self.step()
            except BusError as error:
                logger.warning("notifications wait: %s", error)
            except Exception:
                logger.exception("notifications have failed")
            await self._clock.sleep(PAUSE)

    async def step(self) -> None:
        """Take or keep the lead, find causes, and begin to deliver what is due."""
        if not await self._leads():
            self._pending.clear()
            return
        await self._find()
        await self._list()
        self._try_due()

    # The lead.

    async def _leads(self) -> bool:
        now = self._clock.time()
        if self._lead is not None and now < self._lead[0] - LEAD_SECONDS / 2:
            return True
        kept = self._lead is not None
        stored, version = await self._bus.registry.read(LEAD, self._app)
        nobody = {"owner": "", "until": 0.0, "seen": 0, "since": self._since}
        record: dict[str, Any] = unpack(stored) if stored else nobody
        if record["owner"] != self._owner and now < record["until"]:
            self._lead = None
            return False
        if record["owner"] != self._owner:
            kept, self._seen, self._since = False, record["seen"], record["since"]
        if not await self._save(version):
            return False
        if not kept:
            self._pending, self._listed = {}, float("-inf")
        return True

    async def _save(self, version: int) -> bool:
        """Store the lead and what was read; False if another process leads."""
        until = self._clock.time() + LEAD_SECONDS
        record = {"owner": self._owner, "until": until, "seen": self._seen, "since": self._since}
        try:
            stored = await self._bus.registry.replace(LEAD, self._app, pack(record), version, None)
        except CommitConflict:
            self._lead = None
            return False
        self._lead = (until, stored)
        return True

    async def _list(self) -> None:
        """Read what is to be delivered, now and then: a process that has lost the lead may have left something."""
        now = self._clock.time()
        if now >= self._listed + LIST_SECONDS:
            for entry in await self._outbox.pending():
                if entry.id not in self._trying:
                    self._pending[entry.id] = entry
            self._listed = now

    # Causes.

    async def _find(self) -> None:
        read = 0
        plans = self._bus.checkpoints.committed_after(self._seen)
        async with aclosing(self._statuses.read_all(plans)) as commits:
            async for committed in commits:
                plan = committed.summary
                if plan.updated_at >= self._since and may_notify(plan) and self._audience.has(plan):
                    await self._note(committed)
                self._seen, read = committed.version, read + 1
                if read % SAVED_AFTER == 0 and not (self._lead and await self._save(self._lead[1])):
                    return
        if read % SAVED_AFTER and self._lead is not None:
            await self._save(self._lead[1])

    async def _note(self, committed: Committed) -> None:
        """Store the notifications of a plan that are new."""
        key = committed.correlation_id
        try:
            checkpoint = await self._bus.checkpoints.load(key)
            if checkpoint is None:
                return
            state = await plan_fields(self._bus.checkpoints, checkpoint)
            notices = notices_of(key, state, [unpack(each) for each in checkpoint.timeline], self._audience.people)
        except BusUnavailable:
            raise
        except Exception:  # one plan must not keep the others from being told
            logger.exception("a plan cannot be read, and notifies nobody", extra={"correlation_id": key})
            return
        now = self._clock.time()
        for notice in notices:
            for target in self._audience.targets_of(notice):
                entry = Entry(self._app, target.id, notice, now, now)
                if entry.id in self._known:
                    continue
                if (stored := await self._outbox.add(entry)) is not None:
                    self._pending[entry.id] = stored
                    if sum(each.target == target.id for each in self._pending.values()) > MOST_PENDING:
                        await self._give_up(stored, f"{MOST_PENDING} others wait for it")
                self._known[entry.id] = None

    async def _human_events(self) -> Collection[str]:
        return self._audience.people

    # Delivery.

    def _try_due(self) -> None:
        now, loop = self._clock.time(), asyncio.get_running_loop()
        tried = Counter(self._pending[name].target for name in self._trying if name in self._pending)
        due = [each for each in self._pending.values() if each.due <= now and each.id not in self._trying]
        for entry in sorted(due, key=lambda each: each.due):
            if tried[entry.target] < AT_ONCE:
                tried[entry.target] += 1
                self._trying[entry.id] = loop.create_task(self._try(entry))

    async def _try(self, entry: Entry) -> None:
        try:
            await self._attempt(entry)
        except BusError as error:
            logger.warning("a notification waits: %s", error)
        except Exception:
            logger.exception("a notification has failed")
        finally:
            self._trying.pop(entry.id, None)

    async def _attempt(self, entry: Entry) -> None:
        now = self._clock.time()
        held = await self._outbox.move(entry, now + TRY_SECONDS, attempt=True)
        if held is None:
            self._pending.pop(entry.id, None)
            return
        self._pending[entry.id] = held
        target = self._targets.get(entry.target)
        try:
            if target is None:
                raise Undelivered("the app has no such target any more")
            if await self._is_moot(entry):
                await self._settle(held)
                return
            await self._delivery.send(
                target,
                entry.notice,
                message_id=entry.id,
                link=await self._link(entry, target),
                created=entry.created,
                now=self._clock.time(),
            )
        except BusUnavailable:
            raise
        except PlancastError as error:
            reason, wait = redact(str(error)), getattr(error, "retry_after", 0.0)
        except Exception as error:
            logger.exception("a notification cannot be made", extra={"plan_id": entry.notice.plan_id})
            reason, wait = type(error).__name__, 0.0
        else:
            await self._settle(held)
            return
        now = self._clock.time()
        if now >= entry.created + GIVE_UP_SECONDS:
            await self._give_up(held, reason)
            return
        pause = max(wait, min(FIRST_RETRY * 2 ** min(entry.attempts, 20), LONGEST_RETRY))
        logger.info("a notification was not taken: %s", reason, extra={"plan_id": entry.notice.plan_id})
        moved = await self._outbox.move(held, now + pause, reason=reason)
        if moved is None:
            self._pending.pop(entry.id, None)
        else:
            self._pending[entry.id] = moved

    async def _settle(self, entry: Entry) -> None:
        await self._outbox.settle(entry)
        self._pending.pop(entry.id, None)

    async def _is_moot(self, entry: Entry) -> bool:
        """True if what is asked was answered meanwhile."""
        if entry.notice.kind != "approval":
            return False
        checkpoint = await self._bus.checkpoints.load(entry.notice.key)
        if checkpoint is None:
            return True
        approval = approval_of(await plan_fields(self._bus.checkpoints, checkpoint), self._audience.people)
        return approval is None or approval.request_id != entry.notice.request_id

    async def _link(self, entry: Entry, target: Target) -> str:
        """The URL by which the target answers; empty if there is nothing that a link can answer."""
        notice = entry.notice
        if not self._url or notice.kind != "approval" or notice.request_id is None:
            return ""
        await self._seals.prepare()
        ends = min(notice.due or float("inf"), entry.created + LIFETIME)
        token = Link(notice.key, notice.request_id, f"link:{target.name}", int(ends)).token(self._seals)
        return f"{self._url}{PATH}{token}" if len(token) <= LONGEST else ""

    async def _give_up(self, entry: Entry, reason: str) -> None:
        """Put a notification among the dead letters, with the reason."""
        notice, target = entry.notice, self._targets.get(entry.target)
        name = target.name if target is not None else "a target that the app has no more"
        event = EventEnvelope(
            id=f"{UNDELIVERED}:{entry.id}",
            source=self._app,
            type=UNDELIVERED,
            topic=EventTopic.NOTIFICATION_EVENTS,
            data={"target": name, "kind": notice.kind, "text": notice.text, "attempts": entry.attempts},
            correlation_id=notice.key,
            plan_id=notice.plan_id,
            tenant_id=notice.tenant_id or None,
        )
        payload, content_type = self._bus.encode(event)
        subject = self._bus.subjects.stored(event.topic, 0, encode_token(notice.key), event.type)
        number = int(entry.id[:12], 16)
        letter = Letter(subject, payload, content_type, event.id, "notifications", number, entry.attempts, "")
        detail = f"the notification of plan {notice.plan_id[:200]} ({notice.kind}) to {name} was given up: {reason}"
        await self._bus.dead_letters.put(letter, "undelivered", detail)
        logger.warning("%s", detail, extra={"plan_id": notice.plan_id})
        await self._settle(entry)
