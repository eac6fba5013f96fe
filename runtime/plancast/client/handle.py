"""PlanHandle: a client's view of one plan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from plancast.client.changes import Cursor, PlanChange
from plancast.client.plan_lookup import PlanLookup
from plancast.client.plan_sender import PlanSender, checked_goal
from plancast.client.plan_watch import PlanWatch
from plancast.client.results import PendingResult, ResultWaiter
from plancast.client.signals import SignalOutcome, outcome_of
from plancast.errors import NotAwaited, PlanCancelled, PlanFailed, PlanFinished, PlanNotFound
from plancast.json_values.normalize import plain
from plancast.plan.control_events import CANCEL, INJECT, NOT_GIVEN, PAUSE, REDIRECT, RESOLVE_EFFECT, RESUME, ROLLBACK
from plancast.plan.status import PlanStatus
from plancast.plan_store.plan_size import PlanSize, size_of
from plancast.plan_store.store import plan_fields
from plancast_bus.errors import AccessDenied
from plancast_bus.events.codec import unpack
from plancast_bus.events.envelope import EventEnvelope
from plancast_bus.ports.checkpoints import Checkpoint
from plancast_bus.ports.values import in_full

if TYPE_CHECKING:
    from plancast.app import App
    from plancast.plan_store.approvals import Approval, People
    from plancast.plan_store.effects import PlanEffect
    from plancast.replay.report import PlanAt, Replay, Which

SIGNAL_SECONDS = 5.0
"""Seconds for which :meth:`PlanHandle.signal` waits for the plan's turn, unless told otherwise."""


class PlanHandle:
    """One plan. Made by :meth:`plancast.Client.submit` and :meth:`plancast.Client.plan`.

    The plan of a handle from ``submit`` may not have begun yet; one from ``plan`` must exist.
    """

    def __init__(
        self,
        results: ResultWaiter,
        publish: Callable[[EventEnvelope], Awaitable[None]],
        pending: PendingResult,
        people: Callable[[], Awaitable[People]],
        *,
        submitted: bool = False,
    ) -> None:
        self._results = results
        self._bus = results.bus
        self._pending = pending
        self._people = people
        self._lookup = PlanLookup(results.bus, pending, submitted=submitted)
        self._sender = PlanSender(self._lookup, pending, publish, people)

    def __repr__(self) -> str:
        return f"PlanHandle({self.plan_id!r})"

    @property
    def plan_id(self) -> str:
        """The plan's id."""
        return self._pending.plan_id

    async def result(self, timeout: float | None = None) -> Any:
        """Wait until the plan is finished, and return its bare result.

        It keeps waiting while nats-server is unavailable.

        Args:
            timeout: Seconds to wait; None waits for ever.

        Raises:
            PlanFailed, PlanCancelled: the plan did not complete.
            PlanNotFound: the plan is unknown (for a handle from ``submit``: was forgotten).
            TimeoutError: the plan is not finished yet; it keeps running.
            BusUnavailable: the client was closed.
        """
        scope = asyncio.timeout(timeout)
        try:
            async with scope:
                data = await self._results.wait(self._pending)
        except TimeoutError:
            if not scope.expired():
                raise
            raise TimeoutError(f"plan {self.plan_id} has not finished within {timeout:g} seconds") from None
        status, error, reason = PlanStatus(data["status"]), data.get("error"), data.get("reason")
        if status is PlanStatus.CANCELLED:
            raise PlanCancelled(self.plan_id, error or reason)
        if status is not PlanStatus.COMPLETED:
            raise PlanFailed(self.plan_id, error or "", reason)
        return data.get("result")

    async def status(self) -> PlanStatus:
        """The plan's status; PENDING until its first turn is committed.

        Raises:
            PlanNotFound: no plan has this id.
            BusUnavailable: the store cannot be reached.
        """
        checkpoint = await self._lookup.newest()
        return PlanStatus.PENDING if checkpoint is None else PlanStatus(checkpoint.summary.status)

    async def state(self) -> dict[str, Any]:
        """The plan as the dict that ``PlanContext.to_dict()`` returns, with its state machine.

        Waits up to 5 seconds for a plan that was just submitted to begin. One whose first turn takes longer, because it
        is queued or waits for a model, is pending, with the fields that its goal gives it.

        Raises:
            PlanNotFound: no plan has this id.
            BusUnavailable: the store cannot be reached.
        """
        found = await self._lookup.found()
        if not isinstance(found, Checkpoint):
            return found.to_dict()
        return await plan_fields(self._bus.checkpoints, await in_full(found, self._bus.values))

    async def history(self) -> list[dict[str, Any]]:
        """The plan's timeline, oldest first: for each turn a JSON-able dict with its ``revision``, ``time``, ``event``.

        Empty before the first turn is committed. Waits and raises as :meth:`state` does.
        """
        found = await self._lookup.found()
        if not isinstance(found, Checkpoint):
            return []
        return [unpack(entry) for entry in await self._bus.checkpoints.history(found.correlation_id)]

    async def size(self) -> PlanSize:
        """The bytes that the plan takes in the store; zeros before the first turn. Raises as :meth:`state` does."""
        found = await self._lookup.found()
        return await size_of(self._bus, found.correlation_id)

    async def begun(self) -> Checkpoint:
        """The newest checkpoint; waits up to 5 seconds for a plan that was just submitted to begin.

        Raises:
            PlanNotFound: no plan has this id, or its first turn was not committed in this time.
            BusUnavailable: the store cannot be reached.
        """
        found = await self._lookup.found()
        if not isinstance(found, Checkpoint):
            raise PlanNotFound(f"plan {self.plan_id} has not begun: its goal is queued, or its first turn still runs")
        return await in_full(found, self._bus.values)

    async def state_at(self, revision: int, *, app: App | None = None) -> PlanAt:
        """The plan after one of its turns: results, state and status, as far as they are known.

        Args:
            revision: Number of the turn, from 1.
            app: The app's code; required for plans that handlers, or planners with tasks of their own, move.

        Raises:
            UnknownRevision: there was no such turn, or it is gone from the history.
            PlanNotFound, BusUnavailable: as :meth:`state` does.
        """
        from plancast.replay.replay import state_at
        from plancast.replay.stored import options_of, recorded_plan

        plan = await recorded_plan(self._bus, await self.begun())
        return await state_at(plan, revision, await options_of(self._bus, app))

    async def replay(self, *, app: App | None = None, machine: Which = "then") -> Replay:
        """Re-run the plan's history with the current code, and compare each turn with the recorded one.

        No model or worker is called, and nothing is sent. Handlers are run: side effects of their own happen again.

        Args:
            app: The current code; without it only the plan's own machine and recorded decisions are used.
            machine: The state machine that the plan began with (``then``), or the one that its goal has now (``now``).

        Raises:
            CannotReplay: the beginning of the history, or the state machine, is gone.
            PlanNotFound, BusUnavailable: as :meth:`state` does.
        """
        from plancast.replay.replay import replay
        from plancast.replay.stored import options_of, recorded_plan

        plan = await recorded_plan(self._bus, await self.begun())
        return await replay(plan, await options_of(self._bus, app, machine=machine))

    async def signal(
        self,
        event_type: str,
        data: Any = None,
        *,
        user_id: str = "",
        event_id: str | None = None,
        request_id: str | None = None,
        timeout: float = SIGNAL_SECONDS,
    ) -> SignalOutcome:
        """Send the plan an event from outside, on the topic ``plan-events``; returns what became of it.

        A plan that does not wait for it yet keeps it (``kept``); one that can never take it ignores it (``ignored``).

        Args:
            event_type: Type of the event.
            data: JSON, or a pydantic model.
            user_id: The sender.
            event_id: Idempotency key: the same id counts once. Defaults to a new id.
            request_id: The open request that the event answers; once it is answered, the event comes too late.
            timeout: Seconds to wait for the plan's turn. What its stream holds longer, because the plan waits for a
                model or no deployment runs, is ``kept``, as what is sent to a plan that has not begun; 0 does not wait.

        Raises:
            PlanFinished: the plan is finished.
            PlanNotFound: no plan has this id.
            InvalidAnswer: the data break the schema that ``Planner.expects`` declares for the event, or they are an
                answer (``approved``) in another name (``by``) than the sender's; nothing was sent.
            BusUnavailable: the event may have been sent nevertheless.
        """
        event, begun = await self._sender.send(event_type, data, user_id, event_id, request_id, is_signal=True)
        if not begun:
            return SignalOutcome.KEPT
        return await outcome_of(self._bus, event, self._pending.key, timeout)

    async def control(
        self, event_type: str, data: Any = None, *, user_id: str = "", event_id: str | None = None
    ) -> None:
        """Send the plan a control event, and do not wait for its turn. Raises as :meth:`signal` does."""
        await self._sender.send(event_type, data, user_id, event_id)

    async def resume(self, data: Any = None, *, user_id: str = "", event_id: str | None = None) -> None:
        """Continue a paused plan, with ``data`` as its ``results["user_input"]``. Raises as :meth:`signal` does."""
        await self.control(RESUME, {"input": plain(data)}, user_id=user_id, event_id=event_id)

    async def cancel(self, reason: str = "cancelled", *, user_id: str = "", event_id: str | None = None) -> None:
        """Cancel the plan, and its children with it. Raises as :meth:`signal` does."""
        await self.control(CANCEL, {"reason": reason}, user_id=user_id, event_id=event_id)

    async def rollback(
        self,
        reason: str = "rolled back",
        *,
        user_id: str = "",
        event_id: str | None = None,
        timeout: float = SIGNAL_SECONDS,
    ) -> SignalOutcome:
        """Undo what the plan and its child plans have done, newest first; returns what became of the request.

        A finished plan is running again meanwhile. It ends failed, with the error ``rolled_back: <reason>``, which
        names what is left; its result has ``undone`` and ``left`` in full. A second rollback is ignored, unless
        something was left: that is tried again.

        Args:
            reason: Why, for the plan's error.
            user_id: The sender.
            event_id: As for :meth:`signal`.
            timeout: Seconds to wait for the plan to begin; the rollback itself is not waited for.

        Raises:
            PlanNotFound, BusUnavailable: as :meth:`signal` does.
        """
        event, begun = await self._sender.send(ROLLBACK, {"reason": reason}, user_id, event_id, also_finished=True)
        if begun is None:
            return SignalOutcome.KEPT
        outcome = await outcome_of(self._bus, event, self._pending.key, timeout)
        if outcome is SignalOutcome.IGNORED and await self._is_rolled_back_since(begun):
            outcome = SignalOutcome.MOVED  # so many turns ago that the checkpoint does not show it
        if outcome is not SignalOutcome.IGNORED and PlanStatus(begun.summary.status).finished:
            self._pending.reopen(begun.revision)
        return outcome

    async def _is_rolled_back_since(self, before: Checkpoint) -> bool:
        checkpoint = await self._lookup.newest()
        if checkpoint is None or checkpoint.revision == before.revision:
            return False
        states = [await in_full(each, self._bus.values) for each in (before, checkpoint)]
        then, now = (unpack(each.state).get("rollback") or {} for each in states)
        return bool(now) and (not then or "ended" in then)

    async def pause(self, reason: str = "paused", *, user_id: str = "", event_id: str | None = None) -> None:
        """Hold the plan until it is resumed. Raises as :meth:`signal` does."""
        await self.control(PAUSE, {"reason": reason}, user_id=user_id, event_id=event_id)

    async def approval(self) -> Approval | None:
        """Return the open request for a person's decision; None if there is none. Raises as :meth:`state` does."""
        from plancast.plan_store.approvals import approval_of

        return approval_of(await self.state(), await self._people())

    async def approve(
        self,
        data: Any = None,
        *,
        reason: str = "",
        user_id: str = "",
        event_id: str | None = None,
        request_id: str | None = None,
    ) -> SignalOutcome:
        """Answer what the plan waits for people to decide with yes: see :meth:`reject`."""
        return await self._answer(True, data, reason, user_id, event_id, request_id)

    async def reject(
        self,
        reason: str = "",
        *,
        data: Any = None,
        user_id: str = "",
        event_id: str | None = None,
        request_id: str | None = None,
    ) -> SignalOutcome:
        """Answer what the plan waits for people to decide with no; returns what became of the answer.

        The plan goes on with the event that it waits for. Its data are ``approved`` (true or false), ``by`` (the user)
        and ``reason``, with those of ``data``. Where a state has another transition for the no, such as on
        ``<base>.rejected``, that event is sent. :meth:`cancel` ends a plan.

        Args:
            reason: Why, for the plan and its history.
            data: Further fields of the answer: a mapping, or a pydantic model.
            user_id: Who answers.
            event_id: As for :meth:`signal`.
            request_id: The ``request_id`` of the :meth:`approval` that was shown to the user; None: what is asked now.

        Raises:
            NotAwaited: the plan waits for no answer of people, asks something else than ``request_id`` names by now, or
                would take the no for a yes.
            InvalidAnswer: the data break the schema that ``Planner.expects`` declares for the event; nothing was sent.
            PlanFinished, PlanNotFound, BusUnavailable: as :meth:`signal` does.
        """
        return await self._answer(False, data, reason, user_id, event_id, request_id)

    async def _answer(
        self, approved: bool, data: Any, reason: str, user_id: str, event_id: str | None, request_id: str | None
    ) -> SignalOutcome:
        found = await self._lookup.found()
        if isinstance(found, Checkpoint) and PlanStatus(found.summary.status).finished:
            raise PlanFinished(f"plan {self.plan_id} is {found.summary.status} and waits for no answer")
        approval = await self.approval()
        if approval is None:
            raise NotAwaited(f"plan {self.plan_id} does not wait for an answer of people; cancel it to end it")
        if request_id not in (None, approval.request_id):
            raise NotAwaited(f"plan {self.plan_id} asks again, or something else by now: look at it, and answer that")
        given = plain(data) if isinstance(data, BaseModel) else data
        answer = approval.answer(approved, given, reason=reason, by=user_id)
        return await self.signal(
            answer.event_type, answer.data, user_id=user_id, event_id=event_id, request_id=answer.request_id
        )

    async def effects(self) -> list[PlanEffect]:
        """List the effects of the plan's tasks, also of open ones. Raises as :meth:`state` does."""
        from plancast.plan_store.effects import effect_types, effects_of

        return effects_of(await self.state(), await effect_types(self._bus))

    async def resolve_effect(
        self,
        task: str,
        *,
        done: Any = NOT_GIVEN,
        not_done: bool = False,
        give_up: bool = False,
        about: int | str | None = None,
        user_id: str = "",
        event_id: str | None = None,
        timeout: float = SIGNAL_SECONDS,
    ) -> SignalOutcome:
        """Tell the outcome of an unknown effect; the plan, also a finished one, passes it to the worker.

        Args:
            task: Its ``task``, the id of the request.
            done: It was done, and this is what the task's handler would have returned; may be None.
            not_done: It was not done; the worker begins it again.
            give_up: It cannot be told, and is not to be begun again; the task fails.
            about: Its ``about``, as whoever decides has seen it; None: as it is now.
            user_id: Who tells it.
            event_id: As for :meth:`signal`.
            timeout: As for :meth:`signal`.

        Raises:
            TypeError: not exactly one of the three is given, or the result has no JSON form; nothing was sent.
            NotAwaited: the plan has no such effect, its outcome is known, or was told already, or another attempt was
                made, or its undo has failed, since it was seen; nothing was sent.
            PlanNotFound, BusUnavailable: as :meth:`signal` does.
        """
        from plancast.plan_store.effects import decision_about

        try:
            state = await self.state()
        except AccessDenied:
            if self._lookup.tenant_id is None:
                raise
            state = {}  # this user may publish but not read; the plan's turn checks it
        data = decision_about(state, task, done=done, not_done=not_done, give_up=give_up, about=about)
        event, begun = await self._sender.send(RESOLVE_EFFECT, data, user_id, event_id, also_finished=True)
        if not begun:
            return SignalOutcome.KEPT
        return await outcome_of(self._bus, event, self._pending.key, timeout)

    async def redirect(
        self, goal_data: Mapping[str, Any] | BaseModel, *, user_id: str = "", event_id: str | None = None
    ) -> None:
        """Replace the goal's data; the planner sees it at its next decision.

        Args:
            goal_data: The complete new data: a mapping, or a pydantic model.
            user_id: The sender.
            event_id: As for :meth:`signal`.

        Raises:
            TypeError: it is neither, or has no JSON form; nothing was sent.
            PlanFinished, PlanNotFound, BusUnavailable: as :meth:`signal` does.
        """
        await self.control(
            REDIRECT, {"goal_data": checked_goal(self.plan_id, goal_data)}, user_id=user_id, event_id=event_id
        )

    async def inject(self, context: Any, *, user_id: str = "", event_id: str | None = None) -> None:
        """Add context, any JSON, that the planner sees at its next decision. Raises as :meth:`signal` does."""
        await self.control(INJECT, {"context": plain(context)}, user_id=user_id, event_id=event_id)

    async def watch(self, after: str | int | None = None) -> AsyncGenerator[PlanChange]:
        """Yield the plan's changes in order; ends after the turn that finishes the plan.

        These are its turns, each one once, and between them :class:`TaskProgress` and :class:`TaskChunk`, what its
        running tasks report. Of the reports only the last 256 of an hour are kept; a slow reader misses older ones.

        Args:
            after: Go on after the change with this ``cursor``, also in another process, without a gap or a repetition
                of turns; None begins with the newest turn.

        Raises:
            ValueError: ``after`` is no cursor.
            PlanNotFound: no plan has this id.
            BusUnavailable: the client is closed, or its connection is, for good.
        """
        cursor = None if after is None else Cursor.read(after)
        begun = await self._lookup.newest()
        plan_id = self.plan_id if begun is None else begun.summary.plan_id

        def check(checkpoint: Checkpoint) -> None:
            if (unknown := self._pending.unknown(checkpoint)) is not None:
                raise unknown

        def is_over() -> bool:
            return bool(self._results.closed or self._results.lost)

        watch = PlanWatch(
            self._bus, self._pending.key, plan_id, cursor, begun=begun is not None, check=check, is_over=is_over
        )
        async with aclosing(watch.changes()) as changes:
            async for each in changes:
                yield each.change
