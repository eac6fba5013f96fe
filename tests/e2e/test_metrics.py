"""What an operator sees of a real deployment: metrics as Prometheus scrapes them, logs as a collector reads them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from tests.deploy.test_autoscaling import BACKLOG, TRIGGER

from plancast import Client, PlanCancelled
from plancast_actors.telemetry.metrics import METRICS
from plancast_bus.subjects import name_of_type, task_consumer_name

pytestmark = pytest.mark.slow

APPS = Path(__file__).parent.parent / "apps"
PATIENCE = 60.0
_LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
Scrape = dict[str, list[tuple[dict[str, str], float]]]


class Run:
    """A ``plancast run`` of its own, with Ray's agent exporting metrics every second."""

    def __init__(self, folder: Path) -> None:
        self.ray = Path(tempfile.mkdtemp(prefix="pm"))  # Ray's sockets are there: their paths must be short
        self.port = _free_port()
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PLANCAST_", "NATS_"))}
        environment |= {
            "PYTHONPATH": str(APPS),
            "RAY_TMPDIR": str(self.ray),
            "RAY_metrics_report_interval_ms": "1000",
            "PLANCAST_TELEMETRY__METRICS_INTERVAL": "0.5",
            "PLANCAST_TELEMETRY__METRICS_PORT": str(self.port),
            "PLANCAST_TELEMETRY__LOG_FORMAT": "json",
            "PLANCAST_TELEMETRY__LOG_LEVEL": "info",
        }
        self.process = subprocess.Popen(
            [Path(sys.executable).with_name("plancast"), "run", "chain_app:app", "--data-dir", folder, "--json"],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert ready, self.process.communicate()[1]
        self.nats_url: str = json.loads(ready)["nats"]

    def stop(self) -> str:
        """End it; returns what it has said on stderr."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.communicate(timeout=PATIENCE)[1]

    def scrape(self) -> Scrape:
        """Our metrics as Prometheus reads them, by name."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.port}/metrics", timeout=PATIENCE) as response:
            text = response.read().decode()
        found: Scrape = defaultdict(list)
        for line in text.splitlines():
            matched = _LINE.match(line)
            if matched is not None and matched[1].startswith("ray_plancast_"):
                found[matched[1]].append((dict(_LABEL.findall(matched[2] or "")), float(matched[3])))
        return found

    def logged(self) -> list[str]:
        """Every line that the actors have logged."""
        return [
            line
            for file in sorted(self.ray.glob("session_latest/logs/worker-*.err"))
            for line in file.read_text(errors="replace").splitlines()
            if line.startswith("{")
        ]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    running = Run(tmp_path_factory.mktemp("metrics"))
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.stop()
        shutil.rmtree(running.ray, ignore_errors=True)


def total(scrape: Scrape, name: str, **labels: str) -> float:
    return sum(value for said, value in scrape.get(name, ()) if labels.items() <= said.items())


async def until(run: Run, wanted: dict[tuple[str, tuple[tuple[str, str], ...]], float], roles: set[str]) -> Scrape:
    """Scrape until these totals are reached, all of these roles have reported, and no event is outstanding."""
    scrape: Scrape = {}
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                scrape = await asyncio.to_thread(run.scrape)
                if (
                    all(total(scrape, name, **dict(labels)) >= value for (name, labels), value in wanted.items())
                    and roles <= roles_of(scrape)
                    and total(scrape, "ray_plancast_events_outstanding") == 0
                ):
                    return scrape
                await asyncio.sleep(0.25)
    except TimeoutError:
        got = {key: total(scrape, key[0], **dict(key[1])) for key in wanted}
        raise AssertionError(f"wanted {wanted}, got {got}") from None


def roles_of(scrape: Scrape) -> set[str]:
    return {labels["role"] for labels, _ in scrape.get("ray_plancast_process_resident_bytes", ())}


def counted(name: str, value: float, **labels: str) -> tuple[tuple[str, tuple[tuple[str, str], ...]], float]:
    return (f"ray_plancast_{name}", tuple(labels.items())), value


async def test_what_was_done_is_what_is_scraped_and_logged(run: Run) -> None:
    async with Client.connect(run.nats_url) as client:
        # 17 is added at the second attempt only; the handled one has a host of its own.
        plans = [await client.submit("chain.goal", {"n": n}) for n in (1, 1, 1, 1, 1, 15)]
        plans.append(await client.submit("handled.goal", {"n": 1}))
        paused = await client.submit("ask.goal", {})
        for plan in plans:
            await plan.result(timeout=PATIENCE)
        await paused.cancel("enough")
        with pytest.raises(PlanCancelled):
            await paused.result(timeout=PATIENCE)
        turns = [len(await plan.history()) for plan in (*plans, paused)]
    plain = await nats.connect(run.nats_url)
    await plain.publish("plancast.action-requests.nobody.chain.goal", b"\xc1no envelope")
    await plain.drain()

    wanted = dict(
        [
            counted("turns_total", sum(turns)),
            counted("turns_total", turns[-2], actor="dedicated"),
            counted("plans_begun_total", 8),
            counted("plans_ended_total", 7, status="completed"),
            counted("plans_ended_total", 1, status="cancelled"),
            counted("tasks_total", 21, outcome="answered", role="worker"),
            counted("tasks_total", 1, outcome="retried"),
            counted("events_redelivered_total", 1, role="worker"),
            counted("dead_letters_put_total", 1, reason="undecodable"),
            counted("dead_letters", 1),
        ]
    )
    at_least = [
        counted("events_acknowledged_total", sum(turns)),
        counted("stage_seconds_count", 1, stage="task", role="worker"),
    ]
    roles = {"host", "dedicated_pool", "dispatcher", "worker"}
    scrape = await until(run, wanted | dict(at_least), roles)

    assert {key: total(scrape, key[0], **dict(key[1])) for key in wanted} == wanted
    consumers = {labels["consumer"] for labels, _ in scrape["ray_plancast_consumer_pending"]}
    assert {"plans-results", f"task-{name_of_type('chain.add.requested')}"} <= consumers
    for query in (TRIGGER["metadata"]["query"], BACKLOG):  # of the documentation, for KEDA
        task = query.replace(task_consumer_name("web.search.requested"), task_consumer_name("chain.add.requested"))
        selectors = re.findall(r"(ray_plancast_\w+)(\{[^}]*\})?", task)
        assert selectors
        for name, wanted_labels in selectors:
            patterns = re.findall(r'(\w+)=~?"([^"]*)"', wanted_labels)
            assert any(
                all(re.fullmatch(pattern, labels.get(label, "")) for label, pattern in patterns)
                for labels, _ in scrape[name]
            ), f"nothing is exported that {name}{wanted_labels} selects"
    assert roles_of(scrape) == roles
    for name, series in scrape.items():
        metric = METRICS[re.sub(r"_(bucket|sum|count)$", "", name.removeprefix("ray_"))]
        for labels, _ in series:
            assert labels["deployment"] == "plancast"
            assert {*metric.labels, "role", "actor"} <= labels.keys()

    records: list[dict[str, Any]] = [json.loads(line) for line in run.logged()]
    [again] = [each for each in records if each["message"].startswith("task is tried again")]
    assert (again["plan_id"], again["actor"], again["level"]) == (plans[5].plan_id, "worker-0", "info")
    assert again["trace_id"]
    [aside] = [each for each in records if each["message"].startswith("event dead-lettered")]
    assert (aside["correlation_id"], aside["level"]) == ("nobody", "warning")
    assert "no envelope" not in "".join(run.logged())

    remarks = [json.loads(line) for line in run.stop().splitlines()]
    assert [each["message"] for each in remarks][-1] == "ended"
    assert {each["logger"] for each in remarks} >= {"plancast.cli"}
