"""The travel demo: the same trips with and without ``Effect``, at a provider that loses answers, and across kill -9."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Final

from rich.console import Console
from rich.text import Text

from plancast.client.client import Client
from plancast.demo import display, stub_model
from plancast.demo.apps.travel_control import CONTROL
from plancast.demo.driver import ASKED, SUBMITTED, UNDER_WAY, Journey, PlanDrive, choose, mixed
from plancast.demo.provider import FLIGHTS, HOTELS, PAYMENTS, Act, Fault, Provider
from plancast.demo.runner import deployed_with_model
from plancast.demo.session import STAND_IN, seed_of
from plancast.errors import PlanFinished
from plancast.plan_store.effects import PlanEffect
from plancast.settings import WorkerSettings
from plancast.terminal.output import cell, duration, out, plural, print_json, table

AGENCY: Final = "agency"
"""The provider's account of the trips with ``Effect``."""
SERVICES: Final = (PAYMENTS, FLIGHTS, HOTELS)
"""The provider's service of each step of a trip."""
PERSON: Final = "Grace"
"""Finds out what cannot be known."""
BOOKED, UNDONE, FAILED = "booked", "undone", "failed"
ACK_WAIT = 3.0
"""Seconds after which the tasks of the killed worker are delivered to the next one."""
KILL_SECONDS = 120.0
"""Seconds within which the trips have to come to where the worker is killed."""


async def book_trips(plans: int, seed: int | None, *, model: str | None, kill: bool, json_output: bool) -> int:
    """Book the trips twice, with and without ``Effect``, and show what was done; 0 when every promise was kept.

    Args:
        plans: Number of trips.
        seed: That of their order; None is random.
        model: The litellm model that decides; None is the stand-in.
        kill: Kill the worker while the provider's answers to some acts are on their way.
        json_output: Print JSON.
    """
    seed = seed_of(plans, seed, "trip")
    trips = choose_trips(plans, seed, kill=kill, stand_in=model is None)
    console = out()
    async with AsyncExitStack() as stack:
        board = stack.enter_context(display.Board(console, TripDrive, quiet=json_output))
        provider = await stack.enter_async_context(Provider())
        board.note(f"starting nats-server, Ray, and a provider at {provider.url} that loses answers (seed {seed})")
        deployment = deployed_with_model(
            "travel",
            model,
            {"TRAVEL_PROVIDER": provider.url},
            module="travel_control",
            workers=WorkerSettings(ack_wait=ACK_WAIT),
        )
        runtime = await stack.enter_async_context(deployment)
        client = await stack.enter_async_context(Client.connect(runtime.nats_url))
        held = play_tricks(provider, trips)
        cases = [each for trip in trips for each in (trip, replace(trip, account=CONTROL))]
        drive = TripDrive(client, cases, board, provider)
        board.follow(drive)
        board.note(f"booking {plural(len(trips), 'trip')} twice: with Effect, and without; {model or STAND_IN} decides")
        killed: list[str] = []

        async def strike() -> None:
            async with asyncio.timeout(KILL_SECONDS):
                await provider.until_held(held)
            await runtime.deployment.kill("worker-0")
            killed.append(f"kill -9 of the worker, with the provider's answers to {plural(held, 'act')} on their way")
            board.note(killed[0])
            provider.release()

        begun = time.monotonic()
        await drive.run(strike if held else None)
        session = TravelSession(drive.runs, time.monotonic() - begun, tuple(killed), model is None)
        board.note("every trip has ended; stopping")
    if json_output:
        print_json({"seed": seed, **session.document()})
    else:
        session.show(console, seed)
    return 0 if session.good else 1


@dataclass(frozen=True)
class TripCase:
    """A trip, and what goes wrong with it."""

    traveller: str
    to: str
    amount: float
    service: str = ""
    """The service that plays a trick; empty: none does."""
    trick: str = ""
    """``lost``: an answer is lost after the act. ``killed``: the worker is killed then. ``refused``: nothing is free.
    ``lost undo``: the hotel is refused, and the answer to a cancellation is lost."""
    trip: str = ""
    account: str = AGENCY
    reissued: tuple[str, ...] = ()
    """Services that the stand-in calls twice."""

    @property
    def goal(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("trip", "traveller", "to", "amount")}

    @property
    def protected(self) -> bool:
        """True for a trip with ``Effect``."""
        return self.account == AGENCY

    @property
    def refused(self) -> bool:
        """True if the hotel is refused."""
        return self.trick in ("refused", "lost undo")

    @property
    def trouble(self) -> str:
        """The trouble of the trip, in words."""
        thing = self.service.removesuffix("s")
        words = {
            "lost": f"answer of the {thing} lost",
            "killed": f"worker killed after the {thing}",
            "refused": "hotel refused",
            "lost undo": f"hotel refused, undo of the {thing} lost",
        }
        own = [words[self.trick]] if self.trick else []
        twice = [each.removesuffix("s") for each in self.reissued]
        return ", ".join([*own, *(f"{each} called twice" for each in twice)])

    @property
    def doubled(self) -> set[str]:
        """Services that act twice for who has no ``Effect``."""
        tricked = {self.service} if self.trick in ("lost", "killed") else set()
        return tricked | set(self.reissued)


CALM = (
    TripCase("Ada", "Lisbon", 640.00), TripCase("Ben", "Oslo", 910.00), TripCase("Chloé", "Kyoto", 2_480.00),
)  # fmt: skip
LOST = (
    TripCase("Deniz", "Rome", 720.00, PAYMENTS, "lost"), TripCase("Emeka", "Nairobi", 1_350.00, FLIGHTS, "lost"),
    TripCase("Farah", "Vienna", 530.00, HOTELS, "lost"),
)  # fmt: skip
KILLED = (
    TripCase("Goran", "Lima", 1_990.00, PAYMENTS, "killed"), TripCase("Hana", "Seoul", 2_210.00, FLIGHTS, "killed"),
    TripCase("Ines", "Porto", 480.00, HOTELS, "killed"),
)  # fmt: skip
REFUSED = (
    TripCase("Jun", "Venice", 1_120.00, HOTELS, "refused"),
    TripCase("Kofi", "Reykjavik", 1_640.00, PAYMENTS, "lost undo"),
    TripCase("Lena", "Bergen", 870.00, FLIGHTS, "lost undo"),
)
TRIPS = mixed(LOST, KILLED, REFUSED, CALM)


def choose_trips(plans: int, seed: int, *, kill: bool = True, stand_in: bool = True) -> list[TripCase]:
    """Trips in the order of the seed, numbered; without a kill those that need one are calm."""
    trips = []
    for number, case in enumerate(choose(TRIPS, plans, seed), 1):
        calm = case if kill or case.trick != "killed" else replace(case, service="", trick="")
        trip = replace(calm, trip=f"T-{number:03}")
        trips.append(replace(trip, reissued=tuple(_reissued(trip)) if stand_in else ()))
    return trips


def _reissued(case: TripCase) -> Iterator[str]:
    """The services that the stand-in calls twice; one that refuses fails at the first call."""
    for service, step in zip(SERVICES, stub_model.STEPS, strict=True):
        if stub_model.reissued(case.trip, step) and not (service == HOTELS and case.refused):
            yield service


def play_tricks(provider: Provider, trips: Sequence[TripCase]) -> int:
    """Write the provider's script, the same for both accounts; returns how many acts it holds the answers to."""
    faults: Mapping[str, Fault] = {"lost": "lose", "killed": "hold", "lost undo": "lose"}
    for trip in trips:
        if trip.refused:
            provider.refused.add((HOTELS, trip.trip))
        for account in (AGENCY, CONTROL):
            if fault := faults.get(trip.trick):
                provider.script(account, trip.service, trip.trip, fault, cancel=trip.refused)
    return 2 * sum(each.trick == "killed" for each in trips)


@dataclass
class TripRun(Journey[TripCase]):
    acts: dict[str, list[Act]] = field(default_factory=dict)
    """Acts of the provider, by service."""

    @property
    def title(self) -> str:
        return f"{self.case.trip} {'with' if self.case.protected else 'without'} Effect"

    def cells(self) -> Sequence[Text]:
        """The acts of each service, and the end."""
        counts = Text(" · ").join(self._count(each) for each in SERVICES)
        return (counts, cell(self.state, TripDrive.styles.get(self.state, "")))

    def _count(self, service: str) -> Text:
        acts = self.acts.get(service, [])
        undone = sum(each.cancelled for each in acts)
        return Text(f"{len(acts)}{'↶' if undone else ''}", style="bold red" if self.surplus(service) > 0 else "")

    def surplus(self, service: str) -> int:
        """Acts of a service that stand and should not: more than one, or any of a trip that was not booked."""
        standing = sum(not each.cancelled for each in self.acts.get(service, []))
        return standing - 1 if self.state == BOOKED else standing

    def document(self) -> dict[str, Any]:
        acts = {service: [(act.confirmation, act.cancelled) for act in acts] for service, acts in self.acts.items()}
        asked = self.asked_at > 0
        ending = {"end": self.state, "asked": asked, **self.ending()}
        return {"plan_id": self.handle.plan_id, "acts": acts, **ending, "faults": self.faults()}

    def faults(self) -> list[str]:
        """Broken promises; of a control, that it shows nothing."""
        if not self.ended_at:
            return [f"did not end within {TripDrive.plan_seconds:g} s, and is {self.state}"]
        faults = self._faults() if self.case.protected else self._missing()
        return faults + self.committed_faults()

    def _faults(self) -> list[str]:
        case, faults = self.case, list[str]()
        due = UNDONE if case.refused else BOOKED
        if self.state != due:
            faults.append(f"ended as {self.state}, not {due}: {self.error or self.result!r:.200}")
        for service in SERVICES:
            count = len(self.acts[service])
            expected = 0 if case.refused and service == HOTELS else 1
            if count != expected:
                faults.append(f"{service}: done {count} times, not {expected}")
            if case.refused and not all(each.cancelled for each in self.acts[service]):
                faults.append(f"{service}: not undone")
            if not case.refused and any(each.cancelled for each in self.acts[service]):
                faults.append(f"{service}: undone")
        if case.service == HOTELS and case.trick in ("lost", "killed") and not self.asked_at:
            faults.append("no person was asked about the hotel, which cannot be looked up")
        return faults

    def _missing(self) -> list[str]:
        once = sorted(each for each in self.case.doubled if len(self.acts[each]) < 2)
        return [f"{each}: done once, so the control shows nothing" for each in once]


class TripDrive(PlanDrive[TripCase, TripRun]):
    journey = TripRun
    noun = "plan"
    states = (SUBMITTED, UNDER_WAY, ASKED, BOOKED, UNDONE, FAILED)
    styles: ClassVar = {BOOKED: "green", UNDONE: "magenta", FAILED: "red", ASKED: "yellow"}
    columns = ("acts", "end")
    goal, response = "trip.requested", "trip.ended"
    human_seconds = 0.7

    def __init__(self, client: Client, cases: Sequence[TripCase], audience: display.Board, provider: Provider) -> None:
        super().__init__(client, cases, audience)
        self._provider = provider

    def _goal_of(self, case: TripCase) -> str:
        return self.goal if case.protected else f"{CONTROL}.{self.goal}"

    async def _accompany(self, run: TripRun) -> None:
        person = asyncio.create_task(self._find_out(run))
        try:
            await super()._accompany(run)
        finally:
            person.cancel()

    async def _find_out(self, run: TripRun) -> None:
        """Ask the provider by telephone about each act of which the outcome is not known, and say what was heard."""
        with suppress(PlanFinished):
            while run.case.protected:
                await asyncio.sleep(self.human_seconds)
                for effect in await run.handle.effects():
                    if effect.undecided and not effect.decision:
                        await self._resolve(run, effect)

    async def _resolve(self, run: TripRun, effect: PlanEffect) -> None:
        case, acts = run.case, self._provider.of(run.case.account, HOTELS, run.case.trip)
        self._moving(run, ASKED)
        run.asked_at = run.asked_at or time.time()
        self._audience.note(f"{case.trip}: is the hotel booked? A person calls it, and hears {'yes' if acts else 'no'}")
        if acts:
            await run.handle.resolve_effect(effect.task, done=acts[0].answer, user_id=PERSON)
        else:
            await run.handle.resolve_effect(effect.task, not_done=True, user_id=PERSON)
        run.answered_at = time.time()

    def _ended(self, run: TripRun) -> None:
        run.acts = {each: self._provider.of(run.case.account, each, run.case.trip) for each in SERVICES}
        run.state = BOOKED if not run.error else UNDONE if "rolled_back" in run.error else FAILED


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Counts of what was done for the trips of one side."""

    booked: int
    """Trips booked, each act once."""
    payments_twice: int
    """Trips that were paid twice or more."""
    flights_twice: int
    """Trips whose flight was booked twice or more."""
    hotels_twice: int
    """Trips whose hotel was booked twice or more."""
    reissued: int
    """Calls that the model has issued twice."""
    reissued_done_twice: int
    """Those among them that were done twice."""
    refused: int
    """Trips without a hotel."""
    refused_undone: int
    """Those among them for which everything was undone."""
    asked: int
    """Trips with an outcome that nobody can know, which a person has decided."""
    overcharged: float
    """Dollars that were charged too much."""

    def rows(self) -> dict[str, str]:
        """Rows of the table that people read."""
        return {
            "trips booked, each act once": str(self.booked),
            "payments charged twice or more": str(self.payments_twice),
            "flights booked twice or more": str(self.flights_twice),
            "hotels booked twice or more": str(self.hotels_twice),
            "calls that the model issued twice, done twice": f"{self.reissued_done_twice} of {self.reissued}",
            "trips without a hotel, all undone": f"{self.refused_undone} of {self.refused}",
            "outcomes that nobody can know, decided by a person": str(self.asked),
            "charged too much": f"${self.overcharged:,.2f}",
        }


@dataclass(frozen=True)
class TravelSession:
    """The result of the demo."""

    runs: Sequence[TripRun]
    seconds: float
    killed: Sequence[str]
    stand_in: bool

    @property
    def pairs(self) -> list[tuple[TripRun, TripRun]]:
        """The runs of each trip: with and without ``Effect``."""
        by_trip = {(run.case.trip, run.case.protected): run for run in self.runs}
        trips = sorted({run.case.trip for run in self.runs})
        return [(by_trip[trip, True], by_trip[trip, False]) for trip in trips]

    @property
    def good(self) -> bool:
        """True if no promise was broken, and the control shows why they matter."""
        return not any(run.faults() for run in self.runs)

    def figures(self, protected: bool) -> Figures:
        """Count what was done for one side's trips."""
        runs = [run for run in self.runs if run.case.protected == protected]
        refused = [run for run in runs if run.case.refused]
        twice = {each: sum(len(run.acts.get(each, [])) > 1 for run in runs) for each in SERVICES}
        again = [(run, each) for run in runs for each in run.case.reissued]
        charged = [run.surplus(PAYMENTS) * run.case.amount for run in runs if run.ended_at]
        return Figures(
            booked=sum(run.state == BOOKED and not any(run.surplus(each) for each in SERVICES) for run in runs),
            payments_twice=twice[PAYMENTS],
            flights_twice=twice[FLIGHTS],
            hotels_twice=twice[HOTELS],
            reissued=len(again),
            reissued_done_twice=sum(len(run.acts.get(each, [])) > 1 for run, each in again),
            refused=len(refused),
            refused_undone=sum(not any(run.surplus(each) for each in SERVICES) for run in refused),
            asked=sum(run.asked_at > 0 for run in runs),
            overcharged=round(sum(each for each in charged if each > 0), 2),
        )

    def show(self, console: Console, seed: int) -> None:
        """Print each trip, both sides, what was broken, and the verdict."""
        console.print()
        self._show_trips(console)
        for each in self.killed:
            console.print(Text(each, style="dim"))
        console.print()
        shown = table("", "with Effect", "without", right=("with Effect", "without"))
        protected, control = self.figures(True).rows(), self.figures(False).rows()
        for name, count in protected.items():
            differs = count != control[name]
            shown.add_row(cell(name), cell(count, "bold green" * differs), cell(control[name], "bold red" * differs))
        console.print(shown)
        console.print()
        if self.stand_in:
            told = (
                "No model decided: a stand-in did, which issues one call in five twice. For a real one: --model gpt-4o"
            )
            console.print(Text(told, style="yellow"))
        display.print_faults(console, self.runs)
        kept = sum(not any(run.faults() for run in pair) for pair in self.pairs)
        text = f"{plural(len(self.pairs), 'trip')} kept every promise in {duration(self.seconds)} (seed {seed})"
        display.print_verdict(console, kept, len(self.pairs), text)

    def _show_trips(self, console: Console) -> None:
        console.print(Text("What the provider has done: payments · flights · hotels (↶ undone)", style="bold"))
        shown = table("trip", "to", "what goes wrong", "with Effect", "", "without", "", "")
        for protected, control in self.pairs:
            good = not (protected.faults() or control.faults())
            shown.add_row(
                cell(protected.case.trip, "dim"),
                cell(protected.case.to),
                cell(protected.case.trouble or "nothing", "" if protected.case.trouble else "dim"),
                *protected.cells(),
                *control.cells(),
                cell("✓", "green") if good else cell("✗", "bold red"),
            )
        console.print(shown)

    def document(self) -> dict[str, Any]:
        """The result as JSON."""
        trips = [
            {**run.case.goal, "trouble": run.case.trouble, "with": run.document(), "without": control.document()}
            for run, control in self.pairs
        ]
        return {
            "good": self.good,
            "stand_in": self.stand_in,
            "seconds": round(self.seconds, 3),
            "killed": bool(self.killed),
            "with": asdict(self.figures(True)),
            "without": asdict(self.figures(False)),
            "trips": trips,
        }
