"""Outbox of a turn: events, requests and answers, staged as effects until the turn is committed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plancast import plan_tree
from plancast.errors import TerminalError
from plancast.plan.context import PlanContext
from plancast.plan.requests import Request, effect_id
from plancast.turn_record.environment import TurnEnvironment
from plancast_bus.errors import PayloadTooLarge
from plancast_bus.events.codec import REFERENCE_TYPES, dump, load, pack
from plancast_bus.events.envelope import EventEnvelope, EventTopic, WireEvent, utc_text
from plancast_bus.events.references import data_of, fold_data
from plancast_bus.ports.effects import Effect, NoteAlias, Publish, Respond, Share
from plancast_bus.ports.sessions import session_name
from plancast_bus.subjects import fitting_token, message_id_of, tenant_token

REQUESTS = EventTopic.ACTION_REQUESTS


class Outbox:
    """Effects of one turn, in the order in which they were staged. Holds no turn, which would be a reference cycle."""

    __slots__ = (
        "_before_plan", "_cause", "_correlation_id", "_environment", "_event", "_index", "_response", "_revision",
        "_time", "apart", "begun", "contents", "deadline", "effects", "goals", "lent", "plan", "sent", "staged_bytes",
        "trace", "trace_id",
    )  # fmt: skip

    def __init__(
        self,
        environment: TurnEnvironment,
        correlation_id: str,
        event: EventEnvelope,
        plan: PlanContext | None,
        revision: int,
        now: float,
    ) -> None:
        self._environment = environment
        self._correlation_id = correlation_id
        self._event = event
        self._revision = revision
        self._time = utc_text(now)
        self._index = 0
        self._response: tuple[int, int, dict[str, Any]] | None = None
        """The final response: its places in ``effects`` and ``sent``, and its fields."""
        self._before_plan: dict[str, Request] = {}
        """Requests that a goal's handler sent before it created the plan."""
        self.trace = self.trace_id = ""
        """Trace of the sent events, and its id; empty for none."""
        self.plan = plan
        """The sending plan, once it exists."""
        self.apart = False
        """True if what is sent concerns another plan than the event's."""
        self.begun = plan is not None
        """True if events belong to a plan; also true while a goal's handler is about to create it."""
        self.deadline: float | None = None
        """The deadline of the plan that a goal's handler is about to create."""
        self._cause: plan_tree.Place | None = None
        """Place of the plan that what follows is sent apart from."""
        self.effects: list[Effect] = []
        self.sent: list[list[str]] = []
        """Type and id of every staged event."""
        self.staged_bytes = 0
        """Bytes of these events, also of those that were dropped again."""
        self.contents: dict[str, dict[bytes, bytes]] = {}
        """Data of events that is stored apart, before the turn is committed: contents by digest, by correlation id."""
        self.goals: tuple[int, ...] = ()
        """Indexes of the effects that are goals of child plans."""
        self.lent: dict[str, dict[str, float]] = {}
        """Shares of the plan's budget in these goals, by their ids."""

    def begin(self, plan: PlanContext) -> None:
        """Make this plan the sender; requests that were sent before become its own."""
        plan.requests = self._before_plan | plan.requests
        for effect in self.effects:
            if isinstance(effect, NoteAlias):
                _remember_alias(plan, effect.correlation_id)
        if plan.plan_id != self._correlation_id:
            self._note_alias(plan, plan.plan_id)
        self.plan = plan
        self.begun = True

    def leave(self) -> None:
        """Send what follows apart from the plan, with ids that follow from the event."""
        self.apart = self.plan is not None
        if self.plan is not None:
            self._cause = plan_tree.place_of(self.plan)
        self.plan, self.begun = None, False

    def begin_goal(self, goal: EventEnvelope) -> None:
        """Send what follows as the goal's turn does, although another event has begun it."""
        self.leave()
        self._event = goal

    def send(self, fields: dict[str, Any], *, final: bool = False, message_id: str = "") -> str:
        """Stage an event; returns its id, which is also its idempotency key unless ``message_id`` is given.

        Raises:
            InvalidEnvelope, InvalidSubject, PayloadTooLarge: the event could not be sent.
            TerminalError: the event is a goal, and its plan would be too deep in the chain of plans that has caused it.
        """
        event_id: str = fields.pop("id", None) or self.next_id()
        event = self._inherited()
        event.update(fields)
        topic, event_type = str(event["topic"]), event["type"]
        is_child = topic == REQUESTS and event_type in self._environment.goals
        if is_child and (self.apart or self.begun) and event["correlation_id"] in self._own_ids():
            event["correlation_id"] = event_id  # the plan of these ids has had its goal
        correlation_id = event["correlation_id"]
        if is_child:
            event["metadata"] = self._placed(event_type, event.get("metadata"))
        elif (self.plan.depth > 1 if self.plan is not None else not self.begun) and (
            place := self._place_beside(correlation_id, topic)
        ) is not None:
            said = {plan_tree.CAUSE: place.metadata()} if topic == REQUESTS else place.metadata()
            event["metadata"] = {**(event.get("metadata") or {}), **said}
        event["topic"], event["id"], event["time"] = topic, event_id, self._time
        payload, content_type = self._encoded(event)
        self.staged_bytes += len(payload)
        message_id = message_id_of(message_id or event_id)
        subject = self._environment.subjects.event(topic, correlation_id, event_type)
        if final and self.plan is not None:
            self.effects.append(
                Respond(
                    topic,
                    correlation_id,
                    event_type,
                    payload,
                    message_id,
                    content_type,
                    self.plan.notify or "",
                    self.trace,
                )
            )
        else:
            tenant = tenant_token(event.get("tenant_id")) if event_type in self._environment.goals else ""
            self.effects.append(Publish(subject, payload, message_id, content_type, tenant, self.trace))
        self.sent.append([event_type, event_id])
        if is_child and self.begun:
            self.goals = (*self.goals, len(self.effects) - 1)
        return event_id

    def request(self, fields: dict[str, Any]) -> str:
        """Stage a request for a task or a child plan; it is open until it is answered."""
        fields["response_event"] = fields.get("response_event") or None
        request_id, alias = self.next_id(), ""
        begun = self.begun
        child = begun and fields["topic"] == REQUESTS and fields["type"] in self._environment.goals
        if child:
            self.send_child_goal(request_id, fields["type"], fields)
        else:
            own = self.plan.correlation_id if self.plan is not None else self._correlation_id
            if begun and fields.get("correlation_id") not in (None, own):
                alias = fields["correlation_id"]
                self._note_alias(self.plan, alias)
            fields["id"] = request_id
            self.send(fields)
        if begun and fields["response_event"]:
            requests = self._before_plan if self.plan is None else self.plan.requests
            request = requests[request_id] = Request(fields["type"], fields["response_event"])
            request.child, request.alias = child, alias
        return request_id

    def respond(self, fields: dict[str, Any]) -> str:
        """Stage an answer; the first one of a finished plan is its final response."""
        plan = self.plan
        if plan is None or not plan.status.finished or self._response is not None:
            return self.send(fields)
        fields["parent_event_id"] = plan.goal_id
        if plan.response_topic:
            fields["topic"] = plan.response_topic
        self._response = len(self.effects), len(self.sent), fields
        return self.send(fields, final=plan.parent_plan_id is None)

    @property
    def response(self) -> int | None:
        """Index of the plan's final response among the effects; None: none is staged."""
        return self._response[0] if self._response is not None else None

    def replace_response(self, data: Any) -> bool:
        """Replace the data of the final response, which keeps its id and its place; False when none is staged."""
        if self._response is None or self.plan is None:
            return False
        effect, sent, fields = self._response
        self.send(fields | {"data": data, "id": self.sent[sent][1]}, final=self.plan.parent_plan_id is None)
        self.effects[effect] = self.effects.pop()
        self.sent.pop()
        return True

    def send_child_goal(
        self, request_id: str, event_type: str, fields: dict[str, Any], *, message_id: str = ""
    ) -> None:
        """Stage the goal of a child plan, whose plan id is the id of the request."""
        parent = self.plan.plan_id if self.plan is not None else self._correlation_id
        metadata = dict(fields.get("metadata") or {})
        metadata |= {"parent_plan_id": parent, "reply_to": self._correlation_id}
        metadata.pop("notify", None)
        sent = {key: value for key, value in fields.items() if key in EventEnvelope.model_fields}
        self.send(
            sent
            | {
                "id": request_id,
                "type": event_type,
                "topic": EventTopic.ACTION_REQUESTS,
                "correlation_id": request_id,
                "metadata": metadata,
            },
            message_id=message_id,
        )

    def share(self, plan: PlanContext) -> None:
        """Stage what the plan shares with its session, as the turn's first effect. Called at the end of the turn.

        Raises:
            TerminalError: it is more than a session may hold.
        """
        shared, plan.shared = plan.shared or {}, None
        values, limits = pack(shared), self._environment.settings
        if len(shared) > limits.max_shared_values or len(values) > limits.max_shared_bytes:
            raise TerminalError(
                f"plan {plan.plan_id} shares {len(shared)} values of {len(values)} bytes in one turn; the limits of a "
                f"session are {limits.max_shared_values} (plans.max_shared_values) and {limits.max_shared_bytes} bytes "
                "(plans.max_shared_bytes)"
            )
        self.effects.insert(0, Share(session_name(plan.tenant_id, plan.session_id or ""), values))

    def mark(self) -> tuple[int, int]:
        """Position in the outbox, for :meth:`rewind`."""
        return len(self.effects), len(self.sent)

    def rewind(self, mark: tuple[int, int]) -> None:
        """Drop what was staged after a mark; ids are not reused."""
        effects, sent = mark
        del self.effects[effects:], self.sent[sent:]
        if self._response is not None and self._response[0] >= effects:
            self._response = None
        self.goals = tuple(index for index in self.goals if index < effects)

    def event(self, index: int) -> dict[str, Any]:
        """The staged event of an effect, in wire form; large data is a reference."""
        effect = self.effects[index]
        assert isinstance(effect, (Publish, Respond))
        event: dict[str, Any] = load(effect.payload, effect.content_type)
        return event

    def add_metadata(self, index: int, metadata: Mapping[str, Any]) -> None:
        """Add metadata to a staged event.

        Raises:
            PayloadTooLarge: the event could not be sent.
        """
        event, effect = self.event(index), self.effects[index]
        assert isinstance(effect, (Publish, Respond))
        event["metadata"] = {**(event.get("metadata") or {}), **metadata}
        if effect.content_type in REFERENCE_TYPES:
            effect.payload = dump(event, REFERENCE_TYPES[effect.content_type])
        else:
            effect.payload, effect.content_type = self._encoded(event)

    def data(self) -> list[Any]:
        """The data of all staged events, in full."""
        staged = [effect for effect in self.effects if isinstance(effect, (Publish, Respond))]
        contents = {digest: content for each in self.contents.values() for digest, content in each.items()}
        return [data_of(each.payload, each.content_type, contents) for each in staged]

    def next_id(self) -> str:
        """Allocate the id of the next event."""
        owner = self.plan.plan_id if self.plan is not None else self._correlation_id
        revision = self._revision
        if not self.begun:
            owner, revision = fitting_token(self._event.id), 0
        event_id = effect_id(owner, revision, self._index)
        self._index += 1
        return event_id

    def _own_ids(self) -> tuple[str, ...]:
        return (self._correlation_id,) if self.plan is None else (self._correlation_id, self.plan.plan_id)

    def _encoded(self, event: dict[str, Any]) -> tuple[bytes, str]:
        wire, environment = WireEvent(event), self._environment
        payload, content_type = environment.encode(wire)
        if len(payload) <= environment.max_event_bytes:
            return payload, content_type
        if (event.get("tenant_id") or "") != self._tenant:
            raise PayloadTooLarge(
                f"event {event['type']} has {len(payload):,} bytes, over bus.max_event_bytes "
                f"({environment.max_event_bytes:,} bytes), and is for another tenant, which cannot read larger data"
            )
        folded = fold_data(wire.to_wire(), content_type, environment.max_event_bytes, environment.settings)
        self.contents.setdefault(event["correlation_id"], {}).update(folded.contents)
        return folded.payload, folded.content_type

    @property
    def _tenant(self) -> str:
        return self.plan.tenant_id if self.plan is not None else self._event.tenant_id or ""

    def _place_beside(self, correlation_id: str, topic: str = "") -> plan_tree.Place | None:
        """The place that an event names to who hears it apart from its plan; None where that plan is known to them.

        Workers are told too, for what they send because of a request.
        """
        plan = self.plan
        if plan is None:
            return None if self.begun else self._cause or plan_tree.read_cause(self._event)
        beside = topic == REQUESTS or correlation_id != plan.correlation_id
        return plan_tree.place_of(plan) if plan.depth > 1 and beside else None

    def _placed(self, event_type: str, metadata: Any) -> dict[str, Any]:
        """Metadata of a goal with the place of its plan in the sender's tree."""
        values = {name: value for name, value in dict(metadata or {}).items() if name not in plan_tree.METADATA}
        if self.plan is not None:
            return values | plan_tree.below(self.plan)
        if not self.begun:
            cause = self._place_beside(self._correlation_id)
            return values if cause is None else values | self._caused(event_type, cause)
        place = plan_tree.read_place(self._event.metadata)
        values |= {plan_tree.ROOT: place.root or self._correlation_id, plan_tree.DEPTH: place.depth + 1}
        return values if self.deadline is None else values | {plan_tree.DEADLINE: self.deadline}

    def _caused(self, event_type: str, cause: plan_tree.Place) -> dict[str, Any]:
        """The place of a plan that begins apart from the one that has caused it.

        Raises:
            TerminalError: it would be too deep; nobody waits for its answer, so the sender hears it.
        """
        place = cause.below()
        if too_deep := place.too_deep(self._environment.settings):
            raise TerminalError(f"goal {event_type!r} was not sent: {too_deep}")
        return place.metadata()

    def _note_alias(self, plan: PlanContext | None, correlation_id: str) -> None:
        self.effects.append(NoteAlias(correlation_id, self._correlation_id))
        if plan is not None:
            _remember_alias(plan, correlation_id)

    def _inherited(self) -> dict[str, Any]:
        plan, event = self.plan, self._event
        if plan is None:
            return {
                "source": self._environment.app.name,
                "correlation_id": self._correlation_id,
                "tenant_id": event.tenant_id,
                "user_id": event.user_id,
                "session_id": event.session_id,
                "trace_id": self.trace_id or event.trace_id or event.id,
                "parent_event_id": event.id,
            }
        return {
            "source": plan.planner or self._environment.app.name,
            "correlation_id": plan.correlation_id,
            "plan_id": plan.plan_id,
            "goal_id": plan.goal_id,
            "tenant_id": plan.tenant_id or None,
            "user_id": plan.user_id or None,
            "session_id": plan.session_id,
            "trace_id": self.trace_id or plan.trace_id,
            "parent_event_id": event.id,
        }


def _remember_alias(plan: PlanContext, correlation_id: str) -> None:
    if correlation_id in plan.aliases:
        plan.aliases.remove(correlation_id)
    plan.aliases.append(correlation_id)  # the newest is last
