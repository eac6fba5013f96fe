"""The audit of the lock files, which `make check` runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
HASH = "--hash=sha256:" + "0" * 64
PROJECT = '[project]\ndependencies = ["a>=1,<2"]\n[dependency-groups]\ndev = ["b[x]>=2"]\n'


@pytest.fixture
def audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "scripts" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "LOCKS", [tmp_path / "runtime.txt", tmp_path / "dev.txt"])
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "runtime.txt").write_text(f"a==1.5 \\\n    {HASH} \\\n    {HASH}\n")
    (tmp_path / "dev.txt").write_text(f"a==1.5 {HASH}\nb[x]==2.0 ; python_version > '3' \\\n    {HASH}\n")
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


def test_that_nobody_could_be_asked_is_said(audit: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    audit.ADVISORIES = ("127.0.0.1", 1)

    assert audit.advisories(strict=False) == 0
    assert audit.advisories(strict=True) == 1
    assert "not audited" in capsys.readouterr().out
