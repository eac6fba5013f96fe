"""Whatever comes from outside: it is taken, or refused by an error of ours. Nothing crashes, hangs or is executed."""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from plancast import App, Planner, StateConfig
from plancast.errors import ConditionFailed, InterpolationError, InvalidCondition, PlancastError
from plancast.state_machine.condition_cost import MAX_COST, Cost
from plancast.state_machine.conditions import MAX_LENGTH, compile_condition
from plancast.state_machine.interpolation import MAX_PLACEHOLDERS, ROOTS, compile_template
from plancast.testing import PlancastTest
from plancast_bus.errors import InvalidEnvelope, InvalidSubject
from plancast_bus.events import codec
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.memory import MemoryBus
from plancast_bus.subjects import Subjects, decode_token, encode_token

settings.register_profile("isolation", deadline=None, suppress_health_check=list(HealthCheck), max_examples=150)
FUZZ = settings(settings.get_profile("isolation"))

TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)
"""Any text, halves of surrogate pairs and NUL included."""
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(10**40), 10**40), st.floats(), TEXT,
    st.sampled_from([2**64, -(2**63) - 1, float("nan"), float("inf"), "\ud800", "\x00", ""]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=12,
)
FIELDS = st.sampled_from([*EventEnvelope.model_fields, "correlationId", "tenantId", "__class__", "model_config"])
ENVELOPES = st.dictionaries(FIELDS, VALUES, max_size=10)
CONTENT_TYPES = st.one_of(
    st.sampled_from([None, codec.JSON_TYPE, codec.MSGPACK_TYPE, "application/x-msgpack; v=1", "x/y+json", "text/html"]),
    TEXT,
)


class Trap(Exception):
    """Raised by what must never be called."""


def _is_short(error: Exception) -> None:
    """An error quotes some of what came, never all of it."""
    assert len(str(error)) < 4_000


def _taken_or_refused(payload: bytes, content_type: str | None) -> None:
    try:
        event = codec.decode(payload, content_type, defaults={"source": "s", "type": "t", "topic": "plan-events"})
    except InvalidEnvelope as error:
        _is_short(error)
        return
    for wire_format in ("msgpack", "json"):  # what was taken can be written again, and says the same
        again = codec.decode(codec.encode(event, wire_format), codec.CONTENT_TYPES[wire_format])
        assert again == event


# Envelopes.


@FUZZ
@given(st.binary(max_size=300), CONTENT_TYPES)
def test_any_bytes(payload: bytes, content_type: str | None) -> None:
    _taken_or_refused(payload, content_type)


@FUZZ
@given(ENVELOPES)
def test_any_structure_as_json(fields: dict[str, Any]) -> None:
    _taken_or_refused(json.dumps(fields).encode(), codec.JSON_TYPE)


@FUZZ
@given(ENVELOPES)
def test_any_structure_as_msgpack(fields: dict[str, Any]) -> None:
    try:
        payload = msgpack.packb(fields, unicode_errors="surrogatepass")
    except (OverflowError, ValueError):
        return
    _taken_or_refused(payload, codec.MSGPACK_TYPE)


GOOD = {"source": "s", "type": "t", "topic": "plan-events"}
DEEP = 200_000


@pytest.mark.parametrize(
    ("payload", "content_type"),
    [
        (b"[" * DEEP, None),
        (b'{"data":' * DEEP + b"1" + b"}" * DEEP, None),
        (b'{"data":' + b"[" * 65 + b"]" * 65 + b"}", None),
        (b"\x91" * DEEP + b"\xc0", codec.MSGPACK_TYPE),
        (b"\x81\xa4data" + b"\x91" * 400 + b"\xc0", codec.MSGPACK_TYPE),
        (b"\xdd\xff\xff\xff\xff", codec.MSGPACK_TYPE),  # a list of four thousand million, says its head
        (b"\xdf\xff\xff\xff\xff", codec.MSGPACK_TYPE),
        (b"\xdb\xff\xff\xff\xff", codec.MSGPACK_TYPE),
        (b'{"data":' + b"9" * 500_000 + b"}", None),
        (b'{"data":1e999999}', None),
        (b'{"data":NaN}', None),
        (b'{"data":-Infinity}', None),
        (b'{"data":"\\ud800"}', None),
        (b'{"tenant_id":"\\udfff"}', None),
        (b'{"data":"\xff\xfe"}', None),
        (b"\xef\xbb\xbf[]", None),
        (b"\xff\xfe{\x00", None),
        (b"\x81\xa4data\xa2\xed\xa0", codec.MSGPACK_TYPE),
        (b"\x81\xa4data\xd6\xff\x00\x00\x00\x00", codec.MSGPACK_TYPE),  # a timestamp
        (b"\x81\xa4data\xd4\x2a\x00", codec.MSGPACK_TYPE),  # an extension
        (b"\x81\x01\x02", codec.MSGPACK_TYPE),
        (b"\x81\xa4data\xc4\x01\x00", codec.MSGPACK_TYPE),  # bytes
        (b"\x81\xa4data\xcb" + struct.pack(">d", float("nan")), codec.MSGPACK_TYPE),
        (b"cposix\nsystem\n(S'true'\ntR.", codec.MSGPACK_TYPE),  # a pickle
        (b"cposix\nsystem\n(S'true'\ntR.", "application/python-pickle"),
        (b"!!python/object/apply:os.system [x]", "application/yaml"),
        (b"", None),
        (b"null", None),
    ],
)
def test_what_is_no_event_is_refused(payload: bytes, content_type: str | None) -> None:
    with pytest.raises(InvalidEnvelope):
        codec.decode(payload, content_type, defaults=GOOD)


def test_of_a_key_that_is_there_twice_the_last_counts_and_only_one_spelling() -> None:
    twice = b'{"tenant_id":"a","tenant_id":"b","tenantId":"c"}'

    assert codec.decode(twice, defaults=GOOD).tenant_id == "b"


@pytest.mark.parametrize("field", [name for name in EventEnvelope.model_fields if name not in ("data", "metadata")])
@pytest.mark.parametrize("value", [{}, [], {"a": 1}, 1.5, True, ["x"]])
def test_a_field_of_the_wrong_type_is_named(field: str, value: Any) -> None:
    if field == "time" and isinstance(value, (float, bool)):
        return
    with pytest.raises(InvalidEnvelope, match=field):
        codec.decode(json.dumps(GOOD | {field: value}).encode())


# Subjects and keys.

SUBJECTS = Subjects("p")


@FUZZ
@given(TEXT)
@example("*")
@example(">")
@example("a.b.>")
@example("..")
@example("%2e%00")
@example(" \r\nPUB $JS.API.STREAM.DELETE.X 0\r\n")
def test_a_correlation_id_is_one_token_or_refused(text: str) -> None:
    try:
        token = encode_token(text)
    except InvalidSubject:
        return
    assert decode_token(token) == text
    assert token.isascii()
    assert not set(token) & set(" .*>\r\n\t\0")
    for subject in (
        SUBJECTS.event("plan-events", text, "t"), SUBJECTS.checkpoint(text), SUBJECTS.alias(text),
        SUBJECTS.registry("app", text), SUBJECTS.history(text, 1), SUBJECTS.response("plan-events", text, "t"),
    ):  # fmt: skip
        assert subject.count(".") == subject.replace(token, "x").count(".")
        assert subject.split(".")[0] in ("p", "p-store")
    assert SUBJECTS.parse_event(SUBJECTS.event("plan-events", text, "t")).correlation_id == text


@FUZZ
@given(
    st.one_of(
        TEXT, st.lists(st.sampled_from(["p", "p-store", "timers", "due", "0", "%zz", "%ff", "", "*"])).map(".".join)
    )
)
def test_any_subject_is_read_or_refused(subject: str) -> None:
    for read in (SUBJECTS.parse_event, SUBJECTS.parse_stored, SUBJECTS.published_from_stored):
        try:
            read(subject)
        except InvalidSubject as error:
            _is_short(error)


@FUZZ
@given(TEXT, TEXT)
async def test_any_key_of_the_registry_finds_its_own_value_alone(key: str, other: str) -> None:
    bus = MemoryBus()
    await bus.ensure_streams()
    try:
        await bus.registry.put("app", key, {"of": "key"})
        await bus.registry.put("app", other, {"of": "other"})
    except (InvalidSubject, InvalidEnvelope):
        return
    assert await bus.registry.get("app", key) == {"of": "other" if key == other else "key"}
    assert set(await bus.registry.list("app")) == {key, other}


# Conditions.

WORDS = st.sampled_from(
    ["event", "goal_data", "results", "plan", ".", ".data", ".l", ".s", "(", ")", "[", "]", "{", "}", ",", "x", "'a'",
     "1", "+", "&&", "||", "!", "==", "<", " in ", "?", ":", ".all(x,", ".exists(x,", ".map(x,", ".filter(x,",
     ".matches(", ".size()", "has(", "'(a+)+$'", "1e309", "b'\\xff'", "__class__", "duration('1h')", "//", "\n",
     "r'\\'", "`", "\ud800", "\x00", "9223372036854775808", "dyn(", "type("]
)  # fmt: skip
LARGE: dict[str, Any] = {
    "l": list(range(5_000)),
    "s": "a" * 100_000,
    "d": [[1, 2, 3]] * 20_000,
    "t": ["a" * 1_000] * 100,
    "n": "a" * 50_000 + "b",
    "p": "(a|b){900}x",
    "f": [0] * 5,
    "w": [0] * 1_900,
}


def _evaluated_or_refused(source: str, goal_data: dict[str, Any]) -> None:
    try:
        condition = compile_condition(source)
        condition.evaluate(event={"type": "t", "data": {}, "topic": ""}, goal_data=goal_data, results={}, plan={})
    except (InvalidCondition, ConditionFailed) as error:
        _is_short(error)


@FUZZ
@given(
    st.one_of(
        st.text(max_size=300), st.lists(WORDS, max_size=60).map("".join), st.text(max_size=20).map(lambda t: t * 250)
    )
)
def test_any_expression(source: str) -> None:
    _evaluated_or_refused(source, LARGE)


@FUZZ
@given(st.lists(WORDS, min_size=1, max_size=30).map("".join), VALUES)
def test_any_data(source: str, value: Any) -> None:
    _evaluated_or_refused(source, {"l": value, "s": value})


EXPENSIVE = [
    "goal_data.l.all(a, goal_data.l.all(b, goal_data.l.all(c, a + b + c > -1)))",
    "goal_data.l.map(x, goal_data.s + goal_data.s).size() > 0",
    "goal_data.l.exists(x, goal_data.d != goal_data.d)",
    "goal_data.l.exists(x, [goal_data.d].exists(y, y != goal_data.d))",
    "goal_data.l.exists(x, goal_data.s.matches('(.*a.*){20}b'))",
    "goal_data.s.matches('" + "(a{1,30}){1,30}" * 200 + "')",
    "goal_data.s.matches(goal_data.s + '{1000}')",
    "['" + "a" * 100 + "']" + ".map(x, x + x)" * 25 + ".size() > 0",
    "[0]" + ".map(x, [x, x])" * 25 + " == [0]" + ".map(x, [x, x])" * 3,
    "goal_data.t.map(x, " + "+".join(["x"] * 25) + ").map(x, " + "+".join(["x"] * 25) + ").map(x, x + x).size() > 0",
    "[" + ",".join(["0"] * 500) + "].all(a, [" + ",".join(["0"] * 500) + "].all(b, goal_data.s.contains('b')))",
    "goal_data.l//\n.map(x, goal_data.s + goal_data.s).size() > 0",
    "goal_data.l . map (x, goal_data.s + goal_data.s).size() > 0",
    "r'\\' == '' || goal_data.l.map(x, goal_data.s + goal_data.s).size() > 0 || ''==''",
    "goal_data.s.contains(goal_data.n)",
    "goal_data.s.contains('' + goal_data.n)",
    "goal_data.s.contains(r'\\' + goal_data.n + '')",
    "[goal_data.n].exists(x, goal_data.s.contains(x))",
    "goal_data.t.map(x, x + goal_data.n).exists(x, goal_data.s.contains(x))",
    "goal_data.s . contains // 'a')\n (goal_data.n)",
    "goal_data.s.matches('' + goal_data.p)",
    "matches(goal_data.s, goal_data.p)",
    r"goal_data.s.matches('(\\pL|a)*" + r"(\\pL|a)" * 20 + "b')",
    "goal_data.l.map(x, x).size() > 0",
    "goal_data.l.filter(x, true).size() > 0",
    "goal_data.f.all(a, goal_data.w.map(b, b).size() > 0)",
    " && ".join(["goal_data.d == goal_data.d"] * 100),
    " && ".join(["duration(goal_data.s) == duration(goal_data.s)"] * 60),
]


@pytest.mark.attack(who="app code", what="evaluate a condition that takes for ever on 1 MB", expected="refused")
@pytest.mark.parametrize("source", EXPENSIVE)
def test_expensive_expressions_are_refused_before_they_cost(source: str) -> None:
    with pytest.raises((ConditionFailed, InvalidCondition)):
        compile_condition(source).evaluate(
            event={"type": "t", "data": {}, "topic": ""}, goal_data=LARGE, results={}, plan={}
        )


@pytest.mark.parametrize(
    "source",
    [
        "goal_data.hits.exists(h, h.score > 0.9)",
        "goal_data.hits.exists(h, h.id == goal_data.wanted)",
        "goal_data.hits.filter(h, h.score > 0.5).map(h, h.id).exists(i, i == goal_data.wanted)",
        "goal_data.hits.all(h, h.tags.exists(t, t == 'new'))",
        "goal_data.text.matches('^[A-Z]{2}[0-9]{4,8}$') || size(goal_data.hits) > 0",
        "goal_data.hits.exists(h, h.text.matches('(?i)needle'))",
        "goal_data.long.contains('needle') && !goal_data.long.contains(goal_data.wanted)",
        "goal_data.words.exists(w, goal_data.long.contains(w))",
        "goal_data.hits.exists(h, h.tags.exists(t, goal_data.page.contains(t)))",
    ],
)
def test_expressions_as_people_write_them_are_not(source: str) -> None:
    hits = [{"id": str(n), "score": 1.0, "tags": ["old", "new"], "text": "hay " * 50} for n in range(800)]
    goal_data = {
        "hits": [*hits, {"id": "x", "score": 1, "tags": ["new"], "text": "Needle"}],
        "wanted": "x",
        "text": "hay",
        "long": "hay " * 250_000 + "needle",
        "page": "hay " * 100 + "new",
        "words": ["straw", "needle"],
    }

    event = {"type": "t", "data": {}, "topic": ""}
    assert compile_condition(source).evaluate(event=event, goal_data=goal_data, results={}, plan={})


def test_the_cost_grows_with_what_is_looked_at() -> None:
    cost = Cost("goal_data.l.exists(x, goal_data.s == x)", [(("goal_data", "l"), 11), (("goal_data", "s"), 33)])
    small, large = ({"goal_data": {"l": [0] * n, "s": "a" * n}} for n in (100, 100_000))

    assert cost.of(small) < 1_000_000 < MAX_COST < cost.of(large)


SIZES = st.integers(1, 2_000)
SEARCHED = st.builds(
    lambda n, m, way: (way, {"s": "a" * n, "n": "a" * m, "l": ["a" * m] * 3}, n * min(n, m) // 32),
    SIZES,
    SIZES,
    st.sampled_from(["G.s.contains(G.n)", "G.s.contains(G . n )", "G.s.contains(G.n + '')",
                     "G.l.exists(x, G.s.contains(x))", "G.s.contains(G.l[0])",
                     "(G.s + '').contains(G.l[0] + G.n)", "G['s'].contains(G['n'])"]),
)  # fmt: skip
BUILT = st.builds(
    lambda n, way: (way, {"l": [0] * n}, 32 * n * n),
    SIZES,
    st.sampled_from(["G.l.map(x, x) == []", "G.l.filter(x, true) == []", "size((G.l).map(x, 0)) == 0",
                     "G.l.filter(x, G.l.size() > 0).size() == 1", "[1].all(y, G.l.map(x, y) == [])"]),
)  # fmt: skip
LOOPED = st.builds(
    lambda n, m, way: (way, {"l": list(range(n)), "d": [0] * m}, min(10_000, n) * m),
    SIZES,
    SIZES,
    st.sampled_from(["G.l.all(x, G.d != [x])", "G.l.exists(x, x in G.d)", "G.l.all(x, [0].all(y, G.d != [x]))"]),
)  # fmt: skip
MATCHED = st.builds(
    lambda n, m, way: (way, {"s": "a" * n, "p": f"(a|b){{{min(m, 900)}}}c"}, n * min(m, 900)),
    SIZES,
    SIZES,
    st.sampled_from(["G.s.matches(G.p)", "matches(G.s, G.p)", "G.s.matches('' + G.p)",
                     "[G.p].exists(p, G.s.matches(p))"]),
)  # fmt: skip


@FUZZ
@given(st.lists(st.one_of(SEARCHED, BUILT, LOOPED, MATCHED), min_size=1, max_size=3), st.sampled_from(["&&", "||"]))
def test_the_estimate_is_never_less_than_the_work(parts: list[tuple[str, dict[str, Any], int]], operator: str) -> None:
    sources = [source.replace("G", f"goal_data.k{number}") for number, (source, _, _) in enumerate(parts)]
    goal_data = {f"k{number}": data for number, (_, data, _) in enumerate(parts)}
    condition = compile_condition(f" {operator} ".join(sources))
    roots: dict[str, Any] = {"event": {}, "goal_data": goal_data, "results": {}, "plan": {}}

    assert not condition._cost.free
    assert condition._cost.of(roots) >= max(work for _, _, work in parts)


@pytest.mark.parametrize("source", ["1" * (MAX_LENGTH + 1), "(" * 2_000 + "1" + ")" * 2_000, "a" + ".a" * 2_000])
def test_an_expression_that_is_too_long_or_too_deep_does_not_compile(source: str) -> None:
    with pytest.raises(InvalidCondition):
        compile_condition(source)


@pytest.mark.parametrize(
    "source",
    ["__import__('os').system('x') == 0", "goal_data.__class__ == 1", "eval('1') == 1", "open('x') == ''",
     "goal_data.trap() == 1", "lambda: 1"],
)  # fmt: skip
def test_no_expression_reaches_python(source: str) -> None:
    with pytest.raises((InvalidCondition, ConditionFailed)):
        compile_condition(source).evaluate(
            event={"type": "t", "data": {}, "topic": ""}, goal_data={"trap": 1}, results={}, plan={}
        )


# Templates.


class Trapped(dict[str, Any]):
    """Raises when anything but its items is touched."""

    def __format__(self, spec: str) -> str:
        raise Trap

    def __getattr__(self, name: str) -> Any:
        raise Trap


PATHS = st.lists(
    st.sampled_from([*ROOTS, "__class__", "__init__", "__globals__", "0", "-1", "a", "a-b", "..", "!r", ":>99999999",
                     "[0]", "{", "}", "{{", "}}", " ", "%s", "$", "\n", "\ud800", "9" * 30]),
    max_size=8,
)  # fmt: skip
TEMPLATES = st.one_of(
    TEXT, PATHS.map(".".join).map("{{%s}}".__mod__), PATHS.map(".".join).map("x {%s} y".__mod__), PATHS.map("".join)
)


@FUZZ
@given(
    st.recursive(st.one_of(TEMPLATES, SCALARS), lambda inner: st.one_of(st.lists(inner), st.dictionaries(TEXT, inner))),
    VALUES,
)
def test_any_template_over_any_values(data: Any, value: Any) -> None:
    scope = dict.fromkeys(ROOTS, value) | {"goal_data": Trapped(a=value, __class__="text")}
    try:
        compile_template(data).render(scope)
    except InterpolationError as error:
        _is_short(error)


@pytest.mark.parametrize(
    "path",
    ["goal_data.__class__", "goal_data.__class__.__mro__", "results.__init__.__globals__", "plan_id.__len__",
     "plan_id.upper", "goal_data.items", "goal_data.get", "results.a.__class__"],
)  # fmt: skip
def test_a_placeholder_reads_items_and_never_attributes(path: str) -> None:
    scope = dict.fromkeys(ROOTS, "text") | {"goal_data": {"a": 1}, "results": {"a": 1}}
    with pytest.raises(InterpolationError):
        compile_template({"x": f"{{{{{path}}}}}"}).render(scope)


@pytest.mark.parametrize(
    "text", ["{plan_id!r}", "{plan_id:>99999999999}", "{0}", "{}", "%(plan_id)s", "${plan_id.x!a}"]
)
def test_what_looks_like_another_template_language_is_text(text: str) -> None:
    assert compile_template(text).render(dict.fromkeys(ROOTS, "v")) == text


def test_what_was_inserted_is_never_read_again() -> None:
    scope = dict.fromkeys(ROOTS, "v") | {"goal_data": {"a": "{{plan_id}} {results}"}}

    assert compile_template("{{goal_data.a}}!").render(scope) == "{{plan_id}} {results}!"


@pytest.mark.slow
@pytest.mark.attack(who="client", what="goal data that a template inserts a thousand times", expected="refused unbuilt")
def test_a_template_that_multiplies_its_values_is_stopped_before_it_renders() -> None:
    text, many, deep = "x" * 1_000_000, [0] * 400_000, [0]
    for _ in range(55):
        deep = [deep]
    scope = dict.fromkeys(ROOTS, "v") | {"goal_data": {"a": text, "l": many, "d": deep}}
    templates = [
        "{{goal_data.a}} " * 900,
        {f"k{n}": "{{goal_data.a}}" for n in range(1_000)},
        [["{{goal_data.l}}"] for _ in range(1_000)],
        ["an {{goal_data.l}}"] * 1_000,
        {"all": "{{goal_data}}", "again": "{{ goal_data }}", "more": ["{goal_data}"] * 50},
    ]
    tracemalloc.start()
    try:
        for template in templates:
            compiled = compile_template(template)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            with pytest.raises(InterpolationError, match=r"goal_data.*more than 67108864 bytes would be inserted"):
                compiled.render(scope)
            assert tracemalloc.get_traced_memory()[1] - before < 20_000_000
    finally:
        tracemalloc.stop()
    with pytest.raises(InterpolationError, match=r"data\.a\.b.* refers to 'goal_data\.d', .* more than 60 levels deep"):
        compile_template({"a": {"b": [[[[[["x {{plan_id}}", ["{{goal_data.d}}"]]]]]]]}}).render(scope)
    with pytest.raises(InterpolationError, match="placeholders"):
        compile_template(["{{goal_data.a}}"] * (MAX_PLACEHOLDERS + 1))
    nested: Any = "x"
    for _ in range(sys.getrecursionlimit() * 3):
        nested = [nested]
    with pytest.raises(InterpolationError, match="nested"):
        compile_template(nested)


# On a dispatcher.

BAD: list[tuple[bytes, str | None]] = [
    (b"\xff\x00", None),
    (b"[" * DEEP, None),
    (b"\x91" * DEEP, codec.MSGPACK_TYPE),
    (b"\xdd\xff\xff\xff\xff", codec.MSGPACK_TYPE),
    (b'{"data":NaN}', None),
    (b'{"correlation_id":"another"}', None),
    (b'{"type":"another"}', None),
    (b'{"tenant_id":7}', None),
    (b'{"metadata":[]}', None),
    (b"{}", "text/html"),
    (b"cposix\nsystem\n(S'true'\ntR.", "application/python-pickle"),
    (b'{"data":"' + b"x" * 1_100_000 + b'"}', None),
]


async def test_events_that_cannot_be_read_are_put_aside_and_the_next_is_served() -> None:
    planner = Planner("p")
    planner.add_goal("x.goal", {"start": StateConfig(state_name="start", is_terminal=True)})
    async with PlancastTest(App("app", planners=[planner])) as env:
        subjects = env.bus.subjects
        for number, (payload, content_type) in enumerate(BAD):
            for topic, event_type in ((EventTopic.ACTION_REQUESTS, "x.goal"), (EventTopic.PLAN_EVENTS, "plan.cancel")):
                env.world.publish(subjects.event(topic, "same", event_type), payload, content_type, f"{topic}{number}")
        env.world.publish("plancast.plan-events.%ff%fe.x", b"{}", None, "subject")
        env.world.publish(f"plancast.plan-events.{'a' * 900}.x", b"{}", None, "long")

        handle = await env.submit("x.goal", {}, correlation_id="same")

        assert await handle.result(timeout=60) == {}
        while await env.bus.dead_letters.count() < 2 * len(BAD) + 2:
            await asyncio.sleep(0.01)
        letters = [each async for each in env.bus.dead_letters.list()]
    assert {each.reason for each in letters} == {"undecodable"}
    assert all(each.detail and len(each.detail) < 2_100 for each in letters)


def test_every_error_of_the_fuzzed_is_ours() -> None:
    for each in (InvalidEnvelope, InvalidSubject, InvalidCondition, ConditionFailed, InterpolationError):
        assert issubclass(each, PlancastError)
