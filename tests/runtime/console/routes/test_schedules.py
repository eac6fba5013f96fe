"""Schedules by the HTTP API."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from tests.runtime.console.desk import Api

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_schedules_are_listed_in_pages_by_name_each_once(api: Api) -> None:
    names = sorted([await api.schedule(tenant_id="pages") for _ in range(5)])
    pages: list[list[str]] = []
    cursor: str | None = None
    while True:
        query = {"tenant_id": "pages", "limit": 2} | ({"cursor": cursor} if cursor else {})
        page = await api.get("/schedules", params=query)
        assert page["total"] == 5
        pages.append([each["name"] for each in page["items"]])
        if (cursor := page["next"]) is None:
            break
        await api.http.delete(f"/api/v1/schedules/{pages[-1][-1]}", params={"tenant_id": "pages"})
        await api.schedule(tenant_id="pages", name=f"a{uuid4().hex}")  # before the cursor: on no further page
    assert pages == [names[:2], names[2:4], names[4:]]


async def test_schedules_of_one_name_are_listed_for_each_tenant(api: Api) -> None:
    name = f"a-{uuid4().hex}"
    for tenant in ("", "t:1", "t2"):
        await api.schedule(name=name, tenant_id=tenant)
    found: list[tuple[str, str]] = []
    cursor = f"{name}:"
    for _ in range(2):
        page = await api.get("/schedules", params={"limit": 1, "cursor": cursor})
        found += [(each["name"], each["tenant_id"]) for each in page["items"]]
        cursor = page["next"]
    assert found == [(name, "t2"), (name, "t:1")]


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 501}, {"cursor": "x" * 502}])
async def test_bounds_of_pages(api: Api, query: dict[str, Any]) -> None:
    await api.get("/schedules", 422, params=query)
