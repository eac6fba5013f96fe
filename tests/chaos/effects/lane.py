"""Lane: a worker process with task types of its own, whose cases run one after the other."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.effects.cases import Case
from tests.chaos.effects.process import WorkerProcess
from tests.chaos.effects.strikes import DURING, Strikes
from tests.chaos.effects.tasks import SERVICES, Kind, account_of, task_type
from tests.chaos.effects.traffic import Stuck, Traffic, until

from plancast.demo.provider import Act, Provider
from plancast.effects.wire import RESOLUTION, UNDO, read_note
from plancast.worker import undo_type
from plancast_bus.events.envelope import EventEnvelope, EventTopic

ACK_WAIT = 1.0
"""Seconds until the task of a killed or frozen process is redelivered."""


@dataclass
class Verdict:
    """The end of a case."""

    case: Case
    acts: int = 0
    """Acts at the provider for its key."""
    unknown: bool = False
    """It was answered as unknown, and a person has decided."""
    faults: list[str] = field(default_factory=list)
    """Promises that were broken."""


class Lane:
    """A lane; its process is replaced whenever a strike has ended or frozen it."""

    def __init__(self, name: str, nats_url: str, provider: Provider, traffic: Traffic, folder: Path) -> None:
        folder.mkdir()
        self.name = name
        self.strikes = Strikes(folder)
        self._start = lambda: WorkerProcess(name, nats_url, provider.url, folder, ACK_WAIT)
        self._provider = provider
        self._traffic = traffic
        self._process = self._start()
        self._frozen: WorkerProcess | None = None

    async def close(self) -> None:
        """Stop its processes."""
        for process in (self._process, self._frozen):
            if process is not None:
                await process.stop()

    async def run(self, case: Case) -> Verdict:
        """Run a case until nothing of it is left to do, and judge it."""
        verdict = Verdict(case)
        plan = f"{self.name}-{case.number}"
        first = self.request(case.kind, plan, plan)
        requests = [first]
        try:
            struck = first
            if case.undo:
                struck = await self._done(first)
            elif case.twin:
                requests.append(self.request(case.kind, plan, plan, twin=True))
            await self._strike(case, struck, requests[1:])
            await self._judge(verdict, struck, requests)
        except Stuck as error:
            verdict.faults.append(f"silent: {error}")
        verdict.acts = len(self._acts(first))
        if self.strikes.disarm():
            verdict.faults.append("was never struck")
        self.strikes.forget()
        return verdict

    def request(
        self, kind: Kind, plan: str, reference: str, *, key: str = "", tenant: str = "t", twin: bool = False
    ) -> EventEnvelope:
        """A request of a plan; its twin is another one for the same key."""
        name = f"{plan}-twin" if twin else plan
        return EventEnvelope(
            id=f"{name}:1-0",
            source="chaos",
            type=task_type(self.name, kind),
            topic=EventTopic.ACTION_REQUESTS,
            correlation_id=name,
            plan_id=plan,
            goal_id=f"goal-{plan}",
            tenant_id=tenant,
            data={"reference": reference, "key": key or reference},
        )

    def _acts(self, request: EventEnvelope) -> list[Act]:
        kind = self.kind_of(request)
        return self._provider.of(account_of(kind), SERVICES[kind], request.data["reference"])

    def kind_of(self, request: EventEnvelope) -> Kind:
        """The kind of a request's task."""
        return next(kind for kind in SERVICES if request.type == task_type(self.name, kind))

    async def _done(self, request: EventEnvelope) -> EventEnvelope:
        """Have a task done, and return the request of its undo."""
        await self._traffic.send(request)
        answer = await self._traffic.answer(request)
        note = read_note(answer.metadata)
        if note is None or not note.undo:
            raise Stuck(f"its answer says of no undo: {answer.metadata}")
        await self._traffic.settled(request)
        return request.model_copy(
            update={
                "id": f"{request.correlation_id}:2-0",
                "type": undo_type(request.type),
                "metadata": {UNDO: {"address": note.address}},
                "data": {},
            }
        )

    async def _strike(self, case: Case, request: EventEnvelope, twins: list[EventEnvelope]) -> None:
        """Send a request, and strike the process that works on it."""
        reference = request.correlation_id
        if case.point == DURING:
            fault = "lose" if case.blow == "lose" else "hold"
            account, service = account_of(case.kind), SERVICES[case.kind]
            self._provider.script(account, service, reference, fault, cancel=case.undo)  # type: ignore[arg-type]
        else:
            self.strikes.arm(case.point, case.blow)
        for each in (request, *twins):
            await self._traffic.send(each)
        if case.blow == "lose":
            return
        held: list[str] = []
        if case.point == DURING:
            held = await self._held(case, reference)
            self._process.send(signal.SIGKILL if case.blow == "kill" else signal.SIGSTOP)
        else:
            await until(lambda: self.strikes.struck(case.point), "its process has not come to the point")
        victim, self._process = self._process, self._start()
        if case.blow == "freeze":
            self._frozen = victim
            await self._traffic.settled(request)
            for each in held:
                self._provider.release(each)
            await victim.stop()
            self._frozen = None
            return
        await victim.ended()

    async def _held(self, case: Case, reference: str) -> list[str]:
        """Wait until the provider has acted for a reference and holds its answer."""

        def held() -> list[str]:
            acts = self._provider.of(account_of(case.kind), SERVICES[case.kind], reference)
            return [each.confirmation for each in acts if each.confirmation in self._provider.held]

        found: list[str] = await until(held, "the provider was not asked")
        return found

    async def _judge(self, verdict: Verdict, struck: EventEnvelope, requests: list[EventEnvelope]) -> None:
        """Wait for what is left of a case, decide as a person where that is due, and note what was broken."""
        case, faults = verdict.case, verdict.faults
        await self._traffic.settled(struck)
        answer = await self._traffic.answer(struck)
        if case.undo:
            act = self._acts(requests[0])
            if [each.cancelled for each in act] != [True]:
                faults.append(f"of its acts are cancelled: {[each.cancelled for each in act]}")
            if answer.type != f"{struck.type}.completed":
                faults.append(f"its undo was answered by {answer.type}: {answer.data}")
            return
        if answer.type.endswith(".unknown"):
            verdict.unknown = True
            faults += self._unknown_faults(case, struck, answer)
            await self._decided(struck, answer)
        for each in requests:
            await self._traffic.settled(each)
            faults += self._answer_faults(case, each, await self._traffic.answer(each))

    def _unknown_faults(self, case: Case, request: EventEnvelope, answer: EventEnvelope) -> list[str]:
        faults = [] if case.kind == "never" else ["was answered as unknown, though it can be known"]
        said = {name: answer.data.get(name) for name in ("success", "outcome", "key")}
        if said != {"success": False, "outcome": "unknown", "key": request.data["key"]}:
            faults.append(f"its unknown outcome says {answer.data}")
        return faults

    def _answer_faults(self, case: Case, request: EventEnvelope, answer: EventEnvelope) -> list[str]:
        acts = self._acts(request)
        if not answer.type.endswith(".completed"):
            return [f"{request.id} was answered by {answer.type}: {answer.data}"]
        if case.kind == "control":
            return []
        if len(acts) != 1:
            return [f"was done {len(acts)} times"]
        if answer.data.get("confirmation") != acts[0].confirmation:
            return [f"{request.id} was answered with {answer.data}, not {acts[0].answer}"]
        return []

    async def _decided(self, request: EventEnvelope, answer: EventEnvelope) -> None:
        """Decide about an unknown outcome as a person who has asked the provider, and wait for the answer."""
        note = read_note(answer.metadata)
        if note is None:
            raise Stuck(f"its unknown outcome has no address: {answer.metadata}")
        acts = self._acts(request)
        decision: dict[str, Any] = {"address": note.address, "outcome": "not_done", "by": "Grace"}
        data: dict[str, Any] = {}
        if acts:
            decision["outcome"], data = "done", {"result": acts[0].answer}
        resolution = request.model_copy(
            update={"id": f"{request.correlation_id}:9-0", "data": data, "metadata": {RESOLUTION: decision}}
        )
        before = len(await self._traffic.answers(request))
        await self._traffic.send(resolution)
        await self._traffic.settled(resolution)
        await self._traffic.answer(request, after=before)
