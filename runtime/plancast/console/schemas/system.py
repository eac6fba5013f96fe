"""What the API says of everything but plans: the schema of version 1."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from plancast.console.schemas.base import Asked, Moment, Said


class Session(Said):
    user: str
    auth: Literal["token"]
    writable: bool


class Login(Asked):
    token: str = Field(max_length=4096)


class Health(Said):
    status: Literal["alive"] = "alive"


class Check(Said):
    name: str
    ok: bool
    detail: str


class Readiness(Said):
    status: Literal["ready", "not ready"]
    checks: list[Check]


class Goal(Said):
    event_type: str
    planner: str = ""
    kind: Literal["machine", "autonomous"]
    description: str = ""


class AppInfo(Said):
    name: str
    goals: list[Goal]
    tasks: list[str]


class Apps(Said):
    items: list[AppInfo]


class Letter(Said):
    id: int
    reason: str
    detail: str
    subject: str
    content_type: str | None
    message_id: str | None
    at: Moment
    bytes: int
    cut_from: int | None
    """Bytes that it had, when only its first part was kept; it cannot be replayed."""
    more: int
    """Further messages that were put aside with it, and are replayed with it."""


class FullLetter(Letter):
    payload: Any
    """What it says, where that can be read."""
    payload_base64: str


class Letters(Said):
    items: list[Letter]
    next: str | None
    total: int


class Replayed(Said):
    id: int
    accepted: Literal[True] = True


class Actor(Said):
    model_config = ConfigDict(extra="allow", ser_json_bytes="base64", ser_json_inf_nan="null")

    name: str
    alive: bool | None = None
    """None: it is known by its consumer alone."""


class DispatcherOf(Actor):
    outstanding: int | None = None
    waiting: int | None = None
    parked: int | None = None
    dispatched: int | None = None


class HostOf(Actor):
    kind: Literal["shared", "dedicated"] = "shared"
    plans: int | None = None
    turns: int | None = None
    rss_bytes: int | None = None


class ReasonerOf(Actor):
    outstanding: int | None = None
    slots: int | None = None


class WorkerOf(Actor):
    tasks: list[str] = Field(default_factory=list)


class ConsumerOf(Said):
    name: str
    pending: int
    ack_pending: int
    redelivered: int
    readers: int = 0
    """Requests for more that wait at the server: somebody reads it."""


class StreamOf(Said):
    name: str
    messages: int
    bytes: int
    max_bytes: int = -1
    replicas: int = 1
    consumers: list[ConsumerOf]


class NatsOf(Said):
    version: str
    address: str
    connected: bool
    round_trip: float
    storage_bytes: int
    streams: list[StreamOf]


class DeploymentOf(Said):
    source: Literal["ray", "nats"]
    """Whether the actors were asked, or are only known by what NATS has of them."""
    dispatchers: list[DispatcherOf]
    hosts: list[HostOf]
    reasoners: list[ReasonerOf]
    workers: list[WorkerOf]
    nats: NatsOf


class UsageRow(Said):
    key: str
    decisions: int
    tokens: int
    cost: float


class UsageReport(Said):
    items: list[UsageRow]
    total: UsageRow
    plans: int
    """Plans that were counted."""
    left_out: int
    """Plans of that time that were not, because there are too many."""


class Write(Said):
    by: str
    what: str
    subject: str
    at: Moment


class Writes(Said):
    items: list[Write]
