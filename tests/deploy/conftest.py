"""The image, built once for all tests that run containers of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from filelock import FileLock
from tests.deploy.containers import Image
from tests.deploy.manifests import DEPLOY


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Image]:
    """Build deploy/Dockerfile from this working tree: one image for all test processes, removed by the last one."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "image"
    users, built = folder / "users", folder / "image.json"
    lock = FileLock(f"{folder}.lock")
    with lock:
        if not built.is_file():
            made = Image.build(DEPLOY / "Dockerfile", DEPLOY.parent, folder)
            users.mkdir()
            built.write_text(made.model_dump_json())
        (users / worker_id).touch()
    yield Image.model_validate_json(built.read_text())
    with lock:
        (users / worker_id).unlink()
        if not any(users.iterdir()):
            shutil.rmtree(folder)
