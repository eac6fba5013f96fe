"""Triage: one goal on the same workers, decided by a decision tree, by a model, or by a state machine.

    plancast run plancast.demo.apps.triage:tree_app    # or machine_app; or llm_app, with TRIAGE_MODEL and its key
    plancast submit ticket.received --wait --data \
        '{"ticket_id": "T-1", "subject": "Export crashes", "body": "It worked yesterday.", "customer": "Ada"}'

A critical ticket (try "the site is down") waits for an approval or a rejection:

    plancast approvals approve PLAN --user-id Grace
    plancast approvals reject PLAN --reason "not ours"

`plancast demo triage --planner tree|llm|machine` runs thirty tickets without a key, and kills a plan host meanwhile.
All planners end a ticket with the same result: the response of the desk that has routed it to a queue.
"""

import os
from typing import Any, Literal

from pydantic import BaseModel

from plancast import (
    App,
    AwaitAction,
    CallToolStep,
    ChoreographyPlanner,
    CompleteAction,
    DeterministicPlanner,
    FinishReason,
    FinishStep,
    ParallelAction,
    PauseReason,
    PauseStep,
    Planner,
    PlatformContext,
    PublishAction,
    RunContext,
    SpawnAndAwaitStep,
    SpawnSpec,
    StateAction,
    StateConfig,
    StateTransition,
    TaskContext,
    TransitionContext,
    Worker,
)

GOAL, DECIDED = "ticket.received", "triage.decided"
CLASSIFY, CLASSIFIED = "ticket.classify.requested", "ticket.classify.completed"
LOOK_UP, CUSTOMER = "customer.lookup.requested", "customer.lookup.completed"
SEARCH, KNOWLEDGE = "knowledge.search.requested", "knowledge.search.completed"
REPRODUCE, REPRODUCED = "issue.reproduce.requested", "issue.reproduce.completed"
ROUTE, ROUTED = "ticket.route.requested", "ticket.route.completed"

# The workers. Their responses depend on the ticket alone, so that a repeated task does no harm.


class Text(BaseModel):
    subject: str
    body: str


class Who(BaseModel):
    customer: str


class Decision(BaseModel):
    """A person's answer on a critical ticket."""

    approved: bool
    by: str = ""
    reason: str = ""


class Routing(BaseModel):
    ticket_id: str
    category: Literal["bug", "billing", "question"]
    severity: Literal["low", "normal", "critical"]
    tier: str
    articles: list[str]
    approved_by: str | None = None
    reproduced: bool | None = None


SIGNS = {
    "bug": ("crash", "error", "broken", "down"), "billing": ("invoice", "refund", "charged"),
    "critical": ("down", "data loss", "breach"), "low": ("typo", "whenever", "nice to have"),
}  # fmt: skip
ARTICLES = {"password": "Reset your password", "export": "Export your data", "invoice": "Read your invoice"}
TEAMS = {"bug": "engineering", "billing": "accounts", "question": "support"}
PREMIUM = {"Grace", "Initech", "Hooli"}
desk_work, records, lab = Worker("desk-work"), Worker("records"), Worker("lab")


def words(task: TaskContext) -> str:
    return f"{task.data['subject']} {task.data['body']}".lower()


@desk_work.on_task(CLASSIFY, CLASSIFIED, description="Category and severity of a ticket", schema=Text)
async def classify(task: TaskContext, context: PlatformContext) -> dict[str, Any]:
    signs = [sign for sign, said in SIGNS.items() if any(word in words(task) for word in said)]
    category = next((each for each in ("bug", "billing") if each in signs), "question")
    return {"category": category, "severity": next((each for each in ("critical", "low") if each in signs), "normal")}


@records.on_task(LOOK_UP, CUSTOMER, description="A customer's tier", schema=Who)
async def look_up(task: TaskContext, context: PlatformContext) -> dict[str, Any]:
    return {"tier": "premium" if task.data["customer"] in PREMIUM else "standard"}


@records.on_task(SEARCH, KNOWLEDGE, description="Articles that may answer a ticket", schema=Text)
async def search(task: TaskContext, context: PlatformContext) -> dict[str, Any]:
    return {"articles": [title for word, title in ARTICLES.items() if word in words(task)]}


@lab.on_task(REPRODUCE, REPRODUCED, description="Try to reproduce a bug", schema=Text)
async def reproduce(task: TaskContext, context: PlatformContext) -> dict[str, Any]:
    return {"reproduced": "sometimes" not in words(task)}


@desk_work.on_task(ROUTE, ROUTED, description="Put a ticket into its queue, once", schema=Routing)
async def route(task: TaskContext, context: PlatformContext) -> dict[str, Any]:
    ticket = Routing.model_validate(task.data)
    queue = TEAMS[ticket.category] + ("-premium" if ticket.tier == "premium" else "")
    if ticket.severity == "critical":
        queue = "on-call"
    elif ticket.category == "question" and ticket.articles:
        queue = "self-service"
    return {**ticket.model_dump(exclude={"tier", "articles"}), "queue": queue}


# Decided by a tree: whenever something is answered, the first step that claims the run says what comes next.


def text(run: RunContext) -> dict[str, Any]:
    return {"subject": run.goal["subject"], "body": run.goal["body"]}


def is_bug(run: RunContext) -> bool:
    return bool(run.results[CLASSIFIED]["category"] == "bug")


def needs_approval(run: RunContext) -> bool:
    return run.results[CLASSIFIED]["severity"] == "critical" and DECIDED not in run.results


def routing(run: RunContext) -> dict[str, Any]:
    told: dict[str, Any] = {"ticket_id": run.goal["ticket_id"]}
    for answer in (CLASSIFIED, CUSTOMER, KNOWLEDGE, REPRODUCED):
        told |= run.results.get(answer, {})
    return told | ({"approved_by": run.results[DECIDED]["by"]} if DECIDED in run.results else {})


class GiveUp:
    """Completes the plan when a task has failed, with its error."""

    async def decide(self, run: RunContext) -> CompleteAction | None:
        failed = next((event for event in run.results if event.endswith(".failed")), None)
        why = f"{failed}: {run.results[failed]['error']}" if failed else ""
        return CompleteAction(reason=FinishReason.NO_PATH, reasoning=why) if failed else None


class Refuse:
    """Completes the plan when a person has said no, with the reason."""

    async def decide(self, run: RunContext) -> CompleteAction | None:
        said = run.results.get(DECIDED, {"approved": True})
        if said["approved"]:
            return None
        return CompleteAction(reason=FinishReason.CONSTRAINTS_CONFLICT, reasoning=said.get("reason") or "rejected")


class AwaitAnswers:
    """Waits while a foreground request is open, so that nothing is requested twice."""

    async def decide(self, run: RunContext) -> AwaitAction | None:
        tasks = map(run.tasks.task, run.tasks.task_ids) if run.tasks else ()
        owed = next((task.task_id for task in tasks if task.kind != "background"), None)
        return AwaitAction(task_id=owed) if owed else None


class LookUp:
    """Requests customer and knowledge in parallel."""

    async def decide(self, run: RunContext) -> ParallelAction | None:
        if looked_up(run):
            return None
        customer = PublishAction(event_type=LOOK_UP, data={"customer": run.goal["customer"]})
        return ParallelAction(branches=[customer, PublishAction(event_type=SEARCH, data=text(run))])


def looked_up(run: RunContext) -> bool:
    return CUSTOMER in run.results and KNOWLEDGE in run.results


TREE = DeterministicPlanner(
    [
        GiveUp(),
        AwaitAnswers(),
        CallToolStep(CLASSIFY, text, when=lambda run: CLASSIFIED not in run.results),
        SpawnAndAwaitStep(  # it runs beside the look-ups, and is awaited after them
            spec=lambda run: SpawnSpec(event_type=REPRODUCE, data=text(run)),
            on_resolved=lambda run, completion: None,
            when=lambda run: is_bug(run) and (looked_up(run) or not (run.tasks and run.tasks.groups)),
        ),
        LookUp(),
        PauseStep(PauseReason.APPROVAL_REQUIRED, lambda run: dict(run.goal), DECIDED, when=needs_approval),
        Refuse(),
        CallToolStep(ROUTE, routing, when=lambda run: ROUTED not in run.results),
        FinishStep(FinishReason.GOAL, lambda run: run.results[ROUTED]),
    ],
    name="triage-tree",
)

# Decided by a model, whose prompt has the rules and the schemas of the workers' tasks.

RULES = f"""Take each ticket through these rules, in this order:
1. Have it classified.
2. If it is a bug, have it reproduced in the background: delegate {REPRODUCE} with the group_id "reproduction" and a
   spec of that event and its data. It goes on while you do the next step.
3. Look up the customer and search the knowledge, in parallel.
4. If it is a bug and the group "reproduction" is not over, await it.
5. If its severity is critical, wait for {DECIDED}, without a timeout, with the pause_reason approval_required. If it
   is not approved, complete with the reason constraints_conflict and the person's reason.
6. Have it routed, once, with what is known by then, and complete with the answer as it is, for the reason goal.
If a step fails, complete with the reason no_path and say what failed."""


def llm(model: str | None = None, **options: Any) -> ChoreographyPlanner:
    model = model or os.environ.get("TRIAGE_MODEL", "gpt-4o")
    return ChoreographyPlanner(
        "triage-llm", model, temperature=None, planning_strategy="conservative", system_instructions=RULES, **options
    )


# By a state machine: every way through is drawn beforehand, one step after the other.

BUG, CRITICAL = "results.classify.category == 'bug'", "results.classify.severity == 'critical'"
TEXT = {"subject": "{goal_data.subject}", "body": "{goal_data.body}"}
KNOWN = {
    "ticket_id": "{goal_data.ticket_id}", "category": "{results.classify.category}",
    "severity": "{results.classify.severity}", "tier": "{results.customer.tier}",
    "articles": "{results.knowledge.articles}",
}  # fmt: skip
FOUND_OUT = {"reproduced": "{results.reproduce.reproduced}"}


def asks(name: str, request: str, data: dict[str, str], **then: str | None) -> StateConfig:
    """A state that requests a task; its response leads to the first state whose condition holds."""
    answer = request.replace(".requested", ".completed")
    ways = [StateTransition(on_event=answer, to_state=to, condition=condition) for to, condition in then.items()]
    return StateConfig(
        state_name=name, action=StateAction(event_type=request, response_event=answer, data=data), transitions=ways
    )


def waits(name: str, then: str) -> StateConfig:
    ways = {then: "event.data.approved", "refused": "!event.data.approved"}
    return StateConfig(
        state_name=name,
        transitions=[StateTransition(on_event=DECIDED, to_state=to, condition=when) for to, when in ways.items()],
    )


STATES = [
    StateConfig(state_name="start", default_next="classify"),
    asks("classify", CLASSIFY, TEXT, customer=None),
    asks("customer", LOOK_UP, {"customer": "{goal_data.customer}"}, knowledge=None),
    asks("knowledge", SEARCH, TEXT, reproduce=BUG, approval=CRITICAL, route=None),
    waits("approval", "route_approved"),
    asks("route", ROUTE, KNOWN, done=None),
    asks("route_approved", ROUTE, KNOWN | {"approved_by": "{results.approval.by}"}, done=None),
    asks("reproduce", REPRODUCE, TEXT, bug_approval=CRITICAL, route_bug=None),
    waits("bug_approval", "route_bug_approved"),
    asks("route_bug", ROUTE, KNOWN | FOUND_OUT, done=None),
    asks("route_bug_approved", ROUTE, KNOWN | FOUND_OUT | {"approved_by": "{results.bug_approval.by}"}, done=None),
    StateConfig(state_name="done", is_terminal=True),
    StateConfig(state_name="refused", is_terminal=True, outcome="failed"),
]
MACHINE = {state.state_name: state for state in STATES}


def make_app(planner: str = "tree", **model: Any) -> App:
    """The app, decided by ``tree``, ``llm`` or ``machine``. One line differs.

    Args:
        planner: Who decides.
        model: Of the LLM planner: a litellm model string as ``model``, and options such as ``api_base``.
    """
    desk = Planner("triage-desk")
    desk.expects(DECIDED, 'A person\'s answer on a critical ticket: {"approved": true or false}', schema=Decision)
    if planner == "tree":
        desk.add_goal(GOAL, decided_by=TREE)
    elif planner == "llm":
        desk.add_goal(GOAL, decided_by=llm(**model))
    else:
        desk.add_goal(GOAL, state_machine=MACHINE)

    @desk.on_transition()
    async def move(transition: TransitionContext, context: PlatformContext) -> None:
        """Return only the last result, as tree and model do; by default a machine returns all its results."""
        if transition.next_state == "done":
            await transition.plan.finalize(transition.data)
        elif transition.next_state == "refused":
            await transition.plan.fail(f"constraints_conflict: {transition.data.get('reason') or 'rejected'}")
        else:
            await transition.plan.execute_next(transition.event)

    return App("triage", planners=[desk], workers=[desk_work, records, lab])


tree_app, llm_app, machine_app = make_app("tree"), make_app("llm"), make_app("machine")
