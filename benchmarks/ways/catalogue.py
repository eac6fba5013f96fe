"""The fast paths: their code, what they stand beside, and how each is turned off.

A name such as ``plancast_bus.events.codec:decode_packed`` is a function or class of a module. Only the standard library
is imported here, since every process of a measurement imports this module before the product's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from benchmarks.reports.rows import Sync

REMOVED: Final = None
"""Replaces a method of which the base class has the plain one."""
Replacement = Callable[[Any], Any] | None
"""Makes the plain function from the fast one."""

_CLIENT = "plancast_bus.jetstream.client.nats_client"
_PARSER = "plancast_bus.jetstream.client.parser"
_EMITTER = "plancast_bus.jetstream.messaging.emitter"
_GROUP = "plancast_bus.jetstream.messaging.group_commit"
_PLACEHOLDERS = "plancast_bus.jetstream.messaging.placeholders"
_STAGING = "plancast_bus.nats_server.batch_ramdisk"
_CODEC = "plancast_bus.events.codec"
_ENVELOPE = "plancast_bus.events.envelope"
_TURN = "plancast_actors.plan_actors.fast_path"
_READER = "plancast_actors.workers.reader"
_RESPONSES = "plancast_actors.workers.responses"


@dataclass(frozen=True)
class Way:
    """A fast path."""

    title: str
    beside: str
    """The plain way of doing the same."""
    code: tuple[str, ...]
    """Modules, classes and functions that would go with it."""
    used: tuple[str, ...]
    """Functions that every run calls if it is on, and none if it is off."""
    unused: tuple[str, ...] = ()
    """Further functions that nothing calls if it is off."""
    off: Mapping[str, Replacement] = field(default_factory=dict)
    """Functions to be replaced to turn it off."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings, as environment variables, that turn it off."""
    syncs: tuple[Sync, ...] = ("default",)
    """Values of ``sync_interval`` with which it is measured."""

    @property
    def watched(self) -> tuple[str, ...]:
        """Return the functions whose first call is recorded."""
        return (*self.used, *self.unused)


def _nothing(_original: Any) -> Any:
    return lambda *_arguments: None


def _nothing_later(_original: Any) -> Any:
    async def nothing(*_arguments: Any) -> None:
        pass

    return nothing


def _not_packed(_original: Any) -> Any:
    return lambda _payload: (None, False)


def _publish(original: Any) -> Any:
    run_at_once = original.__globals__["run_at_once"]

    def write(client: Any, subject: str, reply: str, payload: bytes, headers: dict[str, str], _lines: str) -> None:
        run_at_once(client.publish(subject, payload, reply, headers))

    return write


def _by_callback(original: Any) -> Any:
    """Subscribe with nats-py's queue and task instead of a tap."""

    async def subscribe(client: Any, subject: str, *arguments: Any, **options: Any) -> Any:
        tap = options.pop("future", None)
        if tap is not None:

            async def deliver(message: Any) -> None:
                tap.take(message.subject, message.reply, message.data, message.headers)

            options["cb"] = deliver
        return await original(client, subject, *arguments, **options)

    return subscribe


def _by_task(_original: Any) -> Any:
    def begin(emitter: Any, effects: Any) -> Any:
        return asyncio.get_running_loop().create_task(emitter.emit(effects))

    return begin


def _validated(original: Any) -> Any:
    response, envelope = original.__globals__["Response"], original.__globals__["EventEnvelope"]

    def make(*arguments: Any) -> Any:
        return response(envelope.model_validate(original(*arguments).to_wire()).to_wire())

    return make


WAYS: dict[str, Way] = {
    "turns": Way(
        "turns of state machines in callbacks",
        "a task for each event",
        (
            _TURN,
            "plancast_actors.plan_actors.plan_actor:PlanActor._fast_turn_ended",
            "plancast.turn_record.environment:TurnEnvironment.runs_itself",
            "plancast_bus.jetstream.stores.checkpoints:JetStreamCheckpoints.begin_commit",
            "plancast_bus.memory.checkpoints:MemoryCheckpoints.begin_commit",
        ),
        used=(f"{_TURN}:FastTurn._resume",),
        off={f"{_TURN}:FastTurn.create": _nothing},
    ),
    "connections": Way(
        "TCP connections between actors",
        "Ray calls",
        (
            "plancast_actors.rpc.framing",
            "plancast_actors.rpc.client",
            "plancast_actors.rpc.server",
            "plancast_actors.hosting.connection",
            "plancast_actors.ray.endpoint",
            "plancast_actors.dispatch.remote_host:RayHost._connect",
            "plancast_actors.dispatch.remote_host:RayHost._fall_back",
            "plancast_actors.reasoning.client:ActorClient._connect",
            "plancast_actors.dispatch.directory:RayDirectory.line",
        ),
        used=(
            "plancast_actors.hosting.connection:HostConnection.exchange",
            "plancast_actors.rpc.client:Connection.received",
        ),
        settings={"PLANCAST_HOSTS__DIRECT_LINES": "false"},
    ),
    "parser": Way(
        "own parser of NATS messages and headers",
        "nats-py's parser",
        (
            f"{_PARSER}:TapParser",
            f"{_CLIENT}:GuardedClient._parse_header_lines",
            f"{_CLIENT}:_KNOWN_HEADERS",
        ),
        used=(f"{_PARSER}:TapParser._dispatch",),
        off={f"{_PARSER}:TapParser.parse": REMOVED, f"{_CLIENT}:GuardedClient._parse_header_lines": REMOVED},
    ),
    "taps": Way(
        "own parser, and messages delivered as they are read",
        "nats-py's parser, with a queue and a task for each subscription",
        (
            _PARSER,
            f"{_CLIENT}:GuardedClient._parse_header_lines",
            f"{_CLIENT}:_KNOWN_HEADERS",
        ),
        used=(f"{_PARSER}:TapParser._dispatch",),
        unused=(f"{_PARSER}:Tap.set_result",),
        off={
            f"{_PARSER}:TapParser.parse": REMOVED,
            f"{_CLIENT}:GuardedClient._parse_header_lines": REMOVED,
            f"{_CLIENT}:GuardedClient.subscribe": _by_callback,
        },
    ),
    "writer": Way(
        "own writer of NATS messages",
        "nats-py's publish",
        (
            f"{_CLIENT}:GuardedClient.write",
            f"{_CLIENT}:GuardedClient._flush",
        ),
        used=(f"{_CLIENT}:GuardedClient._flush",),
        off={f"{_CLIENT}:GuardedClient.write": _publish},
    ),
    "batches": Way(
        "atomic batches of messages",
        "single messages",
        (_GROUP,),
        used=(f"{_GROUP}:BatchSender.begin",),
        settings={"PLANCAST_BUS__GROUP_COMMIT": "never"},
        syncs=("default", "always"),
    ),
    "staging": Way(
        "batches staged in /dev/shm",
        "batches staged on disk",
        (_STAGING,),
        used=(f"{_STAGING}:BatchRamdisk._link",),
        off={f"{_STAGING}:BatchRamdisk.place": _nothing},
        syncs=("always",),
    ),
    "placeholders": Way(
        "placeholder messages in work queues",
        "work queues that become empty",
        (_PLACEHOLDERS,),
        used=(f"{_PLACEHOLDERS}:Placeholders._place",),
        off={f"{_PLACEHOLDERS}:Placeholders.place": _nothing_later, f"{_PLACEHOLDERS}:Placeholders.note": _nothing},
        syncs=("default", "always"),
    ),
    "validation": Way(
        "events read and written without pydantic",
        "validation by pydantic",
        (
            f"{_CODEC}:decode_packed",
            f"{_ENVELOPE}:from_wire_fields",
            f"{_ENVELOPE}:WireEvent",
            f"{_ENVELOPE}:_in_wire_form",
            f"{_ENVELOPE}:_ABSENT",
            f"{_RESPONSES}:Response",
        ),
        used=(f"{_ENVELOPE}:from_wire_fields",),
        unused=(f"{_CODEC}:decode_packed", f"{_ENVELOPE}:_in_wire_form"),
        off={
            f"{_CODEC}:decode_packed": _not_packed,
            f"{_ENVELOPE}:from_wire_fields": _nothing,
            f"{_ENVELOPE}:_in_wire_form": _nothing,
            f"{_RESPONSES}:make_response": _validated,
        },
    ),
    "effects": Way(
        "single effects sent in callbacks",
        "a task for each emission",
        (
            f"{_EMITTER}:Emitter.begin",
            f"{_EMITTER}:Emitter._begin_respond",
            f"{_EMITTER}:Emitter._notify_after",
        ),
        used=(f"{_EMITTER}:Emitter._begin_respond",),
        off={f"{_EMITTER}:Emitter.begin": _by_task},
    ),
    "responses": Way(
        "workers' responses sent without an envelope",
        "an envelope, published",
        (f"{_READER}:TaskReader._send_fast",),
        used=(f"{_READER}:TaskReader._send_fast",),
        off={f"{_READER}:TaskReader._send_fast": _nothing},
    ),
}
"""By name, in the order of the table."""
