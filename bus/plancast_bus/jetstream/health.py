"""What server, streams and consumers are, for people and for doctors."""

from __future__ import annotations

import asyncio
from typing import Any

from plancast_bus.jetstream.api import STREAM_NOT_FOUND, ApiError, JetStreamApi
from plancast_bus.jetstream.connection import Connection
from plancast_bus.jetstream.streams import StreamNames


async def examine(connection: Connection, api: JetStreamApi, names: StreamNames) -> dict[str, Any]:
    """Server version and address, round trip in seconds, and every stream with its consumers.

    Raises:
        BusUnavailable: the server does not answer.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    account = await api.call("INFO")
    round_trip = loop.time() - began
    version = connection.client.connected_server_version
    url = connection.client.connected_url
    streams = await asyncio.gather(*(_stream(api, name) for name in names.all()))
    return {
        "server": {
            "version": f"{version.major}.{version.minor}.{version.patch}",
            "address": f"{url.hostname}:{url.port}" if url is not None else "",
            "round_trip": round_trip,
            "max_payload": connection.client.max_payload,
            "storage_bytes": account.get("storage", 0),
            "memory_bytes": account.get("memory", 0),
        },
        "connected": connection.alive,
        "streams": dict(zip(names.all(), streams, strict=True)),
    }


async def _stream(api: JetStreamApi, name: str) -> dict[str, Any]:
    try:
        info = await api.call(f"STREAM.INFO.{name}")
    except ApiError as error:
        if error.code == STREAM_NOT_FOUND:
            return {"missing": True}
        raise
    config, state = info["config"], info["state"]
    return {
        "messages": state["messages"],
        "bytes": state["bytes"],
        "max_bytes": config.get("max_bytes", -1),
        "max_age": config.get("max_age", 0) / 1e9,
        "replicas": config.get("num_replicas", 1),
        "storage": config.get("storage", ""),
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
                "filters": consumer["config"].get("filter_subjects") or [consumer["config"].get("filter_subject", "")],
                "durable": "durable_name" in consumer["config"],
            }
        if not consumers or len(found) >= page["total"]:
            return found
