"""Settings, read once from ``PLANCAST_`` environment variables where a process starts, and passed on from there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from plancast_bus.settings import BusSettings, NatsSettings, SettingsSection, check_names
from plancast_bus.spelling import nearest
from plancast_bus.subjects import check_event_type

_PREFIX: Final = "PLANCAST_"


class RaySettings(SettingsSection):
    """Connection to Ray."""

    address: str = ""
    """Address of a Ray cluster; empty: ``RAY_ADDRESS``, else Ray is started on this machine."""
    namespace: str = "plancast"
    """Ray namespace of all actors."""
    auth_token_path: Path | None = None
    """File with the token of the cluster at `address`; empty: the one that Ray finds (``RAY_AUTH_MODE``,
    ``RAY_AUTH_TOKEN``, ``RAY_AUTH_TOKEN_PATH``). A Ray that ``run`` starts has a token of its own."""


class HostSettings(SettingsSection):
    """Plan hosts: the Ray actors that hold plan actors."""

    count: int = Field(0, ge=0)
    """Shared hosts; 0 takes one for each core but one, at least one."""
    cpus: float = Field(0.1, ge=0)
    """Share of a core that each host requests from Ray, which spreads them over the nodes that have cores; 0 lets Ray
    place them anywhere, also on a head that takes no actors (``--num-cpus 0``)."""
    placement: Literal["shared", "dedicated"] = "shared"
    """Placement of plans whose planner has none."""
    max_live_plans: int = Field(50_000, ge=1)
    """Plan actors in a host's memory; the least recently used is passivated first."""
    idle_seconds: float = Field(300.0, gt=0)
    """Seconds without an event after which a plan actor is passivated."""
    dedicated_max: int = Field(16, ge=1)
    """Dedicated hosts at once. Each is a process, with one plan at a time; more plans wait, and a plan that waits for
    an event gives its host to them."""
    dedicated_warm: int = Field(4, ge=0)
    """Dedicated hosts that are kept ready for the next plans. They are started where a planner is dedicated."""
    dedicated_idle_seconds: float = Field(30.0, gt=0)
    """Seconds without an event after which a plan gives back its dedicated host, and after which hosts that are more
    than ``dedicated_warm`` exit. While plans wait for a host, a tenth of a second."""
    dedicated_cpus: float = Field(0.02, ge=0)
    """The same for each dedicated host, and for their pool."""
    dedicated_plans: int = Field(1000, ge=1)
    """Plans that a dedicated host takes, one after the other, before its process is replaced. Your modules are imported
    anew for each plan; with 1 all of the process is new, which costs a second or two of a core for each plan."""
    dedicated_max_bytes: int = Field(268_435_456, ge=1_048_576)
    """Resident bytes beyond which a dedicated host's process is replaced, when its plan has left."""
    max_handler_attempts: int = Field(5, ge=1)
    """Attempts at a turn whose handler raises ``RetryableError``."""
    max_turn_attempts: int = Field(8, ge=1)
    """Attempts at an event that cannot be handled (because its plan's checkpoint cannot be read, for example), before
    it becomes a dead letter and its plan fails."""
    max_losses: int = Field(4, ge=2)
    """Consecutive host crashes with an event in flight after which it counts as their cause: it becomes a dead letter
    and its plan fails. From the third time on it is redelivered alone."""
    stall_seconds: float = Field(60.0, ge=0)
    """Seconds that the event loop of a host, dispatcher or reasoner may block before its process exits, and Ray
    restarts it; 0: for ever. A handler that blocks for as long counts as the cause."""
    block_seconds: float = Field(1.0, ge=0)
    """Seconds that a handler may block the event loop of a shared host. Then the host's process is replaced, and the
    event runs in a host of its own, where it may block for ``stall_seconds``; when two events of a type have done so,
    all of that type run there at once. Waiting for a processor and importing modules do not count. 0: no such limit."""
    direct_lines: bool = True
    """Dispatchers connect to hosts by TCP, on a free port of the address that Ray uses for the host's node; so do hosts
    to the reasoner pool, and the pool to its reasoners. If they cannot, if this is False, or if Ray uses TLS, events
    and model requests go through Ray, which costs more."""


class DispatcherSettings(SettingsSection):
    """Dispatchers: the Ray actors that read the streams."""

    count: int = Field(1, ge=1)
    cpus: float = Field(0.1, ge=0)
    """Share of a core that each dispatcher requests from Ray; see ``hosts.cpus``."""
    max_outstanding: int = Field(4096, ge=1)
    """In-flight events of a dispatcher, those that wait for a model aside; more wait in the stream. A quarter is
    reserved for responses, signals and timers, so that running plans go on under a flood of goals."""
    max_parked: int = Field(100_000, ge=1)
    """Events of a dispatcher whose turns wait for a model. Beyond it no goals are started; running plans go on. A
    tenant may have half of them. Each takes some kilobytes of its host and dispatcher."""
    max_waiting_goals: int = Field(16_384, ge=1)
    """Goals that a dispatcher reads ahead, from which tenants are served in turn. A tenant may have half of them: more
    of its goals are returned to the stream for a while, so that goals of other tenants behind them are read."""
    max_bytes: int = Field(268_435_456, ge=1_048_576)
    """Approximate bytes of a dispatcher's in-flight events, those that wait for a model aside; beyond it none are
    read."""
    max_batch: int = Field(512, ge=1)
    """Events in one call to a host."""
    ack_wait: float = Field(30.0, gt=0)
    """Seconds without a report after which an event is redelivered."""
    unknown_plan_seconds: float = Field(60.0, ge=0)
    """Seconds that an event for an unknown plan is retried before it becomes a dead letter."""


class WorkerSettings(SettingsSection):
    """Worker processes."""

    processes: int = Field(1, ge=0)
    """Worker actors that ``run`` and ``deploy`` start."""
    cpus: float = Field(0.1, ge=0)
    """Share of a core that each of them requests from Ray; see ``hosts.cpus``."""
    tasks: tuple[Annotated[str, AfterValidator(check_event_type)], ...] = ()
    """Tasks that are not in the app, whose consumers ``run`` and ``deploy`` create for workers that may not; see
    ``plancast nats-config``."""
    ack_wait: float = Field(15.0, gt=0)
    """Seconds after which the task of a crashed worker is redelivered."""
    max_lost: int = Field(10, ge=0)
    """Process crashes during a task before it fails and becomes a dead letter. Only started attempts count, and not the
    first three deliveries (fewer when this is less), whose start is not recorded."""
    effects_seconds: float = Field(30 * 86_400.0, gt=0)
    """Seconds that the record of a settled effect is stored: further tasks of its key are answered with its outcome for
    so long. The record of an effect whose outcome is not known is stored until it is."""
    stall_seconds: float = Field(300.0, ge=0)
    """Seconds that an async handler may block its process before it is restarted; 0: for ever. Plain functions run in
    threads and do not block."""


class ModelLimit(SettingsSection):
    """Rate limits of a model in any 60 seconds; None: no limit."""

    rpm: int | None = Field(None, ge=1)
    """Requests a minute."""
    tpm: int | None = Field(None, ge=1)
    """Tokens a minute."""


class ReasonerSettings(SettingsSection):
    """Reasoners: the Ray actors that call models, shared by all plans. They run only where a planner needs a model."""

    min: int = Field(1, ge=0)
    """Minimum number of reasoners; 0 starts the first one when it is needed, which takes seconds."""
    max: int = Field(4, ge=0)
    """Maximum number of reasoners; 0: none, plan hosts call models themselves."""
    cpus: float = Field(0.05, ge=0)
    """Share of a core that each reasoner, and their pool, requests from Ray; see ``hosts.cpus``."""
    concurrency: int = Field(50, ge=1)
    """In-flight requests of a reasoner; more wait, or start another reasoner."""
    idle_seconds: float = Field(60.0, gt=0)
    """Seconds without need of it after which a reasoner over the minimum is stopped."""
    timeout: float = Field(120.0, gt=0)
    """Seconds for one attempt, where the request has no timeout."""
    kept_answers_seconds: float = Field(86_400.0, ge=0)
    """Seconds that a model's reply is stored, so that it is not paid for again after a crash; 0: not at all."""
    limits: dict[str, ModelLimit] = Field(default_factory=dict)
    """Rate limits by model, for all reasoners together: ``{"gpt-4o": {"rpm": 500, "tpm": 30000}}``."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if 0 < self.max < self.min:
            raise ValueError(f"min ({self.min}) is more than max ({self.max})")
        return self


class PlanSettings(SettingsSection):
    """Limits of plans."""

    retention_seconds: float = Field(7 * 86400, ge=0)
    """Seconds that a finished plan is stored; 0: for ever."""
    max_depth: int = Field(8, ge=1)
    """Depth of a tree of plans, the top-level plan included. A child plan beyond it is refused: its parent gets a
    response as if the child had failed."""
    max_tree: int = Field(1_000, ge=1, le=100_000)
    """Plans of one tree, the top-level plan and finished plans included. A child plan beyond it is refused in the same
    way."""
    max_tree_steps: int = Field(64, ge=1)
    """Steps of a decision tree in one plan, the final one aside; then the plan fails."""
    max_shared_values: int = Field(100, ge=1)
    """Values that plans of one session share (``plan.share``); beyond it those that were shared first are dropped."""
    max_shared_bytes: int = Field(65_536, ge=256, le=524_288)
    """Bytes of these values and their names, with the same consequence. One turn that shares more fails its plan."""
    max_kept_events: int = Field(100, ge=1)
    """Buffered events that came early or while paused; beyond it the oldest is dropped, and the timeline warns."""
    inline_bytes: int = Field(32_768, ge=4_096)
    """Bytes of a plan's state and newest timeline up to which a checkpoint holds them whole. Of a larger plan, values
    of 2 KiB and more are stored once each, beside the checkpoints, so that a turn writes what is new in it."""
    max_value_bytes: int = Field(64 << 20, ge=65_536)
    """Largest text, or entry of a list or an object, in a plan; the turn that leaves a larger one fails its plan. An
    event with a larger one is refused where it is sent."""
    max_plan_bytes: int = Field(1 << 30, ge=1 << 20)
    """Largest state of a plan, and largest data of an event, with the same consequences."""
    max_processed_ids: int = Field(512, ge=16)
    """Event ids in a checkpoint, for deduplication."""
    timeline_tail_bytes: int = Field(8192, ge=256)
    """Bytes of timeline in a checkpoint; older entries are stored separately, once."""
    timeline_detail: Literal["summary", "full"] = "summary"
    """``full`` also stores the data that each turn has sent, not only types and ids, and what handlers have got from
    models and from ``memory.session``, which ``plancast plans replay`` then covers. Timelines grow, and plans reach
    their size limit sooner."""
    check_user: bool = False
    """Refuse events that name another user than the plan's, as events of another tenant: also signals of people who
    approve, and controls. Events without a user, and plans without one, are not affected."""
    turn_seconds: float = Field(900.0, ge=0)
    """Seconds that handlers and planners may take for one event before the plan fails; 0: no limit. While a turn waits
    for a model, the reasoners' limits apply instead."""
    lifecycle_events: bool = False
    """Publish system events of every plan: ``plan.started``, ``plan.state_changed``, ``plan.waiting_for_input``,
    ``plan.completed``, ``plan.failed`` and ``plan.cancelled``. They cost each turn a message or two."""
    sweep_seconds: float = Field(60.0, ge=0)
    """Seconds between scans for stalled plans, which wait for nothing; 0: no scans."""
    stalled_seconds: float = Field(300.0, gt=0)
    """Seconds without a turn, and after the time of a timer, after which a plan may count as stalled."""
    unused_machine_seconds: float = Field(30 * 86400, ge=0)
    """Minimum seconds that a state machine is stored; it stays while a stored plan uses it. 0, or ``sweep_seconds=0``:
    for ever. At least two days."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if 0 < self.unused_machine_seconds < 2 * 86400:
            raise ValueError(f"unused_machine_seconds ({self.unused_machine_seconds:g}) is less than two days")
        return self


class ConsoleSettings(SettingsSection):
    """The console and its HTTP API."""

    host: str = "127.0.0.1"
    """Listening address. Beyond the loopback it requires tokens, and TLS in front of it."""
    port: int = Field(7878, ge=0, le=65535)
    """Listening port; 0: a free one."""
    tokens: dict[str, SecretStr] = Field(default_factory=dict)
    """Tokens by user: ``{"ada": "..."}``. Empty: a random one, in the link that is printed at the start."""
    public_url: str = Field("", pattern=r"^(https?://[^\s/?#@]+[^\s?#@]*)?$")
    """Where people reach the console, such as ``https://plans.example.com``: notifications have links there that
    answer. Empty: they have none."""
    link_secret: SecretStr | None = None
    """Signs these links, 16 characters or more, the same for plan hosts and console. Needed where the console's login
    at NATS is not the runtime's, as in ``deploy/``: by default the keys of the deployment sign them."""
    max_streams: int = Field(200, ge=1)
    """Concurrent streams, long polls, calls of MCP and A2A, and runs of AG-UI; with several tokens, half of them for
    each."""
    mcp_approvers: list[str] | None = None
    """Users whose MCP clients may answer what plans have people decide: a person in front of the client is asked, and
    no tool can answer. None: all users with a token. Others are told where to answer it."""
    mcp_tenant: str = ""
    """Tenant of all plans that MCP clients begin and see; empty: plans without a tenant are begun, and all are seen."""
    a2a_approvers: list[str] = Field(default_factory=list)
    """Users whose A2A messages may decide what plans have people decide. A model may have written such a message, so by
    default none; input that is no decision may be given by all."""
    a2a_tenant: str = ""
    """Tenant of all plans that A2A clients begin and see; empty: the tenant that a request names, or else all."""
    a2a_push_hosts: list[str] = Field(default_factory=list)
    """Hosts with private addresses that A2A clients may have push notifications sent to; public ones need no entry,
    nor does this machine while the console listens on the loopback only."""
    agui_approvers: list[str] | None = None
    """Users whose AG-UI clients may answer what plans have people decide. None: all users with a token."""
    agui_tenant: str = ""
    """Tenant of all plans that AG-UI clients begin and go on with; empty: plans without a tenant are begun."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.link_secret is not None and len(self.link_secret.get_secret_value()) < 16:
            raise ValueError("link_secret: it needs at least 16 characters")
        for name, token in self.tokens.items():
            if not name.strip() or len(token.get_secret_value()) < 16:
                raise ValueError("tokens: each needs a name, and at least 16 characters")
        return self


class TelemetrySettings(SettingsSection):
    """Metrics, logs and traces; see ``docs/telemetry.md``."""

    metrics_interval: float = Field(10.0, ge=0)
    """Seconds between an actor's reports of metrics to Ray; 0: no metrics."""
    metrics_port: int = Field(0, ge=0, le=65535)
    """Port on which the Ray that ``run`` starts exports metrics for Prometheus; 0: a free one. For your own cluster use
    ``ray start --metrics-export-port``. Needs ``ray[default]``; without it nothing is exported."""
    log_format: Literal["text", "json"] = "text"
    """Format of the log records of actors and the command line: text, or one JSON object a line."""
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    """Minimum log level of actors; the command line has ``-v``."""
    traces: Literal["off", "on"] = "off"
    """OpenTelemetry spans of turns, tasks, model calls and clients' events; see ``docs/tracing.md``. OpenTelemetry's
    own variables (``OTEL_...``) configure export and sampling."""


class Settings(BaseSettings):
    """All settings. Environment: ``PLANCAST_HOSTS__COUNT=4``, ``PLANCAST_NATS__PASSWORD=...``.

    Settings that do not exist are refused, and so are variables with this prefix that are none.
    """

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix=_PREFIX, env_nested_delimiter="__", extra="ignore", hide_input_in_errors=True, defer_build=True
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
    """Folder of ``run`` for the embedded nats-server's data and the URL of the running deployment."""

    @model_validator(mode="before")
    @classmethod
    def _only_known(cls, given: Any) -> Any:
        check_names(cls, given)
        for name, value in os.environ.items():
            if name.upper().startswith(_PREFIX):
                _check_variable(name, value, cls)
        return given

    @model_validator(mode="after")
    def _limit_events_as_plans(self) -> Self:
        self.bus.limit_data(self.plans)
        return self

    def secrets(self) -> list[str]:
        """The values of all secret settings."""
        secrets = [self.nats.token, self.nats.password, self.console.link_secret, *self.console.tokens.values()]
        return [each.get_secret_value() for each in secrets if each is not None]

    @classmethod
    def load(cls, base: Settings | None = None) -> Settings:
        """Merge the environment over an app's settings; ``NATS_URL`` and ``RAY_ADDRESS`` are the defaults."""
        merged = cls()
        if base is not None:
            merged = cls.model_validate(_merge(base.model_dump(), merged.model_dump(exclude_unset=True)))
        if not merged.nats.url:
            merged.nats.url = os.environ.get("NATS_URL", "")
        if not merged.ray.address:
            merged.ray.address = os.environ.get("RAY_ADDRESS", "")
        return merged


OTHER_VARIABLES: Final = re.compile(
    r"APP|CONSOLE_TOKENS|NATS_CONFIG|PROJECT|RAY_TOKEN"  # of deploy/compose
    r"|CRASH_POINTS|CHROMIUM|(BENCHMARKS|GROWTH|TEST)_\w+"  # of tests and benchmarks
    r"|\w+_SERVICE_(HOST|PORT(_\w+)?)|\w+_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?"  # of services in Kubernetes
)
"""Variables with the prefix that are no settings, without it."""


def _check_variable(name: str, value: str, settings: type[Settings]) -> None:
    """Refuse a variable that is no setting. The name in a section that exists is checked with the section."""
    given = name[len(_PREFIX) :].upper()
    section, nested, field = given.partition("__")
    if section.lower() in settings.model_fields or OTHER_VARIABLES.fullmatch(given):
        return
    if given.endswith("_PORT") and "://" in value:  # the address of a service in Kubernetes
        return
    known = [f"{_PREFIX}{each}__{field}".upper() for each in settings.model_fields] if nested else _variables(settings)
    raise ValueError(f"there is no setting {name[:80]!r}{nearest(name.upper(), known)}")


def _variables(settings: type[BaseModel], prefix: str = _PREFIX) -> Iterator[str]:
    """The variables of all settings."""
    for name, field in settings.model_fields.items():
        below = field.annotation
        if isinstance(below, type) and issubclass(below, SettingsSection):
            yield from _variables(below, f"{prefix}{name}__")
        else:
            yield f"{prefix}{name}".upper()


def _merge(base: dict[str, object], over: dict[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
