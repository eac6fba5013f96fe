"""What of a project goes to the cluster."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from plancast_actors.deployment import code_archive
from plancast_actors.deployment.code_archive import CannotShip, CodeArchive


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in (
        "app.py",
        "shop/__init__.py",
        "shop/data.csv",
        ".git/config",
        ".venv/lib/x.py",
        "envs/mine/pyvenv.cfg",
        "envs/mine/lib/x.py",
        "shop/__pycache__/x.pyc",
        ".env",
        "certs/server.key",
        "user.nk",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_code_goes_and_caches_environments_and_secrets_stay(project: Path) -> None:
    assert CodeArchive.of(project).files == ("app.py", "shop/__init__.py", "shop/data.csv")


def test_what_is_excluded_stays(project: Path) -> None:
    assert CodeArchive.of(project, exclude=["*.csv"]).files == ("app.py", "shop/__init__.py")
    assert CodeArchive.of(project, exclude=["shop/"]).files == ("app.py",)


def test_what_is_too_large_stays_and_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_archive, "MAX_FILE_BYTES", 1000)
    (project / "model.bin").write_bytes(b"x" * 1001)
    made = CodeArchive.of(project)
    assert made.too_large == ("model.bin",)
    assert "model.bin" not in made.files


def test_too_much_is_refused_and_says_where_it_is(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_archive, "MAX_BYTES", 1000)
    (project / "big").mkdir()
    (project / "big" / "x").write_bytes(b"x" * 1001)
    with pytest.raises(CannotShip, match="most is in big"):
        CodeArchive.of(project)


def test_nothing_and_nowhere_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotShip, match="nothing to ship"):
        CodeArchive.of(tmp_path)
    with pytest.raises(CannotShip, match="no folder"):
        CodeArchive.of(tmp_path / "nowhere")


def test_a_digest_names_content_and_requirements_not_place_or_time(project: Path, tmp_path: Path) -> None:
    before = CodeArchive.of(project).digest
    os.utime(project / "app.py", (0, 0))
    moved = project.rename(tmp_path / "elsewhere")
    assert CodeArchive.of(moved).digest == before
    assert CodeArchive.of(moved, requirements=["x==1"]).digest != before
    (moved / "app.py").write_text("other")
    assert CodeArchive.of(moved).digest != before


def test_an_archive_holds_the_files_and_no_time(project: Path, tmp_path: Path) -> None:
    made = CodeArchive.of(project, requirements=["x==1"])
    first, second = tmp_path / "1.zip", tmp_path / "2.zip"
    made.write(first)
    os.utime(project / "app.py", (0, 0))
    made.write(second)
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        assert archive.namelist() == list(made.files)
    assert made.runtime_env(first) == {"working_dir": str(first), "pip": ["x==1"]}
