"""ChoreographyPlanner: a planner that has a model decide each step."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from pydantic import SecretStr

from plancast.context import PlatformContext
from plancast.decisions.actions import CompleteAction, FinishReason
from plancast.decisions.decision import PlannerDecision, check_decision, decision_response_format, parse_decision
from plancast.errors import BudgetExhausted, InvalidDecision, InvalidPlannerConfig
from plancast.json_values.limits import shown
from plancast.models.decorators import MeteredReasoner
from plancast.models.in_process import reasoner_of
from plancast.models.options import AnswerFormat, ModelOptions
from plancast.models.port import ReasonerPort
from plancast.models.repair_loop import RepairLoop
from plancast.models.throttle import throttle
from plancast.planners.contract import MAX_BUDGET, RunBudget, RunContext, WakeMode
from plancast.planners.llm.decision_validation import decision_faults, settle_decision
from plancast.planners.llm.prompt import DEFAULT_LIMIT, Prompt, check_prompt_options
from plancast.planners.llm.prompt_template import PromptTemplate
from plancast.planners.planner import Planner
from plancast.planners.run_context import publishable_events, run_of_handler, trigger_of
from plancast.replaced_names import instead_of

CustomContext = Mapping[str, Any] | Callable[[RunContext], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]
"""Additional context of every prompt: a dict, or a function of the run that returns one, plain or async."""

_NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ChoreographyPlanner(Planner):
    """Has a model decide each step: of whole plans with `goals`, or of plans of handlers, which call it.

    Args:
        name: Unique in the app.
        reasoning_model: A litellm model string.
        api_key: None takes the provider's environment variable.
        api_base: URL of the model's API; None: its provider's.
        temperature: 0 to 2; None leaves it to the model.
        max_actions: Decisions that a plan may execute, without the final complete.
        system_instructions: Business rules, for every prompt.
        planning_strategy: ``balanced``, ``conservative`` or ``aggressive``.
        goals: Goals whose plans it decides without handlers.
        fallback_models: Tried in this order when the model fails.
        max_repairs: Times that an invalid answer is sent back.
        stream: Show the model's replies, while it writes them, to those who watch the plan.
        template: Texts of the prompt.
        token_budget: Tokens that a plan may spend; None is no limit.
        cost_budget: US dollars that a plan may spend; None is no limit.
        custom_context: Added to every prompt: a dict, or a function of the run.
        prompt_limit: Characters of trigger, history and results in a prompt.
        offers_own_goals: The model may publish and delegate its own goals, which begin further plans of this planner.
        model_kwargs: Parameters of the model by the names of litellm, also those of a single provider (``num_ctx``).
            What litellm does not know is given as ``{"extra_body": {...}}``, which becomes part of the request's body.
        options: `capabilities`, `placement`, `description`, `version` and `deadline` of `Planner`, and parameters of
            the model that litellm lists (``max_tokens``, ``top_p``, ``timeout``).

    Raises:
        InvalidPlannerConfig: an option is wrong, or does not exist.
    """

    wake_mode = WakeMode.PUSH

    def __init__(
        self,
        name: str,
        reasoning_model: str = "gpt-4o",
        *,
        api_key: str | SecretStr | None = None,
        api_base: str | None = None,
        temperature: float | None = 0.7,
        max_actions: int = 20,
        system_instructions: str | None = None,
        planning_strategy: str = "balanced",
        goals: Iterable[str] = (),
        fallback_models: Iterable[str] = (),
        max_repairs: int = 2,
        stream: bool = False,
        template: PromptTemplate | None = None,
        token_budget: int | None = None,
        cost_budget: float | None = None,
        custom_context: CustomContext | None = None,
        prompt_limit: int = DEFAULT_LIMIT,
        offers_own_goals: bool = False,
        model_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            name,
            reasoning_model=reasoning_model,
            api_key=api_key,
            api_base=api_base,
            temperature=temperature,
            fallback_models=fallback_models,
            max_repairs=max_repairs,
            stream=stream,
            model_kwargs=model_kwargs,
            **options,
        )
        check_prompt_options(planning_strategy, prompt_limit)
        for limit, what in ((max_actions, "max_actions"), (token_budget, "token_budget"), (cost_budget, "cost_budget")):
            is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
            if limit is not None and not (is_number and 0 <= limit < MAX_BUDGET):
                allowed = f"a number from 0, less than {MAX_BUDGET:.0e}; None is no limit"
                raise InvalidPlannerConfig(f"planner {name!r}: {what} is {shown(limit)}, allowed: {allowed}")
        if isinstance(goals, str):
            raise InvalidPlannerConfig(f"planner {name!r}: goals is a list of event types, not the text {goals:.80}")
        assert self.model_options is not None
        self.options: Final[ModelOptions] = self.model_options
        self.reasoning_model: Final[str] = self.options.model
        self.api_key: Final[SecretStr | None] = self.options.api_key
        self.api_base: Final[str | None] = self.options.api_base
        self.temperature: Final[float | None] = self.options.temperature
        self.fallback_models: Final[tuple[str, ...]] = self.options.fallback_models
        self.max_repairs: Final[int] = self.options.max_repairs
        self.max_actions = max_actions
        self.token_budget = token_budget
        self.cost_budget = cost_budget
        self.system_instructions = system_instructions
        self.planning_strategy = planning_strategy
        self.prompt_limit = prompt_limit
        self.offers_own_goals = offers_own_goals
        self.template = template
        self.custom_context = custom_context
        for goal in dict.fromkeys(goals):
            self.add_goal(goal, decided_by=self)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "_build_prompt" in vars(cls):
            raise TypeError(f"{cls.__name__}._build_prompt would never be called{instead_of('_build_prompt')}")

    @property
    def llm_kwargs(self) -> Mapping[str, Any]:
        """Further parameters of the model. They may hold secrets, so no attribute holds them."""
        return self.options.llm_kwargs

    async def next(self, run: RunContext) -> PlannerDecision:
        """Have the model decide the next step of a run, and check the decision against the run.

        Raises:
            IdentityRequired: a part of the run's identity is empty.
            InvalidDecision: no answer was valid; `exchange` holds all messages.
            BudgetExhausted: the budget is exhausted, and the model does not complete.
            ModelUnavailable: the model has failed for good.
        """
        return await self._next(run, reasoner_of())

    async def _next(self, run: RunContext, port: ReasonerPort) -> PlannerDecision:
        run.require_identity()
        if run.control.cancelled:
            return _cancelled(run)
        run = replace(run, budget=self._limited(run), custom_context=await self._context_of(run))
        revision = run.trigger.revision if run.trigger else 0
        return await self._decide(run, port, f"{run.plan_id}:{revision}")

    async def reason_next_action(
        self,
        trigger: Any,
        context: Any,
        plan_id: str | None = None,
        custom_context: Mapping[str, Any] | None = None,
        plan: Any = None,
        **unknown: Any,
    ) -> PlannerDecision:
        """Have the model decide the next step from within a handler.

        Args:
            trigger: A text, or an event.
            context: The handler's context.
            plan_id: The plan's id, where there is no `plan`.
            custom_context: For this decision only, in addition to the planner's.
            plan: The plan, with its goal, its results and what it has spent; None: that of the handler's turn.
            unknown: Refused.

        Raises:
            InvalidDecision: no answer was valid (``Event 'x' not in Registry``, for example).
            BudgetExhausted: the plan's budget is exhausted, and the model does not complete.
            ModelUnavailable: the model has failed for good; a missing key or package is named.
        """
        for name in unknown:
            raise TypeError(f"reason_next_action() takes no {name!r}{instead_of(name)}")
        deliberation = await self._deliberation(context, plan)
        if deliberation is not None:
            decided: PlannerDecision = await deliberation.decide(trigger, custom_context or {}, self._next)
            return decided
        run = await run_of_handler(
            context,
            trigger=trigger,
            plan=plan,
            plan_id=plan_id,
            expected=self.expected,
            custom_context=custom_context or {},
            max_actions=self.max_actions,
        )
        run = replace(run, custom_context=await self._context_of(run))
        return await self._decide(run, reasoner_of(context), _key_of_turn(context))

    async def execute_decision(
        self, decision: PlannerDecision, context: Any, goal_event: Any = None, plan: Any = None
    ) -> None:
        """Check a decision again, and execute it.

        Args:
            decision: Also one that no model has made.
            context: The handler's context.
            goal_event: The goal, to respond to where there is no plan.
            plan: The plan; None: that of the handler's turn.

        Raises:
            InvalidDecision: it is invalid, or names what does not exist; nothing was executed.
            BudgetExhausted: the budget of the turn's plan is exhausted, and the decision does not complete it.
        """
        from plancast.decisions.executor import execute_decision

        checked = check_decision(decision)
        deliberation = await self._deliberation(context, plan)
        if deliberation is not None:
            run = await deliberation.run(trigger_of(""))
            if faults := decision_faults(checked, run):
                raise InvalidDecision(faults)
            await deliberation.execute(checked, run)
            return
        definitions = await publishable_events(context)
        if definitions is not None:
            run = await run_of_handler(
                context,
                trigger="",
                plan=plan,
                plan_id=checked.plan_id,
                expected=self.expected,
                custom_context={},
                max_actions=self.max_actions,
            )
            if faults := decision_faults(checked, run):
                raise InvalidDecision(faults)
        await execute_decision(checked, context, goal_event=goal_event, plan=plan, definitions=definitions or ())
        spent = getattr(plan, "spent", None)
        if isinstance(spent, dict) and not isinstance(checked.next_action, CompleteAction):
            spent["actions"] = spent.get("actions", 0) + 1

    async def _deliberation(self, context: Any, plan: Any) -> Any:
        """The deliberation of the turn that a handler's context belongs to; None outside a turn."""
        turn = context.turn if isinstance(context, PlatformContext) else None
        return await turn.deliberation(self, plan) if turn is not None else None

    async def _decide(self, run: RunContext, port: ReasonerPort, key: str) -> PlannerDecision:
        exhausted = run.exhausted_reason
        if (why := run.budget.no_call_reason(run.now)) is not None:
            raise BudgetExhausted(why)
        if not isinstance(port, MeteredReasoner):
            port = _metered(port, run)
        if not self.offers_own_goals:
            run = _without_goals(run, {*self.goals, run.goal_event})
        labels = {"tenant_id": run.tenant_id, "plan_id": run.plan_id, "planner": self.name}
        await throttle(run.plan_id)
        prompt = self._prompt(run)
        steady = prompt.messages(_without_time(run)) if key else None
        loop = RepairLoop(port, self.options, _answer_format(), labels, key, steady)

        def parse(text: str) -> PlannerDecision:
            decision = parse_decision(text, drop_bad_alternatives=True)
            if exhausted is not None and not isinstance(decision.next_action, CompleteAction):
                raise BudgetExhausted(exhausted)
            if faults := decision_faults(decision, run):
                raise InvalidDecision(faults)
            return settle_decision(decision, run)

        return await loop.run(prompt.messages(), parse)

    def _prompt(self, run: RunContext) -> Prompt:
        return Prompt(
            run,
            system_instructions=self.system_instructions,
            strategy=self.planning_strategy,
            template=self.template,
            limit=self.prompt_limit,
        )

    def _limited(self, run: RunContext) -> RunBudget:
        """The run's budget, with the planner's limits where it has none."""
        budget = run.budget
        return replace(
            budget,
            max_actions=self.max_actions if budget.max_actions is None else budget.max_actions,
            max_tokens=self.token_budget if budget.max_tokens is None else budget.max_tokens,
            max_cost=self.cost_budget if budget.max_cost is None else budget.max_cost,
        )

    async def _context_of(self, run: RunContext) -> dict[str, Any]:
        given: Any = self.custom_context(run) if callable(self.custom_context) else self.custom_context or {}
        given = await given if inspect.isawaitable(given) else given
        return {**given, **run.custom_context}


@lru_cache(maxsize=1)
def _answer_format() -> AnswerFormat:
    return AnswerFormat(decision_response_format())


def _without_goals(run: RunContext, goals: Set[str]) -> RunContext:
    """The run without some goals among the events and among what agents take."""
    events = [each for each in run.events if each.event_type not in goals]
    agents = [
        replace(each, consumes=[event for event in each.consumes if event not in goals])
        if not goals.isdisjoint(each.consumes)
        else each
        for each in run.agents
    ]
    return replace(run, events=events, agents=agents)


def _metered(port: ReasonerPort, run: RunContext) -> MeteredReasoner:
    """A reasoner that makes no call, such as a repair, after the run's budget is spent."""
    spent: dict[str, float] = {"tokens": run.budget.tokens, "cost": run.budget.cost}

    def exhausted() -> str | None:
        return replace(run.budget, tokens=int(spent["tokens"]), cost=spent["cost"]).no_call_reason(run.now)

    return MeteredReasoner(port, spent, exhausted)


def _cancelled(run: RunContext) -> PlannerDecision:
    reasoning = "the run was cancelled"
    metadata = {"steering": "cancelled", "run_id": run.run_id}
    action = CompleteAction(reason=FinishReason.CANCELLED, metadata=metadata, reasoning=reasoning)
    return PlannerDecision(
        plan_id=run.plan_id, current_state=run.current_state, next_action=action, reasoning=reasoning
    )


def _without_time(run: RunContext) -> RunContext:
    """The run without the times of this turn: a turn that is run again must not pay for its answers again."""
    trigger = replace(run.trigger, time=_NO_TIME) if run.trigger else None
    revision = run.trigger.revision if run.trigger else 0
    steps = [replace(each, time=_NO_TIME) if each.revision >= revision else each for each in run.trajectory]
    return replace(run, now=_NO_TIME, trigger=trigger, trajectory=steps)


def _key_of_turn(context: Any) -> str:
    """Prefix of a turn's idempotency keys; empty outside a turn, where each request is made anew."""
    event = getattr(context.turn, "event", None) if isinstance(context, PlatformContext) else None
    event_id = getattr(event, "id", None)
    return f"turn:{event_id}" if isinstance(event_id, str) and event_id else ""
