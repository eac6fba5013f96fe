"""Targets, links and messages: what is refused, and what is shown of secrets."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from plancast import App, Email, InvalidApp, Settings, Slack, Webhook
from plancast.notifications.link import ExpiredLink, InvalidLink, Link, SecretSeals, link_seals, read_link
from plancast.notifications.message import mail, slack_body
from plancast.notifications.notice import Notice
from plancast_bus.memory import MemoryBus, MemoryWorld

SLACK = "https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX"
MAIL = {"sender": "plans@example.com", "host": "mail.example.com"}
NOTICE = Notice(
    "n1", "approval", "p1", "p1", "draft.goal", "", "May <!channel> `it` go out?\n.\r\nBcc: m@example.com", "{}"
)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "ada",
        "ada@",
        "@example.com",
        "a@b\r\nBcc: c@d",
        "ada@example.com\n",
        "a@b, c@d",
        "Ada <ada@example.com>",
        None,
        7,
    ],
)
def test_what_is_no_address_is_refused(address: Any) -> None:
    for fields in ({"to": address}, {"to": "ada@example.com", "sender": address}):
        with pytest.raises(InvalidApp):
            Email(**(MAIL | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "ada"},
        {"password": "env:X"},
        {"user": "ada", "password": "text"},
        {"port": 0},
        {"host": ""},
        {"to": []},
    ],
)
def test_a_mail_that_cannot_be_sent_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidApp):
        Email(**({"to": "ada@example.com"} | MAIL | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://x/",
        "http://",
        "//x",
        "https://x/\r\nA: b",
        "https://x y/",
        "javascript:alert(1)",
        "env:",
        None,
        "http://x:99999/",
    ],
)
def test_what_is_no_url_is_refused(url: Any) -> None:
    for kind in (Webhook, Slack):
        with pytest.raises(InvalidApp):
            kind(url)


def test_an_app_refuses_other_targets_and_kinds() -> None:
    app = App("a")
    for on, to in (("nothing", Slack(SLACK)), ((), Slack(SLACK)), ("failed", "https://x/"), ("failed", None)):
        with pytest.raises(InvalidApp, match="notify: "):
            app.notify(on=on, to=to)  # type: ignore[arg-type]
    with pytest.raises(InvalidApp, match="a label has"):
        Webhook("https://x/", label="a\nb")


def test_secrets_of_targets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACK_URL", SLACK)
    shown = [Slack(SLACK), Webhook("https://x/hidden-path", secret=SecretStr("hidden")), Slack("env:SLACK_URL")]
    shown += [Email("ada@example.com", user="u", password=SecretStr("hidden"), **MAIL)]  # type: ignore[arg-type,list-item]
    for each in shown:
        for text in (repr(each), each.name, each.id):
            assert "hidden" not in text
            assert "XXXX" not in text
    assert Slack("env:SLACK_URL").address() == SLACK
    assert len({each.id for each in shown}) == 4


def test_texts_of_plans_neither_mention_nor_format_nor_add_headers() -> None:
    said = slack_body(NOTICE, "")
    assert "<!channel>" not in str(said)
    assert "&lt;!channel&gt;" in said["blocks"][0]["text"]["text"]
    message = mail(NOTICE, Email("ada@example.com", **MAIL), "", 0.0)  # type: ignore[arg-type]
    assert set(message.keys()) & {"Bcc", "Cc"} == set()
    assert "Bcc: m@example.com" in message.get_content()


async def test_a_secret_signs_links_where_the_keys_cannot_be_read() -> None:
    settings, keys = Settings().console, MemoryBus(MemoryWorld(Settings().bus)).seals
    assert link_seals(settings, keys) is keys
    settings.link_secret = SecretStr("a secret of many letters")
    seals = link_seals(settings, keys)
    link = Link("p1", "p1:1-0", "link:ada", 100)
    assert read_link(link.token(seals), seals, 99) == link
    for other in (keys, SecretSeals("another secret of letters")):
        with pytest.raises(InvalidLink):
            read_link(link.token(seals), other, 99)
    with pytest.raises(ExpiredLink):
        read_link(link.token(seals), seals, 100)
    assert Link("p1", "p1:1-0", "link:grace", 100).event_id != link.event_id


def test_a_short_secret_and_a_url_that_is_none_are_no_settings() -> None:
    for fields in ({"link_secret": "short"}, {"public_url": "plans.example.com"}, {"public_url": "https://x/?a"}):
        with pytest.raises(ValidationError):
            Settings.model_validate({"console": fields})
    given = Settings.model_validate({"console": {"link_secret": "a secret of many letters"}})
    assert "a secret of many letters" in given.secrets()
    assert "many letters" not in repr(given)
