"""Push notifications of tasks, to a receiver over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from a2a.types import (
    AuthenticationInfo,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError, UnsupportedOperationError
from aiohttp import web
from tests.runtime.console.a2a_server.test_a2a_server import ask, connected, message
from tests.runtime.console.desk import Api, Desk, served

from plancast.a2a_client.values import CURSOR
from plancast.console.a2a_server.push_configs import Push, PushConfigs, Pushes
from plancast.console.a2a_server.push_sender import Receivers
from plancast.notifications.delivery import Undelivered
from plancast.settings import ConsoleSettings
from plancast_bus.memory import MemoryBus, MemoryWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")
PATIENCE = 120.0
ASKED, COMPLETED = "TASK_STATE_INPUT_REQUIRED", "TASK_STATE_COMPLETED"


@dataclass
class Receiver:
    """Takes notifications."""

    url: str = ""
    status: int = 200
    refused: asyncio.Event = field(default_factory=asyncio.Event)
    taken: list[tuple[dict[str, Any], dict[str, str]]] = field(default_factory=list)
    """Bodies and headers."""

    @property
    def cursors(self) -> list[str]:
        events = [next(iter(body.values())) for body, _ in self.taken]
        return [each["metadata"][CURSOR] for each in events]

    @property
    def states(self) -> list[str]:
        return [each["statusUpdate"]["status"]["state"] for each, _ in self.taken if "statusUpdate" in each]

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not reached():
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()

    async def take(request: web.Request) -> web.Response:
        if receiver.status == 200:
            receiver.taken.append((await request.json(), dict(request.headers)))
        else:
            receiver.refused.set()
        return web.Response(status=receiver.status)

    app = web.Application()
    app.router.add_post("/events", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/events"
    try:
        yield receiver
    finally:
        await runner.cleanup()


def configured(receiver: Receiver, **fields: Any) -> TaskPushNotificationConfig:
    login = AuthenticationInfo(scheme="Bearer", credentials="secret")
    return TaskPushNotificationConfig(url=receiver.url, token="mine", authentication=login, **fields)


async def test_events_are_pushed_once_and_in_order_and_by_another_server_if_one_ends(desk: Desk) -> None:
    async with receiving() as receiver:
        async with served(desk, desk.settings) as one, connected(one, streaming=False) as client:
            receiver.status = 503
            options = SendMessageConfiguration(task_push_notification_config=configured(receiver))
            request = SendMessageRequest(message=message("form.goal", {}), configuration=options)
            [answer] = [each async for each in client.send_message(request)]
            task = answer.task
            assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
            async with asyncio.timeout(PATIENCE):
                await receiver.refused.wait()
        async with served(desk, desk.settings) as two, connected(two, streaming=False) as client:
            receiver.status = 200
            await receiver.until(lambda: ASKED in receiver.states)
            await ask(client, message(None, {"street": "Main St"}, task_id=task.id))
            await receiver.until(lambda: COMPLETED in receiver.states)
            listed = ListTaskPushNotificationConfigsRequest(task_id=task.id)
            async with asyncio.timeout(PATIENCE):  # what is over is sent nowhere any more
                while (await client.list_task_push_notification_configs(listed)).configs:
                    await asyncio.sleep(0.02)
    assert len(set(receiver.cursors)) == len(receiver.cursors)
    assert receiver.states[-1] == COMPLETED
    assert [next(iter(body)) for body, _ in receiver.taken][-2:] == ["artifactUpdate", "statusUpdate"]
    for _, headers in receiver.taken:
        assert (headers["X-A2A-Notification-Token"], headers["Authorization"]) == ("mine", "Bearer secret")


async def test_a_receiver_that_hangs_up_holds_up_no_other_and_is_tried_later(desk: Desk, api: Api) -> None:
    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server, receiving() as receiver, connected(api, streaming=False) as client:
        task = (await ask(client, message("form.goal", {}))).id
        rude = TaskPushNotificationConfig(
            id="rude", task_id=task, url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/events"
        )
        await client.create_task_push_notification_config(rude)
        await client.create_task_push_notification_config(configured(receiver, task_id=task))
        await ask(client, message(None, {"street": "Main St"}, task_id=task))
        await receiver.until(lambda: COMPLETED in receiver.states)
        put_off = (await PushConfigs(desk.bus.registry).read(task)).entry("rude")
        assert put_off is not None
        assert put_off.attempts >= 1


async def test_a_plan_of_another_tenant_with_the_same_id_is_sent_nowhere(desk: Desk, api: Api) -> None:
    plan = await api.submit("sized.goal", {"size": 1}, tenant_id="globex")
    await api.until(plan, lambda found: found["status"] == "completed")
    async with receiving() as receiver, connected(api, streaming=False):
        pushes = [Push(each, receiver.url, "0", tenant=each, token=each) for each in ("acme", "globex")]
        assert [each.id for each in Pushes(pushes).seen_by("globex").entries] == ["globex"]
        configs = PushConfigs(desk.bus.registry)
        await configs.change(plan, lambda found: replace(found, entries=pushes))
        await receiver.until(lambda: COMPLETED in receiver.states)
        async with asyncio.timeout(PATIENCE):
            while (await configs.read(plan)).entries:
                await asyncio.sleep(0.02)
    assert {headers["X-A2A-Notification-Token"] for _, headers in receiver.taken} == {"globex"}


async def test_a_message_that_comes_again_is_no_second_configuration(api: Api) -> None:
    async with receiving() as receiver, connected(api, streaming=False) as client:
        options = SendMessageConfiguration(task_push_notification_config=configured(receiver))
        request = SendMessageRequest(message=message("form.goal", {}), configuration=options)
        for _ in range(2):
            [answer] = [each async for each in client.send_message(request)]
        listed = ListTaskPushNotificationConfigsRequest(task_id=answer.task.id)
        assert len((await client.list_task_push_notification_configs(listed)).configs) == 1


async def test_a_configuration_that_is_made_while_the_last_one_is_removed_is_kept() -> None:
    registry = MemoryBus(MemoryWorld()).registry
    configs, late = PushConfigs(registry), [Push("two", "http://x/", "0")]
    await configs.change("p", lambda pushes: pushes.with_entry(Push("one", "http://x/", "0")))
    read = registry.read

    async def read_before_another_writes(kind: str, key: str) -> tuple[bytes, int]:
        found = await read(kind, key)
        if late:
            push = late.pop()
            await PushConfigs(registry).change("p", lambda pushes: pushes.with_entry(push))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "read", read_before_another_writes)
        await configs.change("p", lambda pushes: pushes.without("one"))
    assert [each.id for each in (await configs.read("p")).entries] == ["two"]


async def test_configurations_are_made_shown_and_removed(api: Api) -> None:
    async with receiving() as receiver, connected(api, streaming=False) as client:
        task = (await ask(client, message("form.goal", {}))).id
        create, listed = client.create_task_push_notification_config, client.list_task_push_notification_configs
        made = await create(configured(receiver, task_id=task))
        got = await client.get_task_push_notification_config(
            GetTaskPushNotificationConfigRequest(task_id=task, id=made.id)
        )
        assert (got, got.url) == (made, receiver.url)
        for number in range(9):
            await create(configured(receiver, task_id=task, id=f"c{number}"))
        await create(configured(receiver, task_id=task, id="c0"))
        with pytest.raises(InvalidParamsError, match="maximum"):
            await create(configured(receiver, task_id=task))
        assert len((await listed(ListTaskPushNotificationConfigsRequest(task_id=task))).configs) == 10
        for name in (made.id, *(f"c{number}" for number in range(9))):
            request = DeleteTaskPushNotificationConfigRequest(task_id=task, id=name)
            await client.delete_task_push_notification_config(request)
        with pytest.raises(TaskNotFoundError):
            await client.get_task_push_notification_config(
                GetTaskPushNotificationConfigRequest(task_id=task, id=made.id)
            )
        with pytest.raises(TaskNotFoundError):
            await create(configured(receiver, task_id="nothing"))
        for url in ("file:///etc/passwd", "http://user@host/", "nowhere", "http://a b/", "http://x/\nX: y"):
            with pytest.raises(InvalidParamsError, match="url"):
                await create(TaskPushNotificationConfig(task_id=task, url=url))
        with pytest.raises(InvalidParamsError, match="token"):
            await create(TaskPushNotificationConfig(task_id=task, url=receiver.url, token="a\r\nX: y"))
        await ask(client, message(None, {"street": "x"}, task_id=task))
        with pytest.raises(UnsupportedOperationError):
            await create(configured(receiver, task_id=task))
        assert receiver.taken == []


@pytest.mark.parametrize(
    ("address", "host", "allowed", "reached"),
    [
        ("93.184.216.34", "0.0.0.0", [], True),
        ("127.0.0.1", "127.0.0.1", [], True),
        ("127.0.0.1", "0.0.0.0", [], False),
        ("::1", "0.0.0.0", [], False),
        ("::ffff:127.0.0.1", "0.0.0.0", [], False),
        ("169.254.169.254", "127.0.0.1", [], False),
        ("10.0.0.7", "127.0.0.1", [], False),
        ("100.64.0.1", "0.0.0.0", [], False),
        ("0.0.0.0", "127.0.0.1", [], False),
        ("2002:a00:7::1", "0.0.0.0", [], False),
        ("2002:7f00:1::", "0.0.0.0", [], False),
        ("fec0::1", "0.0.0.0", [], False),
        ("127.1", "0.0.0.0", [], False),
        ("2130706433", "0.0.0.0", [], False),
        ("0177.0.0.1", "0.0.0.0", [], False),
        ("127.0.0.1.", "0.0.0.0", [], False),
        ("10.0.0.7", "0.0.0.0", ["10.0.0.7"], True),
    ],
)
async def test_receivers_are_public_or_named_or_on_a_machine_that_alone_is_served(
    address: str, host: str, allowed: list[str], reached: bool
) -> None:
    receivers = Receivers(ConsoleSettings(host=host, a2a_push_hosts=allowed))
    url = f"http://[{address}]/" if ":" in address else f"http://{address}/"
    if reached:
        receivers.check(url)
    else:
        with pytest.raises(Undelivered):
            receivers.check(url)


async def test_a_name_of_a_private_address_is_no_receiver() -> None:
    with pytest.raises(OSError, match="no public address"):
        await Receivers(ConsoleSettings(host="0.0.0.0")).resolve("localhost")
    assert await Receivers(ConsoleSettings(host="0.0.0.0", a2a_push_hosts=["LOCALHOST"])).resolve("localhost")
    assert await Receivers(ConsoleSettings()).resolve("localhost")
