"""Links that answer: what a browser does with them, and what nobody can do with them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
import pytest
from tests.runtime.notifications.apps import asked, drafts, until_status
from tests.runtime.notifications.receiver import http_receiver

from plancast import PlanHandle, Planner, Settings, Webhook
from plancast.console.server import ConsoleServer
from plancast.notifications.link import Link
from plancast.testing import PlancastTest

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>'\"&"


class Form(HTMLParser):
    """The form of a page, as a browser reads it."""

    def __init__(self, page: httpx.Response) -> None:
        super().__init__()
        self.url = str(page.url)
        self.fields: dict[str, str] = {}
        self.buttons: list[tuple[str, str]] = []
        self.tags: list[str] = []
        self.feed(page.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        if tag == "form":
            assert given["method"] == "post"
            self.url = urljoin(self.url, given.get("action", ""))
        if tag == "input":
            self.fields[given["name"]] = ""
        if tag == "button":
            self.buttons.append((given["name"], given["value"]))


class Shown:
    def __init__(self, env: PlancastTest, server: ConsoleServer, http: httpx.AsyncClient) -> None:
        self.env, self.server, self.http = env, server, http

    def path(self, handle: PlanHandle, request: str, by: str = "link:ada@example.com", expires: float = 3_600) -> str:
        return f"/links/{Link(handle.plan_id, request, by, int(time.time() + expires)).token(self.env.bus.seals)}"

    async def waiting(self, what: str = "the news", **fields: Any) -> tuple[PlanHandle, str]:
        handle = await self.env.submit("draft.goal", {"what": what}, **fields)
        return handle, await asked(handle)

    async def press(self, path: str, answer: str = "yes", reason: str = "", **headers: str) -> httpx.Response:
        """Open a link, fill in its form and press a button, with the headers that browsers send."""
        form = Form(await self.http.get(path))
        assert ("answer", answer) in form.buttons
        sent = {"Origin": self.server.url, "Sec-Fetch-Site": "same-origin", "Referer": form.url} | headers
        fields = form.fields | {"reason": reason, "answer": answer}
        return await self.http.post(form.url, data=fields, headers=sent)


@pytest.fixture
async def shown() -> AsyncIterator[Shown]:
    settings = Settings()
    settings.console.port = 0
    settings.plans.sweep_seconds = 0
    app = drafts()
    needy = Planner("needy")
    needy.expects("limit.set", "A limit", schema={"type": "object", "required": ["limit"]})
    states = {
        "start": {"state_name": "start", "transitions": [{"on_event": "limit.set", "to_state": "done"}]},
        "done": {"state_name": "done", "is_terminal": True},
    }
    needy.add_goal("limit.goal", states)
    app.planners += (needy,)
    async with (
        PlancastTest(app, settings=settings) as env,
        ConsoleServer(env.bus, settings) as server,
        httpx.AsyncClient(base_url=server.url) as http,
    ):
        yield Shown(env, server, http)


async def test_a_link_shows_what_is_asked_and_a_button_answers_it(shown: Shown) -> None:
    handle, request = await shown.waiting()
    path = shown.path(handle, request)
    for _ in range(3):  # mail scanners
        page = await shown.http.get(path)
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "May the news go out?" in page.text
        assert (await shown.http.head(path)).status_code == 200
    assert (page.headers["referrer-policy"], page.headers["cache-control"]) == ("same-origin", "no-store")
    assert "form-action 'self'" in page.headers["content-security-policy"]
    assert await asked(handle) == request
    done = await shown.press(path, "yes", "fine")
    assert (done.status_code, "Thank you" in done.text) == (200, True)
    await until_status(handle, "completed")
    answered = (await handle.history())[-1]["event"]
    assert answered["user_id"] == "link:ada@example.com"
    assert answered["data"] == {"approved": True, "by": "link:ada@example.com", "reason": "fine"}


async def test_an_answer_by_link_is_that_of_the_console(shown: Shown) -> None:
    by_link, request = await shown.waiting()
    await shown.press(shown.path(by_link, request), "no", "too long")
    in_console, _ = await shown.waiting()
    headers = {"Authorization": f"Bearer {shown.server.token}"}
    path = f"/api/v1/plans/{in_console.plan_id}/reject"
    assert (await shown.http.post(path, json={"reason": "too long"}, headers=headers)).status_code == 202
    for handle in (by_link, in_console):
        await until_status(handle, "failed")
    one, other = await by_link.history(), await in_console.history()
    assert one[-1]["event"]["type"] == other[-1]["event"]["type"] == "draft.decided"
    assert one[-1]["path"] == other[-1]["path"]
    without = [{k: v for k, v in each[-1]["event"]["data"].items() if k != "by"} for each in (one, other)]
    assert without[0] == without[1] == {"approved": False, "reason": "too long"}


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "null"},
        {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://plans.example.com", "Host": "10.0.0.7:7878"},
        {"Host": "plans.example.com"},
    ],
)
async def test_a_form_is_taken_from_any_browser_and_through_any_proxy(shown: Shown, headers: dict[str, str]) -> None:
    handle, request = await shown.waiting()
    assert (await shown.press(shown.path(handle, request), **headers)).status_code == 200
    await until_status(handle, "completed")


async def test_a_link_counts_once(shown: Shown) -> None:
    handle, request = await shown.waiting()
    path = shown.path(handle, request)
    form = {"answer": "yes", "reason": ""}
    answers = await asyncio.gather(*(shown.http.post(path, data=form) for _ in range(8)))
    assert {each.status_code for each in answers} == {200}
    await until_status(handle, "completed")
    assert (await shown.http.post(path, data=form)).status_code == 200, "a repetition is thanked for"
    assert (await shown.http.post(path, data={"answer": "no"})).status_code == 200, "and changes nothing"
    assert (await shown.http.get(path)).status_code == 410
    history = await handle.history()
    assert [each["event"]["type"] for each in history].count("draft.decided") == 1
    assert (await handle.status(), history[-1]["event"]["data"]["approved"]) == ("completed", True)


async def test_the_first_of_several_recipients_counts(shown: Shown) -> None:
    handle, request = await shown.waiting()
    ada, grace = (shown.path(handle, request, by=f"link:{name}") for name in ("ada", "grace"))
    assert (await shown.press(ada, "no")).status_code == 200
    await until_status(handle, "failed")
    late = await shown.http.post(grace, data={"answer": "yes"})
    assert (late.status_code, "answered already" in late.text) == (410, True)
    assert await handle.status() == "failed"


async def test_a_link_of_one_wait_answers_no_other(shown: Shown) -> None:
    handle = await shown.env.submit("review.goal")
    first = await asked(handle)
    ada, grace = (shown.path(handle, first, by=f"link:{name}") for name in ("ada", "grace"))
    assert (await shown.press(ada, "no")).status_code == 200
    second = await asked(handle, first)
    for path in (ada, grace):
        await shown.http.post(path, data={"answer": "yes"})
        assert (await shown.http.get(path)).status_code == 410
    assert await asked(handle) == second
    assert await handle.status() == "running"
    other, request = await shown.waiting()
    mixed = shown.path(other, first)
    assert (await shown.http.post(mixed, data={"answer": "yes"})).status_code == 410
    assert await asked(other) == request


async def test_what_this_deployment_has_not_made_opens_nothing(shown: Shown) -> None:
    handle, request = await shown.waiting()
    path = shown.path(handle, request)
    encoded, _, seal = path.removeprefix("/links/").partition(".")
    other = Link("another", request, "link:mallory", int(time.time()) + 60).token(shown.env.bus.seals).partition(".")[0]
    bare = shown.env.bus.seals.seal(encoded)
    forged = [
        "x",
        f"{encoded}.",
        f"{encoded}.{seal[:-1]}",
        f"{other}.{seal}",
        f"{encoded}.{bare}",
        f".{seal}",
        "ü." + seal,
    ]
    for token in (*forged, "a" * 10_000, f"{encoded}.{seal}.x"):
        assert (await shown.http.get(f"/links/{token}")).status_code == 404
        assert (await shown.http.post(f"/links/{token}", data={"answer": "yes"})).status_code == 404
    expired = shown.path(handle, request, expires=-1)
    assert (await shown.http.get(expired)).status_code == 410
    assert (await shown.http.post(expired, data={"answer": "yes"})).status_code == 410
    assert (await shown.http.post(path, content=b"answer=yes&" + b"x" * 20_000)).status_code == 400
    for body in (b"", b"answer=maybe", b"\xff", b"answer=yes;", b"&" * 100):
        assert (await shown.http.post(path, content=body)).status_code in (400, 422)
    for method in ("PUT", "DELETE", "PATCH"):
        assert (await shown.http.request(method, path)).status_code == 405
    assert (await shown.http.get("/api/v1/plans")).status_code == 401, "a link is no token"
    assert await asked(handle) == request


async def test_texts_of_a_plan_are_no_markup(shown: Shown) -> None:
    handle, request = await shown.waiting(HOSTILE, correlation_id=f"p{HOSTILE}")
    form = Form(await shown.http.get(shown.path(handle, request, by=f"link:{HOSTILE}")))
    assert {"script", "img"}.isdisjoint(form.tags)


async def test_an_answer_that_needs_more_is_left_to_the_console(shown: Shown) -> None:
    handle = await shown.env.submit("limit.goal")
    path = shown.path(handle, await asked(handle))
    answer = await shown.press(path)
    assert (answer.status_code, "data.limit" in answer.text or "limit" in answer.text) == (422, True)
    assert await handle.status() == "running"


async def test_a_plan_of_a_user_takes_no_answer_of_a_link_where_users_are_checked(shown: Shown) -> None:
    shown.env.settings.plans.check_user = True
    handle, request = await shown.waiting(user_id="ada")
    answer = await shown.press(shown.path(handle, request))
    assert (answer.status_code, "Not taken" in answer.text) == (409, True)
    assert await asked(handle) == request


async def test_the_link_of_a_notification_works(shown: Shown) -> None:
    async with http_receiver() as receiver:
        app = drafts()
        app.name, app.planners[0].name = "told", "told"
        app.notify(on="approval", to=Webhook(receiver.url, label="the editors"))
        settings = shown.env.settings.model_copy(deep=True)
        settings.console.public_url = shown.server.url
        async with (
            PlancastTest(app, settings=settings, notify=True) as env,
            ConsoleServer(env.bus, settings) as server,
        ):
            handle = await env.submit("draft.goal", {"what": "the news"})
            await receiver.until(1)
            path = urlsplit(receiver.bodies[0]["data"]["link"]).path
            async with httpx.AsyncClient(base_url=server.url) as http:
                assert (await Shown(env, server, http).press(path)).status_code == 200
            await until_status(handle, "completed")
            assert (await handle.history())[-1]["event"]["user_id"] == "link:the editors"
