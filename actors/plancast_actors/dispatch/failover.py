"""Failover: watches the dispatchers that send events to a host, and stands in for one that is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from plancast_actors.dispatch.directory import RayDirectory
from plancast_actors.dispatch.dispatcher import Dispatcher
from plancast_actors.dispatch.terms import Introduction, Terms
from plancast_actors.liveness.beats import wait_for_silence
from plancast_actors.ray.process import Blueprint, names_of, open_bus
from plancast_actors.rpc.client import Connection, Endpoint
from plancast_actors.scale import Scale, read_record
from plancast_bus.errors import BusError, BusUnavailable
from plancast_bus.ports.bus import Bus
from plancast_bus.retry import retrying

logger = logging.getLogger(__name__)
LOOK_SECONDS = 1.0
"""Pause between two looks at whether a stand-in is still wanted."""
HAND_BACK_SECONDS = 0.5
"""Longest wait for events in flight before the dispatcher reads again; those that are left are redelivered to it."""
INTRODUCTION_SECONDS = 5.0
"""Seconds in which a host that stands in introduces itself; one that does not has ended meanwhile."""
RECLAIM_LOOKS = 35
"""Looks after which the pulls of a frozen dispatcher have expired. Before, the server sends it events, too."""
RECLAIMED = 1000
"""Events in flight that are redelivered for each look."""


@dataclass(eq=False)
class Watch:
    """One term of a dispatcher, and the task that waits for its end and stands in."""

    introduction: Introduction
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to end the stand-in."""
    is_standing: bool = False
    """True while the stand-in is there."""
    task: asyncio.Task[None] | None = None


class Failover:
    """Watches dispatchers, and has a dispatcher in this process stand in for one that is lost until it is back.

    Of all hosts that notice the loss, the one that begins the next term stands in. It introduces itself to the others,
    which stand in for it in turn.

    Args:
        blueprint: The host's.
        name: The host's.
        bus: The host's connection.
        beats: Where a thread of this process answers, so that others watch it; None: it stands in for no dispatcher.
    """

    def __init__(self, blueprint: Blueprint, name: str, bus: Bus, beats: Endpoint | None) -> None:
        self._blueprint = blueprint
        self._name = name
        self._bus = bus
        self._beats = beats
        self._watches: dict[int, Watch] = {}
        """By the index of the dispatcher."""
        self._tasks: dict[asyncio.Task[None], Watch] = {}
        """Those that have not ended, also of earlier terms."""
        self._stood_in = 0

    def status(self) -> dict[str, Any]:
        """Report the dispatchers for which this process stands in, and how often it has begun to."""
        names = {watch.introduction.options.name for watch in self._tasks.values() if watch.is_standing}
        return {"stands_in_for": ", ".join(sorted(names)), "stood_in": self._stood_in}

    def attend(self, introduction: Introduction) -> None:
        """Watch a dispatcher from now on; an introduction of an earlier term, or of the same one, changes nothing."""
        index = introduction.options.index
        before = self._watches.get(index)
        if before is not None and before.introduction.term >= introduction.term:
            return
        if introduction.actor == self._name or self._beats is None:
            return
        self._end([] if before is None else [before])
        watch = self._watches[index] = Watch(introduction)
        task = watch.task = asyncio.get_running_loop().create_task(self._watch(watch))
        self._tasks[task] = watch
        task.add_done_callback(self._tasks.pop)

    async def release(self, dispatcher: int) -> None:
        """Stand in for a dispatcher no longer, and wait until its events in flight are settled or given back."""
        standing = [each for each in self._tasks.values() if each.is_standing]
        await self._ended(each for each in standing if each.introduction.options.index == dispatcher)

    async def stop(self) -> None:
        """Watch no dispatcher, and stand in for none."""
        self._watches.clear()
        await self._ended(list(self._tasks.values()))

    async def _ended(self, watches: Iterable[Watch]) -> None:
        tasks = self._end(watches)
        if tasks:
            await asyncio.wait(tasks)

    @staticmethod
    def _end(watches: Iterable[Watch]) -> list[asyncio.Task[None]]:
        tasks = []
        for watch in watches:
            assert watch.task is not None
            if watch.is_standing:
                watch.over.set()
            else:
                watch.task.cancel()
            tasks.append(watch.task)
        return tasks

    async def _watch(self, watch: Watch) -> None:
        introduction = watch.introduction
        actor = introduction.actor
        try:
            beats = await Connection(introduction.beats).connect()
        except OSError as error:  # a firewall must not make it count as lost
            logger.warning("beats of %s cannot be heard, it is not stood in for: %s", actor, error)
            return
        try:
            silent = await wait_for_silence(beats)
        finally:
            beats.abort()
        term = await self._succeed(introduction)
        if term is None:
            return
        name, why = introduction.options.name, "answers no beats" if silent else "has ended"
        logger.warning("%s %s: this process stands in for %s", actor, why, name)
        watch.is_standing = True
        self._stood_in += 1
        try:
            await self._stand_in(replace(introduction, term=term), watch.over)
        except Exception:
            logger.exception("%s is stood in for no more", name)
        finally:
            watch.is_standing = False

    async def _succeed(self, lost: Introduction) -> int | None:
        """Begin the next term; None if the dispatcher is back, or had ended its own."""
        terms, newest = self._terms(lost, self._bus), lost.term
        while True:
            term = await retrying(partial(terms.succeed, newest), logger, retried=BusUnavailable)
            if term is not None:
                return term
            newest, actor = await retrying(terms.newest, logger, retried=BusUnavailable)
            if actor in ("", lost.options.name):
                return None
            await asyncio.sleep(INTRODUCTION_SECONDS)  # the introduction of that host ends this

    async def _stand_in(self, lost: Introduction, over: asyncio.Event) -> None:
        settings = self._blueprint.settings
        bus = await open_bus(settings)
        try:
            scale = Scale.in_force(await read_record(bus, settings.ray.namespace))
            blueprint = self._blueprint.scaled(scale)
            options = replace(lost.options, count=blueprint.options.count)
            if options != lost.options or options.stands_by:
                return  # shards are divided anew
            directory = RayDirectory(blueprint, settings)
            assert self._beats is not None
            directory.introduce(Introduction(options, lost.term, self._name, self._beats))
            dispatcher = Dispatcher(bus, directory, options, directory)
            await dispatcher.start()
            try:
                await self._until_over(dispatcher, lost, scale, over)
                await dispatcher.drain(HAND_BACK_SECONDS, parked=False)
            finally:
                await dispatcher.stop()
                directory.close()
        finally:
            await bus.close()
        logger.info("%s is stood in for no more", options.name)

    async def _until_over(self, dispatcher: Dispatcher, lost: Introduction, scale: Scale, over: asyncio.Event) -> None:
        """Wait until the dispatcher is back, is not to be there any more, or the numbers of actors have changed."""
        terms, looks = self._terms(lost, dispatcher.bus), 0
        namespace, name = self._blueprint.settings.ray.namespace, lost.options.name
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await over.wait()
            looks += 1
            if looks <= RECLAIM_LOOKS and looks % (1 + len(dispatcher.in_flight) // RECLAIMED) == 0:
                dispatcher.reclaim()
            with contextlib.suppress(BusError):
                if (await terms.newest())[0] != lost.term:
                    return
                if Scale.in_force(await read_record(dispatcher.bus, namespace)) != scale:
                    return
            with contextlib.suppress(Exception):  # while Ray does not answer, the dispatcher cannot come back either
                if name not in await asyncio.to_thread(names_of, namespace, [name]):
                    return

    def _terms(self, introduction: Introduction, bus: Bus) -> Terms:
        return Terms(bus.registry, self._blueprint.settings.ray.namespace, introduction.options.name, self._name)
