"""Notifications of running plans: each cause once, whoever dies, and however long a receiver is away."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from pydantic import SecretStr
from tests.runtime.notifications.apps import PATIENCE, asked, drafts, until_status
from tests.runtime.notifications.receiver import Receiver, http_receiver, mail_server

from plancast import App, BudgetExhausted, Email, PlanHandle, Settings, Slack, WakeMode, Webhook
from plancast.notifications import notifier
from plancast.notifications.notice import Notice
from plancast.notifications.notifier import LEAD_SECONDS, MOST_PENDING
from plancast.notifications.outbox import PENDING, SETTLED, Entry, Outbox
from plancast.testing import ManualClock, PlancastTest
from plancast.webhooks.signature import verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with http_receiver() as running:
        yield running


def deployed(app: App, *, hosts: int = 1, public_url: str = "", **options: Any) -> PlancastTest:
    settings = Settings()
    settings.console.public_url = public_url
    settings.plans.sweep_seconds = 0
    return PlancastTest(app, settings=settings, clock=ManualClock(), hosts=hosts, notify=True, **options)


async def advanced(env: PlancastTest, reached: Callable[[], Any], seconds: float = 1.0) -> None:
    """Advance the clock until something is reached, however long that takes."""
    async with asyncio.timeout(PATIENCE):
        while not await _value(reached()):
            await env.advance(seconds)
            await asyncio.sleep(0.01)


async def _value(given: Any) -> Any:
    return await given if isinstance(given, Awaitable) else given


async def quiet(env: PlancastTest) -> None:
    """Advance the clock until nothing is to be delivered, and a while longer."""
    await advanced(env, lambda: settled(env))
    for _ in range(40):
        await env.advance(1.0)
        await asyncio.sleep(0)


async def settled(env: PlancastTest) -> bool:
    return not await env.bus.registry.list(PENDING)


async def failing(env: PlancastTest, **fields: Any) -> PlanHandle:
    handle = await env.submit("draft.goal", {"what": "the news"}, **fields)
    await handle.reject("no", request_id=await asked(handle))
    await until_status(handle, "failed")
    return handle


async def test_each_cause_is_told_once_and_signed(receiver: Receiver) -> None:
    app = drafts()
    app.notify(to=Webhook(receiver.url, secret=SecretStr(SECRET)))
    async with deployed(app, public_url="https://plans.example.com/") as env:
        handle = await env.submit("draft.goal", {"what": "the news"}, tenant_id="acme")
        request = await asked(handle)
        await advanced(env, lambda: receiver.got)
        await handle.signal("unrelated.event", {})  # a further commit with the same cause
        await quiet(env)
        await handle.reject("too long", user_id="ada", request_id=request)
        await advanced(env, lambda: len(receiver.got) > 1)
        await quiet(env)
        approval, failed = receiver.bodies
        assert (approval["type"], failed["type"]) == ("plan.approval", "plan.failed")
        about = approval["data"]
        assert (about["plan_id"], about["goal"], about["tenant_id"]) == (handle.plan_id, "draft.goal", "acme")
        assert about["text"] == "May the news go out?"
        assert about["link"].startswith("https://plans.example.com/links/")
        assert failed["data"]["link"] is None
        headers, body = receiver.got[0]
        assert verify(headers, body, [SECRET], int(headers["webhook-timestamp"])) == receiver.ids[0]
        assert len(set(receiver.ids)) == 2


async def test_an_unknown_effect_is_told(receiver: Receiver) -> None:
    app = drafts()
    app.notify(on="effect_unknown", to=Webhook(receiver.url))
    async with deployed(app) as env:
        await env.submit("lost.goal")
        await advanced(env, lambda: receiver.got)
        await quiet(env)
        assert [each["type"] for each in receiver.bodies] == ["plan.effect_unknown"]
        assert receiver.bodies[0]["data"]["text"].startswith("card.charge: ")


async def test_targets_get_what_they_have_asked_for_only(receiver: Receiver) -> None:
    app = drafts()
    app.notify(on=("failed",), to=Slack(receiver.url))
    app.notify(on="approval", to=Webhook(receiver.url))
    async with deployed(app) as env:
        await failing(env)
        await advanced(env, lambda: any("blocks" in each for each in receiver.bodies))
        await quiet(env)
        assert [set(each) for each in receiver.bodies if "blocks" in each] == [{"text", "blocks"}]
        kinds = {each["type"] for each in receiver.bodies if "type" in each}
        assert kinds <= {"plan.approval"}  # it may have been answered before it was told


async def test_a_receiver_that_is_away_gets_it_when_it_is_back(receiver: Receiver) -> None:
    app = drafts()
    app.notify(on="failed", to=Webhook(receiver.url))
    receiver.status = 503
    async with deployed(app) as env:
        await failing(env)
        await advanced(env, lambda: len(receiver.got) >= 3, seconds=5.0)
        receiver.status, receiver.got = 200, []
        await advanced(env, lambda: settled(env), seconds=60.0)
        await quiet(env)
        assert len(receiver.got) == 1
        assert await env.bus.dead_letters.count() == 0


async def test_what_nobody_takes_for_a_day_is_a_dead_letter(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert notifier.GIVE_UP_SECONDS == 86_400
    monkeypatch.setattr(notifier, "GIVE_UP_SECONDS", 1_800.0)  # a day takes the test seconds
    monkeypatch.setattr(notifier, "PAUSE", 5.0)
    app = drafts()
    app.notify(on="failed", to=Webhook(receiver.url, label="the duty"))
    receiver.status = 500
    async with deployed(app) as env:
        handle = await failing(env)
        await advanced(env, lambda: settled_with_letter(env), seconds=60.0)
        (letter,) = [each async for each in env.bus.dead_letters.list()]
        assert letter.reason == "undelivered"
        assert letter.detail == (
            f"the notification of plan {handle.plan_id} (failed) to the duty was given up: it answered 500"
        )
        assert len(set(receiver.ids)) == 1
        assert 5 < len(receiver.got) < 60


async def settled_with_letter(env: PlancastTest) -> bool:
    return await env.bus.dead_letters.count() > 0 and await settled(env)


async def test_redirects_lead_nowhere(receiver: Receiver) -> None:
    async with http_receiver() as inside:
        app = drafts()
        app.notify(on="failed", to=Webhook(receiver.url))
        receiver.status, receiver.headers = 307, {"Location": inside.url}
        async with deployed(app) as env:
            await failing(env)
            await advanced(env, lambda: len(receiver.got) > 1)
        assert not inside.got


async def test_a_process_that_dies_before_the_answer_repeats_under_the_same_id(receiver: Receiver) -> None:
    app = drafts()
    app.notify(on="failed", to=Webhook(receiver.url, secret=SecretStr(SECRET)))
    async with deployed(app, hosts=3) as env:
        deaths = iter(range(3))

        async def die() -> None:
            if next(deaths, None) is None:
                return
            for index in range(3):  # one of them has sent it
                await env.crash_host(index)
            for host in env.hosts:
                host.start()

        receiver.before_answer = die
        await failing(env)
        await advanced(env, lambda: settled_marks(env), seconds=LEAD_SECONDS)
        await quiet(env)
        assert len(receiver.got) == 4, "three deaths between the delivery and its mark, and a success"
        assert len(set(receiver.ids)) == 1


async def settled_marks(env: PlancastTest) -> bool:
    return bool(await env.bus.registry.list(SETTLED)) and await settled(env)


async def test_a_slow_receiver_costs_the_others_nothing(receiver: Receiver) -> None:
    released = asyncio.Event()
    async with http_receiver() as slow:
        app = drafts()
        app.notify(on="failed", to=Webhook(slow.url))
        app.notify(on="failed", to=Webhook(receiver.url))

        async def hang() -> None:
            await released.wait()

        slow.before_answer = hang
        async with deployed(app) as env:
            for _ in range(6):
                await failing(env)
            await advanced(env, lambda: len(receiver.got) == 6)
            assert 1 <= len(slow.got) <= notifier.AT_ONCE
            released.set()


async def test_beyond_a_bound_notifications_are_given_up(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_PENDING >= 100
    monkeypatch.setattr(notifier, "MOST_PENDING", 2)
    receiver.status = 500
    app = drafts()
    app.notify(on="failed", to=Webhook(receiver.url))
    async with deployed(app) as env:
        for _ in range(4):
            await failing(env)
        await advanced(env, lambda: lettered(env, 2))
        letters = [each async for each in env.bus.dead_letters.list()]
        assert {each.detail.rpartition(": ")[2] for each in letters} == {"2 others wait for it"}
        assert len(await env.bus.registry.list(PENDING)) == 2


async def lettered(env: PlancastTest, count: int) -> bool:
    return await env.bus.dead_letters.count() >= count


async def test_what_was_answered_meanwhile_is_not_told(receiver: Receiver) -> None:
    app = drafts()
    app.notify(on="approval", to=Webhook(receiver.url))
    receiver.status = 500
    async with deployed(app) as env:
        handle = await env.submit("draft.goal", {"what": "the news"})
        request = await asked(handle)
        await advanced(env, lambda: receiver.got)
        await handle.approve(request_id=request)
        receiver.status, receiver.got = 200, []
        await advanced(env, lambda: settled(env), seconds=60.0)
        assert receiver.got == []


async def test_each_round_of_a_loop_is_told_and_each_pause(receiver: Receiver) -> None:
    app = drafts()
    app.notify(on="approval", to=Webhook(receiver.url))
    async with deployed(app) as env:
        handle, request = await env.submit("review.goal"), None
        for round_ in range(1, 4):
            request = await asked(handle, request)
            await advanced(env, lambda count=round_: len(receiver.got) == count)
            await handle.reject("again", request_id=request)
        await advanced(env, lambda: len(receiver.got) == 4)
        await quiet(env)
        assert len(set(receiver.ids)) == len(receiver.got) == 4


async def test_mails_have_one_recipient_each_and_no_header_of_a_plan() -> None:
    async with mail_server() as mails:
        app = drafts()
        people = ["ada@example.com", "grace@example.com"]
        to = Email(to=people, sender="plans@example.com", host="127.0.0.1", port=mails.port, tls=False)
        app.notify(on="approval", to=to)
        async with deployed(app, public_url="https://plans.example.com") as env:
            plan_id = "p1\r\nBcc: mallory@example.com\r\n\r\nhello"
            handle = await env.submit("draft.goal", {"what": "a\r\nSubject: b"}, correlation_id=plan_id)
            await asked(handle)
            await advanced(env, lambda: len(mails.mails) == 2)
            await quiet(env)
        assert sorted(mails.recipients) == people
        links = set()
        for mail in mails.mails:
            assert set(mail) & {"Bcc", "Cc"} == set()
            assert Counter(mail.keys())["Subject"] == 1
            assert "mallory" not in str(mail["To"])
            assert str(mail["From"]) == "plans@example.com"
            links |= {line for line in mail.get_content().splitlines() if "/links/" in line}
        assert len(links) == 2, "each recipient has a link of their own"


async def test_plans_of_other_apps_are_left_to_them(receiver: Receiver) -> None:
    app = drafts()
    app.notify(on="failed", to=Webhook(receiver.url))
    other = drafts()
    other.name = "others"
    other.planners[0].name = "others"
    async with deployed(other) as env:
        handle = await failing(env)
        assert await handle.status() == "failed"
        async with PlancastTest(app, settings=env.settings, clock=env.clock, world=env.world, notify=True) as second:
            for _ in range(5):
                await second.advance(1.0)
                await asyncio.sleep(0.01)
            mine = await failing(second)
            await advanced(second, lambda: receiver.got)
            await quiet(second)
    assert [each["data"]["plan_id"] for each in receiver.bodies] == [mine.plan_id]


async def test_a_plan_that_cannot_be_read_keeps_no_other_from_being_told(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = drafts()
    app.notify(on="failed", to=Webhook(receiver.url))
    async with deployed(app) as env:
        found = notifier.notices_of

        def notices_of(key: str, *given: Any) -> list[Any]:
            if key == "damaged":
                raise TypeError("the app has written something else here")
            return found(key, *given)

        monkeypatch.setattr(notifier, "notices_of", notices_of)
        await failing(env, correlation_id="damaged")
        handle = await failing(env)
        await advanced(env, lambda: receiver.got)
        assert [each["data"]["plan_id"] for each in receiver.bodies] == [handle.plan_id]


async def test_a_test_notifies_nobody_unless_it_says_so(receiver: Receiver) -> None:
    app = drafts()
    app.notify(to=Webhook(receiver.url))
    async with PlancastTest(app, clock=ManualClock()) as env:
        await failing(env)
        for _ in range(5):
            await env.advance(1.0)
            await asyncio.sleep(0.01)
        assert not await env.bus.registry.list(PENDING)
    assert not receiver.got


async def test_what_another_process_has_left_is_delivered(receiver: Receiver) -> None:
    app = drafts()
    app.notify(on="failed", to=Webhook(receiver.url))
    async with deployed(app) as env:
        await failing(env)
        await advanced(env, lambda: receiver.got)
        await quiet(env)
        notice = Notice("n2", "failed", "p2", "p2", "draft.goal", "", "left by a process that has lost the lead")
        now = env.clock.time()
        entry = Entry(app.name, app.notifications[0].target.id, notice, now, now)
        left = await Outbox(env.bus.registry, app.name).add(entry)
        assert left == entry
        assert await Outbox(env.bus.registry, app.name).move(entry, now + 60, attempt=True) is not None
        await advanced(env, lambda: len(receiver.got) == 2)
        await quiet(env)
        assert receiver.bodies[1]["data"]["text"] == notice.text
        assert await Outbox(env.bus.registry, app.name).add(entry) is None


class Spendthrift:
    """A planner whose budget is exhausted at once."""

    name = "spendthrift"
    goals = ("spend.goal",)
    wake_mode = WakeMode.PUSH

    async def next(self, run: Any) -> Any:
        raise BudgetExhausted("max_tokens: 10 of 10 tokens are spent")


async def test_an_exhausted_budget_is_told_once_to_each(receiver: Receiver) -> None:
    async with http_receiver() as other:
        app = App("spend", planners=[Spendthrift()])  # type: ignore[list-item]
        app.notify(to=Webhook(receiver.url))
        app.notify(on="failed", to=Webhook(other.url))
        async with deployed(app) as env:
            await until_status(await env.submit("spend.goal"), "failed")
            await advanced(env, lambda: receiver.got and other.got)
            await quiet(env)
        assert [each["type"] for each in receiver.bodies + other.bodies] == ["plan.budget"] * 2
        assert "max_tokens: 10 of 10 tokens are spent" in receiver.bodies[0]["data"]["text"]
