"""The image is made of what the Dockerfile copies, by the commands that it has, from what the lock says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.deploy.manifests import DEPLOY

DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
ROOT = DEPLOY.parent
INSTALLS = [line.split() for line in re.findall(r"^RUN pip install (.+)$", DOCKERFILE, re.MULTILINE)]
LOCK, PROJECT = INSTALLS


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The image's /src, as its COPY lines make it."""
    made = tmp_path / "src"
    for names, target in re.findall(r"^COPY (.+) /src/?(\S*)$", DOCKERFILE, re.MULTILINE):
        for name in names.split():
            place = made / target if target and len(names.split()) == 1 else made / target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, place, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, place)
    return made


def test_what_is_installed_is_named_by_its_hash_or_is_the_project() -> None:
    assert {"--require-hashes", "-r", "requirements/image.txt"} <= set(LOCK)
    assert {"--no-deps", "--no-build-isolation", "."} <= set(PROJECT)
    assert "pip install" not in re.sub(r"^(RUN pip install|#).*$", "", DOCKERFILE, flags=re.MULTILINE)


@pytest.mark.slow
def test_the_project_installs_from_what_is_copied(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    install(Path(sys.executable), source, [*PROJECT, "--target", str(target)])
    for demo in ("research", "orders", "feedback", "triage"):
        assert not (target / "plancast" / "demo" / f"{demo}.py").is_symlink()
    said = run(
        [sys.executable, "-P", "-c", "import plancast.cli as c, plancast.demo.apps.research; print(c.__file__)"],
        tmp_path, PYTHONPATH=str(target),
    )  # fmt: skip
    assert said.strip() == str(target / "plancast" / "cli" / "__init__.py")
    assert "Usage: " in run([sys.executable, "-P", "-m", "plancast", "--help"], tmp_path, PYTHONPATH=str(target))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_fresh_environment_is_made_as_the_image_is(source: Path, tmp_path: Path) -> None:
    run([sys.executable, "-m", "venv", str(tmp_path / "venv")], tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    for arguments in INSTALLS:
        install(python, source, arguments)
    for command in ("--help", "demo --help"):
        assert "Usage: " in run([str(python.with_name("plancast")), *command.split()], tmp_path)
    telemetry = (
        "import opentelemetry.sdk, ray.dashboard.head, plancast_actors.ray.connection, plancast.demo.apps.orders"
    )
    run([str(python), "-P", "-c", telemetry], tmp_path)
    run([str(python), "-m", "pip", "check"], tmp_path)


def install(python: Path, source: Path, arguments: list[str]) -> None:
    run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments], source)


def run(command: list[str], folder: Path, **environment: str) -> str:
    others = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        command, cwd=folder, env=others | environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
