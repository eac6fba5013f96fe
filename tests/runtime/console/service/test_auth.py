"""Who may use the API: tokens, sessions, other sites, and where it listens."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from pydantic import SecretStr, ValidationError
from tests.runtime.console.desk import Api, Desk, served

from plancast import Settings
from plancast.console.server import ConsoleServer
from plancast.console.service.auth import COOKIE, Guard, Keyring
from plancast.errors import InvalidApp
from plancast.settings import ConsoleSettings

pytestmark = pytest.mark.asyncio(loop_scope="session")
ADA, BOB = f"ada-{uuid4().hex}", f"bob-{uuid4().hex}"


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(desk: Desk) -> AsyncIterator[Api]:
    """The API with tokens for two."""
    settings = desk.settings.model_copy(deep=True)
    settings.console.tokens = {"ada": SecretStr(ADA), "bob": SecretStr(BOB)}
    async with served(desk, settings) as serving:
        yield serving


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_without_a_token_nothing_is_told_but_that_it_lives(guarded: Api) -> None:
    for path in ("/plans", "/plans/stream", "/apps", "/approvals", "/session", "/nowhere"):
        await guarded.get(path, 401)
        await guarded.get(path, 401, headers=bearer("wrong"))
        await guarded.get(path, 401, headers=bearer(ADA[:-1]))
        await guarded.get(path, 401, headers={"Authorization": "Bearer"})
    await guarded.post("/plans", {"event_type": "order.goal"}, 401)
    response = await guarded.http.get("/api/v1/plans")
    assert response.headers["www-authenticate"].startswith("Bearer")
    for path in ("/healthz", "/docs", "/api/v1/openapi.json"):
        assert (await guarded.http.get(path)).status_code == 200
    assert (await guarded.http.get("/api/v1/openapi.json")).json()["security"] == [{"token": []}]


@pytest.mark.attack(
    who="other user", what="use a console that has no tokens configured", expected="401 but with the link's"
)
async def test_without_tokens_there_is_one_for_who_has_started_it(desk: Desk) -> None:
    async with ConsoleServer(desk.bus, desk.settings) as server, httpx.AsyncClient(base_url=server.url) as http:
        assert len(server.token) >= 32
        assert server.link == f"{server.url}/#token={server.token}"
        for method, path in (("GET", "/plans"), ("GET", "/session"), ("POST", "/plans"), ("GET", "/dead-letters")):
            for headers in ({}, bearer(server.token[:-1]), {"Cookie": f"{COOKIE}=x"}):
                answer = await http.request(method, f"/api/v1{path}", headers=headers)
                assert answer.status_code == 401
                assert server.token not in answer.text + str(answer.headers)
        assert (await http.get("/healthz")).status_code == 200
        session = (await http.get("/api/v1/session", headers=bearer(server.token))).json()
        assert session == {"user": f"local:{getpass.getuser()}", "auth": "token", "writable": True}
        async with ConsoleServer(desk.bus, desk.settings) as other:
            assert other.token != server.token


async def test_what_is_done_with_a_token_is_done_by_its_owner(guarded: Api) -> None:
    assert await guarded.get("/session", headers=bearer(BOB)) == {"user": "bob", "auth": "token", "writable": True}
    guarded.http.headers.update(bearer(ADA))
    plan = await guarded.waiting(user_id="customer")
    await guarded.post(f"/plans/{plan}/inject", {"context": 1}, headers=bearer(BOB))
    await guarded.until(plan, lambda found: found["revision"] == 3)
    shown = await guarded.get(f"/plans/{plan}/history")
    assert [entry["by"] for entry in shown["items"]] == ["ada", None, "bob"]
    assert shown["items"][0]["event"]["user_id"] == "customer"  # for whom, which is not by whom


async def test_a_browser_logs_in_and_out(guarded: Api) -> None:
    await guarded.post("/session", {"token": "nobody's"}, 401)
    response = await guarded.http.post("/api/v1/session", json={"token": ADA})
    assert response.json()["user"] == "ada"
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert ADA not in cookie
    secret = guarded.http.cookies[COOKIE]
    assert (await guarded.get("/session"))["user"] == "ada"
    assert (await guarded.http.delete("/api/v1/session")).status_code == 204
    await guarded.get("/session", 401, headers={"Cookie": f"{COOKIE}={secret}"})


async def test_a_page_of_another_site_changes_nothing(api: Api, guarded: Api) -> None:
    plan = await api.waiting()
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        await api.post(f"/plans/{plan}/cancel", {}, 403, headers=headers)
        await guarded.post(f"/plans/{plan}/cancel", {}, 403, headers=headers | bearer(ADA))
        assert (await guarded.http.post("/api/v1/session", json={"token": ADA}, headers=headers)).status_code == 403
    await api.post(f"/plans/{plan}/inject", {"context": 1}, headers={"Origin": api.url})
    form = {"Content-Type": "text/plain"}  # what a form of another site can send without being asked
    response = await api.http.post(f"/api/v1/plans/{plan}/cancel", content=b"{}", headers=form)
    assert response.status_code == 422
    assert (await api.get(f"/plans/{plan}/status"))["status"] == "running"


async def test_without_tokens_a_name_that_leads_here_is_not_enough(api: Api) -> None:
    await api.get("/plans", 403, headers={"Host": "evil.example"})
    await api.get("/plans", headers={"Host": "localhost:80"})
    await api.get("/plans", headers={"Host": "[::1]"})


async def test_answers_tell_browsers_to_take_nothing_from_elsewhere(api: Api) -> None:
    for path in ("/docs", "/api/v1/plans", "/api/v1/plans/unknown"):
        headers = (await api.http.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'self'" in headers["content-security-policy"]


async def test_no_token_is_ever_shown(guarded: Api, caplog: pytest.LogCaptureFixture) -> None:
    guarded.http.headers.update(bearer(ADA))
    said = [await guarded.http.get(path) for path in ("/api/v1/session", "/api/v1/deployment", "/docs")]
    said.append(await guarded.http.post("/api/v1/session", json={"token": [BOB]}))
    said.append(await guarded.http.post("/api/v1/session", json={"tokens": BOB}))
    for response in said:
        assert ADA not in response.text
        assert BOB not in response.text
    assert ADA not in caplog.text


async def test_it_listens_off_the_loopback_with_tokens_only(desk: Desk) -> None:
    settings = desk.settings.model_copy(deep=True)
    settings.console.host = "0.0.0.0"
    with pytest.raises(InvalidApp, match="PLANCAST_CONSOLE__TOKENS"):
        ConsoleServer(desk.bus, settings)
    settings.console.tokens = {"ada": SecretStr(ADA)}
    async with ConsoleServer(desk.bus, settings) as server:
        assert server.url.startswith("http://0.0.0.0:")


async def test_a_port_that_is_taken_is_said_or_another_one_taken(desk: Desk, api: Api) -> None:
    settings = desk.settings.model_copy(deep=True)
    settings.console.port = int(api.url.rpartition(":")[2])
    with pytest.raises(OSError, match="in use"):
        await ConsoleServer(desk.bus, settings).__aenter__()
    async with ConsoleServer(desk.bus, settings, any_port=True) as server:
        assert server.url != api.url


async def test_tokens_come_from_the_environment_and_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANCAST_CONSOLE__TOKENS", f'{{"ada": "{ADA}"}}')
    settings = Settings.load()
    assert settings.console.tokens["ada"].get_secret_value() == ADA
    assert ADA not in repr(settings)
    with pytest.raises(ValidationError, match="at least 16 characters") as caught:
        ConsoleSettings(tokens={"ada": SecretStr("short")})
    assert "short'" not in str(caught.value)


@pytest.mark.parametrize("path", ["/api/v1/plans", "/a2a", "/agui"])
async def test_requests_in_flight_are_limited_whatever_protocol_they_speak(path: str) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_scope: Any, _receive: Any, send: Any) -> None:
        if not entered.is_set():
            entered.set()
            await go_on.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guard = Guard(slow, Keyring({"ada": SecretStr("t")}), 100, 1)
    headers = {"Authorization": "Bearer t"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(guard), base_url="http://x", headers=headers, timeout=60
    ) as http:
        first = asyncio.create_task(http.post(path))
        await entered.wait()
        refused = await http.post(path)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        go_on.set()
        assert (await first).status_code == 204
        assert (await http.post(path)).status_code == 204
