import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from plancast.agents.definitions import AgentDefinition, EventDefinition
from plancast.errors import InvalidApp
from plancast.json_values.schemas import schema_faults
from plancast_bus.errors import InvalidSubject
from plancast_bus.events.envelope import EventTopic


class Line(BaseModel):
    sku: str
    count: int = Field(default=1, ge=1)


class Order(BaseModel):
    order_id: str
    lines: list[Line]
    note: str | None = None


ORDER = Order.model_json_schema()


def test_an_event_has_a_type_and_a_topic_and_the_rest_by_default() -> None:
    event = EventDefinition("order.placed", "action-requests")
    assert (event.event_type, event.event_name, event.topic) == ("order.placed", "order.placed", "action-requests")
    assert (event.description, event.payload_schema, event.response_event, event.response_schema) == (
        "",
        None,
        None,
        None,
    )
    assert event == EventDefinition(event_type="order.placed", topic=EventTopic.ACTION_REQUESTS)
    assert len({event, EventDefinition("order.placed", "action-requests")}) == 1


def test_event_name_is_another_name_for_event_type() -> None:
    event = EventDefinition(event_name="order.placed", topic="business-facts")
    assert event == EventDefinition("order.placed", "business-facts")
    assert EventDefinition("a.b", "business-facts", event_name="a.b").event_name == "a.b"
    with pytest.raises(InvalidApp, match="one name"):
        EventDefinition("a.b", "business-facts", event_name="a.c")


def test_a_schema_may_be_a_pydantic_model() -> None:
    by_model = EventDefinition(
        "a.b", "action-requests", payload_schema=Order, response_event="a.c", response_schema=Line
    )
    assert by_model.payload_schema == ORDER
    assert by_model.response_schema == Line.model_json_schema()
    assert by_model == EventDefinition("a.b", "action-requests", "", ORDER, "a.c", Line.model_json_schema())


def test_a_definition_cannot_be_changed_nor_through_what_it_was_made_of() -> None:
    schema: dict[str, Any] = {"type": "object"}
    event = EventDefinition("a.b", "action-requests", payload_schema=schema)
    schema["type"] = "array"
    assert event.payload_schema == {"type": "object"}
    with pytest.raises(AttributeError):
        event.topic = EventTopic.PLAN_EVENTS  # type: ignore[misc]
    with pytest.raises(TypeError, match="read-only"):
        event.payload_schema["type"] = "array"


@pytest.mark.parametrize(
    "event",
    [
        EventDefinition("a.b", "business-facts"),
        EventDefinition("a.b", "action-requests", "what it is", Order, "a.c", {"type": "object", "required": ["x"]}),
    ],
)
def test_an_event_survives_being_written_and_read(event: EventDefinition) -> None:
    written = json.loads(json.dumps(event.to_dict()))
    assert EventDefinition.from_dict(written) == event
    assert EventDefinition.from_dict(written | {"of_a_later_version": 1}) == event
    assert None not in written.values()
    assert type(event.to_dict()["topic"]) is str


def test_an_event_of_the_original_registry_is_read_by_its_event_name() -> None:
    told = {"event_name": "a.b", "topic": "action-requests", "description": "d", "payload_schema": {"type": "object"}}
    assert EventDefinition.from_dict(told).event_type == "a.b"


@pytest.mark.parametrize("name", ["", "*", "a..b", "a b", "a.>"])
def test_what_is_no_event_type_is_refused(name: str) -> None:
    with pytest.raises(InvalidSubject):
        EventDefinition(name, "action-requests")
    with pytest.raises(InvalidSubject):
        AgentDefinition("id", "name", consumes=[name])


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "strin"}, "event a.b: payload_schema is no JSON Schema: type: 'strin' is not"),
        ({"properties": {"x": {"minimum": "many"}}}, "payload_schema is no JSON Schema: properties.x.minimum"),
        ({"properties": {"x": {"pattern": "("}}}, "payload_schema is no JSON Schema: properties.x.pattern"),
        ({"$ref": "http://127.0.0.1:9/schema.json"}, "only references within the schema"),
        ({"items": [], "$defs": {"x": {"$ref": "file:///etc/passwd"}}}, "payload_schema is no JSON Schema"),
        ({"allOf": [{"$ref": "other.json"}]}, "only references within the schema"),
        ({"enum": [{1, 2}]}, "is not JSON"),
        ({"description": "x" * 70_000}, "65536 at most"),
        ("object", "a JSON Schema (a dict) or a pydantic model, not a str"),
        (Line(sku="x"), "a JSON Schema (a dict) or a pydantic model, not a Line"),
        (int, "not a type"),
    ],
)
def test_what_is_no_schema_is_refused_when_the_event_is_defined(schema: Any, text: str) -> None:
    with pytest.raises(InvalidApp) as caught:
        EventDefinition("a.b", "action-requests", payload_schema=schema)
    assert text in str(caught.value)


def test_a_topic_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(InvalidApp, match=r"event a\.b: topic is 'nowhere', allowed: business-facts, action-requests"):
        EventDefinition("a.b", "nowhere")


def test_an_agent_lists_what_it_consumes_and_produces() -> None:
    agent = AgentDefinition("w-1", "searcher", consumes=["a.b", "a.b"], produces=("a.c",))
    assert (agent.consumes, agent.produces, agent.description) == (("a.b",), ("a.c",), "")
    assert AgentDefinition.from_dict(json.loads(json.dumps(agent.to_dict())) | {"later": 1}) == agent
    assert hash(agent)


def test_an_agent_that_is_none_is_refused() -> None:
    for ids in (("", "name"), ("id", "")):
        with pytest.raises(InvalidApp, match="needs an agent_id and a name"):
            AgentDefinition(*ids)
    with pytest.raises(InvalidApp, match=r"list of event types, not the text 'a\.b'"):
        AgentDefinition("id", "name", consumes="a.b")
    for told in (
        {"name": "x"},
        {"agent_id": "i", "name": "n", "consumes": [1]},
        {"agent_id": "i", "name": "n", "consumes": 1},
    ):
        with pytest.raises(InvalidApp, match="invalid AgentDefinition"):
            AgentDefinition.from_dict(told)
    with pytest.raises(InvalidApp, match="invalid EventDefinition"):
        EventDefinition.from_dict({"event_type": 1, "topic": "action-requests"})


# Data against a schema.


@pytest.mark.parametrize(
    ("data", "faults"),
    [
        ({"order_id": "o", "lines": [{"sku": "s"}]}, []),
        ({"order_id": "o", "lines": [], "note": None, "more": 1}, []),
        ({"order_id": 7, "lines": []}, ["order_id: got 7, allowed: string"]),
        ({"lines": []}, ["the data: got no order_id, allowed: an object that has it; it is required"]),
        ({}, ["the data: got no order_id, lines, allowed: an object that has it; it is required"]),
        (
            {"order_id": "o", "lines": [{"sku": "s", "count": 0}, {"sku": None}]},
            ["lines[0].count: got 0, allowed: minimum 1", "lines[1].sku: got null, allowed: string"],
        ),
        ([], ["the data: got [], allowed: object"]),
        (None, ["the data: got null, allowed: object"]),
    ],
)
def test_faults_name_path_value_and_what_is_allowed(data: Any, faults: list[str]) -> None:
    assert schema_faults(ORDER, data) == faults
    event = EventDefinition("a.b", "action-requests", payload_schema=Order)
    assert event.payload_schema is not None
    assert schema_faults(event.payload_schema, data) == faults


@pytest.mark.parametrize(
    ("schema", "data", "fault"),
    [
        ({"enum": ["low", "high"]}, "mid", 'the data: got "mid", allowed: "low", "high"'),
        ({"const": 5}, 6, "the data: got 6, allowed: 5"),
        ({"type": ["integer", "null"]}, "x", 'the data: got "x", allowed: integer or null'),
        ({"maxItems": 1}, [1, 2], "the data: got [1, 2], allowed: maxItems 1"),
        ({"pattern": "^a"}, "b", 'the data: got "b", allowed: pattern "^a"'),
        (
            {"properties": {"a": {}}, "additionalProperties": False},
            {"a": 1, "b": 2},
            'the data: got unknown keys: "b", allowed: a',
        ),
        ({"additionalProperties": False}, {"b": 2}, 'the data: got unknown keys: "b", allowed: none'),
        ({"properties": {"x": False}}, {"x": 1}, "the data: got 1, allowed: nothing"),
    ],
)
def test_each_kind_of_fault_says_what_is_allowed(schema: dict[str, Any], data: Any, fault: str) -> None:
    assert schema_faults(schema, data) == [fault]


def test_alternatives_tell_the_closest_or_all() -> None:
    (fault,) = schema_faults(ORDER, {"order_id": "o", "lines": [], "note": 5})
    assert fault.startswith("note: got 5, allowed: ")
    assert "string" in fault
    count = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}
    assert schema_faults(count, 0) == ["the data: got 0, allowed: minimum 1"]


def test_faults_are_short_and_few() -> None:
    told = schema_faults({"items": {"type": "string"}}, list(range(1000)))
    assert len(told) == 21
    assert told[-1] == "and more"
    (one,) = schema_faults({"type": "object"}, "secret" * 10_000)
    assert len(one) < 200


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"pattern": "("},
        {"$ref": "#/$defs/nowhere"},
        {"$ref": "#"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"minimum": "many"},
        {"properties": 7},
    ],
)
@pytest.mark.parametrize("data", ["text", 3, {"a": 1}])
def test_a_schema_that_cannot_be_applied_is_a_fault_and_fetches_nothing(schema: dict[str, Any], data: Any) -> None:
    for fault in schema_faults(schema, data):
        assert fault.startswith("the schema cannot be applied: ")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["order_id", "lines"]), inner),
    )
)
def test_data_passes_exactly_when_the_model_takes_it(data: Any) -> None:
    try:
        Order.model_validate(data, strict=True)
        fits = True
    except ValueError:
        fits = False
    assert (schema_faults(ORDER, data) == []) is fits


def test_defining_events_without_schemas_loads_no_validator() -> None:
    code = (
        "import sys, plancast.planners.contract, plancast.agents.definitions as d;"
        "d.EventDefinition('a.b', 'action-requests');"
        "sys.exit('jsonschema' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
