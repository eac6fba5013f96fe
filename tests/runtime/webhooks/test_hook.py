"""Hooks: how an app declares them, their secrets, and what a message becomes."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from plancast import App, InvalidApp, Planner
from plancast.webhooks.hook import Hook, Unmapped
from plancast.webhooks.secret import SecretMissing, Secrets

KEY = "a-very-secret-text"


def a_hook(**fields: Any) -> Hook:
    return Hook(**({"name": "orders", "event_type": "order.goal", "secret": SecretStr(KEY)} | fields))


def test_a_message_is_mapped_the_same_each_time() -> None:
    hook = a_hook(correlation="order-{{data.order.id}}", data={"item": "{{data.order.item}}", "from": "shop"})
    body = {"order": {"id": 7, "item": "lamp"}}
    assert hook.read("m1", body) == hook.read("m1", body)
    message = hook.read("m1", body)
    assert (message.event_id, message.plan_id) == ("hook:orders:m1", "order-7")
    assert message.data == {"item": "lamp", "from": "shop"}
    assert hook.read("m2", body).event_id != message.event_id


def test_without_a_correlation_each_message_names_a_plan_of_its_own() -> None:
    first, second = a_hook().read("m1", {"a": 1}), a_hook().read("m2", {"a": 1})
    assert (first.plan_id, first.data) == ("hook:orders:m1", {"a": 1})
    assert second.plan_id != first.plan_id
    assert a_hook(name="other").read("m1", {"a": 1}).plan_id != first.plan_id


@pytest.mark.parametrize("message_id", ["m.1>*", "x" * 256, "hook:other:m1", "ä", " "])
def test_an_id_of_any_form_becomes_a_short_one(message_id: str) -> None:
    event_id = a_hook().read(message_id, {}).event_id
    assert event_id.startswith("hook:orders:")
    assert len(event_id) < 80
    assert event_id != a_hook().read(message_id + "'", {}).event_id


def test_values_of_a_body_are_no_templates() -> None:
    hook = a_hook(correlation="{{data.id}}", data={"text": "{{data.text}}"})
    message = hook.read("m1", {"id": "{{data.text}}", "text": "{{data.id}}"})
    assert (message.plan_id, message.data) == ("{{data.text}}", {"text": "{{data.id}}"})


@pytest.mark.parametrize(
    ("fields", "body", "says"),
    [
        ({"correlation": "{{data.id}}"}, {}, "no 'id'"),
        ({"correlation": "{{data.id}}"}, [], "no 'id'"),
        ({"correlation": "{{data.id}}"}, {"id": None}, "allowed: a text or a whole number"),
        ({"correlation": "{{data.id}}"}, {"id": True}, "allowed: a text or a whole number"),
        ({"correlation": "{{data.id}}"}, {"id": {"a": 1}}, "allowed: a text or a whole number"),
        ({"correlation": "{{data.id}}"}, {"id": " "}, "allowed: a text or a whole number"),
        ({}, [1], "data is a list"),
        ({}, "text", "data is a str"),
        ({"data": {"x": "{{data.y}}"}}, {"x": 1}, "no 'y'"),
    ],
)
def test_an_expression_that_finds_nothing_says_which(fields: dict[str, Any], body: Any, says: str) -> None:
    with pytest.raises(Unmapped, match=says):
        a_hook(**fields).read("m1", body)


def test_a_condition_tells_which_messages_count() -> None:
    hook = a_hook(when="event.data.action == 'opened'")
    assert hook.takes({"action": "opened"})
    assert not hook.takes({"action": "closed"})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "a/b"}, "a name has"), ({"name": ""}, "a name has"),
        ({"event_type": "no type"}, "no event type"), ({"correlation": "fixed"}, "template over data"),
        ({"correlation": "{{results.x}}"}, "template over data"), ({"correlation": "{{data.}}"}, "template over data"),
        ({"when": "event.data."}, "does not compile"), ({"secret": KEY}, "allowed: 'env:NAME'"),
        ({"secret": "env:"}, "allowed: 'env:NAME'"), ({"secret": None}, "allowed: 'env:NAME'"),
        ({"secret": []}, "no secret"), ({"secret": b"bytes"}, "allowed: 'env:NAME'"),
    ],
)  # fmt: skip
def test_a_faulty_declaration_is_refused_without_its_secret(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidApp, match=says) as caught:
        a_hook(**fields)
    assert KEY not in str(caught.value)


def test_secrets_come_from_the_environment_from_functions_and_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEW_KEY", "new")
    monkeypatch.delenv("OLD_KEY", raising=False)
    secrets = Secrets(
        "hook 'x'", ["env:NEW_KEY", "env:OLD_KEY", SecretStr("third"), lambda: ["fourth", SecretStr("5")]]
    )
    assert secrets.read() == ["new", "third", "fourth", "5"]
    assert KEY not in repr(a_hook())
    assert "third" not in repr(secrets)


@pytest.mark.parametrize("given", ["env:OLD_KEY", SecretStr(""), SecretStr("whsec_"), lambda: None, list])
def test_an_empty_secret_is_none(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLD_KEY", "")
    with pytest.raises(SecretMissing, match="hook 'x' has no secret"):
        Secrets("hook 'x'", given).read()


def test_an_app_refuses_two_hooks_of_one_name_and_signals_to_no_plan() -> None:
    planner = Planner("orders")
    planner.add_goal("order.goal", {"start": {"state_name": "start", "is_terminal": True}})
    app = App("shop", planners=[planner])
    app.hook("orders", "order.goal", secret="env:KEY")
    with pytest.raises(InvalidApp, match="two hooks are named 'orders'"):
        app.hook("orders", "order.goal", secret="env:KEY")
    app.hook("payments", "order.paid", secret="env:KEY")
    with pytest.raises(InvalidApp, match=r"hook 'payments': 'order\.paid' is no goal"):
        app.validate()
