"""Approvals: what a plan waits for people to decide, and the events that carry their answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from plancast.agents.definitions import EventDefinition
from plancast.errors import InvalidAnswer, NotAwaited, PlancastError
from plancast.json_values.limits import shown_json
from plancast.json_values.schemas import faults_at
from plancast.plan.control_events import RESUME
from plancast.plan.effects.entries import HELD
from plancast.plan.record import HOLD, WAITING_FOR, position
from plancast.plan.requests import WAIT, Request, wait_id
from plancast.plan.status import PAUSED, RUNNING
from plancast.state_machine.interpolation import ROOTS, compile_template
from plancast.state_machine.machine import base_of

Fields = Mapping[str, Any]
People = Mapping[str, EventDefinition]
"""The events that planners expect from people (``Planner.expects``), by type."""
ANSWERED_BY_PEOPLE: Final = frozenset({"approval_required", "await_input", "constraints_conflict"})
"""Pause reasons of a WAIT that a person answers."""
YES: Final = frozenset({"accepted", "allowed", "approved", "confirmed", "granted", "signed"})
NO: Final = frozenset({"declined", "denied", "disapproved", "refused", "rejected"})
"""Last tokens of event types that can only be one of the two answers."""


class Answer(NamedTuple):
    """The event that answers an approval."""

    event_type: str
    data: Any
    request_id: str | None
    """The open request or wait that it answers, so that a second answer comes too late; None for a resume."""


@dataclass(frozen=True, slots=True)
class Approval:
    """An open request for a person's decision."""

    plan_id: str
    reason: str
    payload: Any
    """Data that the plan shows to the person."""
    expected_event: str | None
    """The event that answers; None: the plan continues when it is resumed."""
    refusal_event: str | None = None
    """The event that says no, when it is another one."""
    request_id: str | None = None
    """Id of the request, or of a wait that has sent none."""
    due: float | None = None
    """When the wait ends by itself, seconds since the epoch, UTC; None: never."""
    description: str = ""
    """The planner's description of the event."""
    schema: Fields | None = None
    """JSON Schema of the answer's data; None: any object."""
    refusal_schema: Fields | None = None
    """The same of the refusal event."""
    undecided: bool = False
    """True when a "no" would have the effect of a "yes": the event's name says yes, and no condition reads its data."""

    @property
    def can_refuse(self) -> bool:
        """True if the plan hears a "no"."""
        return self.refusal_event is not None or (self.expected_event is not None and not self.undecided)

    def answer(self, approved: bool, data: Any = None, *, reason: str = "", by: str = "") -> Answer:
        """The event of a yes or a no: its data are ``approved``, ``by`` and ``reason``, with the given ones.

        Raises:
            NotAwaited: the plan does not hear a no.
            InvalidAnswer: the data are no object, contradict the answer, or break the event's schema.
        """
        if not approved and not self.can_refuse:
            raise NotAwaited(self._cannot_refuse())
        refuses = not approved and self.refusal_event is not None
        event = self.refusal_event if refuses else self.expected_event
        schema = self.refusal_schema if refuses else self.schema
        given = {} if data is None else data
        if not isinstance(given, Mapping):
            faults = [f"data: got a {type(given).__name__}, allowed: an object"]
        else:
            # Whether it is a yes or a no must be sent where the event itself does not say it.
            says = _takes(schema, "approved") or not (approved or refuses)
            said: dict[str, Any] = {"approved": approved} if says else {}
            said |= {"by": by} if by and _takes(schema, "by") else {}
            said |= ({"reason": reason} if reason else {}) | dict(given)
            faults = _contradictions(given, approved=approved, by=by, reason=reason) + faults_at("data", schema, said)
        if faults:
            raise InvalidAnswer(self.plan_id, event or RESUME, faults)
        return Answer(event, said, self.request_id) if event is not None else Answer(RESUME, {"input": said}, None)

    def _cannot_refuse(self) -> str:
        if self.expected_event is None:
            return f"plan {self.plan_id} waits for an input, not for a yes or no: resume it with data, or cancel it"
        base = base_of(self.expected_event)
        return (
            f"plan {self.plan_id} would take a no for a yes: {self.expected_event} moves it whatever its data say. "
            f"Give its state a transition on {base}.rejected or a condition on event.data.approved, or declare "
            "approved in the schema of the event, where a handler reads it; cancel ends the plan"
        )


def approval_of(state: Fields, people: People) -> Approval | None:
    """Read the open request for a person's decision; None if there is none, or if an operator has paused the plan.

    What a person has to say of an effect is no approval: :mod:`plancast.plan_store.effects`.

    Args:
        state: The plan as ``PlanContext.to_dict()`` gives it, with its state machine.
        people: The events that people send.
    """
    status = state["status"]
    if state.get("rollback"):  # what people decide in it is about effects
        return None
    if status == PAUSED:
        if not asks_while_paused(state) or HELD in (state.get("control") or {}):
            return None
        if WAITING_FOR in state["results"]:
            return _approval_of_wait(state, people)
    elif status != RUNNING:
        return None
    config = (state.get("state_machine") or {}).get(state.get("current_state")) or {}
    event = awaited_event(config, people)
    if event is None:
        if status == PAUSED:
            return Approval(str(state["plan_id"]), str(state.get("pause_reason") or "paused"), {}, None)
        return None
    transitions = config.get("transitions") or ()
    refusal = next(
        (each["on_event"] for each in transitions if _is(each["on_event"], NO) and each["on_event"] != event), None
    )
    taken = [each for each in transitions if each["on_event"] == event]
    schema = _schema(people, event)
    blind = bool(taken) and all(each.get("condition") is None for each in taken) and not _names(schema, "approved")
    request_id, due = _request_for(state, event)
    payload = _request_data(state, config)
    description = people[event].description
    reason = payload.get("question") or payload.get("reason") or state.get("pause_reason") or config.get("description")
    return Approval(
        str(state["plan_id"]),
        str(reason or description or f"waits for {event}"),
        payload,
        event,
        refusal,
        request_id,
        due,
        description,
        schema,
        _schema(people, refusal),
        undecided=refusal is None and blind and _is(event, YES),
    )


def event_faults(people: People, event_type: str, data: Any, sender: str) -> list[str]:
    """Validate the data of an event that a sender gives as they are; an event that people do not send has no faults.

    Args:
        people: The events that people send.
        event_type: The event.
        data: Its data. With ``approved`` they are an answer, whose ``by`` is the sender.
        sender: The user; empty if it is not known.
    """
    if event_type not in people:
        return []
    answers = isinstance(data, Mapping) and "approved" in data
    return faults_at("data", _schema(people, event_type), data) + (_contradictions(data, by=sender) if answers else [])


def asks_while_paused(state: Fields) -> bool:
    """True if a paused plan waits for people: not one that an operator holds, nor a WAIT for an event from elsewhere.

    Args:
        state: The plan's stored fields; its state machine is not read.
    """
    by_planner = bool(state.get("decider")) and not state.get("rollback")
    if by_planner and HELD in (state.get("control") or {}):
        return True  # for the outcome of an effect
    if not by_planner and HOLD in (state.get("control") or {}):
        return False
    if WAITING_FOR not in (state.get("results") or {}):
        return not by_planner  # its handlers have paused it
    return str(wait_action(state).get("pause_reason", "await_input")) in ANSWERED_BY_PEOPLE


def awaited_event(config: Fields, people: Collection[str]) -> str | None:
    """The event of people that a state waits for, rather the yes than the no; None when it waits for none.

    Args:
        config: The state's fields.
        people: Types of the events that people send.
    """
    found = [event for event in events_of_people(config) if event in people]
    return next((each for each in found if not _is(each, NO)), found[0] if found else None)


def events_of_people(config: Fields) -> list[str]:
    """The events by which people could answer in a state: that of its action's response, else of its transitions."""
    if (action := config.get("action")) is not None:
        return [action["response_event"]]
    return [each["on_event"] for each in config.get("transitions") or ()]


def wait_action(state: Fields) -> Fields:
    """The planner's current WAIT action; empty when there is none."""
    expected = state["results"].get(WAITING_FOR)
    for step in reversed(state.get("trajectory") or ()):
        decision = step.get("decision") if isinstance(step, Mapping) else None  # code of the app may write into it
        action = decision.get("next_action") if isinstance(decision, Mapping) else None
        if isinstance(action, Mapping) and action.get("action") == "wait" and action.get("expected_event") == expected:
            return action
    return {}


def requests_of(state: Fields) -> dict[str, Request]:
    """Open requests by the ids of their events."""
    return {name: Request.read(value) for name, value in (state.get("requests") or {}).items()}


def _contradictions(data: Fields, **said: bool | str) -> list[str]:
    """Faults of data that say something else than their sender; an empty text says nothing."""
    return [
        f"data.{name}: got {shown_json(data[name])}, allowed: {shown_json(value)}, or nothing"
        for name, value in said.items()
        if value != "" and name in data and not (type(data[name]) is type(value) and data[name] == value)
    ]


def _approval_of_wait(state: Fields, people: People) -> Approval:
    wait, event = wait_action(state), str(state["results"][WAITING_FOR])
    request_id, due = _request_for(state, event)
    definition = people.get(event)
    return Approval(
        str(state["plan_id"]),
        str(state.get("pause_reason") or "paused"),
        wait.get("payload") or {},
        event,
        None,
        request_id,
        due,
        definition.description if definition is not None else "",
        _schema(people, event),
    )


def _request_for(state: Fields, event: str) -> tuple[str, float | None]:
    """Id of the request, or of the wait, that an event answers, and when it ends by itself."""
    for name, request in requests_of(state).items():
        if request.response_event == event and (request.event_type == WAIT or request.state == state["current_state"]):
            return name, request.due
    steps = state.get("trajectory") or (), state.get("earlier") or {}, state.get("revisits") or {}
    at = position(str(state.get("decider") or ""), str(state.get("current_state") or ""), *steps)
    return wait_id(str(state["plan_id"]), at), None


def _request_data(state: Fields, config: Fields) -> dict[str, Any]:
    """Data of the action of a plan's state, as it was sent."""
    try:
        roots = {name: state.get(name) for name in ROOTS}
        return dict(compile_template((config.get("action") or {}).get("data") or {}).render(roots))
    except PlancastError:
        return {}


def _schema(people: People, event: str | None) -> Fields | None:
    definition = people.get(event or "")
    return definition.payload_schema if definition is not None else None


def _names(schema: Fields | None, name: str) -> bool:
    return schema is not None and name in (schema.get("properties") or {})


def _takes(schema: Fields | None, name: str) -> bool:
    """True if data with this key may satisfy a schema."""
    return schema is None or _names(schema, name) or schema.get("additionalProperties") is not False


def _is(event: str, words: frozenset[str]) -> bool:
    return event.rpartition(".")[2] in words
