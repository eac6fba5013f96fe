"""Maps code to the stages of a turn.

A sample belongs to the innermost function on the stack that is listed here, or else to the innermost whose module is.
So the nats client's time under ``Activation.commit`` counts as commit, and its own read loop as "bus in".
"""

from __future__ import annotations

from types import CodeType, FrameType

BUS_IN = "bus in"
DECODE = "decode"
DISPATCH = "dispatch"
RAY_HOP = "RPC"
TURN = "turn"
WORK = "task"
ENCODE = "encode"
COMMIT = "commit"
EMIT = "emit"
ACK = "ack"
BUS_OUT = "bus out"
LOOP = "event loop"
REST = "other"

STAGES = {
    BUS_IN: "reading the connection, pulling, classifying messages",
    DECODE: "decoding and validating events",
    DISPATCH: "routing to hosts, in-flight tracking, batching",
    RAY_HOP: "calls between actors: frames over TCP, or Ray calls",
    TURN: "mailbox, plan, state machine, staged effects, timeline",
    WORK: "the worker's bookkeeping and its handler",
    ENCODE: "encoding checkpoints, events and summaries",
    COMMIT: "writing the checkpoint, receiving its acknowledgement",
    EMIT: "publishing requests, responses, final responses",
    ACK: "acknowledging events whose effects are durable",
    BUS_OUT: "writing to the connection",
    LOOP: "uvloop and asyncio: polling, sockets, futures",
    REST: "code that no stage lists",
}
"""Descriptions by stage, in the order in which an event passes them."""

FUNCTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "plancast_bus.events.codec": {
        DECODE: ("decode", "decode_packed", "load", "unpack"),
        ENCODE: ("encode", "dump", "pack"),
    },
    "plancast_bus.events.envelope": {ENCODE: ("to_wire",)},
    "plancast_bus.ports.checkpoints": {ENCODE: ("encode", "to_header"), DECODE: ("decode", "from_header")},
    "plancast_bus.jetstream.bus": {ENCODE: ("encode",), EMIT: ("publish", "emit", "begin_emit")},
    "plancast_bus.jetstream.stores.checkpoints": {COMMIT: ("begin_commit",)},
    "plancast_bus.jetstream.client.nats_client": {BUS_OUT: ("_flush",)},
    "plancast_bus.jetstream.messaging.consumer": {ACK: ("ack", "nak", "in_progress", "_reply")},
    "plancast_actors.plan_actors.event_decoder": {DECODE: ("read",)},
    "plancast_actors.plan_actors.plan_actor": {DISPATCH: ("deliver",)},
    "plancast_actors.plan_actors.activation": {COMMIT: ("commit",), EMIT: ("emit", "_send", "_note_place")},
    "plancast_actors.plan_actors.fast_path": {TURN: ("create", "_take")},
    "plancast_actors.dispatch.dispatcher": {ACK: ("_acknowledge", "_settle", "_keep_alive")},
    "plancast_actors.workers.reader": {
        BUS_IN: ("_read",),
        EMIT: ("_publish",),
        ACK: ("_acknowledge", "_flush", "_release", "_settle", "_keep_alive"),
    },
    "plancast.plan.serialization": {ENCODE: ("to_state", "pack_state")},
    "plancast.turn.turn": {ENCODE: ("entry", "packed_entry")},
    "plancast_actors.workers.responses": {DECODE: ("read_request",), ENCODE: ("make_response",)},
    "nats.aio.client": {BUS_IN: ("_read_loop",), BUS_OUT: ("_flusher",)},
}
"""Functions of a module, by their own names."""

MODULES = {
    "plancast_bus.jetstream.messaging.consumer": BUS_IN,
    "plancast_bus.jetstream.messaging.stream_reader": BUS_IN,
    "plancast_bus.jetstream.client.inbox": BUS_IN,
    "plancast_bus.jetstream.client.parser": BUS_IN,
    "plancast_bus.jetstream.client.request_reply": BUS_IN,
    "plancast_bus.jetstream.stores.checkpoints": COMMIT,
    "plancast_bus.jetstream.messaging.emitter": EMIT,
    "plancast_actors.dispatch.dispatcher": DISPATCH,
    "plancast_actors.dispatch.inflight": DISPATCH,
    "plancast_actors.dispatch.router": DISPATCH,
    "plancast_actors.dispatch.host_link": DISPATCH,
    "plancast_actors.plan_actors.protocol": DISPATCH,
    "plancast_actors.hosting.plan_host": DISPATCH,
    "plancast_actors.plan_actors.plan_actor": TURN,
    "plancast_actors.plan_actors.slow_path": TURN,
    "plancast_actors.plan_actors.activation": TURN,
    "plancast_actors.rpc.framing": RAY_HOP,
    "plancast_actors.hosting.connection": RAY_HOP,
    "plancast_actors.rpc.client": RAY_HOP,
    "plancast_actors.rpc.server": RAY_HOP,
    "plancast_actors.reasoning.serialization": RAY_HOP,
    "plancast_actors.reasoning.client": RAY_HOP,
    "plancast_actors.ray.process": RAY_HOP,
    "plancast_actors.dispatch.remote_host": RAY_HOP,
    "plancast_actors.workers.reader": WORK,
    "plancast_actors.workers.executor": WORK,
    "plancast_actors.workers.runner": WORK,
    "plancast_actors.workers.delivery_record": WORK,
    "plancast": TURN,
    "benchmarks.apps.w1": WORK,
    "benchmarks": REST,
    "nats": BUS_IN,
    "ray": RAY_HOP,
    "threading": LOOP,
    "asyncio": LOOP,
}
"""Stages by module or package; the longest matching name counts. Used where no function is listed."""

_cache: dict[CodeType, tuple[str | None, str | None]] = {}


def stage_of(frame: FrameType | None) -> str:
    """Return the stage of a stack."""
    fallback = None
    while frame is not None:
        function, module = _listed(frame)
        if function is not None:
            return function
        fallback = fallback or module
        frame = frame.f_back
    return fallback or REST


def _listed(frame: FrameType) -> tuple[str | None, str | None]:
    """Return the stages of a frame's function and of its module."""
    code = frame.f_code
    found = _cache.get(code)
    if found is None:
        module = str(frame.f_globals.get("__name__", ""))
        stages = FUNCTIONS.get(module, {})
        function = next((stage for stage, names in stages.items() if code.co_name in names), None)
        found = _cache[code] = function, _of_module(module)
    return found


def _of_module(module: str) -> str | None:
    while module:
        if module in MODULES:
            return MODULES[module]
        module = module.rpartition(".")[0]
    return None
