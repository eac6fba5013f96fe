"""Definitions of all metrics. ``docs/telemetry.md`` documents them.

Names follow Prometheus: ``_total`` for counters, ``_seconds`` and ``_bytes`` for units; Ray adds the prefix ``ray_``.
Labels have few values: names of actors, consumers and planners, never ids of plans, events or tenants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
COMMON = ("deployment", "role", "actor")
"""Labels of every metric: the Ray namespace, the actor's role, and its name (``dedicated`` for all dedicated hosts,
whose names contain plan ids)."""
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
PASSIVATIONS = _counter("passivations", "Plan actors that were dropped from memory because they were idle.")
COMMITS_REFUSED = _counter("commits_refused", "Commits that were refused: somebody else had committed meanwhile.")
DECISIONS = _counter(
    "decisions",
    "Decisions that were committed, by planner, by the model that was asked (none: empty), and by action.",
    "planner", "model", "action",
)  # fmt: skip
PUT_ASIDE = _counter("dead_letters_put", "Events that were put aside as dead letters, by reason.", "reason")

# Events, as dispatchers see them.

EVENTS_READ = _counter("events_read", "Events that were read from the streams.")
EVENTS_ACKNOWLEDGED = _counter("events_acknowledged", "Events that were acknowledged: what they did is durable.")
EVENTS_REDELIVERED = _counter("events_redelivered", "Deliveries of an event, or a task, after its first one.")
EVENTS_RETRIED = _counter("events_retried", "Events that were given back to be delivered again.")
EVENTS_PUT_OFF = _counter("events_put_off", "Goals that were given back because their tenant has too many in line.")
EVENTS_WAITING = _gauge("events_waiting", "Events that wait in a dispatcher for room.")
EVENTS_OUTSTANDING = _gauge("events_outstanding", "Events that hosts have in hand, those parked aside.")
EVENTS_PARKED = _gauge("events_parked", "Events in hand whose turns wait for a model.")
EVENTS_SUSPECTED = _gauge("events_suspected", "Events that are tried one by one: they may be what ends their host.")
HOSTS_UNREACHABLE = _gauge("hosts_unreachable", "Plan hosts that a dispatcher cannot reach at the moment.")
STAGE = _histogram(
    "stage",
    "Latency by stage, of one event in 64. Of a dispatcher: stored (from its storing to its reading), waiting (to its "
    "handing over), host (to the host's report, unless a model was asked), whole (from its storing to its "
    "acknowledgement). Of a host: turn, decided_turn (a model was asked in it), commit, emit. Of a worker: task.",
    "stage",
)  # fmt: skip

# Streams and plans at rest; reported by the first dispatcher.

CONSUMER_PENDING = _gauge("consumer_pending", "Messages that a durable consumer has still to read.", "consumer")
CONSUMER_UNACKNOWLEDGED = _gauge("consumer_unacknowledged", "Messages in hand of a durable consumer.", "consumer")
CONSUMER_REDELIVERED = _gauge("consumer_redelivered", "Messages in hand that were delivered before.", "consumer")
STREAM_MESSAGES = _gauge("stream_messages", "Messages in a stream.", "stream")
STREAM_BYTES = _gauge("stream_bytes", "Size of a stream.", "stream")
STREAM_LIMIT = _gauge(
    "stream_limit_bytes", "Size at which a stream refuses publishers; none where it has no limit.", "stream"
)
DEAD_LETTERS = _gauge("dead_letters", "Dead letters that are kept.")
PLANS_STALLED = _gauge("plans_stalled", "Plans that stand still, waiting for nothing with a name.")
STALLS = _counter("stalls", "Plans that were found to stand still, by what they stand still for.", "kind")

# Tasks, as workers see them.

TASKS = _counter("tasks", "Tasks that are settled, by outcome: answered, failed, retried, put_aside.", "outcome")
TASKS_RUNNING = _gauge("tasks_running", "Tasks in hand of a worker process.")

# Models.

MODEL_ANSWERS = _counter("model_answers", "Answers of models that were paid for.", "model")
MODEL_KEPT = _counter("model_answers_kept", "Requests that were given an answer already paid for.", "model")
MODEL_FAILURES = _counter("model_failures", "Requests that no model has answered.", "model")
MODEL_RETRIES = _counter("model_retries", "Calls to models beyond the first one of each answer.", "model")
MODEL_TOKENS = _counter(
    "model_tokens", "Tokens of answers that were paid for, by kind: prompt, completion.", "model", "kind"
)
MODEL_COST = _counter("model_cost_dollars", "US dollars that answers took, as far as prices are known.", "model")
MODEL_SECONDS = _histogram("model_answer", "Time of an answer that was paid for, retries included.", "model")
REASONER_WAITING = _gauge("reasoner_waiting", "Requests that wait in the pool for a reasoner or for a rate limit.")
REASONER_OUTSTANDING = _gauge("reasoner_outstanding", "Requests that reasoners have in hand.")
REASONERS = _gauge("reasoners", "Reasoners that are there.")
REASONERS_LOST = _counter("reasoners_lost", "Reasoners that have died.")

# Processes.

PROCESS_CPU = _counter("process_cpu_seconds", "Processor time of the actor's process.")
PROCESS_MEMORY = _gauge("process_resident_bytes", "Resident memory of the actor's process.")
LOOP_LAG = _gauge("event_loop_lag_seconds", "By how much the last report of metrics came too late: the loop was busy.")


def table() -> str:
    """Render all metrics as the table of ``docs/telemetry.md``: ``python -m plancast_actors.telemetry.metrics``."""
    lines = ["| metric | kind | labels | what it says |", "|---|---|---|---|"]
    for metric in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.exported}` | {metric.kind} | {labels} | {metric.description} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())


OTHERS = "(others)"
