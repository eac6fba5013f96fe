"""The files in deploy/, read; and strict forms of what no published schema here describes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
VALUES = KUBERNETES / "nats-values.yaml"
COMPOSE = DEPLOY / "compose" / "compose.yaml"


class Strict(BaseModel):
    """Nothing but what is named here, since a name that is spelled wrongly is passed over in silence elsewhere."""

    model_config = ConfigDict(extra="forbid")


class Meta(Strict):
    """Of an object of Kubernetes."""

    name: str
    namespace: str
    labels: dict[str, str] = {}


class HeadGroup(Strict):
    """ray.io/v1, ``headGroupSpec``."""

    serviceType: Literal["ClusterIP"]  # noqa: N815 - so it is spelled
    rayStartParams: dict[str, str]  # noqa: N815
    template: dict[str, Any]


class WorkerGroup(Strict):
    """ray.io/v1, one of ``workerGroupSpecs``."""

    groupName: str = Field(pattern=r"^[a-z][a-z0-9-]*$")  # noqa: N815
    replicas: int
    minReplicas: int  # noqa: N815
    maxReplicas: int  # noqa: N815
    rayStartParams: dict[str, str]  # noqa: N815
    template: dict[str, Any]


class AutoscalerOptions(Strict):
    """ray.io/v1, of the container that runs Ray's autoscaler beside the head."""

    idleTimeoutSeconds: int  # noqa: N815
    upscalingMode: Literal["Default", "Conservative", "Aggressive"] = "Default"  # noqa: N815
    env: list[dict[str, str]] = []
    volumeMounts: list[dict[str, Any]] = []  # noqa: N815
    securityContext: dict[str, Any] = {}  # noqa: N815


class RayClusterSpec(Strict):
    """ray.io/v1."""

    rayVersion: str = Field(pattern=r"^\d+\.\d+\.\d+$")  # noqa: N815
    enableInTreeAutoscaling: bool = False  # noqa: N815
    autoscalerOptions: AutoscalerOptions | None = None  # noqa: N815
    headGroupSpec: HeadGroup  # noqa: N815
    workerGroupSpecs: list[WorkerGroup]  # noqa: N815


class RayCluster(Strict):
    """ray.io/v1."""

    apiVersion: Literal["ray.io/v1"]  # noqa: N815
    kind: Literal["RayCluster"]
    metadata: Meta
    spec: RayClusterSpec


class Healthcheck(Strict):
    """Of a compose service."""

    test: list[str]
    interval: str = Field(pattern=r"^\d+s$")
    timeout: str = Field(pattern=r"^\d+s$")
    retries: int
    start_period: str = Field("0s", pattern=r"^\d+s$")


class Condition(Strict):
    """Of a compose dependency."""

    condition: Literal["service_started", "service_healthy"]


class Hook(Strict):
    """Of a compose service: a command in its container before it stops."""

    command: list[str]


class Service(Strict):
    """Of a compose file."""

    image: str
    command: list[str]
    environment: dict[str, str] = {}
    secrets: list[str] = []
    volumes: list[str] = []
    ports: list[str] = []
    healthcheck: Healthcheck | None = None
    depends_on: dict[str, Condition] = {}
    restart: Literal["unless-stopped", "no"] = "no"
    working_dir: str = ""
    profiles: list[str] = []
    pre_stop: list[Hook] = []
    stop_grace_period: str = Field("10s", pattern=r"^\d+s$")
    shm_size: str = ""
    security_opt: list[str] = []
    cap_drop: list[str] = []


class Secret(Strict):
    """Of a compose file: from a file, or from a variable of the environment."""

    file: str = ""
    environment: str = ""


class Compose(Strict):
    """A compose file."""

    name: str
    services: dict[str, Service]
    volumes: dict[str, dict[str, Any]]
    secrets: dict[str, Secret] = {}


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """All objects of Kubernetes, with the file that each is from."""
    for file in sorted(KUBERNETES.glob("*.yaml")):
        if file != VALUES:
            for found in yaml.safe_load_all(file.read_text()):
                yield file.name, found


def compose() -> dict[str, Any]:
    """The compose file, without what only its own anchors refer to."""
    found = yaml.safe_load(COMPOSE.read_text())
    return {key: value for key, value in found.items() if not key.startswith("x-")}


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    """All containers of all pods, with where they are."""
    for file, found in documents():
        for template in _templates(found):
            spec = template["spec"]
            for each in (*spec.get("initContainers", ()), *spec["containers"]):
                yield f"{file}: {each['name']}", each


def commands() -> Iterator[list[str]]:
    """Every ``plancast`` command that deploy/ has run: in containers, probes, hooks and compose services."""
    for _, container in containers():
        yield from _plancast(container.get("command", []))
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            yield from _plancast(container.get(probe, {}).get("exec", {}).get("command", []))
        yield from _plancast(container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", []))
    for service in compose()["services"].values():
        yield from _plancast(service["command"])
        yield from _plancast(service.get("healthcheck", {}).get("test", []))
        for hook in service.get("pre_stop", ()):
            yield from _plancast(hook["command"])


def environments() -> Iterator[str]:
    """Names of all variables that are set."""
    for _, container in containers():
        yield from (each["name"] for each in container.get("env", ()))
    for _, found in documents():
        if found["kind"] == "ConfigMap":
            yield from found["data"]
    for service in compose()["services"].values():
        yield from service.get("environment", {})


def images() -> Iterator[str]:
    """Every image that deploy/ has run, or builds upon."""
    yield from re.findall(r"^FROM (\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    yield from (container["image"] for _, container in containers())
    yield from (service["image"] for service in compose()["services"].values())
    values = yaml.safe_load(VALUES.read_text())
    for part in ("container", "reloader"):
        yield f"{values[part]['image']['repository']}:{values[part]['image']['tag']}"


def rendered_nats_config(base: dict[str, Any], *further: Path) -> str:
    """What the chart makes of ``config.merge`` of all values: JSON, in which ``<< x >>`` is taken out of its quotes."""
    made = dict(base)
    for file in (VALUES, *further):
        made |= yaml.safe_load(file.read_text())["config"]["merge"]
    return re.sub(r'"<< (.*?) >>"', r"\1", json.dumps(made, indent=2))


def _templates(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    spec = found.get("spec", {})
    if found["kind"] == "RayCluster":
        yield spec["headGroupSpec"]["template"]
        yield from (group["template"] for group in spec["workerGroupSpecs"])
    elif "template" in spec:
        yield spec["template"]
    elif "jobTemplate" in spec:
        yield spec["jobTemplate"]["spec"]["template"]


def _plancast(command: list[str]) -> Iterator[list[str]]:
    if command and command[0] == "plancast":
        yield command[1:]
    for words in (each.split() for each in command if "plancast " in each and " " in each):
        for at, word in enumerate(words):
            if word == "plancast":
                end = next((i for i in range(at, len(words)) if words[i] in ("&&", "||", "|", ";")), len(words))
                yield words[at + 1 : end]
