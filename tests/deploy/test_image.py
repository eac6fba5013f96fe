"""The image is made by the steps of the Dockerfile, from what it copies and what the lock says."""

from __future__ import annotations

import re

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
