"""Another user of the machine gets nothing out of `plancast run`, and nothing into it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import pytest
from tests.isolation.listening import addresses_of

from plancast import Client

ROOT = Path(__file__).parents[2]
PLANCAST = Path(sys.executable).with_name("plancast")
NOBODY = 65534
PATIENCE = 90.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user here; run these tests as root"),
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="processes and sockets are read from /proc"),
]


@dataclass
class Run:
    """A `plancast run` on folders that all users can enter, as `/tmp` and a home folder are."""

    folder: Path
    process: subprocess.Popen[str]
    ready: str
    errors: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def ray(self) -> Path:
        return self.folder / "ray"

    @property
    def noted(self) -> dict[str, Any]:
        return dict(json.loads((self.data / "run.json").read_text()))

    @property
    def nats_url(self) -> str:
        found = re.fullmatch(r"ready nats=(nats://\w{64}@127\.0\.0\.1:\d+) namespace=plancast\n", self.ready)
        assert found is not None, self.ready
        return found[1]

    @property
    def secrets(self) -> list[str]:
        """The tokens of NATS, the console and Ray."""
        noted = self.noted
        of_ray = Path(noted["ray_auth_token_path"]).read_text()
        found = [self.nats_url.split("/")[2].split("@")[0], noted["console_url"].partition("#token=")[2], of_ray]
        assert all(len(each) >= 32 for each in found)
        return found


@contextlib.contextmanager
def running(folder: Path, *options: str) -> Iterator[Run]:
    others = {key: value for key, value in os.environ.items() if not key.startswith(("PLANCAST_", "NATS_", "RAY_"))}
    environment = others | {
        "HOME": str(folder / "home"),
        "PYTHONPATH": str(ROOT),
        "RAY_TMPDIR": str(folder / "ray"),
        "PLANCAST_HOSTS__COUNT": "1",
        "PLANCAST_CONSOLE__PORT": "0",
    }
    arguments = ["run", "examples.research:app", "--data-dir", str(folder / "data"), "--log-format", "json", *options]
    with open(folder / "errors", "w") as errors:
        process = subprocess.Popen(
            [PLANCAST, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            umask=0,  # what is made is private by its own mode, not by that of the shell
        )
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()
        assert ready, (folder / "errors").read_text()
        yield Run(folder, process, ready, folder / "errors")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            process.stdout.close()


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder with a data folder of an earlier version in it: all can enter all of it."""
    folder = Path(tempfile.mkdtemp(prefix="pu"))  # Ray's sockets are there: their paths must be short
    for each in (folder, folder / "data", folder / "data" / "nats", folder / "ray", folder / "home"):
        each.mkdir(exist_ok=True)
        each.chmod(0o755)
    (folder / "data" / "nats" / "nats-server.conf").write_text("{}")
    (folder / "data" / "nats" / "nats-server.conf").chmod(0o644)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def run(open_folder: Path) -> Iterator[Run]:
    with running(open_folder) as started:
        yield started


def as_other_user(attack: str, *arguments: str, known: str = "", patience: float = PATIENCE) -> Any:
    """What an attack says that is run as another user. Modules are imported before, since they may not be readable."""
    code = (
        "import json, os, re, socket, stat, sys, urllib.error, urllib.request\n"
        "from pathlib import Path\n"
        "from plancast_bus.nats_server.probe import ask_jetstream\n"
        "import encodings.idna, http.client, uuid\n"
        "urllib.request.build_opener()\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n{attack}"
    )
    clean = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        input=known, env=clean, cwd="/", capture_output=True, text=True, timeout=patience, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


LOOK = """
readable, entered, connected = [], [], []
for top in map(Path, sys.argv[1:]):
    for folder, folders, files in os.walk(top):
        if Path(folder) != top:
            entered.append(folder)
        for name in files:
            path = Path(folder, name)
            try:
                if stat.S_ISSOCK(path.stat().st_mode):
                    socket.socket(socket.AF_UNIX).connect(str(path))
                    connected.append(str(path))
                else:
                    path.open("rb").read(1)
                    readable.append(str(path))
            except OSError:
                pass
print(json.dumps([readable, entered, connected]))
"""


@pytest.mark.attack(who="other user", what="read the files of plancast run", expected="none can be opened")
def test_another_user_reads_no_file_of_a_run(run: Run) -> None:
    assert as_other_user(LOOK, str(run.data), str(run.ray), "/dev/shm", *_of_plancast_in_tmp()) == [[], [], []]
    assert not (run.folder / "home" / ".ray").exists()  # a token there would be for every Ray of this user


def test_all_that_a_run_makes_is_private_when_it_is_made(run: Run) -> None:
    entries = [run.data / "run.json", run.data / "run.lock", run.data / "console.token", run.data / "nats"]
    entries += list((run.data / "nats").rglob("*")) + list(run.ray.glob("p*"))
    assert len([each for each in entries if each.suffix == ".blk"]) > 3
    for each in entries:
        if not each.is_symlink():
            assert each.lstat().st_mode & 0o077 == 0, each
    assert (run.data.stat().st_mode & 0o777, run.ray.stat().st_mode & 0o777) == (0o755, 0o755)  # the user's own


ASK = """
port, wrong = int(sys.argv[1]), sys.argv[2]
print(json.dumps([
    (ask_jetstream("127.0.0.1", port, login, operation, None) or {}).get("type")
    for login in ({}, {"auth_token": wrong}, {"user": wrong, "pass": ""}, {"auth_token": ""})
    for operation in ("STREAM.NAMES", "STREAM.PURGE.PLANCAST_CHECKPOINTS", "STREAM.DELETE.PLANCAST_META")
]))
"""


@pytest.mark.attack(who="other user", what="list, purge and delete streams on NATS", expected="no login, no answer")
async def test_another_user_cannot_use_nats(run: Run) -> None:
    port = run.nats_url.rpartition(":")[2]
    assert as_other_user(ASK, port, "0" * 64) == [None] * 12
    connection = await nats.connect(run.nats_url)  # what is printed works as it is, for any client
    streams = {each.config.name for each in await connection.jetstream().streams_info()}
    assert {"PLANCAST_CHECKPOINTS", "PLANCAST_META"} <= streams
    await connection.close()


CALL = """
url = sys.argv[1]
answers = []
for headers in ({}, {"Authorization": "Bearer " + "x" * 43}, {"Cookie": "plancast_session=x"}):
    for method, path in (("GET", "plans"), ("GET", "deployment"), ("GET", "session"), ("POST", "plans")):
        data = b'{"event_type": "research.goal", "data": {}}' if method == "POST" else None
        headers["Content-Type"] = "application/json"
        request = urllib.request.Request(f"{url}/api/v1/{path}", data, headers, method=method)
        try:
            answers.append(urllib.request.urlopen(request).status)
        except urllib.error.HTTPError as error:
            answers.append(error.code)
print(json.dumps(answers))
"""


@pytest.mark.attack(who="other user", what="read and submit plans at the console", expected="401 without its token")
def test_another_user_cannot_use_the_console(run: Run) -> None:
    url, _, token = run.noted["console_url"].partition("/#token=")
    assert as_other_user(CALL, url) == [401] * 12
    request = urllib.request.Request(f"{url}/api/v1/session", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request) as response:
        assert json.load(response)["user"] == "local:root"  # whose name stands in histories


JOIN = """
import sys
from plancast.settings import RaySettings
from plancast_actors.ray import connection as cluster
cluster.connect(RaySettings(address=sys.argv[1], auth_token_path=sys.argv[2] or None))
print("joined")
"""


@pytest.mark.attack(who="other user", what="join Ray without its token", expected="InvalidAuthToken")
@pytest.mark.parametrize("token", ["", "0" * 64])
def test_another_user_cannot_join_ray(run: Run, tmp_path: Path, token: str) -> None:
    path = tmp_path / "token"
    path.write_text(token)
    # Not as another user: Ray imports as it goes along, and its ports know no users.
    with subprocess.Popen(
        [sys.executable, "-c", JOIN, run.noted["ray_address"], str(path) if token else ""],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"}, cwd="/", text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as attacker:  # fmt: skip
        assert attacker.stdout is not None
        watchdog = threading.Timer(PATIENCE, attacker.kill)
        watchdog.start()
        said = []
        for line in attacker.stdout:
            said.append(line)
            if "InvalidAuthToken" in line or "joined" in line:
                break
        attacker.kill()
        watchdog.cancel()
    assert "InvalidAuthToken" in said[-1], said


PROBE = """
answers = {}
for port in sys.argv[1:]:
    for path in ("/api/jobs/", "/api/job_agent/jobs/", "/get_or_create_runtime_env"):
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", b"{}")
        try:
            answers[port + path] = urllib.request.urlopen(request, timeout=5).status
        except urllib.error.HTTPError as error:
            answers[port + path] = error.code
        except OSError:
            pass  # it does not speak HTTP
        except Exception:
            pass
print(json.dumps(answers))
"""


@pytest.mark.attack(who="other user", what="have Ray's agents run a job by HTTP", expected="no port takes one")
def test_no_port_of_a_run_takes_a_job(run: Run) -> None:
    ports = [address.rpartition(":")[2] for address in addresses_of(run.process.pid)]
    answers = as_other_user(PROBE, *ports)
    assert len(ports) > 5
    assert 401 in answers.values()
    assert {port: status for port, status in answers.items() if status < 400} == {}


SEARCH = """
secrets = sys.stdin.read().split()
shown, hidden = [], 0
for process in Path("/proc").glob("[0-9]*"):
    for name in ("cmdline", "environ", "comm"):
        try:
            content = (process / name).read_text(errors="replace")
        except OSError:
            hidden += 1
            continue
        shown += [f"{process}/{name}" for secret in secrets if secret in content]
print(json.dumps([shown, hidden > 0]))
"""


@pytest.mark.attack(who="other user", what="read tokens from command lines", expected="no process shows one")
def test_no_command_line_shows_a_token(run: Run) -> None:
    assert as_other_user(SEARCH, known="\n".join(run.secrets)) == [[], True]


@pytest.mark.attack(who="other user", what="note a run.json of one's own for another", expected="it is not followed")
@pytest.mark.parametrize("words", [("status",), ("plans", "list"), ("console", "--port", "0")])
def test_what_another_user_has_noted_is_not_followed(words: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    # Who joins another's Ray runs what that has pickled.
    planted = tmp_path / ".plancast"
    planted.mkdir()
    shutil.copy(run.data / "run.json", planted)
    (planted / "run.lock").symlink_to(run.data / "run.lock")  # held
    os.chown(planted / "run.json", NOBODY, NOBODY)
    others = {key: value for key, value in os.environ.items() if not key.startswith(("PLANCAST_", "NATS_", "RAY_"))}
    done = subprocess.run(
        [PLANCAST, *words], cwd=tmp_path, env=others, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode != 0
    assert "another user runs plancast in the data folder" in done.stderr


PLANT = """
folder, target = Path(sys.argv[1]), sys.argv[2]
os.umask(0)
folder.mkdir()
(folder / "elsewhere").symlink_to(target)  # where files of processes that are gone are cleared away
(folder / "plancast").mkdir()
for pid in sys.argv[3:]:
    (folder / "plancast" / f"host-0.{pid}").symlink_to(target + "/precious")
print("null")
"""
BEAT = """
import asyncio, sys
from plancast_actors.liveness import heartbeat
from plancast_actors.deployment.health import liveness
heartbeat.SECONDS = 0.05
async def main():
    sys.stdin.readline()
    beating = heartbeat.Heartbeat("plancast", "host-0", None)
    await asyncio.sleep(1.0)
    await beating.leave()
    print(liveness("plancast").checks[0].detail)
asyncio.run(main())
"""


@pytest.mark.attack(
    who="other user",
    what="make the folder of signs of life in /tmp, full of links",
    expected="no file of the owner is written or removed",
)
def test_signs_of_life_follow_no_link_of_another_user() -> None:
    folder = Path(tempfile.mkdtemp(prefix="pu"))
    folder.chmod(0o1777)
    own = folder / "own"
    own.mkdir()
    for name in ("precious", "libc.so.4194305", "app.log.4194306"):  # as if of processes: their ids are never so high
        (own / name).write_text(name)
    try:
        with subprocess.Popen(
            [sys.executable, "-c", BEAT], env=os.environ | {"TMPDIR": str(folder)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as beating:  # fmt: skip
            as_other_user(PLANT, str(folder / f"plancast-{os.getuid()}"), str(own), str(beating.pid))
            said, _ = beating.communicate("\n", timeout=PATIENCE)
        assert {each.name: each.read_text() for each in own.iterdir()} == {
            name: name for name in ("precious", "libc.so.4194305", "app.log.4194306")
        }
        assert "can be written by other users" in said
    finally:
        shutil.rmtree(folder)


def test_the_owner_finds_what_runs_and_no_log_has_a_token(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    others = {key: value for key, value in os.environ.items() if not key.startswith(("PLANCAST_", "NATS_", "RAY_"))}
    monkeypatch.delenv("NATS_URL", raising=False)

    async def submit() -> None:
        async with Client.connect(data_dir=run.data) as client:
            await client.submit("research.goal", {"topic": "coroutines"})

    asyncio.run(submit())
    worker = subprocess.Popen(
        [PLANCAST, "worker", "examples.research:app", "--json"],
        env=others | {"PLANCAST_DATA_DIR": str(run.data), "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert worker.stdout is not None
    said = worker.stdout.readline()
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    worker.stdout.close()
    assert json.loads(said)["ready"]
    assert run.secrets[0] not in said
    for words in (("status", "--json"), ("plans", "list", "--json"), ("doctor", "--json"), ("probe", "ready")):
        done = subprocess.run(
            [PLANCAST, *words],
            env=others | {"PLANCAST_DATA_DIR": str(run.data)},
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert run.secrets[0] not in done.stdout + done.stderr
        if words[0] == "status":
            assert json.loads(done.stdout)["actors"]["hosts"][0]["alive"]
    logs = [run.errors, run.data / "nats" / "nats-server.log", *run.ray.glob("p*/r/session_*/logs/*")]
    assert len(logs) > 10
    for log in logs:
        if log.is_file():
            text = log.read_text(errors="replace")
            assert [secret for secret in run.secrets if secret in text] == [], log


async def test_clients_reconnect_to_a_run_that_is_started_again_and_nothing_is_left_of_ray() -> None:
    folder, back = Path(tempfile.mkdtemp(prefix="pu")), asyncio.Event()

    async def reconnected() -> None:
        back.set()

    try:
        (folder / "ray").mkdir()
        with running(folder) as first:
            link = first.noted["console_url"]
            connection = await nats.connect(
                first.nats_url, max_reconnect_attempts=-1, error_cb=_unheard, reconnected_cb=reconnected
            )
        assert list((folder / "ray").iterdir()) == []
        assert not (folder / "data" / "run.json").exists()
        assert list((folder / "data" / "nats").glob("ports/*")) == []
        with running(folder) as second:
            assert second.nats_url == first.nats_url, "as before, without being told"
            assert second.noted["console_url"].partition("#")[2] == link.partition("#")[2]
            async with asyncio.timeout(PATIENCE):
                await back.wait()
            assert await connection.jetstream().streams_info()
            await connection.close()
    finally:
        shutil.rmtree(folder)


async def _unheard(_error: Exception) -> None:
    pass


def _of_plancast_in_tmp() -> list[str]:
    return [str(each) for each in Path(tempfile.gettempdir()).glob("plancast-*")]
