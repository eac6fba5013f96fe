"""The provider of the travel demo."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from plancast.demo.provider import FLIGHTS, HOTELS, KEY_HEADER, PAYMENTS, Provider


class Customer:
    """Calls a provider."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def call(self, method: str, path: str, *, key: str = "", **data: Any) -> tuple[int, dict[str, Any]]:
        headers = {KEY_HEADER: key} if key else {}
        async with self._session.request(method, f"{self._url}/{path}", json=data, headers=headers) as response:
            return response.status, await response.json()

    async def act(self, service: str, reference: str = "t1", *, key: str = "") -> tuple[int, dict[str, Any]]:
        return await self.call("POST", f"me/{service}", key=key, reference=reference)


@pytest_asyncio.fixture
async def provider() -> AsyncIterator[Provider]:
    async with Provider() as running:
        yield running


@pytest_asyncio.fixture
async def customer(provider: Provider) -> AsyncIterator[Customer]:
    async with aiohttp.ClientSession() as session:
        yield Customer(session, provider.url)


async def test_each_request_acts_once_more_but_for_payments_with_the_same_key(
    provider: Provider, customer: Customer
) -> None:
    for service, count in ((PAYMENTS, 1), (FLIGHTS, 2), (HOTELS, 2)):
        first, second = [await customer.act(service, key="k1") for _ in range(2)]
        assert len(provider.of("me", service, "t1")) == count
        assert (first == second) == (count == 1)
    assert (await customer.act(PAYMENTS, key="k2")) != (await customer.act(PAYMENTS))
    assert len(provider.of("me", PAYMENTS, "t1")) == 3


async def test_only_flights_can_be_looked_up(provider: Provider, customer: Customer) -> None:
    assert (await customer.call("GET", "me/flights/t1"))[0] == 404
    booked = await customer.act(FLIGHTS)
    assert await customer.call("GET", "me/flights/t1") == booked
    assert (await customer.call("GET", "others/flights/t1"))[0] == 404
    assert (await customer.call("GET", "me/hotels/t1"))[0] == 405


async def test_a_cancellation_can_be_repeated(provider: Provider, customer: Customer) -> None:
    _, booked = await customer.act(FLIGHTS)
    for _ in range(2):
        assert (await customer.call("DELETE", f"me/flights/{booked['confirmation']}"))[0] == 200
    assert provider.of("me", FLIGHTS, "t1")[0].cancelled
    assert (await customer.call("GET", "me/flights/t1"))[0] == 404
    assert (await customer.call("DELETE", "me/flights/none"))[0] == 404


async def test_a_lost_answer_is_that_of_an_act(provider: Provider, customer: Customer) -> None:
    provider.script("me", HOTELS, "t1", "lose")
    with pytest.raises(aiohttp.ClientError):
        await customer.act(HOTELS)
    assert len(provider.of("me", HOTELS, "t1")) == 1
    assert (await customer.act(HOTELS))[0] == 200


async def test_a_held_answer_comes_when_it_is_released(provider: Provider, customer: Customer) -> None:
    provider.script("me", HOTELS, "t1", "hold")
    asking = asyncio.create_task(customer.act(HOTELS))
    await provider.until_held(1)
    assert not asking.done()
    assert provider.held == {provider.of("me", HOTELS, "t1")[0].confirmation}
    provider.release()
    assert (await asking)[0] == 200


async def test_what_is_refused_is_not_done(provider: Provider, customer: Customer) -> None:
    provider.refused.add((HOTELS, "t1"))
    status, answer = await customer.act(HOTELS)
    assert (status, provider.acts) == (409, [])
    assert "t1" in answer["error"]
