"""Client: submits goals, and finds and lists their plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic import BaseModel

from plancast import plan_tree
from plancast.client.connect import RUN_FILE, ClientConnector, connect_bus
from plancast.client.deployed_goals import DeployedGoals
from plancast.client.handle import PlanHandle
from plancast.client.results import ResultWaiter
from plancast.errors import ForeignPlan
from plancast.json_values.limits import MAX_SECONDS, is_duration, shown
from plancast.json_values.normalize import plain
from plancast.plan.control_events import BEGIN_AFTER, MAX_AFTER
from plancast.plan.status import WAITING, ListedStatus, PlanStatus
from plancast.plan_store.store import check_repetition
from plancast.settings import Settings
from plancast_bus.clock import Clock
from plancast_bus.errors import AccessDenied
from plancast_bus.events.codec import validated
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.ports.bus import Bus
from plancast_bus.ports.checkpoints import Attribute, Committed, PlanFilter, PlanSummary, attribute_text
from plancast_bus.subjects import check_event_type, encode_token

if TYPE_CHECKING:
    from plancast.agents.definitions import EventDefinition
    from plancast.agents.registry import AgentRegistry
    from plancast.app import App
    from plancast.client.schedules import Schedules
    from plancast.plan_store.listed_status import ListedStatuses
    from plancast.telemetry.tracing import Tracing

__all__ = ["RUN_FILE", "Client", "ClientConnector"]

RESERVED_METADATA = frozenset({BEGIN_AFTER, "notify", "parent_plan_id", "reply_to", "tenant_id", *plan_tree.METADATA})
"""Keys of a goal's metadata that only plancast may set: order, parent, tenant, and addresses of the response."""


class PlanPage(list[PlanSummary]):
    """One page of summaries of plans; see :meth:`Client.plans`."""

    def __init__(self, summaries: Iterable[PlanSummary] = (), following: str | None = None) -> None:
        super().__init__(summaries)
        self.next = following
        """Cursor for the next page (argument ``after``), which may be empty; None: this is the last page."""


class Client:
    """Submits goals and follows plans. Make one with :meth:`connect`.

    Args:
        bus: The connection; its owner closes it.
        first_look: Seconds until the first read of the checkpoint of a plan whose result is awaited.
        longest_look: Longest seconds between two such reads.
        tenant_id: Binds the client to a tenant: it submits for this tenant only, and plans of others are unknown to
            it. None: it sees every plan. This is a convenience for programs that serve tenants, not a security
            boundary: any holder of the connection can read more; see docs/tenancy.md.
        clock: Deadlines count from its time; the clock of the bus unless given.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        first_look: float = 1.0,
        longest_look: float = 15.0,
        tenant_id: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.bus = bus
        self._clock: Clock = clock or bus.clock
        self.tenant_id = tenant_id
        self.results: ResultWaiter = ResultWaiter(bus, first_look=first_look, longest_look=longest_look)
        self._statuses: ListedStatuses | None = None
        self._agents: AgentRegistry | None = None
        self.tracing: Tracing | None = None
        """Creates spans for published events; None: no spans."""
        self.closed: bool = False
        self._owns_bus = False
        self._goals = DeployedGoals(bus.registry)
        self._schedules: Schedules | None = None

    @classmethod
    def connect(
        cls,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        data_dir: Path | str | None = None,
        tenant_id: str | None = None,
    ) -> ClientConnector[Client]:
        """Connect to a deployment: ``await Client.connect(url)``, or ``async with Client.connect(url) as client``.

        Args:
            url: ``nats://host:port``. Defaults to the settings', then ``NATS_URL``, then the URL that
                ``plancast run`` wrote to the data folder.
            settings: Replace those of the environment.
            data_dir: The data folder of ``plancast run``; ``.plancast`` by default.
            tenant_id: Binds the client to a tenant, as in the constructor.

        Raises:
            BusUnavailable: no URL is known, or nothing answers there.
            UnsupportedServer: the server is too old or runs without JetStream.
        """

        async def open_client() -> Client:
            loaded = settings or Settings.load()
            client = cls(await connect_bus(url, loaded, data_dir), tenant_id=tenant_id)
            client._owns_bus = True
            if loaded.telemetry.traces == "on":
                from plancast.telemetry.tracing import Tracing

                client.tracing = Tracing()  # the program sets up the export
            return client

        return ClientConnector(open_client)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop waiting, and close the connection that :meth:`connect` made."""
        if self.closed:
            return
        self.closed = True
        try:
            await self.results.close()
        finally:
            if self._owns_bus:
                await self.bus.close()

    async def submit(
        self,
        event_type: str,
        data: Any = None,
        *,
        response_event: str | None = None,
        correlation_id: str | None = None,
        session_id: str | None = None,
        user_id: str = "",
        tenant_id: str | None = None,
        response_topic: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        deadline: float | None = None,
        after: Iterable[str] = (),
        reuse: bool = False,
    ) -> PlanHandle:
        """Publish a goal; returns when it is durable.

        Args:
            event_type: Type of the goal.
            data: The goal's data: a JSON object, or a pydantic model.
            response_event: Type of the final response; defaults to ``<goal>.completed`` or ``.failed``.
            correlation_id: The plan's id; submitting an id twice with the same goal and data starts one plan.
            session_id: Groups plans.
            user_id: The user on whose behalf the plan runs.
            tenant_id: The plan's tenant; only its events move the plan. Defaults to the client's.
            response_topic: Topic of the final response; defaults to ``action-results``.
            metadata: Further fields for the goal's handler; reserved keys are left out.
            deadline: Seconds from now, by the client's clock, in which the plan has to end with all its children; then
                it fails with ``deadline_exceeded``. None: no deadline, unless its planner has one.
            after: Ids of plans, 100 at most, that have to end, in whatever way, before this one begins. It is pending
                until then, and can be cancelled.
            reuse: Give the plan that has the correlation id also when it was begun with another goal or other data.

        Raises:
            ValueError: the deadline is no positive number.
            ForeignPlan: the client is bound to another tenant.
            PlanNotFound: the tenant has no plan of an id in ``after``.
            ValueError: ``after`` has too many ids, or the plan's own.
            GoalConflict: the correlation id is that of a plan with another goal or other data; nothing was sent.
            UnknownGoal: apps are deployed, and none takes the goal. While no app is deployed the goal waits for one.
            InvalidGoal: the data break the goal's schema.
            InvalidSubject: an event type, or the correlation id, cannot be part of a subject.
            InvalidEnvelope: another field cannot be sent, such as a session id with a line break.
            PublishRefused, PayloadTooLarge: the goal was not accepted.
            BusUnavailable: it may have been accepted nevertheless; submit again with the same correlation id.
        """
        check_event_type(event_type)
        if response_event is not None:
            check_event_type(response_event)
        tenant = self._tenant_of(tenant_id) or ""
        goal_id = uuid4().hex if correlation_id is None else _goal_id(tenant, correlation_id)
        plan_id = goal_id if correlation_id is None else correlation_id
        topic = None if response_topic is None else str(EventTopic(response_topic))
        sent = {} if data is None else plain(data)
        await self._goals.require(event_type, sent)
        if correlation_id is not None and not reuse:
            await check_repetition(self.bus, correlation_id, tenant, event_type, sent)
        ends = {} if deadline is None else {plan_tree.DEADLINE: self._end_of(deadline)}
        predecessors = await self._predecessors(after, plan_id, tenant)
        order = {BEGIN_AFTER: predecessors} if predecessors else {}
        event = validated(
            {
                "id": goal_id,
                "source": "client",
                "type": event_type,
                "topic": EventTopic.ACTION_REQUESTS,
                "data": sent,
                "correlation_id": plan_id,
                "response_event": response_event,
                "response_topic": topic,
                "session_id": session_id,
                "user_id": user_id or None,
                "tenant_id": tenant or None,
                "metadata": {**_without_reserved(metadata), **ends, **order, "notify": await self.results.inbox()},
            }
        )
        pending = self.results.pending(plan_id, announced=True, tenant_id=tenant)
        await self._publish(event)
        return PlanHandle(self.results, self._publish, pending, self._human_events, submitted=True)

    def _end_of(self, deadline: Any) -> float:
        if not is_duration(deadline):
            most = f"at most {MAX_SECONDS} (ten years)"
            raise ValueError(f"a deadline is a number of seconds, more than 0, {most}, not {shown(deadline)}")
        return round(self._clock.time() + deadline, 3)

    async def _predecessors(self, after: Iterable[str], plan_id: str, tenant: str) -> list[str]:
        """The correlation ids of the plans that a plan is to begin after; unchecked if this user may not read plans."""
        ids = list(dict.fromkeys([after] if isinstance(after, str) else after))
        if len(ids) > MAX_AFTER or plan_id in ids:
            raise ValueError(f"plan {plan_id} can begin after up to {MAX_AFTER} plans, and not after itself")
        found = [self.results.pending(each, tenant_id=tenant) for each in ids]
        for pending in found:
            with suppress(AccessDenied):
                await PlanHandle(self.results, self._publish, pending, self._human_events).status()
        return [pending.key for pending in found]

    @property
    def schedules(self) -> Schedules:
        """Creates, changes and lists schedules, which submit goals at times."""
        if self._schedules is None:
            from plancast.client.schedules import Schedules  # programs that only submit need none

            self._schedules = Schedules(self.bus, self._clock, self._tenant_of, self._goals.require, self._scheduled)
        return self._schedules

    def _scheduled(self, plan_id: str, tenant_id: str) -> PlanHandle:
        """Make a handle for a plan whose goal a dispatcher is going to send."""
        # It may begin late: a wait for it does not end because it is unknown yet.
        pending = self.results.pending(plan_id, announced=True, tenant_id=tenant_id)
        return PlanHandle(self.results, self._publish, pending, self._human_events, submitted=True)

    async def _publish(self, event: EventEnvelope) -> None:
        """Publish an event, in a span when tracing is on."""
        if self.tracing is None:
            await self.bus.publish(event)
        else:
            await self.tracing.publish(self.bus, event)

    def plan(self, plan_id: str, *, tenant_id: str | None = None) -> PlanHandle:
        """Make a handle for a plan, by its id or a correlation id of its events.

        Nothing is read yet: methods of the handle raise PlanNotFound when there is no such plan, or it belongs to
        another tenant.

        Args:
            plan_id: The plan's id, or a correlation id.
            tenant_id: Tenant that the plan must have; defaults to the client's, or any.

        Raises:
            ForeignPlan: the client is bound to another tenant.
        """
        pending = self.results.pending(plan_id, tenant_id=self._tenant_of(tenant_id))
        return PlanHandle(self.results, self._publish, pending, self._human_events)

    async def fork(
        self,
        plan_id: str,
        *,
        at: int,
        data: Mapping[str, Any] | BaseModel | None = None,
        correlation_id: str | None = None,
        app: App | None = None,
        tenant_id: str | None = None,
    ) -> PlanHandle:
        """Start a new plan from the state of another one after one of its turns; returns when the fork is durable.

        Requests that were open then are sent again for the new plan; the old plan does not change.

        Args:
            plan_id: The plan to fork.
            at: The revision: the number of a turn, from 1.
            data: Fields of the goal's data to replace.
            correlation_id: The new plan's id; forking under the same id twice starts one plan.
            app: The app's code, to rebuild the plan's state; see :meth:`PlanHandle.state_at`.
            tenant_id: Tenant that the plan must have; defaults to the client's, or any.

        Raises:
            UnknownRevision: there was no such turn, or it is gone from the history.
            PlanFinished: the plan was finished then.
            CannotReplay: the state cannot be rebuilt: the code has changed, or the history is incomplete.
            PlanNotFound: no plan of this tenant has this id.
            ForeignPlan: another plan has the correlation id, or the client is bound to another tenant.
            PayloadTooLarge: the plan exceeds ``plans.max_plan_bytes``, with the requests that were open.
            AccessDenied: forking requires the permissions of the runtime.
            BusUnavailable: it may have been forked nevertheless; fork again with the same correlation id.
        """
        from plancast.replay.stored import options_of, send_fork

        source = self.plan(plan_id, tenant_id=tenant_id)
        checkpoint = await source.begun()
        changed = data.model_dump(mode="json") if isinstance(data, BaseModel) else data
        fork_id = await send_fork(
            self.bus,
            checkpoint,
            at,
            await options_of(self.bus, app),
            data=changed,
            correlation_id=correlation_id,
            notify=await self.results.inbox(),
        )
        pending = self.results.pending(fork_id, announced=True, tenant_id=checkpoint.summary.tenant_id)
        return PlanHandle(self.results, self._publish, pending, self._human_events, submitted=True)

    async def plans(
        self,
        *,
        session_id: str | None = None,
        status: PlanStatus | ListedStatus | str | None = None,
        tenant_id: str | None = None,
        goal_event: str | None = None,
        text: str | None = None,
        attributes: Mapping[str, Attribute] | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> PlanPage:
        """List summaries of the stored plans, children included, most recently changed first.

        With a limit it reads only as far as needed: the first page costs the same among a hundred plans and a
        million, unless the filters exclude most of them.

        Args:
            session_id: Only plans of this session.
            status: Only plans of this status: one of `PlanStatus`, or ``waiting`` for plans that wait for people,
                which lists show as neither running nor paused.
            tenant_id: Only plans of this tenant; defaults to the client's, or all.
            goal_event: Only plans of this goal.
            text: Only plans with this text in an id, their goal, state or planner; case does not matter.
            attributes: Only plans whose search attributes (``plan.attributes``) have these values.
            limit: Largest size of the page.
            after: Cursor: the ``next`` of the page before. A plan that has changed since then is on no further page;
                a new listing begins with it.

        Raises:
            ForeignPlan: the client is bound to another tenant.
            ValueError: the status or the cursor is invalid.
            BusUnavailable: the store cannot be reached.
        """
        from plancast.plan_store.listed_status import BATCH

        only = None if status is None else str(ListedStatus(status))
        stored = None if only == WAITING else only
        having = tuple((name, attribute_text(value)) for name, value in (attributes or {}).items())
        wanted = PlanFilter(stored, session_id, self._tenant_of(tenant_id), goal_event, text or None, having)
        before = 0 if after is None else _version(after)
        # One plan more than the page shows whether it is the last. With filters, the next match may be far away.
        unfiltered = wanted == PlanFilter() and only is None
        enough = limit + 1 if limit is not None and unfiltered else limit
        found: dict[str, Committed] = {}
        statuses = self._listed_statuses()
        await statuses.refresh()
        stopped = enough == 0
        plans = self.bus.checkpoints.newest(wanted, before=before)
        async with aclosing(statuses.read_all(plans, min(enough or BATCH, BATCH))) as newest:
            while not stopped and (committed := await anext(newest, None)) is not None:
                if only not in (None, committed.summary.status):
                    continue
                found[committed.correlation_id] = committed
                stopped = len(found) == enough
        page = sorted(found.values(), reverse=True, key=lambda each: each.version)[:limit]
        return PlanPage((each.summary for each in page), str(page[-1].version) if stopped and page else None)

    def _listed_statuses(self) -> ListedStatuses:
        """Return the reader of listed statuses; imported with the first list, since programs that submit need none."""
        if self._statuses is None:
            from plancast.plan_store.listed_status import ListedStatuses

            self._statuses = ListedStatuses(self.bus.checkpoints, self._human_events)
        return self._statuses

    async def _human_events(self) -> dict[str, EventDefinition]:
        """The events that people send, by type; the registry is imported when they are first needed."""
        if self._agents is None:
            from plancast.agents.registry import AgentRegistry

            self._agents = AgentRegistry(self.bus.registry)
        return await self._agents.human_events()

    def _tenant_of(self, tenant_id: str | None) -> str | None:
        """The given tenant, or else the client's; None for all."""
        if self.tenant_id is not None and tenant_id not in (None, self.tenant_id):
            raise ForeignPlan(
                f"this client is bound to the tenant {self.tenant_id!r}, and cannot act for {tenant_id!r}"
            )
        return self.tenant_id if tenant_id is None else tenant_id


def _version(after: str) -> int:
    if not (after.isascii() and after.isdigit() and int(after)):
        raise ValueError(f"after is the next of a page of plans, not {after[:100]!r}")
    return int(after)


def _goal_id(tenant: str, correlation_id: str) -> str:
    """Id of a goal event: equal for repeated submissions, so that the stream drops them; different for each tenant."""
    owner = f"{encode_token(tenant)}:" if tenant else ""
    return f"goal:{owner}{encode_token(correlation_id)}"


def _without_reserved(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (metadata or {}).items() if key not in RESERVED_METADATA}
