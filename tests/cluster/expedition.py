"""Plans that go on while servers and nodes come and go, and what must be true of them in the end."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter

from plancast import BusUnavailable, Client, PlanHandle, Settings
from plancast_bus.jetstream import JetStreamBus, connect

STEPS = 5
RESPONSE = "arrived"
PATIENCE = 150.0


class Expedition:
    """Submits plans without pause, hears all that is answered, and checks every plan in the end."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.handles: list[PlanHandle] = []
        self.heard: Counter[str] = Counter()
        self.moments: list[float] = []
        self.seconds: dict[str, float] = {}
        """How long each plan took, from before it was submitted until its response was heard first."""
        self._begun: dict[str, float] = {}
        self.submitted_again = 0
        self._numbers = itertools.count()
        self._submitter: asyncio.Task[None] | None = None
        self._submissions: set[asyncio.Task[PlanHandle]] = set()

    async def __aenter__(self) -> Expedition:
        self.bus: JetStreamBus = await connect(self.settings.nats, self.settings.bus)
        self.client = await Client.connect(settings=self.settings)
        await self.bus.subscribe(f"plancast.action-results.*.{RESPONSE}", self._note)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._submitter is not None:
            self._submitter.cancel()
        for submission in self._submissions:
            submission.cancel()
        await asyncio.gather(*self._submissions, return_exceptions=True)
        await self.client.close()
        await self.bus.close()

    async def _note(self, subject: str, payload: bytes, content_type: str | None) -> None:
        plan, now = subject.split(".")[2], time.monotonic()
        self.heard[plan] += 1
        self.moments.append(now)
        self.seconds.setdefault(plan, now - self._begun[plan])

    async def submit(self, count: int) -> list[PlanHandle]:
        """Submit plans, one after the other, by turns those of the state machine and those that are decided."""
        return [await self._submit(next(self._numbers)) for _ in range(count)]

    async def _submit(self, n: int) -> PlanHandle:
        goal = "climb.goal" if n % 2 else "walk.goal"
        self._begun[f"plan-{n:04}"] = time.monotonic()
        while True:
            try:
                handle = await self.client.submit(
                    goal, {"n": n}, response_event=RESPONSE, correlation_id=f"plan-{n:04}"
                )
            except BusUnavailable:  # as it says: submit again with the same correlation id
                self.submitted_again += 1
            else:
                self.handles.append(handle)
                return handle

    def go_on(self, each_second: float = 15.0) -> None:
        """Submit plans from now on; each by itself, so that one that has to wait delays no other."""

        async def submit_all() -> None:
            while True:
                task = asyncio.ensure_future(self._submit(next(self._numbers)))
                self._submissions.add(task)
                await asyncio.sleep(1 / each_second)

        self._submitter = asyncio.ensure_future(submit_all())

    async def pause(self) -> None:
        """Submit no more; those under way are waited for. Raises what has failed."""
        if self._submitter is not None:
            self._submitter.cancel()
            self._submitter = None
        submissions, self._submissions = self._submissions, set()
        await asyncio.gather(*submissions)

    async def underway(self) -> None:
        """Wait until plans finish, so that there are plans in every phase."""
        before = len(self.moments)
        async with asyncio.timeout(PATIENCE):
            while len(self.moments) < before + 5:
                await asyncio.sleep(0.05)

    def silence_since(self, moment: float) -> float:
        """The longest time after ``moment`` in which nothing was answered, in seconds."""
        times = [moment, *(each for each in self.moments if each > moment)]
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)

    @property
    def heard_again(self) -> list[str]:
        """Plans whose response was heard more than once."""
        return [plan for plan, count in self.heard.items() if count > 1]

    async def arrive(self, *, heard_once: bool = True) -> None:
        """Wait for all plans, and check them: right results, one response each, no gaps, no dead letters.

        Args:
            heard_once: Whether who listens without a stream must have heard each response once. A leader of the stream
                of responses that dies between sending one and telling the others so has it sent by the next leader too.
        """
        await self.pause()
        results = await asyncio.gather(*(handle.result(timeout=PATIENCE) for handle in self.handles))
        for handle, result in zip(self.handles, results, strict=True):
            n = int(handle.plan_id.removeprefix("plan-"))
            if n % 2:
                assert result["n"] == n + STEPS, handle.plan_id
            else:
                assert result[f"step{STEPS}"] == {"n": n + STEPS}, handle.plan_id
            revisions = [entry["revision"] for entry in await handle.history()]
            assert revisions == list(range(1, len(revisions) + 1)), handle.plan_id
        await asyncio.sleep(0.5)
        assert not (heard_once and self.heard_again)
        stored = await self._stored_responses()
        assert stored == {handle.plan_id: 1 for handle in self.handles}
        assert await self.bus.dead_letters.count() == 0

    async def _stored_responses(self) -> dict[str, int]:
        api = self.bus._api
        body = {"subjects_filter": "plancast-store.responses.>"}
        state = (await api.call("STREAM.INFO.PLANCAST_RESPONSES", body))["state"]
        found: Counter[str] = Counter()
        for subject, count in (state.get("subjects") or {}).items():
            found[subject.split(".")[3]] += count
        return dict(found)
