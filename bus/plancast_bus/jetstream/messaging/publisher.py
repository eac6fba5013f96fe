"""Acknowledged publishing to streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from plancast_bus.errors import BusError, BusUnavailable, PublishRefused
from plancast_bus.events.envelope import EventTopic
from plancast_bus.jetstream.client.acks import PubAck
from plancast_bus.jetstream.client.request_reply import Headers, NoResponders, Requester
from plancast_bus.jetstream.messaging.group_commit import BatchSender
from plancast_bus.settings import GroupCommit
from plancast_bus.subjects import Subjects

_T = TypeVar("_T")

TENANT = "Plancast-Tenant"
"""Header of goals with their tenant."""


class Publisher:
    """Publishes messages and waits for their acknowledgements."""

    def __init__(self, requester: Requester, subjects: Subjects, group_commit: GroupCommit = "auto") -> None:
        self._requester = requester
        store = subjects.store
        topics = (EventTopic.ACTION_REQUESTS, EventTopic.ACTION_RESULTS)
        roots = [f"{store}.{kind}" for kind in ("checkpoints", "responses", "registry")]
        roots += [f"{subjects.prefix}.{topic}" for topic in topics]
        if group_commit == "never":
            roots = []
        self._groups = {root: BatchSender(requester, always=group_commit == "always") for root in roots}

    def begin(
        self, subject: str, payload: bytes, headers: Headers, finish: Callable[[PubAck], _T]
    ) -> asyncio.Future[_T]:
        """Publish a message, at once if possible; return the future of ``finish(acknowledgement)``.

        The future fails with the errors of :meth:`settle` and `NoResponders`. ``headers`` must not change afterwards.
        """
        group = self._groups.get(subject[: subject.find(".", subject.find(".") + 1)])
        if group is not None:
            return group.begin(subject, payload, headers, finish)
        return self._requester.begin(subject, payload, headers, finish)

    async def publish_acked(self, subject: str, payload: bytes, headers: Headers) -> PubAck:
        """Publish a message and wait for its acknowledgement; raises as :meth:`settle`."""
        return await self.settle(subject, self.begin(subject, payload, headers, unchanged))

    async def settle(self, subject: str, stored: asyncio.Future[_T]) -> _T:
        """Wait for the result of :meth:`begin`.

        Raises:
            PublishRefused, PayloadTooLarge, WrongLastSequence, SubjectTaken, BusUnavailable
        """
        try:
            return await stored
        except NoResponders as error:
            raise _untaken(subject, error) from error


def unchanged(ack: PubAck) -> PubAck:
    """Return the acknowledgement itself, for :meth:`Publisher.begin`."""
    return ack


def _untaken(subject: str, error: NoResponders) -> BusError:
    if error.in_cluster:
        return BusUnavailable(
            f"no stream takes {subject[:200]} at the moment: its servers have no leader (is a majority of them "
            "up?), or nothing has created the streams yet (start a plancast deployment on this cluster)"
        )
    return PublishRefused(
        f"no stream takes {subject[:200]}: either nothing has created the streams yet (start a "
        "plancast deployment on this server), or the prefix is another one"
    )
