"""`plancast new`: what it makes is valid, passes its own tests, and runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from plancast.cli import main

ROOT = Path(__file__).parents[4]
BIN = Path(sys.executable).parent
TEMPLATES = ["machine", "agent", "worker"]
GOALS = {
    "machine": ({"topic": "tides"}, "tides: what tides is; why tides matters."),
    "agent": ({"question": "What makes the tides?"}, "tides"),
    "worker": ({"text": "two words"}, '"letters": 8'),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def environment() -> dict[str, str]:
    """Without what would be another deployment's, or the tests' own."""
    ours = {"NATS_URL", "RAY_ADDRESS", "PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS", "COVERAGE_PROCESS_START"}
    return {name: value for name, value in os.environ.items() if name not in ours}


@pytest.mark.slow
def test_projects_are_valid_and_pass_their_own_tests(folder: Path) -> None:
    started: dict[str, list[subprocess.Popen[str]]] = {}
    for template in TEMPLATES:
        assert main(["new", "my-agents", "--template", template, "--directory", template]) == 0
        project = folder / template
        made = {str(each.relative_to(project)) for each in project.rglob("*") if each.is_file()}
        assert made == {".dockerignore", ".gitignore", "README.md", "app.py", "pyproject.toml", "tests/test_app.py"}
        assert not any("${" in (project / each).read_text() for each in made)
        started[template] = [
            subprocess.Popen(
                command, cwd=project, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            for command in (
                [BIN / "plancast", "validate", "app:app", "--json"],
                [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
            )
        ]  # fmt: skip
    for template, processes in started.items():
        (valid, _), (tested, _) = (each.communicate(timeout=100) for each in processes)
        assert [each.returncode for each in processes] == [0, 0], (template, valid, tested)
        said = json.loads(valid)
        assert (said["faults"], said["warnings"]) == ([], [])
        assert "passed" in tested


@pytest.mark.slow
def test_a_project_runs_with_the_commands_of_its_readme(folder: Path) -> None:
    assert main(["new", "my-agents", "--template", "agent"]) == 0
    project = folder / "my-agents"
    run = [BIN / "plancast", "run", "app:app", "--json", "--hosts", "1"]
    with subprocess.Popen(run, cwd=project, env=environment(), stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert json.loads(running.stdout.readline())["ready"]
            goal, expected = GOALS["agent"]
            command = [BIN / "plancast", "submit", "my-agents.goal", "--data", json.dumps(goal), "--wait"]
            done = subprocess.run(
                [*command, "--timeout", "60"],
                cwd=project,
                env=environment(),
                capture_output=True,
                text=True,
                timeout=90,
            )
            assert done.returncode == 0, done.stderr
            assert expected in done.stdout
            well = subprocess.run(
                [BIN / "plancast", "doctor", "--json"],
                cwd=project, env=environment(), capture_output=True, text=True, timeout=90,
            )  # fmt: skip
            findings = {each["check"]: each for each in json.loads(well.stdout)["findings"]}
            assert well.returncode == 0, well.stdout
            assert "1 node" in findings["ray"]["detail"]
            assert "1 dispatcher, 1 host, 1 worker" in findings["actors"]["detail"]
            assert "every 2m" in findings["storage"]["detail"]
            assert "free of" in findings["disk"]["detail"]
            running.send_signal(signal.SIGTERM)
            assert running.wait(60) == 0
        finally:
            running.kill()


def test_nothing_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "app.py").write_text("precious")
    assert main(["new", "mine"]) == 2
    assert "existing files are not overwritten" in capsys.readouterr().err
    assert [each.name for each in (folder / "mine").iterdir()] == ["app.py"]
    assert main(["new", "mine", "--directory", "elsewhere/deep", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["goal"] == "mine.goal"
    assert (folder / "elsewhere/deep/app.py").exists()


def test_a_folder_that_is_empty_is_taken(folder: Path) -> None:
    (folder / "empty").mkdir()
    assert main(["new", "mine", "--directory", "empty"]) == 0


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("9lives", "not a valid project name"),
        ("a b", "not a valid project name"),
        ("../up", "not a valid project name"),
        ("trailing-", "not a valid project name"),
        ("", "not a valid project name"),
        ("x" * 51, "longer than 50"),
        ("plancast", "shadow"),
        ("Tests", "shadow"),
    ],
)
def test_a_name_that_cannot_be_is_refused(
    name: str, why: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", name]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert "hint: " in said
    assert list(folder.iterdir()) == []


def test_the_wheel_holds_the_templates(folder: Path) -> None:
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    built = subprocess.run(
        [sys.executable, "-c", build, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    names = zipfile.ZipFile(folder / built.stdout.split()[-1]).namelist()
    for template in TEMPLATES:
        assert f"plancast/cli/apps/templates/{template}/app.py.tmpl" in names
    assert {f"plancast/cli/apps/templates/common/{name}.tmpl" for name in ("gitignore", "dockerignore")} <= set(names)
