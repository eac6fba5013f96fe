"""Settings: read once, at the edge, from ``PLANCAST_`` environment variables; handed in everywhere else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from plancast_bus.settings import BusSettings, NatsSettings
from plancast_bus.subjects import check_event_type


class RaySettings(BaseModel):
    """Where Ray is."""

    address: str = ""
    """Address of a Ray cluster; empty takes ``RAY_ADDRESS`` or starts Ray on this machine."""
    namespace: str = "plancast"
    """Ray namespace of all actors."""
    auth_token_path: Path | None = None
    """File with the token that the cluster at `address` asks for; empty takes what Ray itself finds (``RAY_AUTH_MODE``,
    ``RAY_AUTH_TOKEN``, ``RAY_AUTH_TOKEN_PATH``). A Ray that ``run`` starts has a token of its own."""


class HostSettings(BaseModel):
    """Plan hosts: the Ray actors that plan actors live in."""

    count: int = Field(0, ge=0)
    """Shared hosts; 0 takes one for each core but one, at least one."""
    cpus: float = Field(0.0, ge=0)
    """Share of a core that each host asks Ray for; 0 lets Ray place them anywhere."""
    placement: Literal["shared", "dedicated"] = "shared"
    """Where plans live unless their planner says otherwise."""
    max_live_plans: int = Field(50_000, ge=1)
    """Plan actors that a host keeps in memory; the least recently used is passivated first."""
    idle_seconds: float = Field(300.0, gt=0)
    """Seconds without an event after which a plan actor is passivated."""
    dedicated_idle_seconds: float = Field(30.0, gt=0)
    """Seconds without an event after which a dedicated host ends itself."""
    max_handler_attempts: int = Field(5, ge=1)
    """How often a turn is tried when its handler raises ``RetryableError``."""
    max_turn_attempts: int = Field(8, ge=1)
    """How often an event is tried that cannot be handled at all (its plan's checkpoint cannot be read, for one)
    before it becomes a dead letter and its plan fails."""
    max_losses: int = Field(4, ge=2)
    """In how many losses of its host in a row an event may be in hand before it is taken for the cause: it becomes a
    dead letter and its plan fails. From the third time on it is handed over by itself."""
    stall_seconds: float = Field(60.0, ge=0)
    """Seconds without any progress of its event loop after which a host, dispatcher or reasoner ends its own process,
    so that Ray restarts it; 0 never. A handler that blocks for as long is taken for the cause."""
    direct_lines: bool = True
    """Whether dispatchers connect to hosts by TCP, on a free port of the address that Ray uses for the host's node, and
    hosts to the reasoner pool, and that to its reasoners, in the same way. Where they cannot, or when this is False, or
    Ray uses TLS, events and questions go through Ray, which costs more."""


class DispatcherSettings(BaseModel):
    """Dispatchers: the Ray actors that read the streams."""

    count: int = Field(1, ge=1)
    max_outstanding: int = Field(4096, ge=1)
    """Events handed to hosts, not yet committed and not waiting for a model, for each dispatcher; more wait in the
    stream. A quarter is kept for answers, signals and timers, so that plans under way go on when goals flood."""
    max_parked: int = Field(100_000, ge=1)
    """Events whose turns wait for a model, for each dispatcher. Beyond it no further goals are begun; plans under way
    go on. A tenant may have half of them. Each takes some kilobytes of its host and dispatcher."""
    max_waiting_goals: int = Field(16_384, ge=1)
    """Goals that a dispatcher reads ahead. Of these, tenants are served in turn. A tenant may have half of them: more
    of its goals are given back to the stream for a while, so that goals of others behind them are found."""
    max_bytes: int = Field(268_435_456, ge=1_048_576)
    """Bytes of events, about, that a dispatcher has in hand, those that wait for a model aside; beyond it none are
    read."""
    max_batch: int = Field(512, ge=1)
    """Events in one call to a host."""
    ack_wait: float = Field(30.0, gt=0)
    """Seconds after which an event that nobody reports on is delivered again."""
    unknown_plan_seconds: float = Field(60.0, ge=0)
    """Seconds that an event for an unknown plan is retried before it becomes a dead letter."""


class WorkerSettings(BaseModel):
    """Worker processes."""

    processes: int = Field(1, ge=0)
    """Worker actors that ``run`` and ``deploy`` start."""
    tasks: tuple[Annotated[str, AfterValidator(check_event_type)], ...] = ()
    """Tasks that are not in the app: ``run`` and ``deploy`` create their consumers too, for workers whose logins may
    not; see ``plancast nats-config``."""
    ack_wait: float = Field(15.0, gt=0)
    """Seconds after which the task of a worker that died is given to another."""
    max_lost: int = Field(10, ge=0)
    """How often processes may end while they do a task, before it is answered as failed and becomes a dead letter.
    Only what a worker has begun counts, and not its first three deliveries (fewer when this is less): these cost
    no note of their beginning."""
    stall_seconds: float = Field(300.0, ge=0)
    """Seconds that an async handler may block its process before that is ended and restarted; 0 for ever.
    Plain functions run in threads and block nothing."""


class ModelLimit(BaseModel):
    """How much a model may be asked in any 60 seconds; None sets no limit."""

    rpm: int | None = Field(None, ge=1)
    """Requests a minute."""
    tpm: int | None = Field(None, ge=1)
    """Tokens a minute."""


class ReasonerSettings(BaseModel):
    """Reasoners: the Ray actors that ask models, shared by all plans. They run only where a planner needs a model."""

    min: int = Field(1, ge=0)
    """Reasoners that are always there; 0 starts the first one when it is needed, which takes seconds."""
    max: int = Field(4, ge=0)
    """Most reasoners; 0 runs none, and plan hosts ask models themselves."""
    concurrency: int = Field(50, ge=1)
    """Requests that a reasoner has in hand at once; more wait, or bring another reasoner."""
    idle_seconds: float = Field(60.0, gt=0)
    """Seconds without need of it after which a reasoner over the minimum is let go."""
    timeout: float = Field(120.0, gt=0)
    """Seconds for one attempt at a model, where the request does not say."""
    kept_answers_seconds: float = Field(86_400.0, ge=0)
    """How long an answer is kept, so that a crash does not pay for it twice; 0 keeps none."""
    limits: dict[str, ModelLimit] = Field(default_factory=dict)
    """Rate limits by model, for all reasoners together: ``{"gpt-4o": {"rpm": 500, "tpm": 30000}}``."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if 0 < self.max < self.min:
            raise ValueError(f"min ({self.min}) is more than max ({self.max})")
        return self


class PlanSettings(BaseModel):
    """Bounds of a plan."""

    retention_seconds: float = Field(7 * 86400, ge=0)
    """Seconds that a finished plan can still be looked up; 0 keeps it for ever."""
    max_depth: int = Field(8, ge=1)
    """Longest chain of plans that begin each other, the top-level plan included. A child plan beyond it is refused: its
    parent is answered as if the child had failed."""
    max_tree: int = Field(1_000, ge=1, le=100_000)
    """Plans that may come of one goal, its own plan included: children, their children, and so on, also those that have
    ended. A child plan beyond it is refused in the same way."""
    max_kept_events: int = Field(100, ge=1)
    """Events that came early, or while paused; beyond it the oldest is dropped, with a warning in the timeline."""
    max_processed_ids: int = Field(512, ge=16)
    """Event ids that a checkpoint remembers, to know a repetition by."""
    timeline_tail_bytes: int = Field(8192, ge=256)
    """Timeline that a checkpoint carries; what is over it is put away once."""
    timeline_detail: Literal["summary", "full"] = "summary"
    """Whether the timeline also keeps what each turn has sent, not only its types and ids, and what models have
    answered handlers: then ``plancast plans replay`` tells of those, too. Timelines grow by as much, and plans reach
    the limit of their size sooner."""
    turn_seconds: float = Field(900.0, ge=0)
    """Seconds that handlers and planners may take over one event before the plan fails; 0 sets no limit. While a turn
    waits for a model, the reasoners' limits count instead."""
    sweep_seconds: float = Field(60.0, ge=0)
    """Seconds between two looks for plans that stand still, waiting for nothing; 0 never looks."""
    stalled_seconds: float = Field(300.0, gt=0)
    """Seconds without a turn, and beyond the time of a timer, from which on a plan may count as standing still."""
    unused_machine_seconds: float = Field(30 * 86400, ge=0)
    """Seconds that a state machine is kept at least, and beyond it for as long as a stored plan has it; 0 keeps it for
    ever, as does ``sweep_seconds=0``. Not less than two days."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if 0 < self.unused_machine_seconds < 2 * 86400:
            raise ValueError(f"unused_machine_seconds ({self.unused_machine_seconds:g}) is less than two days")
        return self


class ConsoleSettings(BaseModel):
    """The console and its HTTP API."""

    host: str = "127.0.0.1"
    """Address that it listens on. Off the loopback it wants tokens, and TLS in front of it."""
    port: int = Field(7878, ge=0, le=65535)
    """Port that it listens on; 0 takes a free one."""
    tokens: dict[str, SecretStr] = Field(default_factory=dict)
    """Who may use it, and the token of each: ``{"ada": "..."}``. Empty: a random one, in the link that is printed at
    the start."""
    max_streams: int = Field(200, ge=1)
    """Streams and long polls at a time; where several have tokens, half of them for one."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, token in self.tokens.items():
            if not name.strip() or len(token.get_secret_value()) < 16:
                raise ValueError("tokens: each wants a name, and at least 16 characters")
        return self


class TelemetrySettings(BaseModel):
    """What the processes tell of themselves; see ``docs/telemetry.md``."""

    metrics_interval: float = Field(10.0, ge=0)
    """Seconds between two reports of metrics to Ray, by each actor; 0 reports and measures nothing."""
    metrics_port: int = Field(0, ge=0, le=65535)
    """Port on which the Ray that ``run`` starts exports metrics for Prometheus; 0 takes a free one. A Ray cluster of
    your own is told by ``ray start --metrics-export-port``. Needs ``ray[default]``; without it nothing is exported."""
    log_format: Literal["text", "json"] = "text"
    """How log records are written: lines for people, or one JSON object a line. Of actors and of the command line."""
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    """Least level of what actors log; on the command line ``-v`` says it."""
    traces: Literal["off", "on"] = "off"
    """Whether turns, tasks, questions to models and what clients publish are OpenTelemetry spans; see
    ``docs/tracing.md``. OpenTelemetry's own variables (``OTEL_...``) say where they go, and which are kept."""


class Settings(BaseSettings):
    """All settings. Environment: ``PLANCAST_HOSTS__COUNT=4``, ``PLANCAST_NATS__PASSWORD=...``."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix="PLANCAST_", env_nested_delimiter="__", extra="ignore", hide_input_in_errors=True
    )

    nats: NatsSettings = Field(default_factory=NatsSettings)
    bus: BusSettings = Field(default_factory=BusSettings)
    ray: RaySettings = Field(default_factory=RaySettings)
    hosts: HostSettings = Field(default_factory=HostSettings)
    dispatchers: DispatcherSettings = Field(default_factory=DispatcherSettings)
    workers: WorkerSettings = Field(default_factory=WorkerSettings)
    reasoners: ReasonerSettings = Field(default_factory=ReasonerSettings)
    plans: PlanSettings = Field(default_factory=PlanSettings)
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings)
    console: ConsoleSettings = Field(default_factory=ConsoleSettings)
    data_dir: Path = Path(".plancast")
    """Where ``run`` keeps the embedded nats-server's data, and notes the URL of what runs."""

    def secrets(self) -> list[str]:
        """The values of all that is secret among the settings."""
        held = [self.nats.token, self.nats.password, *self.console.tokens.values()]
        return [each.get_secret_value() for each in held if each is not None]

    @classmethod
    def load(cls, base: Settings | None = None) -> Settings:
        """The environment over an app's settings; ``NATS_URL`` and ``RAY_ADDRESS`` count where nothing is said."""
        said = cls()
        if base is not None:
            said = cls.model_validate(_merge(base.model_dump(), said.model_dump(exclude_unset=True)))
        if not said.nats.url:
            said.nats.url = os.environ.get("NATS_URL", "")
        if not said.ray.address:
            said.ray.address = os.environ.get("RAY_ADDRESS", "")
        return said


def _merge(base: dict[str, object], over: dict[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
