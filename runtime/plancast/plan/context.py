"""PlanContext: one run of a goal, with its state machine and results."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, Self

from plancast.context import PlatformContext
from plancast.errors import ForeignPlan, PlanFinished
from plancast.plan.effects.entries import waits_for_effects
from plancast.plan.effects.undo_list import begin_rollback, is_rolling_back
from plancast.plan.event_fields import error_text
from plancast.plan.moves import early_events, state_moves, transitions
from plancast.plan.moves.atomic_move import AtomicMove
from plancast.plan.moves.transitions import answers_branch, is_delayed
from plancast.plan.record import WAITING_FOR, PlanRecord
from plancast.plan.serialization import fields_of, to_state
from plancast.plan.shared_values import shared_value
from plancast.plan.status import CANCELLED, COMPLETED, FAILED, PAUSED, RUNNING, PlanStatus
from plancast.state_machine.machine import Machine
from plancast.state_machine.states import StateConfig

if TYPE_CHECKING:
    from plancast.context import GoalContext


class PlanContext(PlanRecord):
    """One run of a goal.

    It talks to the world through ``context.bus`` and ``context.memory`` alone. Inside a turn those
    calls are staged and take effect when the turn is committed; with doubles it works the same.
    """

    shared: dict[str, Any] | None = None
    """Values that :meth:`share` was given in this turn; it is stored with the session, not with the plan."""

    def __await__(self) -> Generator[None, None, Self]:
        """The plan itself: ``create_from_goal`` may be awaited, or called without ``await``."""
        yield from ()
        return self

    @classmethod
    def create_from_goal(
        cls,
        goal: GoalContext,
        state_machine: Mapping[str, StateConfig] | Machine,
        *,
        plan_id: str | None = None,
    ) -> Self:
        """Create a pending plan for a goal, with ``await`` or without. Call :meth:`execute_next` to start it.

        Args:
            goal: The goal handler's first argument.
            state_machine: States by name; it must have a state ``start``.
            plan_id: Defaults to the goal's correlation id.
        """
        plan = cls(
            plan_id=plan_id or goal.correlation_id,
            correlation_id=goal.correlation_id,
            goal_event=goal.event_type,
            goal_data=goal.data,
            response_event=goal.response_event,
            response_topic=goal.response_topic,
            goal_id=goal.event_id,
            trace_id=goal.trace_id,
            parent_plan_id=goal.parent_plan_id,
            reply_to=goal.reply_to,
            notify=goal.notify,
            root=goal.place.root,
            depth=goal.place.depth,
            session_id=goal.session_id,
            user_id=goal.user_id,
            tenant_id=goal.tenant_id,
            state_machine=state_machine,  # type: ignore[arg-type]
            _context=goal._context,
        )
        plan._claim()
        return plan

    async def save(self) -> None:
        """Persist the plan.

        Inside a turn this marks the plan as the turn's own; the turn's commit makes it durable.

        Raises:
            ForeignPlan: the turn belongs to another plan.
        """
        turn = self._turn
        if turn is not None:
            turn.adopt(self)
            return
        if isinstance(self._context, PlatformContext) and self._context.read_only:
            raise ForeignPlan(f"plan {self.plan_id} can only be changed in a turn of its own: send it an event instead")
        if self._context is None:
            return
        await self._context.memory.store_plan_context(
            plan_id=self.plan_id,
            session_id=self.session_id,
            goal_event=self.goal_event,
            goal_data=self.goal_data,
            response_event=self.response_event,
            state=self.to_dict(),
            current_state=self.current_state,
            correlation_ids=list(dict.fromkeys([self.correlation_id, self.plan_id])),
        )

    @classmethod
    async def restore(cls, plan_id: str, context: Any) -> Self | None:
        """Load the plan with this id; None when there is none. Inside a turn its own plan is returned as it is."""
        live = _live(context, plan_id)
        if live is not None:
            return live  # type: ignore[return-value]
        data = await context.memory.get_plan_context(plan_id)
        return None if data is None else cls.from_dict(data, context)

    @classmethod
    async def restore_by_correlation(
        cls, correlation_id: str, context: Any, *, tenant_id: str | None = None, user_id: str | None = None
    ) -> Self | None:
        """Load the plan that events with this correlation id belong to; None when there is none.

        With ``tenant_id`` or ``user_id``, plans of other tenants or users count as unknown.
        """
        plan = _live(context, correlation_id)
        if plan is None:
            data = await context.memory.get_plan_by_correlation(correlation_id)
            plan = None if data is None else cls.from_dict(data, context)
        if plan is None or (tenant_id is not None and plan.tenant_id != tenant_id):
            return None
        if user_id is not None and plan.user_id != user_id:
            return None
        return plan  # type: ignore[return-value]

    def to_dict(self) -> dict[str, Any]:
        """Every field as JSON-able values, the state machine included."""
        data = to_state(self)
        data["state_machine"] = {name: state.model_dump(mode="json") for name, state in self.state_machine.items()}
        if self.requests:  # those in the state are kept for the next checkpoint
            data["requests"] = {key: [*values] for key, values in data["requests"].items()}
        if self.branches is not None:
            data["branches"] = self.branches.copy().to_state()
        if self.effects:
            data["effects"] = {task: dict(effect) for task, effect in data["effects"].items()}
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], context: Any = None) -> Self:
        """Build a plan from the result of :meth:`to_dict`; unknown keys are ignored.

        The arguments of ``store_plan_context`` (with the plan under ``state``) are accepted too.
        """
        return cls(**fields_of(data), _context=context)

    def get_next_state(self, event: Any) -> str | None:
        """The state that an event leads to from the current one, or None.

        A late or repeated answer to an earlier request leads nowhere.

        Raises:
            ConditionFailed: a transition's condition cannot be evaluated.
        """
        return transitions.next_state(self, event)

    async def execute_next(self, trigger_event: Any = None) -> None:
        """Take the transition on an event, or the first step without one.

        The event's data becomes the result of the state that waited for it. An event that no
        transition takes changes nothing. Entering a terminal state finishes the plan. An error leaves the plan as it
        was before the call.

        Raises:
            PlanFinished: the plan is finished already.
            InterpolationError: an action's data names a path that does not exist.
        """
        self._require_unfinished()
        if self._turn is not None and self._turn.plan is not self:
            self._claim()  # apart from the move: what was sent before the plan existed stays its own
        with AtomicMove(self, self._turn):
            await self._advance(trigger_event)

    def is_complete(self) -> bool:
        """True if the plan is finished or in a terminal state."""
        state = self.state_machine.get(self.current_state)
        return self._finished or (state is not None and state.is_terminal)

    async def finalize(self, result: Any = None) -> None:
        """Complete the plan and send its final response. A second call changes nothing.

        When a terminal state has finished the plan in the same turn, the result replaces that of the response.
        """
        if is_rolling_back(self):
            return
        if self._finished:
            if result is not None and not self._finalized:
                with AtomicMove(self, self._turn):
                    self._finalized = self._responds_again(result)
            return
        self._claim()
        with AtomicMove(self, self._turn):
            if result is not None:
                self.result = result
                self.results["final"] = result
            await self._end(COMPLETED)
        self._finalized = True

    async def fail(self, error: str | BaseException) -> None:
        """Fail the plan and send the final response with the error. A second call changes nothing."""
        if self._finished or is_rolling_back(self):
            return
        self._claim()
        self.error: str | None = error_text(error)
        await self._end(FAILED)

    async def cancel(self, reason: str = "cancelled") -> None:
        """Cancel the plan, with its open requests and its children. A second call changes nothing."""
        if self._finished or is_rolling_back(self):
            return
        self._claim()
        self.error = error_text(reason)
        await self._end(CANCELLED)

    async def compensate(self, reason: str = "rolled back") -> None:
        """Roll the plan back: undo what its tasks and its child plans have done, newest first; then it fails.

        Workers undo (``@worker.compensate``) in reverse order of dependency; open requests are awaited. No code of the
        app is called for the plan any more. Its error is ``rolled_back: <reason>``, and names what is left. Where an
        undo fails it is paused for a person. A second call changes nothing.

        Raises:
            PlanFinished: the plan is finished already; ``PlanHandle.rollback`` rolls it back.
        """
        if is_rolling_back(self):
            return
        self._require_unfinished()
        self._claim()
        begin_rollback(self, reason)
        await self.save()

    async def pause(self, reason: str = "user_input_required") -> None:
        """Hold the plan until :meth:`resume`, or until an event from outside that the current state waits for.

        The answer of people (``Planner.expects``) to the request of the state comes from outside; those of workers are
        kept.

        An operator's pause (``plan.pause``, ``PlanHandle.pause``) holds until a resume.

        Raises:
            PlanFinished: the plan is finished already.
        """
        self._require_unfinished()
        self._claim()
        self.status = PAUSED
        self.pause_reason: str | None = reason
        self._pauses += 1
        await self.save()

    async def resume(self, input_data: Any = None) -> None:
        """Continue after a pause, with the input as ``results["user_input"]``.

        The plan takes the transition that the resuming event matches, else ``default_next``; early
        events are offered again. A plan that is not paused stays as it is, and so does one that waits until
        the outcome of an effect is known. When a transition handler resumes from the
        WAIT of a decision, the plan goes on after the handler, and only if the handler has decided nothing else.

        Raises:
            PlanFinished: the plan is finished already.
        """
        self._require_unfinished()
        if self.status is not PAUSED or waits_for_effects(self):
            return
        self._claim()
        with AtomicMove(self, self._turn):
            waited = WAITING_FOR in self.results
            state_moves.end_wait(self)
            self.results["user_input"] = input_data
            if waited and self._in_handler:
                self._resumed_at = self._position()
            else:
                await self._go_on()
            await self.save()

    _finalized = False
    """The result is that of :meth:`finalize`."""
    _in_handler = False
    """A transition handler is running."""
    _resumed_at: tuple[int, set[str]] | None = None
    """State from which a transition handler resumed the plan out of the WAIT of a decision."""

    async def _advance(self, trigger_event: Any = None) -> None:
        """Take the transition on an event, or the first step without one; an error leaves the move half made."""
        self._require_unfinished()
        self._claim()
        if trigger_event is not None and answers_branch(self, trigger_event):
            await state_moves.take_branch(self, trigger_event)
            await self.save()
            return
        without_event = trigger_event is None
        by_hand = state_moves.is_assigned(self)
        target = transitions.target_without_event(self) if without_event else state_moves.accept(self, trigger_event)
        if target is None:
            return
        await state_moves.enter(self, target, by_hand=by_hand)
        await self.save()

    async def _go_on(self, *, by_hand: bool = False) -> None:
        """Leave the state in which the plan was paused, or take an early event in it."""
        target = self._target_of_resume()
        if target is not None:
            await state_moves.enter(self, target, by_hand=by_hand)
        else:
            await state_moves.drain_early(self)

    async def _go_on_undecided(self) -> None:
        """Go on after a handler has resumed the plan from a WAIT, unless it has decided what follows."""
        resumed_at, self._resumed_at = self._resumed_at, None
        if (
            resumed_at is None
            or self.status is not RUNNING
            or is_rolling_back(self)
            or self.current_state != self._entered
        ):
            return
        moves, requests = resumed_at
        if len(self.moves) != moves:
            return
        asked = {request.event_type for key, request in self.requests.items() if key not in requests}
        if not asked or self._goes_on_with(asked):
            await self._go_on(by_hand=True)

    def _goes_on_with(self, asked: set[str]) -> bool:
        """True if the state that follows a resume sends no request, or one that a handler has sent already."""
        turn = self._turn
        target = transitions.target_of(self, self.current_state, turn.offered or turn.event)
        state = self.state_machine.get(self.current_state)
        target = target or (state.default_next if state is not None else None)
        if target is None:
            return False
        follows = self.state_machine[self.machine.resolve_passthrough(target)[-1]]
        return not follows.is_terminal and (follows.action is None or follows.action.event_type in asked)

    def _position(self) -> tuple[int, set[str]]:
        return len(self.moves), set(self.requests)

    def _responds_again(self, result: Any) -> bool:
        """Replace the result in the final response that the turn has staged; False when it has staged none."""
        before = self.result
        self.result: Any = result
        turn = self._turn
        if turn is None or not turn.outbox.replace_response(state_moves.response_data(self)):
            self.result = before
            return False
        self.results["final"] = result
        return True

    def share(self, key: str, value: Any) -> None:
        """Share a value with later plans of the session, which read it by ``context.memory.session(session_id)``.

        It is stored with the turn, as an effect of its commit: of one key, the value of the newest commit stays. It
        can be read once the plan's final response can be seen, or earlier.

        Args:
            key: Name of the value, up to 200 characters.
            value: JSON, or a pydantic model; it is copied.

        Raises:
            ValueError: the plan has no session, the key is no such name, or the value is not JSON.
            TypeError: the value has no JSON form.
        """
        self._claim()
        self.shared = (self.shared or {}) | {key: shared_value(self, key, value)}

    # The turn that the plan belongs to, if any.

    @property
    def _turn(self) -> Any:
        context = self._context
        return context.turn if isinstance(context, PlatformContext) else None

    def _claim(self) -> None:
        """Make this the turn's own plan before anything is staged."""
        turn = self._turn
        if turn is not None:
            turn.adopt(self)

    async def _end(self, status: PlanStatus) -> None:
        await state_moves.finish(self, status)
        await self.save()

    @property
    def _finished(self) -> bool:
        return self.read_status().finished

    def _require_unfinished(self) -> None:
        if self.read_status().finished:
            raise PlanFinished(f"plan {self.plan_id} is {self.status} and moves no more")
        if is_rolling_back(self):
            raise PlanFinished(f"plan {self.plan_id} is being rolled back and moves no more")

    def _target_of_resume(self) -> str | None:
        turn = self._turn
        event = (turn.offered or turn.event) if turn is not None else None
        if event is not None and (target := state_moves.accept(self, event)) is not None:
            return target
        early = bool(self.kept) and early_events.find_for_state(self) is not None
        if early or self.branches is not None or is_delayed(self):
            return None
        state = self.state_machine.get(self.current_state)
        if state is None or state.default_next is not None:
            return None if state is None else state.default_next
        # Paused in a state before its action was requested: the state is entered anew.
        open_states = (request.state for request in self.requests.values())
        unasked = turn is not None and state.action is not None and self.current_state not in open_states
        return self.current_state if unasked else None


def _live(context: Any, name: str) -> PlanContext | None:
    """The plan of the context's turn, if it has this id or correlation id."""
    turn = context.turn if isinstance(context, PlatformContext) else None
    plan: PlanContext | None = turn.plan if turn is not None else None
    return plan if plan is not None and name in (plan.plan_id, plan.correlation_id) else None
