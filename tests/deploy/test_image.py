"""The image is made by the steps of the Dockerfile, from what it copies and what the lock says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.deploy.containers import Image, Network, unavailable
from tests.deploy.manifests import DEPLOY

DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
MODULES = "opentelemetry.sdk, ray.dashboard.head, plancast_actors.ray.connection, plancast.demo.apps.orders"


def test_what_is_installed_is_named_by_its_hash_or_is_the_project() -> None:
    lock, project = (line.split() for line in re.findall(r"^RUN pip install (.+)$", DOCKERFILE, re.MULTILINE))
    assert {"--require-hashes", "-r", "requirements/image.txt"} <= set(lock)
    assert {"--no-deps", "--no-build-isolation", "."} <= set(project)
    assert "pip install" not in re.sub(r"^(RUN pip install|#).*$", "", DOCKERFILE, flags=re.MULTILINE)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(bool(unavailable()), reason=unavailable())
def test_what_is_built_starts(image: Image, tmp_path_factory: pytest.TempPathFactory) -> None:
    with Network(image, tmp_path_factory.mktemp("containers") / "within") as network:
        container = network.start("plancast", ["sleep", "infinity"])
        for command in ("plancast --help", "plancast demo --help"):
            assert "Usage: " in container.wait_until(*command.split())
        # The project in the image is the installed one.
        found = container.wait_until("python", "-P", "-c", f"import {MODULES}; print(plancast.__file__)")
        assert found.strip().startswith("/usr/local/lib/python3")
        container.wait_until("pip", "check")
        assert container.wait_until("id", "-u").strip() == "1000"


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(bool(unavailable()), reason=unavailable())
def test_a_released_wheel_does_what_the_readme_says(image: Image, tmp_path: Path) -> None:
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*wheel, tmp_path / "dist", DEPLOY.parent], check=True, timeout=300)
    readme = (DEPLOY.parent / "README.md").read_text()
    app = next(code for code in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if 'Planner("greeter")' in code)
    lines = [line.partition("  #")[0] for line in readme.splitlines() if line.startswith("$ plancast ")]
    validate, run, submit = (line.removeprefix("$ ").strip() for line in lines)
    folder = tmp_path / "work"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "greetings.py").write_text(app)
    user = ["setpriv", "--reuid", "1000", "--clear-groups", "env", "-C", "/work"]
    with Network(image, tmp_path / "containers") as network:
        # The project in the image goes; its dependencies stay, those of the lock.
        install = "pip uninstall --quiet --yes plancast && pip install --quiet --no-deps /dist/*.whl"
        container = network.start(
            "machine", ["sh", "-c", f"{install} && exec {' '.join(user)} {run}"], user="0",
            files={"/dist": tmp_path / "dist", "/work": folder},
        )  # fmt: skip
        assert "Hello, Ada!" in container.wait_until(*user, "sh", "-c", submit)
        assert "app 'greetings' is valid" in container.wait_until(*user, "sh", "-c", validate)
        found = container.wait_until(*user, "python", "-P", "-c", "import plancast; print(plancast.__file__)")
        assert found.startswith("/usr/local/")
