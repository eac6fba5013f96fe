"""The base of the stores: their access to the streams of a deployment."""

from __future__ import annotations

from dataclasses import dataclass

from plancast_bus.jetstream.client.api import JetStreamApi
from plancast_bus.jetstream.messaging.publisher import Publisher
from plancast_bus.jetstream.messaging.stream_reader import StreamReader
from plancast_bus.jetstream.streams.definitions import StreamNames
from plancast_bus.subjects import Subjects


@dataclass(frozen=True, slots=True)
class StreamAccess:
    """The access of one connection to the streams of a deployment."""

    api: JetStreamApi
    publisher: Publisher
    reader: StreamReader
    subjects: Subjects
    replicated: bool = False
    """The streams have replicas, which may lag behind their leaders."""


class Store:
    """A store in the streams of a deployment."""

    def __init__(self, access: StreamAccess) -> None:
        self._api = access.api
        self._publisher = access.publisher
        self._reader = access.reader
        self._subjects = access.subjects
        self._names = StreamNames.of(access.subjects.prefix)
        # A replica that lags would return an old message, and its reader would act on an old state.
        self._newest = access.api.last_from_leader if access.replicated else access.api.last
