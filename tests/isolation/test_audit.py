"""The audit of the lock files, which `make check` runs."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SERVER = {"version": "1.0.0", "integrity": "sha512-abc"}
HASH = "--hash=sha256:" + "0" * 64
PROJECT = """
[project]
dependencies = ["a>=1,<2"]
[project.optional-dependencies]
telemetry = ["t>=1"]
[dependency-groups]
dev = ["b[x]>=2"]
bench = ["p>=3"]
image = ["i>=1"]
"""
NAMES = ("runtime.txt", "dev.txt", "bench.txt", "image.txt")


@pytest.fixture
def audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "scripts" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "LOCKS", [tmp_path / name for name in NAMES])
    monkeypatch.setattr(module, "PEERS", tmp_path / "peers")
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "runtime.txt").write_text(f"a==1.5 \\\n    {HASH} \\\n    {HASH}\n")
    (tmp_path / "dev.txt").write_text(f"a==1.5 {HASH}\nb[x]==2.0 ; python_version > '3' \\\n    {HASH}\n")
    (tmp_path / "bench.txt").write_text(f"a==1.5 {HASH}\np==3.1 {HASH}\n")
    (tmp_path / "image.txt").write_text(f"a==1.5 {HASH}\nt==1.0 {HASH}\ni==1.2 {HASH}\n")
    peer = tmp_path / "peers" / "rival"
    peer.mkdir(parents=True)
    (peer / "requirements.in").write_text("rival==7\n")
    (peer / "requirements.txt").write_text(f"a==9 {HASH}\nrival==7 {HASH}\n")
    (peer / "package-lock.json").write_text(json.dumps({"packages": {"": {"name": "x"}, "server": SERVER}}))
    return module


def test_locks_that_are_pinned_pass(audit: ModuleType) -> None:
    assert audit.locks() == 0


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (f"a==2.5 {HASH}", "a<2,>=1 is locked at 2.5"),
        ("a==1.5", "is not pinned"),
        (f"a>=1.5 {HASH}", "is not pinned"),
        (f"a @ https://example.com/a.whl {HASH}", "is not pinned"),
        (f"--find-links ./wheels\na==1.5 {HASH}", "is not pinned"),
        (f"a==1.5 {HASH}\nc==1 {HASH}", "c is 1 in runtime.txt"),
        ("", "no version"),
    ],
)
def test_what_is_not_pinned_is_named(
    audit: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, fault: str
) -> None:
    (tmp_path / "runtime.txt").write_text(line + "\n")

    assert audit.locks() == 1
    assert fault in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "content", "fault"),
    [
        ("bench.txt", f"p==3.1 {HASH}\na==1.6 {HASH}", "a is 1.6 in bench.txt"),
        ("bench.txt", f"p==2.9 {HASH}", "bench.txt: p>=3 is locked at 2.9"),
        ("image.txt", f"a==1.5 {HASH}\ni==1.2 {HASH}", "image.txt: t>=1 is locked at no version"),
        ("peers/rival/requirements.txt", "rival==7", "rival/requirements.txt: 'rival==7' is not pinned"),
        ("peers/rival/requirements.txt", f"rival==8 {HASH}", "rival/requirements.txt: rival==7 is locked at 8"),
        ("peers/rival/requirements.txt", "", "rival/requirements.txt pins nothing"),
        ("peers/rival/package-lock.json", json.dumps({"packages": {"server": {"version": "1.0.0"}}}), "server is not"),
        (
            "peers/rival/package-lock.json",
            json.dumps({"packages": {"server": {**SERVER, "resolved": "an address"}}}),
            "server is not pinned by version and hash alone",
        ),
    ],
)
def test_what_the_benchmarks_install_is_audited_too(
    audit: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, content: str, fault: str
) -> None:
    (tmp_path / file).write_text(content + "\n")

    assert audit.locks() == 1
    assert fault in capsys.readouterr().out


def test_each_environment_is_asked_about_on_its_own(audit: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        asked.append([Path(word).name for word in command if word.endswith(".txt")])
        return subprocess.CompletedProcess(command, len(asked) - 1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(audit, "ADVISORIES", server.getsockname())
        monkeypatch.setattr(audit.subprocess, "run", run)

        assert audit.advisories(strict=False) == 1

    assert asked == [[*NAMES], ["requirements.txt"]]


def test_that_nobody_could_be_asked_is_said(audit: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    audit.ADVISORIES = ("127.0.0.1", 1)

    assert audit.advisories(strict=False) == 0
    assert audit.advisories(strict=True) == 1
    assert "not audited" in capsys.readouterr().out
