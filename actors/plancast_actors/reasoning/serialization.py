"""Model requests and replies as msgpack, between plan hosts, the reasoner pool and its reasoners.

A request is packed once, by the host: the pool schedules it by a few fields and passes its body on as it is. Nothing is
unpickled. Errors travel as the name of a class and its fields.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any, NamedTuple, NoReturn, TypeAlias

import msgpack
from pydantic import BaseModel, SecretStr

import plancast.errors
import plancast_bus.errors
from plancast.errors import InvalidPlannerConfig, PlancastError, ReasonerUnavailable, RetryableError
from plancast.json_values.normalize import plain
from plancast.models.port import ReasonReply, ReasonRequest, Usage
from plancast.telemetry.redaction import redact
from plancast_actors.rpc.framing import pack

VERSION, STREAMED = 1, 2
"""First item of each message, to be increased with every change of the format: processes of two releases exchange
messages during a rolling upgrade. The second one is of requests whose replies are streamed, which it does not know."""
INCOMPATIBLE_RETRY_SECONDS = 2.0
_UNPACKABLE = (TypeError, ValueError, OverflowError)
_REQUEST, _REPLY, _USAGE = (
    tuple(each.name for each in fields(kind) if each.name != "stream") for kind in (ReasonRequest, ReasonReply, Usage)
)
ERRORS: dict[str, type[PlancastError]] = {
    name: kind
    for module in (plancast_bus.errors, plancast.errors)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, PlancastError)
}
"""Errors that arrive as themselves, with their fields. Others arrive as the nearest of these, with their text."""


class CallLost(Exception):
    """Raised when an actor has died, or cannot be reached, with a call in flight: the model may have been asked.

    ``refused``: it is alive, and has cancelled or refused the call; another pool may take it.
    """

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class IncompatibleRelease(ReasonerUnavailable):
    """Raised when the other process speaks another version of this protocol; an upgrade replaces one of the two."""


class PackedRequest(NamedTuple):
    """A request with a packed body; the other fields are those of :class:`plancast.models.port.ReasonRequest`."""

    model: str
    idempotency_key: str
    tenant_id: str
    plan_id: str
    planner: str
    body: bytes
    """Contains the API key in clear."""
    stream: bool = False

    def __repr__(self) -> str:
        return f"PackedRequest(model={self.model!r}, plan_id={self.plan_id!r}, {len(self.body)} bytes)"


AnyRequest: TypeAlias = ReasonRequest | PackedRequest


def pack_request(request: AnyRequest) -> PackedRequest:
    """Pack a request, unless it is packed already. Pydantic values become JSON, a model class its strict JSON Schema.

    Raises:
        InvalidPlannerConfig: a message or a parameter is no plain value; names its path.
    """
    if isinstance(request, PackedRequest):
        return request
    values = {name: getattr(request, name) for name in _REQUEST}
    if request.api_key is not None:
        values["api_key"] = request.api_key.get_secret_value()
    try:
        body = pack(values)
    except _UNPACKABLE:
        values["messages"] = [_plain(each, f"messages[{index}]") for index, each in enumerate(request.messages)]
        values["parameters"] = {name: _plain(each, f"parameters.{name}") for name, each in request.parameters.items()}
        body = pack(values)
    return PackedRequest(
        request.model,
        request.idempotency_key,
        request.tenant_id,
        request.plan_id,
        request.planner,
        body,
        request.stream,
    )


def unpack_request(request: AnyRequest) -> ReasonRequest:
    """The opposite of :func:`pack_request`."""
    if isinstance(request, ReasonRequest):
        return request
    values = _unpack(request.body)
    if values["api_key"] is not None:
        values["api_key"] = SecretStr(values["api_key"])
    return ReasonRequest(**values, stream=request.stream)


def pack_call(call_id: str, request: AnyRequest) -> bytes:
    """A call to the pool or to a reasoner."""
    *values, stream = pack_request(request)
    return pack((STREAMED if stream else VERSION, call_id, *values))


def read_call(packed: bytes) -> tuple[str, PackedRequest]:
    """Id and request of a call. Raises IncompatibleRelease."""
    version, call_id, *values = _read(packed, VERSION, STREAMED)
    return call_id, PackedRequest(*values)._replace(stream=version == STREAMED)


def pack_reply(reply: ReasonReply | None) -> bytes:
    """A reply; None for a call that its caller has cancelled."""
    if reply is None:
        return pack((VERSION, None, None))
    values = {name: getattr(reply, name) for name in _REPLY}  # `to_dict` would copy deeply
    values["usage"] = {name: getattr(reply.usage, name) for name in _USAGE}
    return pack((VERSION, None, values))


def pack_error(error: Exception) -> bytes:
    """An error in place of a reply."""
    kind = type(error)
    if ERRORS.get(kind.__name__) is kind:
        with suppress(*_UNPACKABLE):
            return pack((VERSION, kind.__name__, error.args, vars(error)))
    known = (each for each in kind.__mro__ if ERRORS.get(each.__name__) is each)
    nearest = next((each for each in known if each.__str__ is Exception.__str__), PlancastError)  # made of a text
    attributes = {"retry_after": error.retry_after} if isinstance(error, RetryableError) else {}
    return pack((VERSION, nearest.__name__, [redact(f"{kind.__name__}: {error}")], attributes))


def read_reply(packed: bytes) -> ReasonReply | None:
    """A reply, or None for a cancelled call. Raises the error that came in its place, or IncompatibleRelease."""
    _version, name, *values = _read(packed, VERSION)
    if name is not None:
        _raise(name, *values)
    return None if values[0] is None else ReasonReply.from_dict(values[0])


def _raise(name: str, arguments: list[Any], attributes: dict[str, Any]) -> NoReturn:
    kind = ERRORS.get(name)
    if kind is None:
        raise PlancastError(f"{name}: {arguments}")
    error = kind.__new__(kind)
    error.args = tuple(arguments)
    vars(error).update(attributes)
    raise error


def _read(packed: bytes, *versions: int) -> list[Any]:
    """The items, the version first."""
    try:
        values: list[Any] = list(_unpack(packed))
    except _UNPACKABLE:
        values = []
    if not values or values[0] not in versions:
        raise IncompatibleRelease(
            "plan hosts and reasoners run releases of plancast that do not understand each other; the request is made "
            "again when the upgrade has replaced them",
            retry_after=INCOMPATIBLE_RETRY_SECONDS,
        )
    return values


def _unpack(packed: bytes) -> Any:
    """As :func:`plancast_actors.rpc.framing.unpack`, with keys that are no strings (``logit_bias``)."""
    return msgpack.unpackb(packed, unicode_errors="surrogatepass", strict_map_key=False)


def _plain(value: Any, where: str) -> Any:
    try:
        pack(value)
    except _UNPACKABLE:
        if isinstance(value, type) and issubclass(value, BaseModel):
            return _response_format(value)
        try:
            value = plain(dict(value) if isinstance(value, Mapping) else value)
            pack(value)  # integers of more than 64 bits
        except _UNPACKABLE as error:
            raise InvalidPlannerConfig(f"a request to a model has to be plain JSON, but {where}: {error}") from None
    return value


def _response_format(model: type[BaseModel]) -> dict[str, Any]:
    """A model class as ``response_format``, as litellm would send it."""
    tool = importlib.import_module("openai").pydantic_function_tool(model)["function"]
    schema = {"name": model.__name__, "schema": tool["parameters"], "strict": True}
    return {"type": "json_schema", "json_schema": schema}
