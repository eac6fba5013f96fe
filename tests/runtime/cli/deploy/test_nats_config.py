"""`plancast nats-config`: what it writes, what it keeps, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plancast.cli import main
from plancast_bus.nats_server.process import find_binary

APP = "tests.apps.signed_app:app"
Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs the command into ``tmp_path / "out"``; returns what it prints, or complains of."""

    def invoke(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main(["nats-config", "--output", str(tmp_path / "out"), *arguments]) == code
        said = capsys.readouterr()
        return said.out + said.err

    return invoke


def config_in(folder: Path) -> dict[str, Any]:
    text = (folder / "accounts.conf").read_text()
    found: dict[str, Any] = json.loads(text.split("accounts: ", 1)[1])
    return found


def test_each_login_has_an_account_and_a_seed_that_only_its_owner_reads(run: Run, tmp_path: Path) -> None:
    said = json.loads(run(APP, "--operator", "ops", "--json"))

    out = tmp_path / "out"
    names = ["runtime", "console", "client", "observer", "ops", "draft-writer", "printer"]
    assert [each["login"] for each in said["logins"]] == names
    assert said["logins"][-2]["tasks"] == ["draft.write"]
    for each in said["logins"]:
        seed = Path(each["seed"])
        assert seed.stat().st_mode & 0o777 == 0o600
        assert seed.read_text().startswith("SU")
        assert seed.read_text() not in (out / "accounts.conf").read_text()
    assert (out / "seeds").stat().st_mode & 0o777 == 0o700
    accounts = config_in(out)
    assert list(accounts) == ["runtime", "client", "observer", "ops", "draft-writer", "printer"]
    assert len(accounts["runtime"]["users"]) == 2  # the console does what the runtime does
    assert [name for name, account in accounts.items() if "jetstream" in account] == ["runtime"]


def test_every_export_names_the_accounts_that_import_it(run: Run, tmp_path: Path) -> None:
    run(APP, "--client", "one", "--client", "two", "--operator", "ops")
    accounts = config_in(tmp_path / "out")
    for name, account in accounts.items():
        for entry in account.get("imports", ()):
            ((kind, what),) = entry.items()
            (export,) = [e for e in accounts[what["account"]]["exports"] if e.get(kind) == what["subject"]]
            assert name in export["accounts"]
        for export in account.get("exports", ()):
            assert export["accounts"], "an export without names is for everybody"
    imported = json.dumps([account.get("imports") for account in accounts.values()])
    for never in ("CONSUMER.CREATE", "STREAM.", "CONSUMER.DELETE", "CONSUMER.INFO", "_INBOX.>", "_R_"):
        assert never not in imported


def test_it_keeps_keys_adds_what_is_new_and_says_what_is_left(run: Run, tmp_path: Path) -> None:
    run("--client", "old", "--worker", "w=a.task")
    seeds = tmp_path / "out" / "seeds"
    before = {file.name: file.read_text() for file in seeds.iterdir()}

    said = run("--client", "new", "--worker", "w=a.task,b.task")

    assert {file.name: file.read_text() for file in seeds.iterdir()}.items() >= before.items()
    assert "1 new key" in said
    assert "old.nk belongs to no login any more" in said
    assert "old" not in config_in(tmp_path / "out")
    assert "task-b-task" in json.dumps(config_in(tmp_path / "out")["w"])


def test_tenants_have_the_same_logins_apart(run: Run, tmp_path: Path) -> None:
    run("--tenant", "acme", "--tenant", "beta")
    accounts = config_in(tmp_path / "out")
    assert {name.partition(".")[0] for name in accounts} == {"acme", "beta"}
    for name, account in accounts.items():
        partners = {each[kind]["account"] for each in account.get("imports", ()) for kind in each}
        partners |= {partner for export in account.get("exports", ()) for partner in export["accounts"]}
        assert {partner.partition(".")[0] for partner in partners} == {name.partition(".")[0]}
    keys = [user["nkey"] for account in accounts.values() for user in account["users"]]
    assert len(set(keys)) == len(keys)


def test_a_server_configuration_of_ones_own_is_kept(run: Run, tmp_path: Path) -> None:
    run()
    server = tmp_path / "out" / "nats-server.conf"
    server.write_text("port: 4333\n")
    assert 'needs the line: include "accounts.conf"' in run().replace("\n", " ")
    assert server.read_text() == "port: 4333\n"


@pytest.mark.parametrize("arguments", [(), ("--prefix", "shop"), ("--tenant", "acme", "--tenant", "beta")])
def test_a_server_takes_what_is_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    run(APP, *arguments)
    if arguments[:1] == ("--prefix",):
        assert '"plancast.' not in (tmp_path / "out" / "accounts.conf").read_text()
    config = tmp_path / "nats.conf"
    config.write_text(f'jetstream {{ store_dir: "{tmp_path / "store"}" }}\ninclude "out/accounts.conf"\n')
    done = subprocess.run([find_binary(), "-t", "-c", config], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


def test_secrets_of_kubernetes_are_the_owners_alone(run: Run, tmp_path: Path) -> None:
    said = json.loads(run("--format", "helm", "--tenant", "acme", "--json"))
    assert said["files"] == ["nats-accounts.yaml", "nats-secrets.yaml"]
    assert (tmp_path / "out" / "nats-secrets.yaml").stat().st_mode & 0o777 == 0o600
    assert "plancast-acme-client-nkey" in (tmp_path / "out" / "nats-secrets.yaml").read_text()
    assert "SU" not in [word[:2] for word in (tmp_path / "out" / "nats-accounts.yaml").read_text().split('"')]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--client", "Bad Name"), "'Bad Name' is no name for a login"),
        (("--client", "../../etc"), "is no name for a login"),
        (("--tenant", "a.b"), "is no name for a login or tenant"),
        (("--tenant", "a", "--tenant", "a"), "more than one tenant named 'a'"),
        (("--client", "runtime"), "more than one login named 'runtime'"),
        (("--worker", "painter"), "expected a worker and its tasks"),
        (("--worker", "painter="), "expected a worker and its tasks"),
        (("--worker", "p=not a task"), "is no event type"),
        (("--worker", "p=*"), "is no event type"),
        (("--worker", "p=a", "--worker", "p=b"), "more than one worker named 'p'"),
        (("--worker", "p=a.b", "--worker", "q=a.b.undo"), "'a.b.undo' has the name of an undo of login 'p'"),
        ((APP, "--worker", "p=draft.prin"), "has no task 'draft.prin'"),
        (("--prefix", "a.b"), "cannot be a subject prefix"),
        (("no_such_module:app",), "no_such_module"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_written(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    assert complaint in " ".join(run(*arguments, code=2).split())
    assert not (tmp_path / "out").exists()


def test_a_task_of_a_worker_elsewhere_is_named_in_the_settings(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Did you mean 'draft.print'?" in run(APP, "--worker", "p=draft.prin", code=2)
    monkeypatch.setenv("PLANCAST_WORKERS__TASKS", '["image.*"]')
    assert "is no event type" in " ".join(run(APP, code=2).split())
    monkeypatch.setenv("PLANCAST_WORKERS__TASKS", '["image.render"]')
    assert "worker (image.render)" in run(APP, "--worker", "p=image.render")


def test_a_folder_that_cannot_be_one_and_a_seed_that_others_may_read_are_refused(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("a file")
    assert "takes a folder" in run(code=2)
    out.unlink()
    run()
    (out / "seeds" / "client.nk").chmod(0o644)
    assert "may be compromised" in run(code=1)
    (out / "seeds" / "client.nk").chmod(0o600)
    (out / "seeds" / "client.nk").write_text("SUNOSEED")
    said = run(code=1)
    assert "does not contain the seed" in said
    assert "SUNOSEED" not in said


def test_it_loads_neither_ray_nor_litellm(tmp_path: Path) -> None:
    code = (
        "import sys; from plancast.cli import main; "
        f"main(['nats-config', '--output', {str(tmp_path)!r}]); "
        "sys.exit(str([name for name in ('ray', 'litellm') if name in sys.modules]) if "
        "{'ray', 'litellm'} & sys.modules.keys() else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
