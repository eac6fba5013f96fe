"""Definitions of all metrics. ``docs/telemetry.md`` documents them.

Names follow Prometheus: ``_total`` for counters, ``_seconds`` and ``_bytes`` for units; Ray adds the prefix ``ray_``.
Labels have few values: names of actors, consumers and planners, never ids of plans, events or tenants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
COMMON = ("deployment", "role", "actor")
"""Labels of every metric: the Ray namespace, the actor's role, and its name (``dedicated`` for all dedicated hosts)."""
SECONDS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
"""Bucket boundaries of the histograms."""


@dataclass(frozen=True)
class Metric:
    """Definition of a metric."""

    name: str
    kind: Kind
    description: str
    labels: tuple[str, ...] = ()
    """In addition to :data:`COMMON`."""
    boundaries: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets."""

    @property
    def exported(self) -> str:
        """The name in Prometheus."""
        return f"ray_{self.name}"


METRICS: dict[str, Metric] = {}
"""All metrics, by name."""


def _add(kind: Kind, name: str, description: str, labels: tuple[str, ...] = ()) -> Metric:
    boundaries = SECONDS if kind == "histogram" else ()
    metric = METRICS[name] = Metric(name, kind, description, labels, boundaries)
    return metric


def _counter(name: str, description: str, *labels: str) -> Metric:
    return _add("counter", f"plancast_{name}_total", description, labels)


def _gauge(name: str, description: str, *labels: str) -> Metric:
    return _add("gauge", f"plancast_{name}", description, labels)


def _histogram(name: str, description: str, *labels: str) -> Metric:
    return _add("histogram", f"plancast_{name}_seconds", description, labels)


# Plans, as their hosts see them.

PLANS_BEGUN = _counter("plans_begun", "Plans whose first turn was committed.")
PLANS_ENDED = _counter("plans_ended", "Plans that have ended, by status: completed, failed, cancelled.", "status")
TURNS = _counter("turns", "Turns that were committed.")
PLANS_LIVE = _gauge("plans_live", "Plan actors in memory.")
PLANS_PARKED = _gauge("plans_parked", "Plans whose turn waits for a model.")
ACTIVATIONS = _counter("activations", "Plans that were loaded from their checkpoints.")
PASSIVATIONS = _counter("passivations", "Idle plan actors that were evicted from memory.")
COMMITS_REFUSED = _counter("commits_refused", "Commits that were refused because of a concurrent commit.")
EVENTS_UNWANTED = _counter("events_unwanted", "Events of a plan that no state and no request of it waited for.")
DECISIONS = _counter(
    "decisions",
    "Committed decisions, by planner, model (empty without one) and action.",
    "planner", "model", "action",
)  # fmt: skip
PUT_ASIDE = _counter("dead_letters_put", "Events that became dead letters, by reason.", "reason")

# Events, as dispatchers see them.

EVENTS_READ = _counter("events_read", "Events that were read from the streams.")
EVENTS_ACKNOWLEDGED = _counter(
    "events_acknowledged", "Events that were acknowledged because their effects are durable."
)
EVENTS_REDELIVERED = _counter("events_redelivered", "Redeliveries of events and tasks.")
EVENTS_RETRIED = _counter("events_retried", "Events that were returned to their stream for a retry.")
EVENTS_PUT_OFF = _counter(
    "events_put_off", "Goals that were returned to their stream because their tenant has too many in flight."
)
EVENTS_WAITING = _gauge("events_waiting", "Events that wait in a dispatcher for capacity.")
EVENTS_OUTSTANDING = _gauge("events_outstanding", "Events in flight in hosts, parked ones excluded.")
EVENTS_PARKED = _gauge("events_parked", "Events in flight whose turns wait for a model.")
EVENTS_SHARE = _gauge(
    "events_share",
    "Share of a dispatcher's events of the last minutes, of one in 64, that the busiest plan or tenant has, by rank "
    "from 1; `plancast status --top` names them.",
    "kind",
    "rank",
)
EVENTS_SUSPECTED = _gauge("events_suspected", "Events that are delivered alone because they may crash their host.")
HOSTS_UNREACHABLE = _gauge("hosts_unreachable", "Plan hosts that a dispatcher cannot reach.")
STAGE = _histogram(
    "stage",
    "Latency by stage, of one event in 64. In a dispatcher: stored (from publication to reading), waiting (until sent "
    "to a host), host (until the host's outcome, without turns that ask a model), whole (from publication to "
    "acknowledgement). In a host: turn, decided_turn (with a model), commit, emit. In a worker: task.",
    "stage",
)  # fmt: skip

# Schedules.

SCHEDULES = _gauge("schedules", "Schedules; each dispatcher follows all of them.")
SCHEDULES_OVERDUE = _gauge("schedules_overdue_seconds", "Time since the schedule that is due first was due.")
FIRINGS = _counter(
    "firings", "Decided firings of schedules, by state: due, queued, skipped, missed, each once.", "state"
)
FIRING_LATENESS = _histogram("firing_lateness", "Time from when a firing was due until its goal was sent.")

# Streams and plans at rest; reported by the first dispatcher.

CONSUMER_PENDING = _gauge("consumer_pending", "Messages that a durable consumer has not read yet.", "consumer")
CONSUMER_UNACKNOWLEDGED = _gauge("consumer_unacknowledged", "Messages of a durable consumer in flight.", "consumer")
CONSUMER_REDELIVERED = _gauge("consumer_redelivered", "Messages in flight that were delivered before.", "consumer")
STREAM_MESSAGES = _gauge("stream_messages", "Messages in a stream.", "stream")
STREAM_BYTES = _gauge("stream_bytes", "Size of a stream.", "stream")
STREAM_LIMIT = _gauge(
    "stream_limit_bytes", "Size at which a stream refuses messages; absent without a limit.", "stream"
)
VOLUME_BYTES = _gauge("volume_bytes", "Size of all streams, without their other replicas.")
VOLUME_LIMIT = _gauge("volume_limit_bytes", "Size of the streams' volume (bus.volume_bytes); absent if unknown.")
DEAD_LETTERS = _gauge("dead_letters", "Stored dead letters.")
PLANS_STALLED = _gauge("plans_stalled", "Stalled plans, which make no progress and wait for nothing.")
STALLS = _counter("stalls", "Stalls that were found, by cause.", "kind")
PEOPLE_PLANS = _gauge(
    "people_plans",
    "Plans before people, by kind: waiting (for an approval or an input, as in lists), effects_unknown (with an effect "
    "that a person has to decide about, also of ended plans).",
    "kind",
)
PEOPLE_OLDEST = _gauge(
    "people_oldest_seconds", "Time since the last turn of the plan that is longest before people, by kind.", "kind"
)

# Dedicated hosts, as their pool sees them.

DEDICATED_HOSTS = _gauge("dedicated_hosts", "Dedicated hosts, by state: free, held, starting, leaving.", "state")
DEDICATED_MAX = _gauge("dedicated_hosts_max", "Maximum number of dedicated hosts (hosts.dedicated_max).")
DEDICATED_WAITING = _gauge("dedicated_waiting", "Plans that wait for a dedicated host.")
DEDICATED_GRANTED = _counter("dedicated_granted", "Dedicated hosts that were granted to plans.")
DEDICATED_DELAYED = _counter("dedicated_delayed", "Plans that were refused a dedicated host at first, and waited.")
DEDICATED_REPLACED = _counter("dedicated_replaced", "Processes of dedicated hosts that were replaced after a plan.")
DEDICATED_LOST = _counter("dedicated_lost", "Processes of dedicated hosts that have died.")
DEDICATED_FAILED = _counter("dedicated_failed_starts", "Starts of dedicated hosts that have failed.")

# Tasks, as workers see them.

TASKS = _counter(
    "tasks", "Settled tasks, by outcome: answered, failed, retried, put_aside (dead letters), cancelled.", "outcome"
)
TASKS_RUNNING = _gauge("tasks_running", "Tasks in flight.")

# Models.

MODEL_ANSWERS = _counter("model_answers", "Replies of models that were paid for.", "model")
MODEL_KEPT = _counter("model_answers_kept", "Requests that got a reply already paid for.", "model")
MODEL_FAILURES = _counter("model_failures", "Requests that no model has answered.", "model")
MODEL_RETRIES = _counter("model_retries", "Calls to models beyond the first one of each request.", "model")
MODEL_TOKENS = _counter(
    "model_tokens", "Tokens of replies that were paid for, by kind: prompt, completion.", "model", "kind"
)
MODEL_CACHED_TOKENS = _counter(
    "model_cached_tokens", "Those of the prompts' tokens that came from a provider's cache.", "model"
)
MODEL_COST = _counter("model_cost_dollars", "Cost of replies in US dollars, as far as prices are known.", "model")
MODEL_SECONDS = _histogram("model_answer", "Time to a reply that was paid for, retries included.", "model")
REASONER_WAITING = _gauge("reasoner_waiting", "Requests that wait in the pool for a reasoner or for a rate limit.")
REASONER_OUTSTANDING = _gauge("reasoner_outstanding", "Requests in flight in reasoners.")
REASONERS = _gauge("reasoners", "Running reasoners.")
REASONERS_MAX = _gauge("reasoners_max", "Maximum number of reasoners (reasoners.max).")
REASONERS_LOST = _counter("reasoners_lost", "Reasoners that have died.")

# Processes.

PROCESS_CPU = _counter("process_cpu_seconds", "Processor time of the actor's process.")
PROCESS_MEMORY = _gauge("process_resident_bytes", "Resident memory of the actor's process.")
LOOP_LAG = _gauge("event_loop_lag_seconds", "Delay of the last metrics report, because the event loop was busy.")


def table() -> str:
    """Render all metrics as the table of ``docs/telemetry.md``: ``python -m plancast_actors.telemetry.metrics``."""
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.exported}` | {metric.kind} | {labels} | {metric.description} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())


OTHERS = "(others)"
