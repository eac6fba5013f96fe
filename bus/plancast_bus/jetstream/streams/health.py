"""Reports the state of server, streams and consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from plancast_bus.jetstream.client.api import STREAM_NOT_FOUND, ApiError, JetStreamApi
from plancast_bus.jetstream.client.connection import Connection
from plancast_bus.jetstream.streams.definitions import StreamNames, same
from plancast_bus.subjects import PLACEHOLDERS


async def examine(
    connection: Connection, api: JetStreamApi, names: StreamNames, wanted: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Report version, address, limits and round trip (seconds) of the server, and the streams with their consumers.

    ``wanted`` are the intended configurations of streams; ``differs`` lists the fields with other values.

    Raises:
        BusUnavailable: the server does not respond.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    account = await api.call("INFO")
    round_trip = loop.time() - began
    version = connection.client.connected_server_version
    url = connection.client.connected_url
    definitions = {each["name"]: each for each in wanted}
    streams = await asyncio.gather(*(_stream(api, name, definitions.get(name, {})) for name in names.all()))
    return {
        "server": {
            "version": f"{version.major}.{version.minor}.{version.patch}",
            "address": f"{url.hostname}:{url.port}" if url is not None else "",
            "round_trip": round_trip,
            "max_payload": connection.client.max_payload,
            "storage_bytes": account.get("storage", 0),
            "memory_bytes": account.get("memory", 0),
            "reserved_storage": account.get("reserved_storage", 0),
            "reserved_memory": account.get("reserved_memory", 0),
            "streams": account.get("streams", 0),
            "consumers": account.get("consumers", 0),
            "limits": account.get("limits", {}),
            "in_cluster": connection.in_cluster,
        },
        "connected": connection.alive,
        "streams": dict(zip(names.all(), streams, strict=True)),
    }


async def _stream(api: JetStreamApi, name: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    try:
        info = await api.call(f"STREAM.INFO.{name}", {"subjects_filter": PLACEHOLDERS})
    except ApiError as error:
        if error.code == STREAM_NOT_FOUND:
            return {"missing": True}
        raise
    config, state = info["config"], info["state"]
    return {
        "messages": state["messages"] - sum((state.get("subjects") or {}).values()),
        "bytes": state["bytes"],
        "max_bytes": config.get("max_bytes", -1),
        "max_age": config.get("max_age", 0) / 1e9,
        "replicas": config.get("num_replicas", 1),
        "storage": config.get("storage", ""),
        "differs": {key: [config.get(key), value] for key, value in wanted.items() if not same(config.get(key), value)},
        "lagging_replicas": [
            each.get("name", "?")
            for each in (info.get("cluster") or {}).get("replicas") or ()
            if each.get("offline") or not each.get("current", True)
        ],
        "consumers": await _consumers(api, name),
    }


async def _consumers(api: JetStreamApi, stream: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while True:
        page = await api.call(f"CONSUMER.LIST.{stream}", {"offset": len(found)})
        consumers = page.get("consumers") or []
        for consumer in consumers:
            found[consumer["name"]] = {
                "pending": consumer["num_pending"],
                "ack_pending": consumer["num_ack_pending"],
                "redelivered": consumer["num_redelivered"],
                "readers": consumer.get("num_waiting", 0),
                "waiting_pulls": consumer.get("num_waiting", 0),
                "idle_seconds": _idle_seconds(consumer),
                "filters": consumer["config"].get("filter_subjects") or [consumer["config"].get("filter_subject", "")],
                "durable": "durable_name" in consumer["config"],
            }
        if not consumers or len(found) >= page["total"]:
            return found


def _idle_seconds(consumer: Mapping[str, Any]) -> float | None:
    """Seconds since the last delivery, by the server's clock; None when there was none."""
    last, now = (consumer.get("delivered") or {}).get("last_active"), consumer.get("ts")
    if not last or not now:
        return None
    return (datetime.fromisoformat(now) - datetime.fromisoformat(last)).total_seconds()
