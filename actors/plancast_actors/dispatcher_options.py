"""How a dispatcher works, and which durable consumers it reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from plancast.app import App
from plancast.settings import Settings
from plancast_bus.events.envelope import EventTopic
from plancast_bus.ports.bus import ConsumerSpec
from plancast_bus.subjects import Subjects, name_of_type
from plancast_bus.topics import Source

FACTS = (
    EventTopic.BUSINESS_FACTS,
    EventTopic.BILLING_EVENTS,
    EventTopic.NOTIFICATION_EVENTS,
    EventTopic.TASK_EVENTS,
)
CONSUMER_PREFIX = "plans-"
"""Names of the dispatchers' durable consumers begin so."""


@dataclass(frozen=True)
class DispatcherOptions:
    """How a dispatcher works."""

    index: int = 0
    """Its number, from 0."""
    count: int = 1
    """How many there are; each takes its share of the shards."""
    shards: int = 16
    max_outstanding: int = 4096
    """Events handed over, not yet committed and not parked."""
    max_parked: int = 100_000
    """Events whose turns wait for a model; beyond it no goal is handed over."""
    max_waiting_goals: int = 16_384
    """Goals that were read and wait here for their turn."""
    max_bytes: int = 268_435_456
    """Payloads of what was read and is not parked, about."""
    max_batch: int = 512
    """Events in one call to a host."""
    ack_wait: float = 30.0
    """Seconds after which an event is delivered again that its dispatcher does not keep alive: one that has hung. What
    a lost dispatcher had in hand, the next one has at once."""
    goals: tuple[str, ...] = ()
    """Goal event types of all planners."""
    dedicated_goals: frozenset[str] = frozenset()
    """Goals whose plans have a host of their own."""
    max_losses: int = 4
    """Losses of its host in a row in which an event may be in hand."""
    stall_seconds: float = 0.0
    """Seconds after which a host that makes no progress ends itself; one that does not answer for a multiple of them
    is ended. 0 never."""

    @classmethod
    def of(cls, app: App, settings: Settings) -> DispatcherOptions:
        """The options of the first dispatcher of an app."""
        default = settings.hosts.placement
        asked = settings.dispatchers
        return cls(
            count=asked.count,
            shards=settings.bus.shards,
            max_outstanding=asked.max_outstanding,
            max_parked=asked.max_parked,
            max_waiting_goals=asked.max_waiting_goals,
            max_bytes=asked.max_bytes,
            max_batch=asked.max_batch,
            ack_wait=asked.ack_wait,
            goals=tuple(sorted(app.goals)),
            dedicated_goals=frozenset(
                goal for goal, planner in app.goals.items() if (planner.config.placement or default) == "dedicated"
            ),
            max_losses=settings.hosts.max_losses,
            stall_seconds=settings.hosts.stall_seconds,
        )

    @property
    def name(self) -> str:
        """Unique among the dispatchers."""
        return f"dispatcher-{self.index}"

    @property
    def own_shards(self) -> list[int]:
        """The shards that this dispatcher reads."""
        return list(range(self.index, self.shards, self.count))


def consumer_specs(subjects: Subjects, options: DispatcherOptions) -> list[ConsumerSpec]:
    """The durable consumers of a dispatcher.

    Facts and timers are shared by all dispatchers, so that their position outlives a change of the number.
    """
    shards: list[int | str] = ["*"] if options.count == 1 else list(options.own_shards)
    suffix = "" if options.count == 1 else f"-{options.index}-of-{options.count}"

    def spec(name: str, source: Source, filters: Iterable[str], readers: int = 1) -> ConsumerSpec:
        # Twice what a dispatcher holds: its successor reads on while what it had in hand is not yet given up.
        in_hand = 2 * options.max_outstanding + options.max_parked + 2 * options.max_waiting_goals
        return ConsumerSpec(
            name=f"{CONSUMER_PREFIX}{name}",
            source=source,
            filters=tuple(filters),
            ack_wait=options.ack_wait,
            max_ack_pending=max(20_000, readers * in_hand),
            reclaim=True,
        )

    def spec_of(goal: str) -> ConsumerSpec:
        filters = (subjects.stored(EventTopic.ACTION_REQUESTS, shard, "*", goal) for shard in shards)
        return spec(f"goals-{name_of_type(goal)}{suffix}", "requests", filters)

    # As few filters as can be: with several, the server looks through all subjects of a block for each message.
    return [
        spec("results" + suffix, "results", (subjects.stored("*", shard) for shard in shards)),
        spec("facts", "facts", (subjects.stored(topic) for topic in FACTS), options.count),
        spec("timers", "timers", (subjects.timers_due(),), options.count),
        *map(spec_of, options.goals),
    ]
