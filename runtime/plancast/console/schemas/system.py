"""Schemas of everything but plans, version 1."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from plancast.console.schemas.base import Bytes, Cost, Moment, RequestModel, ResponseModel, Seconds, example


class Session(ResponseModel):
    user: str
    auth: Literal["token"]
    writable: bool


class Login(RequestModel):
    model_config = example(token="at least sixteen characters")

    token: str = Field(max_length=4096)


class Health(ResponseModel):
    status: Literal["alive"] = "alive"


class Connection(ResponseModel):
    nats: bool
    """True if NATS answers the console's server."""
    detail: str = ""
    """Why it does not."""


class Check(ResponseModel):
    name: str
    ok: bool
    detail: str


class Readiness(ResponseModel):
    status: Literal["ready", "not ready"]
    checks: list[Check]


class Goal(ResponseModel):
    event_type: str
    planner: str = ""
    kind: Literal["machine", "autonomous"]
    description: str = ""


class AppInfo(ResponseModel):
    name: str
    goals: list[Goal]
    tasks: list[str]


class Apps(ResponseModel):
    items: list[AppInfo]


class Letter(ResponseModel):
    id: int
    reason: str
    detail: str
    subject: str
    content_type: str | None
    message_id: str | None
    at: Moment
    bytes: Bytes
    cut_from: int | None
    """Original size in bytes when only the first part was stored; such a letter cannot be replayed."""
    more: int
    """Number of further messages that were stored with it and are replayed with it."""


class FullLetter(Letter):
    payload: Any
    """The payload, where it can be decoded."""
    payload_base64: str


class Letters(ResponseModel):
    items: list[Letter]
    next: str | None
    total: int


class Replayed(ResponseModel):
    id: int
    accepted: Literal[True] = True


class Actor(ResponseModel):
    model_config = ConfigDict(extra="allow", ser_json_bytes="base64", ser_json_inf_nan="null")

    name: str
    alive: bool | None = None
    """None when only the actor's consumer is known."""


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
    """Memory of a dedicated host in bytes, with its share of pages that several processes have."""


class PoolOf(Actor):
    """The pool of dedicated hosts, or its spare during an upgrade."""

    hosts: int | None = None
    max: int | None = None
    """Maximum number of hosts."""
    held: int | None = None
    """Number of hosts that have a plan."""
    free: int | None = None
    waiting: int | None = None
    """Number of plans that wait for a host."""
    delayed: int | None = None
    """Number of plans that were refused a host at first, and waited."""


class ReasonerOf(Actor):
    outstanding: int | None = None
    slots: int | None = None


class WorkerOf(Actor):
    tasks: list[str] = Field(default_factory=list)


class ConsumerOf(ResponseModel):
    name: str
    pending: int
    """Number of messages that are not delivered yet."""
    ack_pending: int
    """Number of messages that are delivered and not acknowledged."""
    redelivered: int
    readers: int = 0
    """Number of waiting pull requests; above 0 when the consumer is read."""


class StreamOf(ResponseModel):
    name: str
    messages: int
    bytes: Bytes
    max_bytes: int = -1
    """Bytes; -1 without a limit."""
    replicas: int = 1
    consumers: list[ConsumerOf]


class NatsOf(ResponseModel):
    version: str
    address: str
    connected: bool
    round_trip: Seconds
    storage_bytes: Bytes
    streams: list[StreamOf]


class DeploymentOf(ResponseModel):
    source: Literal["ray", "nats"]
    """``ray``: reported by the actors; ``nats``: derived from consumers and registrations."""
    dispatchers: list[DispatcherOf]
    hosts: list[HostOf]
    pools: list[PoolOf] = Field(default_factory=list)
    reasoners: list[ReasonerOf]
    workers: list[WorkerOf]
    nats: NatsOf


class UsageRow(ResponseModel):
    key: str
    decisions: int
    tokens: int
    cost: Cost
    cached_tokens: int = 0
    """Those of the tokens that a provider served from its cache."""


class UsageSlot(ResponseModel):
    """The decisions of a span of time."""

    at: Moment
    """Its beginning."""
    decisions: int = 0
    tokens: int = 0
    cost: Cost = 0.0
    cached_tokens: int = 0


class UsageReport(ResponseModel):
    items: list[UsageRow]
    total: UsageRow
    plans: int
    """Number of counted plans."""
    left_out: int
    """Number of plans in the period that exceed the limit and were not counted."""
    slots: list[UsageSlot]
    """Usage by the time of the decisions, oldest first, without gaps."""
    slot_seconds: int
    """Length of a slot: 5 minutes up to 2 hours, an hour up to 48, else a day (UTC)."""


class Write(ResponseModel):
    by: str
    what: str
    subject: str
    at: Moment


class Writes(ResponseModel):
    items: list[Write]
