import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plancast.errors import InterpolationError
from plancast.state_machine.interpolation import MAX_DEPTH, ROOTS, Placeholder, compile_template

SCOPE: dict[str, Any] = {
    "goal_data": {
        "topic": 'the "AI" field',
        "n": 3,
        "rate": 0.5,
        "ok": True,
        "none": None,
        "tags": ["a", {"k": "v"}],
    },
    "results": {"search-1": {"hits": [{"url": "http://x"}]}, "2nd_step": 5, "évil": 1, "検索": {"कुंजी": "found"}},
    "plan_id": "p-1",
    "correlation_id": "c-1",
    "session_id": None,
    "user_id": "u",
    "tenant_id": "t",
}


def rendered(data: Any, scope: dict[str, Any] = SCOPE) -> Any:
    return compile_template(data).render(scope)


@pytest.mark.parametrize("form", ["{%s}", "{{%s}}", "{{ %s }}"])
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("goal_data.topic", 'the "AI" field'),
        ("goal_data.n", 3),
        ("goal_data.rate", 0.5),
        ("goal_data.ok", True),
        ("goal_data.none", None),
        ("goal_data.tags", ["a", {"k": "v"}]),
        ("goal_data.tags.0", "a"),
        ("goal_data.tags.1.k", "v"),
        ("results.search-1.hits.0.url", "http://x"),
        ("results.2nd_step", 5),
        ("results.évil", 1),
        ("results.検索.कुंजी", "found"),
        ("goal_data.tags[0]", "a"),
        ("goal_data.tags[1].k", "v"),
        ("results.search-1.hits[0].url", "http://x"),
        ("goal_data.topic?", 'the "AI" field'),
        ("goal_data.tags[0]?", "a"),
        ("goal_data.nope?", None),
        ("goal_data.nope.deeper[3].x?", None),
        ("goal_data.tags[9]?", None),
        ("goal_data.topic.x?", None),
        ("results", SCOPE["results"]),
        ("plan_id", "p-1"),
        ("correlation_id", "c-1"),
        ("session_id", None),
        ("user_id", "u"),
        ("tenant_id", "t"),
    ],
)
def test_a_string_that_is_one_placeholder_becomes_the_value_with_its_type(form: str, path: str, value: Any) -> None:
    result = rendered({"x": form % path})["x"]
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("about {goal_data.topic}!", 'about the "AI" field!'),
        ("{{goal_data.n}} of {goal_data.rate}", "3 of 0.5"),
        ("{goal_data.ok} {goal_data.none}", "True null"),
        ("tags={goal_data.tags}", 'tags=["a", {"k": "v"}]'),
        ("{plan_id}{user_id}", "p-1u"),
        ('{"plan": {plan_id}}', '{"plan": p-1}'),
        ("{{{plan_id}}}", "{p-1}"),
        ("{{plan_id}", "{p-1"),
        (" {plan_id}", " p-1"),
        ("a {goal_data.nope?}b{{ session_id? }} {goal_data.n?} {goal_data.nope.x[0]?}", "a b 3 "),
        ("{goal_data.nope?}{goal_data.topic}", 'the "AI" field'),
        ("{results.évil}/{results.検索.कुंजी}", "1/found"),
    ],
)
def test_placeholders_inside_text(text: str, result: str) -> None:
    assert rendered(text) == result


@pytest.mark.parametrize(
    "text",
    [
        *(
            "{",
            "}",
            "{}",
            "{{}}",
            '{"a": 1}',
            "{ not a path }",
            "{ plan_id }",
            "{a,b}",
            "{1}",
            "{a.}",
            "{.a}",
        ),
        *("{a..b}", "{é}", "{plan_id!r}", "{plan_id:>10}", "{plan_id[x]}", "{__class__()}", "${x:1}"),
        *("{\nplan_id}", "{{plan id}}"),
    ],
)
def test_other_braces_are_text(text: str) -> None:
    template = compile_template({"x": text})
    assert template.placeholders == ()
    assert template.render({}) == {"x": text}


def test_placeholders_are_found_at_any_depth_and_keys_are_left_alone() -> None:
    data = {"{plan_id}": [{"q": ["{goal_data.n}", 1]}, "for {user_id}"], "fixed": {"a": [1]}}
    assert rendered(data) == {"{plan_id}": [{"q": [3, 1]}, "for u"], "fixed": {"a": [1]}}


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("goal_data.nope", "'nope' in 'goal_data'"),
        ("goal_data.tags.2", "'2' in 'goal_data.tags'"),
        ("goal_data.tags[2]", "'2' in 'goal_data.tags'"),
        ("results.検索.x", "'x' in 'results.検索'"),
        ("plan_id[0]", "'0' in 'plan_id'"),
        ("goal_data.tags.-1", "'-1'"),
        ("goal_data.tags.99999999999999999999", "'99999999999999999999'"),
        ("goal_data.n.real", "'real'"),
        ("goal_data.topic.__class__", "'__class__'"),
        ("goal_data.topic.0", "'0'"),
        ("foo", "'foo'"),
    ],
)
@pytest.mark.parametrize("text", ["{%s}", "see {%s}"])
def test_a_path_that_leads_nowhere_is_named_with_its_place(path: str, told: str, text: str) -> None:
    with pytest.raises(InterpolationError) as error:
        rendered({"filters": [{"q": text % path}]})
    assert f"'{path}'" in str(error.value)
    assert "data.filters[0].q" in str(error.value)
    assert told in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        *("{ plan_id }", "{goal_data.}", "{goal_data.a b}", "{plan_id!r}", "{results[search]}", "{goal_data.tags[-1]}"),
        *("{{goal_data.topic | upper}}", "{{plan id}}", "{{ goal_data.x ?}}", "{{goal_data..x}}", "{{étape.x}}"),
        *("{{goal_data.tags[0}}", "{{goal_data.x??}}", "{{goal data}}", "{{ goal_data {plan_id} }}", "{goal_data.?}"),
    ],
)
def test_what_looks_like_a_placeholder_and_is_none_is_a_suspect(text: str) -> None:
    for whole in (text, f"see {text} and {{plan_id}}"):
        suspects = compile_template({"a": [whole]}).suspects
        assert len(suspects) == 1
        assert suspects[0].startswith("data.a[0]: '{")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "{",
            "{}",
            "{{}}",
            '{"plan_id": 1}',
            '{"a": {"b": 1}}',
            '{{"a": 1}}',
            "{a,b}",
            "{1}",
            "{{1}}",
            "${x:1}",
            "{é}",
        ),
        *(
            "{{plan_id}",
            "{{{plan_id}}}",
            "{planned x}",
            "{plan_id2 x}",
            "{goal_data.x?}{{results.a[0].b-c}}",
            "a {b c} d",
        ),
    ],
)
def test_other_braces_are_no_suspects(text: str) -> None:
    assert compile_template({"a": text}).suspects == ()


def test_suspects_are_bounded() -> None:
    assert len(compile_template({"a": "{ plan_id } " * 1000, "b": ["{ plan_id }"] * 1000}).suspects) == 20


def test_unknown_roots_are_reported() -> None:
    template = compile_template({"a": "{foo.bar} {goal_data.x}", "b": ["{{foo}}", "{env.HOME}"]})
    assert {each.root for each in template.placeholders} - ROOTS == {"env", "foo"}
    assert Placeholder("foo", "data.b[0]") in template.placeholders


def test_values_are_never_read_as_templates() -> None:
    scope = {"goal_data": {"x": "{plan_id} {{plan_id}} {nope}", "{plan_id}": 1}, "plan_id": "{goal_data.x}"}
    assert rendered("{goal_data.x}", scope) == "{plan_id} {{plan_id}} {nope}"
    assert rendered("<{plan_id}>{{plan_id}}", scope) == "<{goal_data.x}>{goal_data.x}"
    assert rendered("{{{goal_data.x}}}", scope) == "{{plan_id} {{plan_id}} {nope}}"


@pytest.mark.parametrize("value", [object(), {1, 2}, [object()], 10**5000], ids=type)
def test_a_value_that_is_no_text_is_an_error_inside_text(value: object) -> None:
    with pytest.raises(InterpolationError, match=r"'goal_data\.x'"):
        rendered("a {goal_data.x}", {"goal_data": {"x": value}})


def test_results_may_be_changed_without_reaching_the_template() -> None:
    source = {"fixed": {"list": [1, {"a": 2}]}, "made": ["{plan_id}", {"b": 1}], "flat": {}}
    before = copy.deepcopy(source)
    template = compile_template(source)
    expected = {**before, "made": ["p-1", {"b": 1}]}
    source["fixed"]["list"].append("later")  # type: ignore[index]
    first = template.render(SCOPE)
    assert first == expected
    first["fixed"]["list"][1]["a"] = "spoilt"
    first["made"][1]["b"] = "spoilt"
    first["flat"]["c"] = "spoilt"
    assert template.render(SCOPE) == expected


def test_nesting_is_bounded() -> None:
    def nested(depth: int) -> Any:
        data: Any = "{plan_id}"
        for _ in range(depth):
            data = [data]
        return data

    assert rendered(nested(MAX_DEPTH)) is not None
    with pytest.raises(InterpolationError, match="deep"):
        rendered(nested(MAX_DEPTH + 1))


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)
BRACED = st.lists(st.sampled_from(["{", "}", " ", "a", ".", "plan_id", "goal_data.x", "{plan_id}", "-", "1"])).map(
    "".join
)


@given(JSON)
def test_data_without_placeholders_renders_as_itself(data: Any) -> None:
    template = compile_template(data)
    if not template.placeholders:
        assert template.render({}) == data


@given(text=st.text() | BRACED, value=st.text() | BRACED)
def test_text_around_placeholders_and_values_are_kept_to_the_letter(text: str, value: str) -> None:
    template = compile_template(text)
    scope = {**dict.fromkeys(ROOTS, value), "goal_data": {"x": value}}
    if any(p.path not in ("plan_id", "goal_data.x") for p in template.placeholders):
        return
    forms = ["{{plan_id}}", "{{goal_data.x}}", "{plan_id}", "{goal_data.x}"]
    expected, rest = "", text
    while rest:
        form = next((f for f in forms if rest.startswith(f)), None)
        if form is None and rest.startswith("{{") and "}}" in rest and rest[2 : rest.index("}}")].strip() in scope:
            return  # spaces inside double braces have examples of their own
        expected += value if form else rest[0]
        rest = rest[len(form) if form else 1 :]
    if "{{ " not in text and " }}" not in text:
        assert template.render(scope) == expected


@given(value=JSON)
def test_a_whole_value_is_passed_on_untouched(value: Any) -> None:
    assert rendered(["{goal_data.x}"], {"goal_data": {"x": value}})[0] is value


@given(data=JSON, scope=st.dictionaries(st.sampled_from(sorted(ROOTS)), JSON))
def test_rendering_ends_in_data_or_one_error(data: Any, scope: dict[str, Any]) -> None:
    told = "data."
    try:
        rendered({"a": data, "b": "{goal_data.a.0}", "c": "x{results.a}"}, scope)
    except InterpolationError as error:
        told = str(error)
    assert told.startswith("data.")
