"""Options of a dispatcher, and the durable consumers that it reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from plancast.app import App
from plancast.settings import Settings
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import Bus, ConsumerSpec
from plancast_bus.subjects import Subjects, name_of_type
from plancast_bus.topics import TOPICS, Source

SYSTEM = EventTopic.SYSTEM_EVENTS
FACTS = tuple(topic for topic in TOPICS["facts"] if topic != SYSTEM)
CONSUMER_PREFIX = "plans-"
"""Prefix of the names of the dispatchers' durable consumers."""


@dataclass(frozen=True)
class DispatcherOptions:
    """Options of a dispatcher."""

    index: int = 0
    """Index of this dispatcher, from 0."""
    count: int = 1
    """Number of dispatchers, among which the shards are divided."""
    shards: int = 16
    max_outstanding: int = 4096
    """Events dispatched, not yet committed and not parked."""
    max_parked: int = 100_000
    """Events whose turns wait for a model; beyond it no goal is dispatched."""
    max_waiting_goals: int = 16_384
    """Goals that were read and not dispatched."""
    max_bytes: int = 268_435_456
    """Approximate size of the payloads that were read and are not parked."""
    max_batch: int = 512
    """Events in one call to a host."""
    ack_wait: float = 30.0
    """Seconds after which an event is redelivered if its dispatcher hangs. After a crash, the next dispatcher gets the
    events in flight at once."""
    goals: tuple[str, ...] = ()
    """Goal event types of all planners."""
    dedicated_goals: frozenset[str] = frozenset()
    """Goals whose plans have dedicated hosts."""
    listened: frozenset[tuple[str, str | None]] = frozenset()
    """Event types (``*``: any) and topics (None: any) of event handlers."""
    tasks: tuple[ConsumerSpec, ...] = ()
    """Consumers of workers, some of whose logins may not create any."""
    max_losses: int = 4
    """Crashes of its host in a row after which no code is run for an event any more."""
    stall_seconds: float = 0.0
    """Seconds without progress after which a host ends itself; one that does not answer for a multiple of them is
    killed. 0 never."""

    @classmethod
    def of(cls, app: App, settings: Settings) -> DispatcherOptions:
        """The options of the first dispatcher of an app."""
        default, limits = settings.hosts.placement, settings.dispatchers
        return cls(
            count=limits.count,
            shards=settings.bus.shards,
            max_outstanding=limits.max_outstanding,
            max_parked=limits.max_parked,
            max_waiting_goals=limits.max_waiting_goals,
            max_bytes=limits.max_bytes,
            max_batch=limits.max_batch,
            ack_wait=limits.ack_wait,
            goals=tuple(sorted(app.goals)),
            dedicated_goals=frozenset(
                goal for goal, planner in app.goals.items() if (planner.config.placement or default) == "dedicated"
            ),
            listened=frozenset(each for planner in app.planners for each in planner.listens_to),
            max_losses=settings.hosts.max_losses,
            stall_seconds=settings.hosts.stall_seconds,
        )

    @property
    def name(self) -> str:
        """The dispatcher's name, unique in the deployment."""
        return f"dispatcher-{self.index}"

    @property
    def stands_by(self) -> bool:
        """True if it has no shards: its index is beyond the number of dispatchers."""
        return self.index >= self.count

    @property
    def own_shards(self) -> list[int]:
        return [] if self.stands_by else list(range(self.index, self.shards, self.count))

    @property
    def system_events(self) -> list[str]:
        """Types of system events that event handlers listen to; ``>`` alone stands for all."""
        heard = {event_type for event_type, topic in self.listened if topic in (None, SYSTEM)}
        return [">"] if "*" in heard else sorted(heard)

    def hears_response(self, topic: str, event_type: str) -> bool:
        """True if an event handler is registered for final responses of this topic and type."""
        return not self.listened.isdisjoint(((event_type, topic), ("*", topic)))


async def delete_other_consumers(bus: Bus, options: DispatcherOptions) -> None:
    """Delete consumers of another number of dispatchers, or of other goals: those of a work queue may not overlap."""
    every = [replace(options, index=index) for index in range(options.count)]
    wanted = {spec.name for each in every for spec in consumer_specs(bus.subjects, each)}
    streams = (await bus.health())["streams"]
    sources: tuple[Source, ...] = ("results", "requests")
    for source in sources:
        for name in streams[f"{bus.subjects.prefix.upper()}_{source.upper()}"]["consumers"]:
            if name.startswith(CONSUMER_PREFIX) and name not in wanted:
                await bus.delete_consumer(source, name)


def consumer_specs(subjects: Subjects, options: DispatcherOptions) -> list[ConsumerSpec]:
    """The durable consumers of a dispatcher.

    Those of facts and timers are shared by all dispatchers, so that they outlast a change of their number.
    """
    shards: list[int | str] = ["*"] if options.count == 1 else list(options.own_shards)
    suffix = "" if options.count == 1 else f"-{options.index}-of-{options.count}"

    def spec(name: str, source: Source, filters: Iterable[str], readers: int = 1) -> ConsumerSpec:
        # Twice what a dispatcher holds: its successor reads on while the old one's events are not yet released.
        pending = 2 * options.max_outstanding + options.max_parked + 2 * options.max_waiting_goals
        return ConsumerSpec(
            name=f"{CONSUMER_PREFIX}{name}",
            source=source,
            filters=tuple(filters),
            ack_wait=options.ack_wait,
            max_ack_pending=max(20_000, readers * pending),
            reclaim=True,
        )

    def spec_of(goal: str) -> ConsumerSpec:
        filters = (subjects.stored(EventTopic.ACTION_REQUESTS, shard, "*", goal) for shard in shards)
        return spec(f"goals-{name_of_type(goal)}{suffix}", "requests", filters)

    # System events are read if they are listened to, from then on.
    system = tuple(subjects.stored(SYSTEM, "*", "*", event_type) for event_type in options.system_events)
    # One filter each if possible: with several, the server scans all subjects of a block for each message.
    return [
        spec("results" + suffix, "results", (subjects.stored("*", shard) for shard in shards)),
        spec("facts", "facts", (subjects.stored(topic) for topic in FACTS), options.count),
        spec("timers", "timers", (subjects.timers_due(),), options.count),
        *([spec("system", "facts", system, options.count)] if system else []),
        *map(spec_of, options.goals),
    ]
