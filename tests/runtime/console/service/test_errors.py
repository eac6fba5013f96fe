"""Errors of the API in words: what was being done, and what to do."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI

from plancast.console.service import errors
from plancast_bus.errors import BusUnavailable

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(("method", "warned"), [("GET", False), ("POST", True)])
async def test_a_loss_of_nats_says_what_was_being_done_and_what_to_do(method: str, warned: bool) -> None:
    app = FastAPI()
    errors.install(app)

    @app.api_route("/plans", methods=[method], summary="Submit a goal")
    async def fail() -> None:
        raise BusUnavailable("no acknowledgement within 10 s")

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        response = await http.request(method, "/plans")
    detail = response.json()["detail"]
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert detail.startswith("Submit a goal: NATS does not answer (no acknowledgement within 10 s).")
    assert "plancast doctor" in detail
    assert ("It may have taken effect" in detail) is warned
