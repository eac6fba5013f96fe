"""The command line, against a real nats-server wherever a command needs one."""

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from plancast import AgentRegistry, Client, EventDefinition
from plancast.cli import completion, connection, main
from plancast.cli.data_folder import DataFolder, Running, find_running, is_held
from plancast.cli.diagnose import doctor
from plancast.cli.diagnose.evidence import RayEvidence, Skew
from plancast.cli.errors import describe
from plancast.cli.plans import submit
from plancast.cli.plans.graph import mermaid
from plancast.client.handle import PlanHandle
from plancast.client.signals import SignalOutcome
from plancast.plan.serialization import to_state
from plancast.plan_store.store import StoredPlans
from plancast.settings import Settings
from plancast.terminal import output, progress
from plancast.turn.turn import Turn, TurnEnvironment, TurnOutcome
from plancast_bus.events.codec import pack, unpack
from plancast_bus.events.envelope import EventEnvelope, EventTopic
from plancast_bus.events.folding import Folder
from plancast_bus.jetstream import JetStreamBus, connect
from plancast_bus.nats_server.process import NatsServer
from plancast_bus.ports.bus import ConsumerSpec, Delivery
from plancast_bus.ports.checkpoints import Checkpoint, PlanSummary
from plancast_bus.settings import BusSettings, NatsSettings

T = TypeVar("T")
GONE = "nats://127.0.0.1:1"
GOOD_APP = """
from plancast import App, Planner, Worker

planner = Planner("greeter")
planner.add_goal("greet.goal", {
    "start": {"state_name": "start", "default_next": "ask"},
    "ask": {
        "state_name": "ask",
        "action": {"event_type": "name.ask", "response_event": "name.given", "data": {"to": "{goal_data.to}"}},
        "transitions": [
            {"on_event": "name.given", "to_state": "done"},
            {"on_event": "name.failed", "to_state": "failed", "condition": "event.data.final == true"},
        ],
    },
    "done": {"state_name": "done", "is_terminal": True},
    "failed": {"state_name": "failed", "is_terminal": True},
})
worker = Worker("names")

@worker.on_task("name.ask", "name.given")
def ask(task, context):
    return {"name": "Ada"}

app = App("greetings", planners=[planner], workers=[worker])
no_app = 7
"""
BAD_APP = """
from plancast import App, Planner

planner = Planner("p")
planner.add_goal("g", {
    "start": {"state_name": "start", "default_next": "nowhere"},
    "lonely": {"state_name": "lonely"},
})
app = App("bad", planners=[planner])
"""


@dataclass
class Result:
    """Result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Invoke = Callable[..., Result]
Complete = Callable[[str], list[str]]


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Invoke]:
    """Runs a command line in this process, in a folder of its own with the apps ``good`` and ``bad``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NATS_URL", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "cli_good.py").write_text(GOOD_APP)
    (tmp_path / "cli_bad.py").write_text(BAD_APP)
    import logging

    handlers = list(logging.getLogger().handlers)

    def run(*arguments: str) -> Result:
        code = main(arguments)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    yield run
    logging.getLogger().handlers[:] = handlers
    for name in ("cli_good", "cli_bad", "cli_broken"):
        sys.modules.pop(name, None)


async def _put_note(bus: JetStreamBus, *, note: dict[str, Any]) -> None:
    """Send what a task of the plan ``good`` reports, and wait until it is kept."""
    await bus.progress.put("good", pack(note))
    async with asyncio.timeout(30):
        while pack(note) not in [each.payload for each in await bus.progress.kept("good")]:
            await asyncio.sleep(0.01)


@dataclass
class Deployed:
    """A nats-server with streams under a prefix of the test's own, and plans in them."""

    nats: NatsSettings
    bus: BusSettings

    def run(self, work: Callable[[JetStreamBus], Awaitable[T]]) -> T:
        """Do something on the bus."""

        async def connected() -> T:
            bus = await connect(self.nats, self.bus)
            try:
                return await work(bus)
            finally:
                await bus.close()

        return asyncio.run(connected())

    def plan(self, plan_id: str, events: Sequence[tuple[str, Any]] = (), **goal: Any) -> None:
        """A plan of the app ``good`` that has received the events, committed turn by turn."""
        self.run(lambda bus: _commit_turns(bus, plan_id, events, goal))

    def expects(self, event_type: str, schema: dict[str, Any] | None = None) -> None:
        """Declare an event that people send."""
        declared = EventDefinition(event_type, EventTopic.PLAN_EVENTS, "by people", schema)
        self.run(lambda bus: AgentRegistry(bus.registry).register_event(declared))

    def sent(self, plan_id: str, event_type: str) -> EventEnvelope:
        """The event of a type that is on its way to a plan."""

        async def fetch(bus: JetStreamBus) -> EventEnvelope:
            filters = (bus.subjects.stored("plan-events", "*", plan_id, event_type),)
            consumer = bus.consume(ConsumerSpec(f"look-{uuid4().hex[:8]}", "results", filters))
            async with asyncio.timeout(10):
                [delivery] = await consumer.fetch(1)
            await consumer.close()
            address = bus.subjects.parse_stored(delivery.subject)
            assert address.correlation_id == plan_id
            return decode_delivery(delivery)

        return self.run(fetch)

    def goal(self, plan_id: str) -> EventEnvelope:
        """The goal that is on its way."""

        async def read(bus: JetStreamBus) -> EventEnvelope:
            [delivery] = await bus.stored_events("action-requests", plan_id)
            return decode_delivery(delivery)

        return self.run(read)


def decode_delivery(delivery: Delivery) -> EventEnvelope:
    from plancast_bus.events.codec import load

    return EventEnvelope.model_validate(load(delivery.payload, delivery.content_type))


async def _commit_turns(
    bus: JetStreamBus, plan_id: str, events: Sequence[tuple[str, Any]], goal: dict[str, Any]
) -> None:
    namespace: dict[str, Any] = {}
    exec(compile(GOOD_APP, "good.py", "exec"), namespace)
    environment = TurnEnvironment(namespace["app"], bus.subjects, bus.encode, StoredPlans(bus.checkpoints))
    data, attributes = goal.pop("data", {"to": "you"}), goal.pop("attributes", {})
    start = EventEnvelope(
        source="t", type="greet.goal", topic=EventTopic.ACTION_REQUESTS, data=data, correlation_id=plan_id, **goal
    )
    following = [
        EventEnvelope(source="t", type=kind, topic=EventTopic.PLAN_EVENTS, data=said, correlation_id=plan_id, **goal)
        for kind, said in events
    ]
    plan, version, timeline = None, 0, []
    now = time.time() - 60
    for revision, event in enumerate([start, *following], start=1):
        now += 1.5
        turn = Turn(environment, plan_id, event, plan, revision, now)
        assert await turn.run() is TurnOutcome.COMMIT, turn.reason
        plan = turn.plan
        assert plan is not None
        plan.attributes |= attributes
        timeline.append(pack(turn.entry()))
        await bus.checkpoints.put_machine(plan.machine.hash, plan.machine.encoded)
        summary = PlanSummary(
            plan_id, str(plan.status), plan.goal_event, plan.current_state, revision,
            plan.tenant_id, plan.user_id, plan.session_id or "", "", plan.planner, plan.created_at, now,
            attributes=plan.attributes or None,
        )  # fmt: skip
        state = pack(to_state(plan) | {"machine": plan.machine.hash})
        version = await bus.checkpoints.commit(
            Checkpoint(plan_id, revision, "test", state, summary, timeline=tuple(timeline), version=version)
        )


@pytest.fixture
def deployed(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> Deployed:
    """Streams of the test's own, which commands find by NATS_URL."""
    prefix = f"cli-{uuid4().hex[:8]}"
    monkeypatch.setenv("NATS_URL", nats_server.url)
    monkeypatch.setenv("PLANCAST_BUS__PREFIX", prefix)
    made = Deployed(NatsSettings(url=nats_server.url), BusSettings(prefix=prefix))
    made.run(lambda bus: bus.ensure_streams())
    return made


class TestUsage:
    @pytest.mark.parametrize(
        "command",
        [
            *(["run"], ["deploy"], ["worker"], ["status"], ["stop"], ["validate"], ["submit"], ["doctor"], ["demo"]),
            *(["upgrade"], ["scale"], ["rebalance"], ["drain"], ["probe"], ["backup"], ["restore"]),
            *(["plans", each] for each in ["list", "show", "history", "watch", "signal", "resume", "cancel", "pause"]),
            *(["plans", each] for each in ["approve", "reject", "redirect", "inject", "rollback"]),
            *(["approvals", each] for each in ["list", "approve", "reject"]),
            *(["effects", each] for each in ["list", "resolve"]),
            *(["new"], ["bridge", "soorma"]),
            *(["deadletters", each] for each in ["list", "show", "replay"]),
        ],
        ids=" ".join,
    )
    def test_every_command_has_help(self, invoke: Invoke, command: list[str]) -> None:
        result = invoke(*command, "--help")
        assert result.code == 0
        assert f"Usage: plancast {' '.join(command)}" in result.out

    def test_help_names_every_command(self, invoke: Invoke) -> None:
        result = invoke("--help")
        assert result.code == 0
        for command in [
            "validate",
            "run",
            "worker",
            "deploy",
            "status",
            "stop",
            "submit",
            "plans",
            "doctor",
            "demo",
            "deadletters",
        ]:
            assert f" {command} " in result.out

    @pytest.mark.parametrize(
        "arguments",
        [
            ["frobnicate"],
            ["validate"],
            ["validate", "no-colon"],
            ["validate", "cli_nowhere:app"],
            ["validate", "cli_good:nothing"],
            ["validate", "cli_good:no_app"],
            ["run", "cli_good:app", "--port", "99999"],
            ["run", "cli_good:app", "--port", "4333", "--nats-url", GONE],
            ["run", "cli_good:app", "--sync-always", "--nats-url", GONE],
            ["deploy", "cli_good:app"],
            ["deploy", "cli_good:app", "--nats-url", GONE],
            ["deploy", "cli_good:app", "--nats-url", GONE, "--address", "h:1", "--no-ship", "--pip", "x"],
            ["deploy", "cli_good:app", "--nats-url", GONE, "--address", "h:1", "--requirements", "nowhere.txt"],
            ["upgrade", "cli_good:app", "--nats-url", GONE],
            ["upgrade", "cli_nowhere:app"],
            ["drain"],
            ["drain", "--node", "here"],
            ["drain", "--node", "here", "--address", "h:1"],
            ["drain", "--node", "here", "--address", "http://h:1", "--nats-url", GONE],
            ["rebalance", "--address", "h:1"],
            ["probe"],
            ["probe", "happy"],
            ["probe", "ready", "--role", "everything"],
            ["plans", "list", "--status", "happy"],
            ["plans", "signal", "p", "e", "--data", "{no json"],
            ["plans", "signal", "p", "e", "--data", "NaN"],
            ["plans", "resume", "p", "--data", "@nowhere.json"],
            ["plans", "redirect", "p"],
            ["plans", "redirect", "p", "--data", "{no json"],
            ["plans", "inject", "p"],
            ["plans", "inject", "p", "--data", "{no json"],
            ["submit", "greet.goal", "--data", "{no json"],
            ["submit", "greet.goal", "--data", "[1]"],
            ["deadletters", "replay"],
            ["deadletters", "replay", "1", "--all"],
            ["new", "no name"],
            ["new", "x", "--template", "castle"],
            ["bridge", "soorma", "--from-subject", "soorma.events"],
            ["bridge", "soorma", "--from-subject", "soorma.*.x.>"],
            ["bridge", "soorma", "--task", "no type"],
        ],
        ids=" ".join,
    )
    def test_wrong_usage_exits_2_with_one_line(self, invoke: Invoke, arguments: list[str]) -> None:
        result = invoke(*arguments)
        assert result.code == 2
        assert result.out == ""
        first, *others = result.err.splitlines()
        assert first.startswith("error: ")
        assert all(line.startswith("hint: ") for line in others)

    def test_help_on_a_command_is_that_commands_help(self, invoke: Invoke) -> None:
        assert invoke("help", "plans", "show").out == invoke("plans", "show", "--help").out
        assert invoke("help").out == invoke("--help").out
        assert invoke("help", "nothing").code == 2

    @pytest.mark.parametrize("address", ["cli_good:nothing", "cli_nowhere:app", "no-colon"])
    def test_a_wrong_address_names_the_apps_that_there_are(self, invoke: Invoke, address: str) -> None:
        assert "cli_good:app" in invoke("validate", address).err

    def test_a_group_alone_shows_its_help(self, invoke: Invoke) -> None:
        result = invoke("plans")
        assert (result.code, result.err) == (2, "")
        assert "history" in result.out

    @pytest.mark.parametrize(
        "arguments",
        [
            ["submit", "greet.goal"],
            ["plans", "list"],
            ["plans", "show", "p"],
            ["deadletters", "list"],
            ["worker", "cli_good:app"],
            ["bridge", "soorma"],
        ],
        ids=" ".join,
    )
    def test_no_connection_exits_3(self, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
        monkeypatch.setenv("PLANCAST_NATS__CONNECT_TIMEOUT", "0.3")
        result = invoke(*arguments, "--nats-url", GONE)
        assert result.code == 3
        assert "error: no connection to NATS at 127.0.0.1:1" in result.err
        assert "Traceback" not in result.err

    def test_no_server_named_exits_3_and_says_how_to_name_one(self, invoke: Invoke) -> None:
        result = invoke("plans", "list")
        assert result.code == 3
        assert "--nats-url" in result.err

    def test_verbose_shows_the_traceback(self, invoke: Invoke) -> None:
        assert "Traceback" in invoke("submit", "greet.goal", "-d", "{", "-v").err
        assert "Traceback" not in invoke("submit", "greet.goal", "-d", "{").err

    def test_a_wrong_setting_is_named_but_not_shown(self, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PLANCAST_HOSTS__COUNT", "s3cret")
        result = invoke("plans", "list")
        assert result.code == 2
        assert "PLANCAST_HOSTS__COUNT" in result.err
        assert "s3cret" not in result.err

    @pytest.mark.parametrize(
        "arguments",
        [
            *("--help", "validate cli_good:app", "plans", "submit e --data {", "run nowhere", "deploy cli_good:app"),
            *("new made", "bridge soorma --help", "bridge soorma --from-subject x"),
        ],
    )
    def test_neither_ray_nor_litellm_nor_nats_is_loaded_in_vain(self, invoke: Invoke, arguments: str) -> None:
        script = (
            "import sys; from plancast.cli import main; main(sys.argv[1:]); "
            "print('LOADED', {'ray', 'litellm', 'nats'} & set(sys.modules))"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments.split()], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.splitlines()[-1] == "LOADED set()"

    def test_a_reader_that_has_seen_enough_is_no_error(self, invoke: Invoke) -> None:
        plancast = Path(sys.executable).with_name("plancast")
        done = subprocess.run(
            f"{plancast} validate cli_good:app --json | head -c 1",
            shell=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.stdout, done.stderr) == ("{", "")


class TestCompletion:
    """What a shell is told that has pressed Tab, by the variables that it sets."""

    @pytest.fixture
    def complete(self, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complete:
        def run(line: str) -> list[str]:
            monkeypatch.setenv("_PLANCAST_COMPLETE", "complete_bash")
            monkeypatch.setenv("COMP_WORDS", line)
            monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
            with pytest.raises(SystemExit):
                main([])
            captured = capsys.readouterr()
            assert captured.err == ""
            return captured.out.split()

        return run

    def test_commands_and_statuses(self, complete: Complete) -> None:
        assert {"run", "new", "doctor", "bridge"} <= set(complete("plancast "))
        assert {"list", "show", "signal"} <= set(complete("plancast plans "))
        assert complete("plancast plans list --status pa") == ["paused"]
        assert complete("plancast new x --template a") == ["agent"]

    def test_apps_of_this_folder_are_found_and_not_imported(self, complete: Complete, tmp_path: Path) -> None:
        (tmp_path / "cli_broken.py").write_text("raise SystemExit('imported')\nlater: App = App('x')\n")
        (tmp_path / "deep").mkdir()
        (tmp_path / "deep" / "er.py").write_text("  inner = App('no')\nouter = plancast.App('yes')\n")
        assert complete("plancast run ") == ["cli_bad:app", "cli_broken:later", "cli_good:app", "deep.er:outer"]
        assert complete("plancast validate cli_g") == ["cli_good:app"]

    def test_plans_goals_and_events_of_a_deployment(self, complete: Complete, deployed: Deployed) -> None:
        deployed.plan("plan-a")
        deployed.plan("plan-b", [("name.given", {"name": "Bo"})])
        deployed.run(lambda bus: bus.registry.put("app", "greetings", {"goals": ["greet.goal", "part.goal"]}))
        assert complete("plancast plans show plan-") == ["plan-b", "plan-a"]
        assert complete("plancast plans show plan-a") == ["plan-a"]
        assert complete("plancast submit gr") == ["greet.goal"]
        assert complete("plancast plans list --goal ") == ["greet.goal", "part.goal"]
        assert complete("plancast plans signal plan-a name.") == ["name.given", "name.failed"]

    @pytest.mark.parametrize("line", ["plancast plans show ", "plancast submit ", "plancast plans signal nothing "])
    @pytest.mark.parametrize("url", ["", GONE, "nonsense::"])
    def test_nothing_is_offered_and_nothing_said_where_nothing_runs(
        self, complete: Complete, monkeypatch: pytest.MonkeyPatch, line: str, url: str
    ) -> None:
        monkeypatch.setattr(completion, "SECONDS", 0.2)
        monkeypatch.setenv("NATS_URL", url)
        assert complete(line) == []

    def test_neither_ray_nor_nats_is_loaded_to_complete_commands(self, invoke: Invoke) -> None:
        script = (
            "import sys; from plancast.cli import main\n"
            "try: main([])\n"
            "except SystemExit: print('LOADED', {'ray', 'litellm', 'nats'} & set(sys.modules))"
        )
        environment = {"_PLANCAST_COMPLETE": "complete_bash", "COMP_WORDS": "plancast plans ", "COMP_CWORD": "2"}
        done = subprocess.run(
            [sys.executable, "-c", script], env=os.environ | environment, capture_output=True, text=True, timeout=60
        )
        assert done.stdout.splitlines()[-1] == "LOADED set()"


class TestValidate:
    def test_a_good_app(self, invoke: Invoke) -> None:
        result = invoke("validate", "cli_good:app")
        assert (result.code, result.err) == (0, "")
        assert "app 'greetings' is valid" in result.out

    def test_a_good_app_as_json(self, invoke: Invoke) -> None:
        assert invoke("validate", "cli_good:app", "--json").json == {
            "address": "cli_good:app",
            "valid": True,
            "app": "greetings",
            "planners": [{"name": "greeter", "goals": {"greet.goal": 4}}],
            "workers": [{"name": "names", "tasks": ["name.ask"]}],
            "faults": [],
            "warnings": [],
        }

    def test_a_bad_app_exits_1_and_names_every_fault(self, invoke: Invoke) -> None:
        result = invoke("validate", "cli_bad:app")
        assert result.code == 1
        assert "unknown state 'nowhere'" in result.out
        assert "'lonely' cannot be reached" in result.out
        said = invoke("validate", "cli_bad:app", "--json")
        assert said.code == 1
        assert len(said.json["faults"]) == 3

    def test_a_module_that_cannot_be_imported_names_the_line(self, invoke: Invoke, tmp_path: Path) -> None:
        (tmp_path / "cli_broken.py").write_text("import math\nmath.nothing\n")
        result = invoke("validate", "cli_broken:app")
        assert result.code == 1
        assert "cli_broken.py:2: AttributeError" in result.err

    def test_a_request_that_nobody_answers_is_a_warning(self, invoke: Invoke, tmp_path: Path) -> None:
        (tmp_path / "cli_broken.py").write_text(GOOD_APP.replace("workers=[worker]", "workers=[]"))
        result = invoke("validate", "cli_broken:app", "--json")
        assert result.code == 0
        assert "name.ask" in result.json["warnings"][0]


class TestPlans:
    def test_list_shows_the_one_that_moved_last_first(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.plan("older", session_id="s1")
        deployed.plan("newer", [("name.given", {"name": "Bo"})], tenant_id="t1")
        listed = invoke("plans", "list", "--json").json
        assert [each["plan_id"] for each in listed] == ["newer", "older"]
        assert listed[0]["status"] == "completed"
        assert listed[0]["goal_event"] == "greet.goal"
        table = invoke("plans", "list").out.splitlines()
        assert table[0].split()[:3] == ["plan", "status", "state"]
        assert table[1].split()[:3] == ["newer", "completed", "done"]

    def test_list_filters_and_limits(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.plan("a", session_id="s1")
        deployed.plan("b", [("name.given", {})], tenant_id="t1")

        def ids(*options: str) -> list[str]:
            return [each["plan_id"] for each in invoke("plans", "list", "--json", *options).json]

        assert ids("--status", "completed") == ["b"]
        assert ids("--session-id", "s1") == ["a"]
        assert ids("--tenant-id", "t1") == ["b"]
        assert ids("--goal", "greet.goal", "--status", "running") == ["a"]
        assert ids("--goal", "other.goal") == []
        assert ids("--text", "S1") == ["a"]
        assert ids("--text", "done") == ["b"]
        assert ids("--text", "nowhere") == []
        assert ids("--limit", "1", "--all") == ["b", "a"]
        assert ids("--limit", "1") == ["b"]
        cut = invoke("plans", "list", "--limit", "1").err
        assert "--limit 0 all" in cut
        assert ids("--after", cut.partition("--after ")[2].split()[0]) == ["a"]
        assert "--limit 0" not in invoke("plans", "list", "--limit", "2").err
        assert invoke("plans", "list", "--after", "b").code == 2
        assert ids("--session-id", "nobody's") == []

    def test_show_tells_what_a_plan_waits_for(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.plan("waits", data={"to": "Bob"})
        said = invoke("plans", "show", "waits", "--json").json
        assert {name: count > 50 for name, count in said["size"].items()} == {
            "inline": True, "referenced": False, "history": True
        }  # fmt: skip
        assert (said["plan_id"], said["status"], said["current_state"]) == ("waits", "running", "ask")
        assert said["goal_data"] == {"to": "Bob"}
        assert said["listens_for"] == ["name.given", "name.failed"]
        [waiting] = said["waiting_for"]
        assert (waiting["event_type"], waiting["response_event"], waiting["state"]) == ("name.ask", "name.given", "ask")
        assert waiting["asked_at"].startswith("20")
        assert [step["state"] for step in said["way"]] == ["ask"]
        shown = invoke("plans", "show", "waits").out
        assert re.search(r"size +[\d.]+ k?B in the checkpoint, [\d.]+ k?B of history", shown, re.I)
        assert "name.given" in shown
        assert re.search(r"\b(5[89] s|[1-9] min \d\d s)\b", shown)  # the age of the request, a minute on a fast machine

    def test_show_tells_the_results_and_the_error(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.plan("failed", [("name.failed", {"final": True, "error": "nobody there"})])
        shown = invoke("plans", "show", "failed")
        assert shown.code == 0
        assert "nobody there" in shown.out
        assert "→ failed" in shown.out
        assert "waits for" not in shown.out

    def test_graph_marks_the_way(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.plan("done", [("name.given", {"name": "Bo"})])
        lines = [line.strip() for line in invoke("plans", "show", "done", "--graph").out.splitlines()]
        assert lines[0] == "stateDiagram-v2"
        assert 'state "ask" as s1' in lines
        assert "[*] --> s0" in lines
        assert "s0 --> s1 : ✓" in lines
        assert "s1 --> s2 : ✓ name.given" in lines
        assert "s1 --> s3 : name.failed [event.data.final == true]" in lines
        assert "class s0,s1 taken" in lines
        assert "class s2 current" in lines

    def test_graph_cannot_be_broken_by_names(self) -> None:
        states = {
            "start": {"transitions": [{"on_event": "e", "to_state": 'a"b', "condition": 'x == ";:" \n'}]},
            'a"b': {"is_terminal": True},
        }
        lines = mermaid({"state_machine": states, "current_state": "start"}, []).splitlines()
        assert '    state "a\'b" as s1' in lines
        assert "    s0 --> s1 : e [x == ',∶'  ]" in lines

    def test_history(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.plan("told", [("name.given", {"name": "Bo"})])
        entries = invoke("plans", "history", "told", "--json").json
        assert [entry["revision"] for entry in entries] == [1, 2]
        assert entries[1]["event"]["data"] == {"name": "Bo"}
        table = invoke("plans", "history", "told").out.splitlines()
        assert len(table) == 3
        assert "name.ask" in table[1]
        assert "+1.5 s" in table[2]
        assert "ask → done completed" in table[2]
        assert '"name": "Bo"' in invoke("plans", "history", "told", "--full").out

    def test_watch_ends_with_the_plan(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.plan("good", [("name.given", {})])
        deployed.plan("bad", [("name.failed", {"final": True})])
        done = invoke("plans", "watch", "good", "--json")
        assert (done.code, done.json["status"], done.json["revision"]) == (0, "completed", 2)
        assert (done.json["kind"], done.json["cursor"]) == ("turn", "2")
        failed = invoke("plans", "watch", "bad")
        assert failed.code == 1
        assert "failed" in failed.out

    def test_watch_goes_on_after_a_change_and_shows_what_tasks_report(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.plan("good", [("name.given", {})])
        about = {"task": "t", "event_type": "name.ask", "attempt": 1}
        for note in (
            {"kind": "progress", "fraction": 0.25, "message": "dialling"},
            {"kind": "chunk", "chunk": "hello"},
        ):
            deployed.run(partial(_put_note, note=about | note))
        lines = [
            json.loads(line) for line in invoke("plans", "watch", "good", "--after", "1", "--json").out.splitlines()
        ]
        assert [each["kind"] for each in lines] == ["progress", "chunk", "turn"]
        assert [each.get("revision") for each in lines] == [1, 1, 2]
        rest = invoke("plans", "watch", "good", "--after", lines[0]["cursor"], "--json").out.splitlines()
        assert [json.loads(line)["cursor"] for line in rest] == [lines[1]["cursor"], lines[2]["cursor"]]
        text = invoke("plans", "watch", "good", "--after", "0").out
        assert "name.ask  25%  dialling" in text
        assert "name.ask  hello" in text
        wrong = invoke("plans", "watch", "good", "--after", "yesterday")
        assert (wrong.code, wrong.out) == (2, "")
        assert "'yesterday' is not the cursor of a plan's change" in wrong.err

    @pytest.mark.parametrize(
        "command",
        ["show", "history", "watch", "resume", "cancel", "pause", "reject", "redirect --data {}", "inject --data 1"],
    )
    def test_an_unknown_plan_exits_1(self, invoke: Invoke, deployed: Deployed, command: str) -> None:
        result = invoke("plans", *command.split(), "nobody")
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith("error: plan nobody is unknown")

    def test_signal_reaches_the_plan_as_its_tenant(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.plan("p", tenant_id="t1")
        result = invoke("plans", "signal", "p", "name.given", "--data", '{"name": "Bo"}')
        assert result.code == 0
        event = deployed.sent("p", "name.given")
        assert (event.data, event.tenant_id, event.topic) == ({"name": "Bo"}, "t1", EventTopic.PLAN_EVENTS)

    @pytest.mark.parametrize(
        ("outcome", "code", "said"),
        [("moved", 0, "taken"), ("kept", 0, "is kept"), ("ignored", 1, "nothing waits for")],
    )
    def test_signal_says_what_became_of_it(
        self, invoke: Invoke, deployed: Deployed, monkeypatch: pytest.MonkeyPatch, outcome: str, code: int, said: str
    ) -> None:
        async def outcome_of(*given: Any) -> SignalOutcome:
            return SignalOutcome(outcome)

        monkeypatch.setattr("plancast.client.handle.outcome_of", outcome_of)
        deployed.plan("p")
        result = invoke("plans", "signal", "p", "name.given")
        assert (result.code, said in result.out, "name.given" in result.out) == (code, True, True)
        assert invoke("plans", "signal", "p", "name.given", "--json").json["outcome"] == outcome

    def test_data_may_come_from_a_file_or_stdin(
        self, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "data.json").write_text('{"a": 1}')
        assert connection.read_json(f"@{tmp_path / 'data.json'}") == {"a": 1}
        monkeypatch.setattr("sys.stdin", (tmp_path / "data.json").open())
        assert connection.read_json("-") == {"a": 1}
        sys.stdin.close()

    def test_controls_reach_the_plan(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.plan("p")
        assert invoke("plans", "pause", "p", "--reason", "lunch").code == 0
        assert deployed.sent("p", "plan.pause").data == {"reason": "lunch"}
        assert invoke("plans", "resume", "p", "--data", '"go"').code == 0
        assert deployed.sent("p", "plan.resume").data == {"input": "go"}
        assert invoke("plans", "cancel", "p", "--reason", "enough", "--json").json == {"plan_id": "p", "sent": True}
        assert deployed.sent("p", "plan.cancel").data == {"reason": "enough"}

    @pytest.mark.parametrize(
        ("arguments", "event_type", "data"),
        [
            (["redirect", "--data", '{"to": "Bo"}'], "plan.redirect", {"goal_data": {"to": "Bo"}}),
            (["inject", "--data", '["it rains"]'], "plan.inject", {"context": ["it rains"]}),
            (["inject", "-d", "null"], "plan.inject", {"context": None}),
        ],
    )
    def test_steering_reaches_the_plan(
        self, invoke: Invoke, deployed: Deployed, arguments: list[str], event_type: str, data: Any
    ) -> None:
        deployed.plan("p", tenant_id="t1")
        assert invoke("plans", *arguments, "p", "--json").json == {"plan_id": "p", "sent": True}
        event = deployed.sent("p", event_type)
        assert (event.data, event.tenant_id, event.topic) == (data, "t1", EventTopic.PLAN_EVENTS)
        assert invoke("plans", *arguments, "p").out.startswith("✓ plan p: ")

    @pytest.mark.parametrize(("answer", "approved"), [("approve", True), ("reject", False)])
    def test_approve_and_reject_send_the_event_that_the_plan_waits_for(
        self, invoke: Invoke, deployed: Deployed, answer: str, approved: bool
    ) -> None:
        deployed.plan("p", tenant_id="t1")
        deployed.expects("name.given", {"properties": {"limit": {"type": "integer"}}})
        assert invoke("plans", answer, "p", "--data", '{"limit": "much"}').code == 2
        arguments = ["--reason", "because", "--user-id", "ada", "--data", '{"limit": 3}']
        assert invoke("plans", answer, "p", *arguments, "--json").json == {"plan_id": "p", "sent": True}
        event = deployed.sent("p", "name.given")
        assert event.data == {"approved": approved, "by": "ada", "reason": "because", "limit": 3}
        assert (event.tenant_id, event.user_id, event.topic) == ("t1", "ada", EventTopic.PLAN_EVENTS)

    def test_a_plan_that_waits_for_nobody_is_not_answered(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.plan("p")
        result = invoke("plans", "reject", "p")
        assert (result.code, result.out) == (1, "")
        assert "does not wait for an answer of people; cancel it to end it" in result.err

    def test_steering_takes_data_from_a_file(self, invoke: Invoke, deployed: Deployed, tmp_path: Path) -> None:
        (tmp_path / "said.json").write_text('{"to": "Åse"}')
        deployed.plan("p")
        assert invoke("plans", "redirect", "p", "--data", "@said.json").code == 0
        assert deployed.sent("p", "plan.redirect").data == {"goal_data": {"to": "Åse"}}
        assert invoke("plans", "inject", "p", "--data", "@said.json").code == 0
        assert deployed.sent("p", "plan.inject").data == {"context": {"to": "Åse"}}

    @pytest.mark.parametrize("data", ["[true]", '"Bo"', "7", "null"])
    def test_a_redirect_to_no_object_is_wrong_usage(self, invoke: Invoke, data: str) -> None:
        result = invoke("plans", "redirect", "p", "--data", data)
        assert (result.code, result.out) == (2, "")
        assert result.err == f"error: --data: expected a JSON object, got {data}\n"

    def test_show_and_history_tell_how_a_plan_was_steered(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.plan(
            "steered",
            [
                ("plan.pause", {"reason": "lunch"}),
                ("plan.resume", {"input": {"ok": True}}),
                ("plan.redirect", {"goal_data": {"to": "Bo"}}),
                ("plan.inject", {"context": "x" * 200}),
                ("plan.reject", {"reason": "too dear"}),
            ],
        )
        said = invoke("plans", "show", "steered", "--json").json["steered_by"]
        assert [(each["event"], each["said"]) for each in said] == [
            ("plan.pause", "lunch"),
            ("plan.resume", {"ok": True}),
            ("plan.redirect", {"to": "Bo"}),
            ("plan.inject", "x" * 200),
            ("plan.reject", "too dear"),
        ]
        assert said[0]["time"].startswith("20")
        shown = invoke("plans", "show", "steered").out
        assert "control events\n  plan.pause     lunch" in shown
        assert '  plan.redirect  {"to": "Bo"}' in shown
        table = " ".join(invoke("plans", "history", "steered").out.split())
        assert 'resumed with {"ok": true}' in table
        assert 'redirected to {"to": "Bo"}' in table
        assert 'received the context "xxx' in table
        assert "x" * 120 not in table

    def test_a_plan_that_nobody_steered_says_nothing_of_it(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.plan("p", [("name.given", {"name": "Bo"})])
        assert "control events" not in invoke("plans", "show", "p").out
        assert invoke("plans", "show", "p", "--json").json["steered_by"] == []

    @pytest.mark.parametrize(
        "command",
        ["signal over name.given", "reject over", "redirect over --data {}", "inject over --data 1"],
    )
    def test_a_finished_plan_takes_no_signal(self, invoke: Invoke, deployed: Deployed, command: str) -> None:
        deployed.plan("over", [("name.given", {})])
        result = invoke("plans", *command.split())
        assert (result.code, result.out) == (1, "")
        assert "plan over is completed" in result.err

    def test_a_server_without_streams_says_so(
        self, invoke: Invoke, deployed: Deployed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PLANCAST_BUS__PREFIX", "never-deployed")
        result = invoke("plans", "show", "p")
        assert result.code == 1
        assert "nothing is deployed" in result.err


class TestAttributes:
    def test_plans_are_filtered_by_them_and_they_have_columns(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.plan("plain")
        deployed.plan("tagged", attributes={"customer": "acme", "amount": 40})
        found = invoke("plans", "list", "--attribute", "customer=acme", "--attribute", "amount=40", "--json").json
        assert [(each["plan_id"], each["attributes"]) for each in found] == [
            ("tagged", {"customer": "acme", "amount": 40})
        ]
        assert invoke("plans", "list", "--attribute", "customer=nobody", "--json").json == []
        table = invoke("plans", "list").out
        assert "customer" in table
        assert "acme" in table
        assert "customer=acme, amount=40" in invoke("plans", "show", "tagged").out
        wrong = invoke("plans", "list", "--attribute", "acme")
        assert (wrong.code, "--attribute: got 'acme', allowed: NAME=VALUE" in wrong.err) == (2, True)


class TestApprovals:
    def test_what_waits_for_people_is_listed(self, invoke: Invoke, deployed: Deployed) -> None:
        assert invoke("approvals", "list", "--json").json == []
        assert "no plan waits for people" in invoke("approvals", "list").err
        deployed.plan("p", tenant_id="t1", data={"to": "Bo"})
        deployed.plan("other", tenant_id="t2")
        deployed.plan("held", [("plan.pause", {"reason": "lunch"})])
        deployed.plan("over", [("name.given", {})])
        deployed.expects("name.given", {"properties": {"limit": {"type": "integer"}}})
        [found] = invoke("approvals", "list", "--tenant-id", "t1", "--json").json
        assert (found["plan_id"], found["goal_event"], found["goal_data"]) == ("p", "greet.goal", {"to": "Bo"})
        assert (found["expected_event"], found["description"], found["due"]) == ("name.given", "by people", None)
        assert found["answer_schema"] == {"properties": {"limit": {"type": "integer"}}}
        listed = {each["plan_id"] for each in invoke("approvals", "list", "--json").json}
        assert listed == {"p", "other"}
        assert len(invoke("approvals", "list", "--json", "--limit", "1").json) == 1
        shown = invoke("approvals", "list", "--text", "GREET").out
        assert "name.given" in shown
        assert '{"to": "Bo"}' in shown
        assert "held" not in shown
        assert {each["status"] for each in invoke("plans", "list", "--status", "waiting", "--json").json} == {"waiting"}

    def test_several_plans_are_answered_by_id_or_by_filter(self, invoke: Invoke, deployed: Deployed) -> None:
        for plan, tenant in (("a", "t1"), ("b", "t1"), ("c", "t2")):
            deployed.plan(plan, tenant_id=tenant)
        deployed.plan("over", [("name.given", {})])
        deployed.expects("name.given")
        mixed = invoke("approvals", "approve", "a", "over", "a", "--reason", "fine", "--json")
        assert mixed.code == 1
        assert [(each["plan_id"], each["sent"]) for each in mixed.json] == [("a", True), ("over", False)]
        assert "plan over is completed" in mixed.json[1]["error"]
        assert deployed.sent("a", "name.given").data == {"approved": True, "reason": "fine"}
        done = invoke("approvals", "reject", "--tenant-id", "t2", "--data", '{"limit": 3}')
        assert (done.code, done.out) == (0, "✓ plan c: sent the rejection\n")
        assert deployed.sent("c", "name.given").data == {"approved": False, "limit": 3}
        assert {each["plan_id"] for each in invoke("approvals", "reject", "--all", "--json").json} == {"a", "b", "c"}

    @pytest.mark.parametrize("arguments", [[], ["a", "--all"], ["a", "--goal", "g"], [""]])
    def test_which_plans_are_meant_is_said_in_one_way(self, invoke: Invoke, arguments: list[str]) -> None:
        for answer in ("approve", "reject"):
            result = invoke("approvals", answer, *arguments)
            assert (result.code, result.out) == (2, "")
            assert "id" in result.err

    def test_an_answer_that_breaks_the_schema_is_wrong_usage(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.plan("p")
        deployed.expects("name.given", {"properties": {"limit": {"type": "integer"}}})
        result = invoke("approvals", "approve", "p", "--data", '{"limit": "much"}')
        assert (result.code, result.out) == (2, "")
        assert 'data.limit: got "much", allowed: integer' in result.err
        several = invoke("approvals", "approve", "--all", "--data", '{"limit": "much"}')
        assert (several.code, several.out) == (2, "")
        signal = invoke("plans", "signal", "p", "name.given", "--data", '{"limit": "much"}')
        assert (signal.code, signal.out) == (2, "")
        assert 'data.limit: got "much", allowed: integer' in signal.err
        nobody = invoke("approvals", "approve", "--goal", "no.goal")
        assert (nobody.code, "no plan that waits for people matches" in nobody.err) == (1, True)

    def test_an_answer_that_came_too_late_is_no_success(
        self, invoke: Invoke, deployed: Deployed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        deployed.plan("p")
        deployed.expects("name.given")

        async def too_late(*_: object, **__: object) -> SignalOutcome:
            return SignalOutcome.IGNORED

        monkeypatch.setattr(PlanHandle, "signal", too_late)
        for answer in ("approve", "reject"):
            result = invoke("approvals", answer, "p")
            assert (result.code, result.out) == (1, "")
            assert "plan p did not take this answer: it was answered before" in result.err


SAME = ("--data", '{"to": "you"}')
"""The data of the goals of ``Deployed.plan``."""


class TestSubmit:
    def test_a_correlation_id_with_other_data_is_refused_unless_asked_for(
        self, invoke: Invoke, deployed: Deployed
    ) -> None:
        deployed.plan("known")
        arguments = ["submit", "greet.goal", "--correlation-id", "known"]
        refused = invoke(*arguments, "--data", '{"to": "another"}')
        assert (refused.code, refused.out) == (2, "")
        assert "the correlation id known is that of a plan with another goal or other data" in refused.err
        assert invoke(*arguments, *SAME).out == "known\n"
        assert invoke(*arguments, "--data", '{"to": "another"}', "--reuse").out == "known\n"

    @pytest.mark.parametrize(
        ("name", "content", "fault"),
        [
            ("gone.json", None, "cannot read gone.json: No such file or directory"),
            (".", None, "cannot read .: Is a directory"),
            ("", None, "got '@' without a file"),
            ("a\0b", None, "it is no path"),
            ("latin.json", b'{"a": "\xe5"}', "cannot read latin.json: it is not UTF-8 text"),
            ("empty.json", b"", "empty.json is not valid JSON (it is empty)"),
            ("bad.json", b'{\n  "a": 1,\n}', "bad.json is not valid JSON: "),
            ("list.json", b"[1]", "expected a JSON object, got [1]"),
        ],
    )
    def test_a_file_that_cannot_be_used_is_named_with_what_is_wrong(
        self, invoke: Invoke, tmp_path: Path, name: str, content: bytes | None, fault: str
    ) -> None:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        for command in (["submit", "greet.goal"], ["approvals", "approve", "p"], ["plans", "redirect", "p"]):
            result = invoke(*command, "--data", f"@{name}")
            assert (result.code, result.out) == (2, "")
            assert result.err.startswith("error: --data: ")
            assert fault in result.err
        if name == "bad.json":
            assert "line 3 column 1" in result.err
            assert "Quote it for the shell" not in result.err

    def test_a_byte_order_mark_does_no_harm(self, tmp_path: Path) -> None:
        (tmp_path / "mark.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
        assert connection.read_object(f"@{tmp_path / 'mark.json'}") == {"a": 1}

    def test_prints_the_id(self, invoke: Invoke, deployed: Deployed) -> None:
        result = invoke("submit", "greet.goal", "--correlation-id", "mine")
        assert (result.code, result.out) == (0, "mine\n")
        assert invoke("submit", "greet.goal", "--json").json.keys() == {"plan_id"}

    def test_gives_a_deadline_and_the_plans_before(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.plan("first")
        deployed.plan("second")
        options = ["--after", "first", "--after", "second", "--deadline", "60"]
        assert invoke("submit", "greet.goal", "--correlation-id", "mine", *options).code == 0
        goal = deployed.goal("mine")
        assert goal.metadata["begin_after"] == ["first", "second"]
        assert 0 < goal.metadata["plan_deadline"] - time.time() <= 60
        unknown = invoke("submit", "greet.goal", "--after", "nobody")
        assert (unknown.code, "plan nobody is unknown" in unknown.err) == (1, True)
        for wrong in (["--deadline", "0"], ["--deadline", "nan"], ["--correlation-id", "me", "--after", "me"]):
            assert invoke("submit", "greet.goal", *wrong).code == 2

    def test_waits_for_the_result(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.plan("known", [("name.given", {"name": "Bo"})])
        result = invoke("submit", "greet.goal", "--correlation-id", "known", *SAME, "--wait", "--timeout", "20")
        assert (result.code, result.json) == (0, {"ask": {"name": "Bo"}})

    def test_exits_1_when_the_plan_failed(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.plan("known", [("name.failed", {"final": True, "error": "nobody there"})])
        arguments = ["submit", "greet.goal", "--correlation-id", "known", *SAME, "--wait", "--timeout", "20"]
        result = invoke(*arguments)
        assert (result.code, result.out) == (1, "")
        assert "nobody there" in result.err
        assert "plancast plans history known" in result.err
        said = invoke(*arguments, "--json")
        assert (said.code, said.json["status"]) == (1, "failed")

    def test_gives_up_after_the_timeout(self, invoke: Invoke, deployed: Deployed) -> None:
        result = invoke("submit", "greet.goal", "--wait", "--timeout", "0.2")
        assert (result.code, result.out) == (1, "")
        assert "has not ended after 0.2 s" in result.err

    def test_an_unknown_goal_names_those_that_there_are(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.run(lambda bus: bus.registry.put("app", "a", {"goals": ["greet.goal"]}))
        result = invoke("submit", "great.goal")
        assert result.code == 1
        assert "greet.goal" in result.err


class TestDeadLetters:
    @staticmethod
    async def _put(bus: JetStreamBus) -> None:
        for number, payload in enumerate([b"no envelope", b'{"some": "json"}'], start=1):
            subject = bus.subjects.stored("action-results", 3, "p1", "x.done")
            delivery = Delivery(subject, payload, None, f"m{number}", "S", number, 1, "")
            await bus.dead_letters.put(delivery, "undecodable", f"why {number} \x1b[31m")

    def test_none(self, invoke: Invoke, deployed: Deployed) -> None:
        assert invoke("deadletters", "list").code == 0
        assert invoke("deadletters", "list", "--json").json == {"count": 0, "letters": []}

    def test_list_and_show(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.run(self._put)
        listed = invoke("deadletters", "list", "--json").json
        assert listed["count"] == 2
        assert [each["number"] for each in listed["letters"]] == [1, 2]
        assert listed["letters"][0]["subject"] == f"{deployed.bus.prefix}.action-results.p1.x.done"
        table = invoke("deadletters", "list").out
        assert "why 1" in table
        assert "\x1b" not in table
        assert invoke("deadletters", "show", "2", "--json").json["payload"] == {"some": "json"}
        assert "no envelope" in invoke("deadletters", "show", "1").out

    def test_replay_one_then_all(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.run(self._put)
        assert invoke("deadletters", "replay", "1", "--json").json == {"replayed": [1], "failed": {}}
        assert [each["number"] for each in invoke("deadletters", "list", "--json").json["letters"]] == [2]
        assert invoke("deadletters", "replay", "--all").code == 0
        assert invoke("deadletters", "list", "--json").json["count"] == 0
        results = f"{deployed.bus.prefix.upper()}_RESULTS"
        assert deployed.run(lambda bus: bus.health())["streams"][results]["messages"] == 2

    def test_one_that_was_cut_says_that_it_cannot_be_replayed(self, invoke: Invoke, deployed: Deployed) -> None:
        async def put(bus: JetStreamBus) -> None:
            subject = bus.subjects.stored("action-results", 3, "p1", "x.done")
            payload = bytes(8 * 1024 * 1024)
            await bus.dead_letters.put(Delivery(subject, payload, None, "m", "S", 1, 1, ""), "crashes-host", "why")

        deployed.run(put)
        assert "cannot be replayed" in invoke("deadletters", "show", "1").out
        assert invoke("deadletters", "show", "1", "--json").json["cut_from"] == 8 * 1024 * 1024
        refused = invoke("deadletters", "replay", "1")
        assert refused.code != 0
        assert "cannot be replayed" in refused.err
        said = invoke("deadletters", "replay", "--all", "--json").json
        assert said["replayed"] == []
        assert "cannot be replayed" in said["failed"]["1"]
        assert invoke("deadletters", "list", "--json").json["count"] == 1

    @pytest.mark.parametrize("command", ["show", "replay"])
    def test_an_unknown_number_exits_1(self, invoke: Invoke, deployed: Deployed, command: str) -> None:
        result = invoke("deadletters", command, "99")
        assert result.code == 1
        assert "no dead letter 99" in result.err


class TestDoctor:
    def test_a_well_server(self, invoke: Invoke, deployed: Deployed) -> None:
        result = invoke("doctor")
        assert result.code == 0
        assert "✗" not in result.out
        said = invoke("doctor", "--json").json
        assert said["healthy"]
        assert {"server", "jetstream", "clock", "streams", "limits", "dead letters"} <= {
            each["check"] for each in said["findings"]
        }

    def test_missing_streams_are_a_fault(
        self, invoke: Invoke, deployed: Deployed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PLANCAST_BUS__PREFIX", "never-deployed")
        result = invoke("doctor")
        assert result.code == 1
        assert "missing" in result.out

    def test_a_value_that_is_gone_is_a_fault_named_with_its_plan(self, invoke: Invoke, deployed: Deployed) -> None:
        deployed.plan("small")

        async def store(bus: JetStreamBus) -> bytes:
            for plan in ("whole", "broken"):
                state = {"results": {"text": f"{plan} " * 2_000}, "status": "running", "plan_id": plan}
                done = Folder(1 << 20).fold(state)
                await bus.values.put("", plan, done.contents)
                summary = PlanSummary(plan, "running", "greet.goal", "ask", 1, updated_at=time.time())
                await bus.checkpoints.commit(Checkpoint(plan, 1, "test", done.packed, summary, is_folded=True))
            await bus.values.put("", None, {b"o" * 32: b"an orphan"})
            return next(iter(done.contents))

        digest = deployed.run(store)
        said = [each for each in invoke("doctor", "--json").json["findings"] if each["check"] == "values"]
        assert [each["level"] for each in said] == ["ok", "ok"]
        assert said[0]["detail"].startswith("3 values of large plans")
        assert said[1]["detail"].startswith("1 value of 9 B")

        async def delete(bus: JetStreamBus) -> None:
            await bus.values.drop([each async for each in bus.values.values() if each.digest == digest])

        deployed.run(delete)
        result = invoke("doctor")
        assert result.code == 1
        assert f"plan broken: the value {digest.hex()} is missing" in result.out
        assert "plan whole" not in result.out
        assert deployed.run(lambda bus: bus.checkpoints.load("broken", folded=True)) is not None, "nothing is deleted"

    def test_goals_that_nobody_reads_are_a_fault(self, invoke: Invoke, deployed: Deployed) -> None:
        invoke("submit", "greet.goal")
        result = invoke("doctor")
        assert result.code == 1
        assert "no consumer reads 1 message" in result.out

    def test_no_connection_exits_3(self, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PLANCAST_NATS__CONNECT_TIMEOUT", "0.3")
        result = invoke("doctor", "--nats-url", GONE, "--json")
        assert result.code == 3
        assert result.json["findings"][0]["level"] == "fault"

    def test_what_is_wrong_is_told(self) -> None:
        stream = {"messages": 5, "bytes": 90, "max_bytes": 100, "storage": "memory", "consumers": {}}
        consumers = {"d": {"pending": doctor.LAG, "durable": True}}
        evidence = doctor.Evidence(
            settings=Settings(bus=BusSettings(max_event_bytes=2048)),
            health={
                "server": {
                    "version": "2.12.0",
                    "address": "h:1",
                    "round_trip": 0.1,
                    "storage_bytes": 0,
                    "max_payload": 1024,
                },
                "streams": {"PLANCAST_REQUESTS": stream, "PLANCAST_RESULTS": stream | {"consumers": consumers}},
            },
            apps=(),
            dead_letters=2,
            stalled={
                "stalled": 7,
                "names": ["a", "b", "c", "d", "e"],
                "found": 9,
                "time": 8000.0,
                "people": {
                    "waiting": {"plans": 1, "oldest": 7990.0},
                    "effects_unknown": {"plans": 2, "oldest": 800.0},
                },
            },
            clock_skew=Skew(-90.0, 0.001),
        )
        found = {(each.check, each.level): each.detail for each in doctor.examine(evidence)}
        assert "1 min 30 s behind" in found["clock", "warning"]
        assert "nearly full" in found["limits", "fault"]
        assert "PLANCAST_REQUESTS" in found["consumers", "fault"]
        assert "d (10,000)" in found["consumers", "warning"]
        assert "2 messages" in found["dead letters", "warning"]
        assert found["stuck plans", "warning"] == "7 plans stalled: a, b, c, d, e and 2 more"
        assert "memory" in found["streams", "warning"]
        assert found["apps", "warning"]
        assert found["people", "ok"] == "1 plan waiting for people, the longest for 10 s"
        undecided = "2 plans with effects that a person has to decide about, the longest for 2 h 00 min"
        assert found["people", "warning"] == undecided

    def test_what_is_near_its_limits_is_told(self) -> None:
        consumer = {"durable": True, "pending": 3, "redelivered": 500, "waiting_pulls": 0, "idle_seconds": 900.0}
        stream = {
            "messages": 5, "bytes": 9, "max_bytes": -1, "storage": "file", "replicas": 3,
            "differs": {"max_age": [5, 7]}, "lagging_replicas": ["n2"], "consumers": {"d": consumer},
        }  # fmt: skip
        shards = {"subject_transform": [{"dest": "partition(4,2)"}, {"dest": "partition(8,2)"}]}
        limits = {"max_storage": 100, "max_memory": -1, "max_streams": 9, "max_consumers": -1}
        health = {
            "server": {
                "version": "2.12.0", "address": "h:1", "round_trip": 0.1, "storage_bytes": 90, "max_payload": 2**23,
                "streams": 9, "consumers": 2, "limits": limits,
            },
            "streams": {"PLANCAST_REQUESTS": stream, "PLANCAST_META": {**stream, "differs": shards, "consumers": {}}},
        }  # fmt: skip
        lost = {"hosts": [{"name": "host-0", "alive": False}], "dispatchers": [{"name": "dispatcher-0"}]}
        cluster = {"version": "2.60", "nodes": 2, "dead_nodes": 1, "total": {"CPU": 8.0}, "free": {"CPU": 1.0}}
        evidence = doctor.Evidence(
            Settings(), health, ("a",), 0, {"stalled": 0, "names": []}, Skew(0.4, 0.9),
            ray=RayEvidence("10.0.0.1:6379", "", cluster, lost), disk=(1000, 20), sync_interval="always",
            seen_here=True,
        )  # fmt: skip
        findings = doctor.examine(evidence)
        found = {(each.check, each.level): each for each in findings}
        told = [each.detail for each in findings if (each.check, each.level) == ("jetstream", "warning")]
        assert "is limited to 100 B" in told[0]
        assert "has 9 of at most 9 streams" in told[1]
        assert "max_age is 5, configured as 7" in next(each.detail for each in findings if "max_age" in each.detail)
        assert "partition(4,2)" in found["streams", "fault"].detail
        assert any("n2" in each.detail for each in findings)
        assert "pending messages have not been read for 1 min 00 s: d (3)" in found["consumers", "fault"].detail
        assert "d (500)" in found["consumers", "warning"].detail
        assert "host-0" in found["actors", "fault"].detail
        assert "1 of 8 CPUs free" in found["ray", "ok"].detail
        assert "1 node of the cluster died" in found["ray", "warning"].detail
        assert "20 B free" in found["disk", "warning"].detail
        assert "3 replicas, every write synced" in found["storage", "ok"].detail
        assert "no dispatcher has reported" in found["stuck plans", "warning"].detail
        assert ("clock", "ok") in found
        young = {**lost, "dispatchers": [{"name": "dispatcher-0", "up_seconds": 5.0}]}
        fresh = replace(evidence, ray=RayEvidence("10.0.0.1:6379", "", cluster, young))
        assert all(each.level == "ok" for each in doctor.examine(fresh) if each.check == "stuck plans")
        assert all(each.advice for each in findings if each.level != "ok")

    def test_settings_that_differ_from_the_streams_are_told(
        self, invoke: Invoke, deployed: Deployed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PLANCAST_BUS__FACTS_MAX_AGE", "60")
        monkeypatch.setenv("PLANCAST_BUS__SHARDS", "3")
        result = invoke("doctor")
        assert result.code == 1
        assert f"{deployed.bus.prefix.upper()}_FACTS differs from the settings" in result.out
        assert "partition(3,2)" in result.out

    def test_ray_that_cannot_be_joined_is_a_fault(self, invoke: Invoke, deployed: Deployed) -> None:
        result = invoke("doctor", "--address", "127.0.0.1:1", "--json")
        assert result.code == 1
        [found] = [each for each in result.json["findings"] if each["check"] == "ray"]
        assert found["level"] == "fault"
        assert "127.0.0.1:1" in found["detail"]
        assert invoke("doctor", "--address", "127.0.0.1:1", "--no-ray").code == 0

    def test_a_plan_that_stands_still_is_found_when_no_dispatcher_looks(
        self, invoke: Invoke, deployed: Deployed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        deployed.plan("waits-for-an-answer")
        deployed.run(lambda bus: _strand(bus, "stuck"))
        monkeypatch.setenv("PLANCAST_PLANS__STALLED_SECONDS", "10")
        found = [each for each in invoke("doctor", "--json").json["findings"] if each["check"] == "stuck plans"]
        assert [each["detail"] for each in found] == ["1 plan stalled: stuck"]
        assert found[0]["level"] == "warning"


async def _strand(bus: JetStreamBus, plan_id: str) -> None:
    """A plan as a bug would leave it: running, and nothing is under way."""
    await _commit_turns(bus, plan_id, (), {})
    checkpoint = await bus.checkpoints.load(plan_id)
    assert checkpoint is not None
    state = unpack(checkpoint.state)
    state["requests"] = {}
    await bus.checkpoints.commit(replace(checkpoint, state=pack(state), revision=2))


class TestDataFolder:
    def test_one_run_at_a_time(self, invoke: Invoke, tmp_path: Path) -> None:
        with DataFolder(tmp_path / "data") as folder:
            folder.write(Running("nats://h:1", "plancast", os.getpid(), "cli_good:app"))
            result = invoke("run", "cli_good:app", "--data-dir", str(tmp_path / "data"))
        assert result.code == 1
        assert "/data (cli_good:app" in result.err
        assert "plancast stop" in result.err

    def test_the_note_is_there_while_it_runs_and_private(self, tmp_path: Path) -> None:
        running = Running("nats://u:p@h:1", "plancast", os.getpid(), "cli_good:app", "auto", 5.0)
        with DataFolder(tmp_path) as folder:
            assert find_running(tmp_path) is None
            folder.write(running)
            assert find_running(tmp_path) == running
            assert (tmp_path / "run.json").stat().st_mode & 0o077 == 0
        assert not (tmp_path / "run.json").exists()
        assert not is_held(tmp_path)

    def test_the_note_of_a_killed_run_counts_for_nothing(self, invoke: Invoke, tmp_path: Path) -> None:
        script = (
            "import os, signal, sys; from pathlib import Path; from plancast.cli.data_folder import *\n"
            "folder = DataFolder(Path(sys.argv[1])).__enter__()\n"
            "folder.write(Running('nats://h:1', 'n', os.getpid()))\n"
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=60)
        assert (tmp_path / "run.json").exists()
        assert find_running(tmp_path) is None
        assert invoke("stop", "--data-dir", str(tmp_path)).code == 1

    def test_commands_find_the_server_of_what_runs_here(
        self, invoke: Invoke, deployed: Deployed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("NATS_URL")
        deployed.plan("p")
        with DataFolder(tmp_path / ".plancast") as folder:
            folder.write(Running(deployed.nats.url, "plancast", os.getpid()))
            assert [each["plan_id"] for each in invoke("plans", "list", "--json").json] == ["p"]

    def test_stop_ends_what_runs_and_waits_for_it(self, invoke: Invoke, tmp_path: Path) -> None:
        script = (
            "import os, signal, sys, time; from pathlib import Path; from plancast.cli.data_folder import *\n"
            "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), sys.exit(0)))\n"
            "with DataFolder(Path(sys.argv[1])) as folder:\n"
            "    folder.write(Running('nats://h:1', 'n', os.getpid(), 'some:app')); print('up', flush=True)\n"
            "    signal.pause()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            result = invoke("stop", "--data-dir", str(tmp_path))
            assert (result.code, process.wait(10)) == (0, 0)
        assert "stopped some:app" in result.out

    @pytest.mark.parametrize("command", ["status", "stop"])
    def test_nothing_runs(self, invoke: Invoke, command: str) -> None:
        result = invoke(command)
        assert result.code == 1
        assert "no plancast runs" in result.err


class TestWorker:
    @staticmethod
    async def _ask(bus: JetStreamBus) -> Any:
        asked = uuid4().hex
        await bus.publish(
            EventEnvelope(
                id=asked,
                source="t",
                type="name.ask",
                topic=EventTopic.ACTION_REQUESTS,
                correlation_id=asked,
                response_event="name.given",
            )
        )
        filters = (bus.subjects.stored("action-results", "*", asked, "name.given"),)
        consumer = bus.consume(ConsumerSpec(f"look-{asked[:8]}", "results", filters))
        async with asyncio.timeout(30):
            [delivery] = await consumer.fetch(1)
        await consumer.close()
        return decode_delivery(delivery).data

    def test_does_tasks_outlives_nats_and_ends_in_order(self, invoke: Invoke, fresh_nats: NatsServer) -> None:
        deployed = Deployed(NatsSettings(url=fresh_nats.url), BusSettings())
        plancast = Path(sys.executable).with_name("plancast")
        command = [str(plancast), "worker", "cli_good:app", "--nats-url", fresh_nats.url, "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert json.loads(process.stdout.readline())["tasks"] == ["name.ask"]
                assert deployed.run(self._ask) == {"name": "Ada"}
                fresh_nats.kill()
                time.sleep(0.5)
                fresh_nats.start()
                assert deployed.run(self._ask) == {"name": "Ada"}
                process.send_signal(signal.SIGTERM)
                _, err = process.communicate(timeout=20)
            finally:
                process.kill()
        assert process.returncode == 0
        assert "Traceback" not in err

    def test_an_app_without_workers_is_wrong_usage(self, invoke: Invoke, tmp_path: Path) -> None:
        (tmp_path / "cli_broken.py").write_text(GOOD_APP.replace("workers=[worker]", "workers=[]"))
        assert invoke("worker", "cli_broken:app").code == 2


class TestProgress:
    def test_it_is_shown_on_a_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        monkeypatch.setattr(sys, "stderr", terminal := Terminal())
        monkeypatch.setenv("TERM", "xterm")
        with progress.working("looking around") as tell:
            assert tell is not None
            tell("plan [p]: asking \x07")
        assert "plan [p]: asking" in terminal.getvalue()
        assert "\x07" not in terminal.getvalue()

    def test_it_is_not_where_nobody_looks(self, invoke: Invoke, deployed: Deployed) -> None:
        with progress.working("looking around") as tell:
            assert tell is None
        deployed.plan("known", [("name.given", {"name": "Bo"})])
        result = invoke("submit", "greet.goal", "--correlation-id", "known", *SAME, "--wait", "--timeout", "20")
        assert result.err == "plan known\n"

    def test_where_the_plan_stands_is_told_while_its_result_is_awaited(self, deployed: Deployed) -> None:
        deployed.plan("known", [("name.given", {"name": "Bo"})])
        said: list[str] = []

        async def follow(bus: JetStreamBus) -> None:
            async with Client(bus) as client:
                await submit._follow(client.plan("known"), said.append)

        deployed.run(follow)
        assert said == ["plan known: done, turn 2, after name.given"]


class TestOutput:
    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0.0, "0.0 ms"),
            (0.0042, "4.2 ms"),
            (0.34, "340 ms"),
            (0.9996, "1.0 s"),
            (4.24, "4.2 s"),
            (9.96, "10 s"),
            (59.6, "1 min 00 s"),
            (185, "3 min 05 s"),
            (7800, "2 h 10 min"),
            (4 * 86400 + 3 * 3600, "4 d 3 h"),
        ],
    )
    def test_durations_are_for_people(self, seconds: float, text: str) -> None:
        assert output.duration(seconds) == text

    def test_text_from_outside_does_nothing_to_the_terminal(self) -> None:
        assert output.plain("a\x1b[31mb\x07") == "a\\x1b[31mb\\x07"

    def test_urls_are_shown_without_password(self) -> None:
        assert output.public_url("nats://u:p@h:1, tls://h:2") == "nats://h:1,tls://h:2"

    def test_unexpected_errors_are_named(self) -> None:
        message, hint, code = describe(KeyError("x"))
        assert (message, code) == ("KeyError: 'x'", 1)
        assert "-v" in hint
