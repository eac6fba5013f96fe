"""Schemas that agents register: nothing is fetched, nothing hangs, and what holds is what JSON Schema says."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema.validators import validator_for

from plancast import App, ChoreographyPlanner, Worker
from plancast.agents.definitions import EventDefinition
from plancast.agents.registry import AgentRegistry
from plancast.errors import InvalidApp, PlanFailed
from plancast.json_values.schemas import MAX_COST, MAX_SCHEMA_PARTS, Budget, checked_schema, schema_faults
from plancast.testing import Answer, ModelServer, PlancastTest

Json = dict[str, Any]


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str]]]:
    """An HTTP server, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = b'{"type": "string"}'
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def doubled(depth: int, keyword: str = "allOf", leaf: Any = None) -> Json:
    """Applies its last part 2**depth times."""
    parts = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(depth)}
    return {"$defs": {**parts, f"d{depth}": leaf or {"type": "string"}}, "$ref": "#/$defs/d0"}


REMOTE: list[Callable[[str], Json]] = [
    lambda url: {"$ref": f"{url}/latest/meta-data"},
    lambda url: {"$dynamicRef": f"{url}/x#a"},
    lambda url: {"$schema": f"{url}/dialect"},
    lambda url: {"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveRef": f"{url}/x"},
    lambda url: {"properties": {"a": {"$id": f"{url}/latest/meta-data", "$ref": "#/x"}}},
    lambda url: {"properties": {"a": {"$id": f"{url}/a/", "items": {"$ref": "#b"}, "$ref": "#/items"}}},
    lambda url: {"$id": f"{url}/a", "$ref": "b"},
    lambda url: {"unknown": {"$id": f"{url}/x", "$ref": "#/y"}, "$ref": "#/unknown"},
    lambda url: {"const": {"$id": f"{url}/x", "$ref": "#/y"}, "$ref": "#/const"},
    lambda url: {"properties": {"a": {"$schema": f"{url}/x", "type": "object"}}},
    lambda url: {"$schema": "http://json-schema.org/draft-04/schema#", "not": {"id": f"{url}/x", "$ref": "#/y"}},
    lambda url: {"allOf": [{"unevaluatedProperties": False, "anyOf": [{"$ref": f"{url}/z"}]}]},
]


@pytest.mark.attack(who="agent", what="register a schema that refers to an address", expected="refused, 0 requests")
@pytest.mark.parametrize("number", range(len(REMOTE)))
async def test_no_reference_is_fetched(number: int, listener: tuple[str, list[str]]) -> None:
    url, asked = listener
    schema = REMOTE[number](url)

    with pytest.raises(InvalidApp, match="no JSON Schema: ") as refused:
        EventDefinition("a.b", payload_schema=schema)
    assert any(name in str(refused.value) for name in ("$ref", "$id", "$schema", "$dynamicRef", "$recursiveRef"))
    for data in ({"a": {"b": [1]}}, [1], "text"):
        schema_faults(schema, data)
    assert asked == []


def test_what_refers_to_itself_alone_is_taken() -> None:
    tree = {
        "$id": "https://example.org/tree",
        "$ref": "#/$defs/node",
        "$defs": {"node": {"$anchor": "n", "properties": {"next": {"$ref": "#n"}, "$ref": {"type": "string"}}}},
    }
    assert checked_schema(tree, "it") == tree
    assert schema_faults(tree, {"next": {"next": {"$ref": 5}}}) == ["next.next.$ref: got 5, allowed: string"]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"properties": {"x": {"pattern": "(?=a)b"}}}, "properties.x.pattern: lookaround and the like"),
        ({"items": {"pattern": "(?<!a)b"}}, "items.pattern: lookaround and the like"),
        ({"patternProperties": {r"(a)\1": {}}}, r"patternProperties: backreferences (\1) are not supported"),
        ({"pattern": "(" * 3}, "pattern: missing )"),
        ({"pattern": r"\p{L}{1000}"}, "pattern: pattern too large"),
        ({"allOf": [{"$ref": "#/$defs/none"}]}, 'allOf[0].$ref: there is no "#/$defs/none" in it'),
        ({"$ref": "#/allOf/x", "allOf": [{}]}, '$ref: there is no "#/allOf/x" in it'),
        ({"anyOf": [{}] * MAX_SCHEMA_PARTS}, f"it has more than {MAX_SCHEMA_PARTS} lists and objects"),
        ({"$schema": 5}, "$schema: got 5"),
        ({"$schema": ["x"]}, '$schema: got ["x"]'),
    ],
)
def test_what_cannot_be_applied_is_refused_with_its_path(schema: Json, told: str) -> None:
    with pytest.raises(InvalidApp) as refused:
        checked_schema(schema, "event a.b: payload_schema")
    assert str(refused.value).startswith(f"event a.b: payload_schema is no JSON Schema: {told}")
    assert len(str(refused.value)) < 1_000


def test_a_schema_is_bounded_in_depth() -> None:
    deep: Json = {}
    for _ in range(5_000):
        deep = {"not": deep}
    with pytest.raises(InvalidApp, match="levels"):
        checked_schema(deep, "it")


def test_checking_a_schema_costs_a_bounded_number_of_steps() -> None:
    costly = {f"(?:.{{0,900}}){n}": {} for n in range(1_900)}  # each takes milliseconds to compile
    with pytest.raises(InvalidApp, match="too many steps"):
        checked_schema({"patternProperties": costly}, "it")
    wide = {"properties": {f"p{n}": {} for n in range(MAX_SCHEMA_PARTS - 10)}}
    assert checked_schema(wide, "it") == wide


# What data may cost.

LARGE = {"k" * n: [{"x": each} for each in range(1_000)] for n in range(1, 40)}
HOSTILE: list[tuple[Any, Any]] = [
    (doubled(40), "text"),
    (doubled(40), 5),
    (doubled(40, "anyOf"), LARGE),
    (doubled(40, "oneOf"), "text"),
    (doubled(40, leaf={"unevaluatedProperties": False}), {"a": 1}),
    ({**doubled(40), "unevaluatedProperties": False}, "text"),
    ({**doubled(40, leaf=True), "unevaluatedItems": False}, [1]),
    ({"pattern": "(?:a|b)*a(?:a|b){900}c"}, "a" * 250_000),
    ({"items": {"enum": [[n, {"a": n}] for n in range(900)]}}, [[n, {"a": n}] for n in range(10_000)]),
    ({"allOf": [{"items": {}}] * 900}, [0] * 10_000),
    ({"allOf": [{"items": True}] * 900}, [0] * 10_000),
    ({"anyOf": [{"type": "string"}] * 900}, LARGE),
    ({"anyOf": [False] * 1_900}, LARGE),
    ({"allOf": [{"not": False}] * 900}, LARGE),
    ({"allOf": [{"contains": False}] * 900}, [LARGE]),
    ({"allOf": [{"uniqueItems": True}] * 900}, [{"a": n} for n in range(10_000)]),
    ({"patternProperties": {f"(a|b)*{n}x": {} for n in range(1_900)}}, {f"ab{n}": n for n in range(10_000)}),
]


@pytest.mark.attack(who="agent", what="register a schema that takes for ever on some data", expected="a clear fault")
@pytest.mark.parametrize("number", range(len(HOSTILE)))
@pytest.mark.timeout(60)  # each would take minutes, or centuries
def test_a_validation_that_takes_too_many_steps_is_a_fault(number: int) -> None:
    schema, data = HOSTILE[number]
    (fault,) = schema_faults(schema, data)
    assert fault.startswith("the schema cannot be applied: on data of this size it takes too many steps")


@pytest.mark.attack(who="agent", what="register the pattern (a+)+$", expected="matched in linear time")
@pytest.mark.timeout(30)
def test_patterns_do_not_backtrack() -> None:
    text = "a" * 250_000 + "!"
    schema = checked_schema({"properties": {"a": {"pattern": "(a+)+$"}}, "patternProperties": {"^(k+)+$": {}}}, "it")
    assert schema is not None
    assert [fault[:3] for fault in schema_faults(schema, {"a": text})] == ["a: "]
    assert schema_faults(schema | {"additionalProperties": True}, {"k" * 100_000 + "!": 1}) == []


@pytest.mark.parametrize(
    "schema",
    [{"$ref": "#"}, {"anyOf": [{"$ref": "#"}]}, {"allOf": [{"$ref": "#/not"}], "not": {"$ref": "#"}},
     {"$ref": "#", "unevaluatedProperties": False}],
)  # fmt: skip
def test_references_in_circles_are_a_fault(schema: Json) -> None:
    for data in ({"a": 1}, [1]):
        (fault,) = schema_faults(schema, data)
        assert fault == "the schema cannot be applied: its references go in circles, or nest too deeply on these data"


def test_one_budget_counts_for_all_within_it() -> None:
    rows = [{"a": "x"} for _ in range(8_000)]
    schema = {"items": {"properties": {"a": {"type": "string"}}}}
    with Budget():
        assert schema_faults(schema, rows) == []
        assert "too many steps" in schema_faults({"allOf": [schema] * 4}, rows)[0]
        assert "too many steps" in schema_faults(schema, rows)[0]
    assert schema_faults(schema, rows) == []
    with Budget(MAX_COST * 10):
        assert schema_faults({"allOf": [schema] * 4}, rows) == []


def test_faults_are_bounded_in_size() -> None:
    names = {f"{'n' * 60}{n}": {"items": {"const": "c" * 5_000}} for n in range(40)}
    data: Any = {name: ["x" * 50_000] * 3 for name in names}
    for _ in range(10):
        names, data = {"k" * 300: {"properties": names}}, {"k" * 300: data}
    assert len("".join(schema_faults({"properties": names}, data))) < 25_000


def test_the_patterns_of_pydantics_decimals_are_taken() -> None:
    schema = checked_schema({"pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}, "it")
    assert schema is not None
    assert [schema_faults(schema, each) == [] for each in ("12.50", "-3", "12,50", "x")] == [True, True, False, False]


# The rules that are not jsonschema's own give the same answers.

VALUES = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 1.0, 2, "a", "b", "ab", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "ab"]), inner, max_size=3),
    max_leaves=6,
)
PATTERNS = st.sampled_from(["^a", "b$", "^(a|b)$", "x", ""])
SUBSCHEMAS = st.recursive(
    st.booleans()
    | st.fixed_dictionaries({}, optional={"type": st.sampled_from(["object", "array", "string", "integer", "boolean"])})
    | st.fixed_dictionaries({"pattern": PATTERNS})
    | st.fixed_dictionaries({"enum": st.lists(VALUES, min_size=1, max_size=2)})
    | st.just({"$ref": "#/$defs/d"}),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
            "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
            "additionalProperties": inner,
            "unevaluatedProperties": inner,
            "items": inner,
            "contains": inner,
            "unevaluatedItems": inner,
            "uniqueItems": st.booleans(),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "dependentSchemas": st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=1),
        },
    ),
    max_leaves=5,
)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from([None, "http://json-schema.org/draft-07/schema#"]),
    SUBSCHEMAS.filter(lambda schema: isinstance(schema, dict)),
    SUBSCHEMAS,
    VALUES,
)
def test_the_same_data_pass_as_by_jsonschema(draft: str | None, schema: Any, shared: Any, data: Any) -> None:
    schema = {**schema, "$defs": {"d": shared}, **({"$schema": draft} if draft else {})}
    stock = validator_for(schema, default=jsonschema.Draft202012Validator)
    faults = schema_faults(schema, data)
    if faults and faults[0].startswith("the schema cannot be applied: its references go in circles"):
        return  # jsonschema's own ends in a RecursionError, or in a panic of a library below it
    expected = stock(schema).is_valid(data)
    assert (faults == []) is expected, faults


# In the registry, where another process may have written anything.


@pytest.mark.attack(who="agent", what="write broken schemas past the SDK", expected="passed over, the others serve")
async def test_registrations_that_cannot_be_applied_are_passed_over_and_named(
    caplog: pytest.LogCaptureFixture, listener: tuple[str, list[str]]
) -> None:
    url, asked = listener
    registry = AgentRegistry.in_memory(cache_seconds=0)
    deep: Any = {}
    for _ in range(61):
        deep = {"not": deep}
    schemas = {
        "too.large": {"description": "x" * 100_000},
        "too.wide": {"anyOf": [{}] * 5_000},
        "too.deep": deep,
        "backtracks": {"pattern": r"(a+)\1$"},
        "fetches": {"properties": {"a": {"$id": f"{url}/latest/meta-data", "$ref": "#/x"}}},
        "no.schema": {"type": 5},
        "no.dialect": {"$schema": f"{url}/dialect"},
    }
    for name, schema in schemas.items():
        fields = {"event_type": name, "topic": "action-requests", "payload_schema": schema}
        await registry.port.put("event", f"action-requests:{name}", fields)
    await registry.register_event(EventDefinition("good", payload_schema={"type": "object"}))

    with caplog.at_level(logging.WARNING):
        assert [each.event_type for each in await registry.discover()] == ["good"]
    for name in schemas:
        assert sum(f"action-requests:{name}'" in record.getMessage() for record in caplog.records) == 1
    assert asked == []


@pytest.mark.attack(who="agent", what="hang the host by a schema that a model's data meet", expected="the plan fails")
async def test_a_plan_that_meets_a_hostile_schema_fails_and_the_host_goes_on() -> None:
    worker = Worker("victim")

    @worker.on_task("work.requested", "work.completed", schema={**doubled(40), "description": "hostile"})
    async def work(task: Any, context: Any) -> Any:
        return {}

    publish = {"action": "publish", "event_type": "work.requested", "data": {"a": "x"}}
    async with ModelServer(
        rule=lambda request: Answer.json(
            {"next_action": {"action": "complete", "result": {}}, "reasoning": "done"}
            if '"good"' in json.dumps([message["content"] for message in request.messages]).replace('\\"', '"')
            else {"next_action": publish, "reasoning": "go"}
        )
    ) as model:
        planner = ChoreographyPlanner(
            "p", "openai/any", api_key="sk-unused-0123456789", api_base=model.url, goals=["x.goal"], max_repairs=1
        )
        async with PlancastTest(App("app", planners=[planner], workers=[worker])) as env:
            hostile = await env.submit("x.goal", {"kind": "bad"})
            good = await env.submit("x.goal", {"kind": "good"})
            async with asyncio.timeout(90):
                with pytest.raises(PlanFailed, match="too many steps"):
                    await hostile.result(timeout=80)
                await good.result(timeout=80)
