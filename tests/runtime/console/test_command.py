"""`plancast console`, and the console of `plancast run`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from plancast import Client, Settings
from plancast.cli import main
from plancast.cli.run.console import page_that_leads_to
from plancast.terminal.output import note_link
from plancast.webhooks.signature import sign
from plancast_bus.nats_server.process import NatsServer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PLANCAST = Path(sys.executable).with_name("plancast")
PATIENCE = 60.0


@contextlib.contextmanager
def command(*arguments: str | Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A command in the foreground; asked to end by SIGTERM when the context is left."""
    others = {key: value for key, value in os.environ.items() if not key.startswith(("PLANCAST_", "NATS_", "RAY_"))}
    pipe = subprocess.PIPE
    process = subprocess.Popen([PLANCAST, *arguments], env=others | environment, stdout=pipe, stderr=pipe, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            _, said = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, said


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return line


def test_the_command_serves_the_console_until_it_is_asked_to_end(nats_server: NatsServer) -> None:
    prefix, token = f"console{uuid4().hex}", uuid4().hex
    settings = {"PLANCAST_BUS__PREFIX": prefix, "PLANCAST_CONSOLE__TOKENS": json.dumps({"ada": token})}
    with command("console", "--nats-url", nats_server.url, "--port", "0", "--json", **settings) as process:
        ready = json.loads(first_line(process))
        assert ready["nats"] == nats_server.url
        with httpx.Client(base_url=ready["console"], headers={"Authorization": f"Bearer {token}"}) as http:
            assert http.get("/healthz").json() == {"status": "alive"}
            assert http.get("/api/v1/session").json()["user"] == "ada"
            assert http.get("/").headers["content-type"].startswith("text/html")
            nothing_deployed = http.get("/readyz")
            assert (nothing_deployed.status_code, nothing_deployed.json()["status"]) == (503, "not ready")


SHOP = """
from plancast import App, Planner

orders = Planner("orders")
orders.add_goal("order.goal", {"start": {"state_name": "start", "is_terminal": True}})
app = App("shop", planners=[orders])
app.hook("orders", "order.goal", secret="env:SHOP_SECRET", correlation="{{data.id}}")
"""


async def make_streams(url: str, prefix: str) -> None:
    async with Client.connect(url, settings=Settings.model_validate({"bus": {"prefix": prefix}})) as client:
        await client.bus.ensure_streams()


def test_the_command_takes_the_webhooks_of_an_app(nats_server: NatsServer, tmp_path: Path) -> None:
    (tmp_path / "shop_with_hooks.py").write_text(SHOP)
    prefix = f"console{uuid4().hex}"
    asyncio.run(make_streams(nats_server.url, prefix))
    arguments = ("console", "--app", "shop_with_hooks:app", "--nats-url", nats_server.url, "--port", "0", "--json")
    settings = {"PLANCAST_BUS__PREFIX": prefix, "PYTHONPATH": str(tmp_path), "SHOP_SECRET": "whsec_c2hvcC1zZWNyZXQ="}
    with command(*arguments, **settings) as process:
        url = json.loads(first_line(process))["console"].partition("/#token=")[0]
        body = b'{"id": 7}'
        with httpx.Client(base_url=url, timeout=PATIENCE) as http:
            signed = sign(settings["SHOP_SECRET"], "m1", int(time.time()), body)
            taken = http.post("/hooks/orders", content=body, headers=signed)
            assert (taken.status_code, taken.json()["plan_id"]) == (202, "7")
            forged = sign("another secret", "m2", int(time.time()), body)
            assert http.post("/hooks/orders", content=body, headers=forged).status_code == 401


def test_a_run_has_a_console_that_knows_its_actors(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="pc") as ray:  # Ray's sockets are there: their paths must be short
        environment = {"PYTHONPATH": str(ROOT), "RAY_TMPDIR": ray, "PLANCAST_HOSTS__COUNT": "1"}
        arguments = ("run", "examples.research:app", "--data-dir", tmp_path / "data", "--json")
        with command(*arguments, **environment) as process:
            ready = json.loads(first_line(process))
            url, _, token = ready["console"].partition("/#token=")
            headers = {"Authorization": f"Bearer {token}"}
            with httpx.Client(base_url=url, headers=headers, timeout=PATIENCE) as http:
                goal = {"event_type": "research.goal", "data": {"topic": "coroutines"}}
                plan = http.post("/api/v1/plans", json=goal).json()["plan_id"]
                ended = http.get(f"/api/v1/plans/{plan}/result", params={"wait": 30})
                assert (ended.status_code, ended.json()["status"]) == (200, "completed")
                runs = http.get("/api/v1/deployment").json()
                assert runs["source"] == "ray"
                assert [(host["name"], host["alive"]) for host in runs["hosts"]] == [("host-0", True)]
                assert sum(host["turns"] for host in runs["hosts"]) >= 3
                assert runs["dispatchers"][0]["dispatched"] >= 3
                assert http.get("/readyz").status_code == 200


def test_the_browser_is_handed_a_file_that_others_cannot_read() -> None:
    link = "http://127.0.0.1:7878/#token=abc"  # on the browser's command line, others could
    with page_that_leads_to(link) as page:
        assert f'content="0; url={link}"' in page.read_text()
        assert page.parent.stat().st_mode & 0o077 == 0
    assert not page.parent.exists()


def test_a_link_is_a_log_record_without_its_token(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    note_link("console at", "http://127.0.0.1:7878/#token=abc")
    assert capsys.readouterr().err == "console at http://127.0.0.1:7878/#token=abc\n"
    told: list[str] = []
    monkeypatch.setattr("plancast.terminal.logging.in_json", lambda: True)
    monkeypatch.setattr("plancast.terminal.logging.tell", lambda _level, text: told.append(text))
    note_link("console at", "http://127.0.0.1:7878/#token=abc")
    assert told == ["console at http://127.0.0.1:7878/"]


def test_off_the_loopback_without_tokens_is_wrong_usage(
    nats_server: NatsServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLANCAST_CONSOLE__TOKENS", raising=False)
    assert main(["console", "--nats-url", nats_server.url, "--host", "0.0.0.0"]) == 1
    assert "PLANCAST_CONSOLE__TOKENS" in capsys.readouterr().err


def test_help_does_not_bring_a_web_server_in() -> None:
    code = "import sys; from plancast.cli import main; main(['--help']); print({'fastapi', 'uvicorn'} & {*sys.modules})"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.endswith("set()\n")
    assert "console" in said
