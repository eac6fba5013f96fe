"""The compose file's services, started as it says: their commands, users, files, secrets, health checks and order."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.deploy.containers import Container, Image, Network, unavailable
from tests.deploy.manifests import COMPOSE, DEPLOY, Compose, Service, compose

from plancast.cli import main
from plancast_bus.nats_server.process import find_binary

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(unavailable()), reason=unavailable()),
]
CONSOLE_TOKEN = secrets.token_hex(16)
ENTRYPOINTS = {"nats": ["nats-server"]}  # of images that are not ours
GOAL = json.dumps({"event_type": "research.goal", "data": {"topic": "coroutines"}})


@pytest.fixture
def project(image: Image, tmp_path: Path) -> Iterator[Project]:
    app = tmp_path / "app"
    shutil.copytree(DEPLOY.parent / "examples", app / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    assert main(["nats-config", "examples.research:app", "--output", str(tmp_path / "nats")]) == 0
    for seed in (tmp_path / "nats" / "seeds").iterdir():
        os.chown(seed, int(image.user), int(image.user))  # as the compose file's first lines say
    environment = {
        "PLANCAST_RAY_TOKEN": secrets.token_hex(32),
        "PLANCAST_CONSOLE_TOKENS": json.dumps({"ada": CONSOLE_TOKEN}),
        "PLANCAST_APP": "examples.research:app",
        "PLANCAST_PROJECT": str(app),
        "PLANCAST_NATS_CONFIG": str(tmp_path / "nats"),
    }
    with Network(image, tmp_path / "containers") as network:
        yield Project(network, environment, tmp_path)


class Project:
    """Starts the compose file as ``docker compose up --wait`` does."""

    def __init__(self, network: Network, environment: dict[str, str], folder: Path) -> None:
        self.network, self.environment, self.folder = network, environment, folder
        self.file = Compose.model_validate_json(interpolated(json.dumps(compose()), environment))

    def up(self) -> None:
        """Start all services but those of a profile, each when what it depends on is as it demands."""
        for name, service in self.file.services.items():
            if not service.profiles:
                self.start(name, service)

    def start(self, name: str, service: Service) -> Container:
        """Start a service."""
        for needed, condition in service.depends_on.items():
            container, check = self.network.containers[needed], self.file.services[needed].healthcheck
            if condition.condition == "service_healthy":
                assert check is not None
                kind, *words = check.test
                container.wait_until(*(words if kind == "CMD" else ["sh", "-c", *words]))
        ours = service.image == "plancast"
        return self.network.start(
            name, [*ENTRYPOINTS.get(name, []), *service.command], environment=service.environment,
            files=self.files(service), user="" if ours else "0", folder=service.working_dir,
        )  # fmt: skip

    def files(self, service: Service) -> dict[str, Path]:
        """Volumes and secrets of a service, by where it sees them."""
        found = {"/usr/local/bin/nats-server": Path(find_binary())} if service.image.startswith("nats:") else {}
        for volume in service.volumes:
            source, target = volume.removesuffix(":ro").split(":")
            place = COMPOSE.parent / source if source.startswith((".", "/")) else self.folder / "volumes" / source
            if not place.exists():
                place.mkdir(parents=True)
            found[target] = place
        for name in service.secrets:
            secret = self.file.secrets[name]
            place = COMPOSE.parent / secret.file
            if secret.environment:
                place = self.folder / name
                place.write_text(self.environment[secret.environment])
                place.chmod(0o444)  # as compose makes it
            found[f"/run/secrets/{name}"] = place
        return found


def test_what_the_file_describes_runs_a_plan(project: Project) -> None:
    project.up()
    run_plan(project)
    service = project.file.services["upgrade"]
    check = project.start("check", service.model_copy(update={"command": [*service.command, "--check"]}))
    assert check.wait() == 0, check.said()
    upgrade = project.start("upgrade", service)
    assert upgrade.wait() == 0, upgrade.said()


@pytest.mark.chaos
def test_the_app_is_deployed_again_when_ray_was_lost(project: Project) -> None:
    project.up()
    deployer = project.network.containers["deploy"]
    deployer.wait_until_said("watching")
    project.network.containers["ray"].kill()
    project.start("ray", project.file.services["ray"])
    deployer.wait_until_said("deployed again")
    run_plan(project)


def run_plan(project: Project) -> None:
    """Wait until the console says that plans can be run, and run one."""
    console = project.network.containers["console"]
    check = project.file.services["console"].healthcheck
    assert check is not None
    console.wait_until("sh", "-c", check.test[1])
    header = f"--header=Authorization: Bearer {CONSOLE_TOKEN}"
    submitted = console.wait_until(
        "wget", "-qO-", header, "--header=Content-Type: application/json",
        f"--post-data={GOAL}", "http://127.0.0.1:7878/api/v1/plans",
    )  # fmt: skip
    plan = f"http://127.0.0.1:7878/api/v1/plans/{json.loads(submitted)['plan_id']}"
    console.wait_until("sh", "-c", f"wget -qO- '{header}' {plan} | grep -q '\"completed\"'")


def interpolated(text: str, environment: dict[str, str]) -> str:
    """The text with its variables replaced, as compose does."""

    def value(found: re.Match[str]) -> str:
        name, operator, rest = found.groups()
        assert operator == ":-" or name in environment, rest
        return json.dumps(environment.get(name, rest))[1:-1]

    return re.sub(r"\$\{(\w+)(:[-?])([^}]*)\}", value, text)
