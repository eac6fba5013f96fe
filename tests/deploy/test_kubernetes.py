"""Starts deploy/kubernetes: pods with their commands, users, settings, secrets, and probes.

This module plays the parts of KubeRay (commands of Ray's nodes) and of the NATS chart (the servers' configuration).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.containers import Container, Image, Network, unavailable
from tests.deploy.manifests import VALUES, documents, rendered_nats_config
from tests.isolation.nats_with_roles import make_certificates

from plancast.cli import main
from plancast_bus.nats_server.process import find_binary

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(unavailable()), reason=unavailable()),
]
CONSOLE_TOKEN, RAY_TOKEN = secrets.token_hex(16), secrets.token_hex(32)
GOAL = json.dumps({"event_type": "research.goal", "data": {"topic": "coroutines"}})
SERVERS = [f"nats-{number}" for number in range(yaml.safe_load(VALUES.read_text())["config"]["cluster"]["replicas"])]
HEAD = "plancast-head-svc"
Document = Mapping[str, Any]


@pytest.fixture
def cluster(image: Image, tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "orders.py").write_text("from plancast.demo.apps.research import app as app\n")
    assert main(["nats-config", "plancast.demo.apps.research:app", "--format", "helm", "--output", str(tmp_path)]) == 0
    with Network(image, tmp_path / "containers") as network:
        yield Cluster(network, tmp_path)


class Cluster:
    """The namespace of deploy/kubernetes."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder = network, folder
        found = [each for _, each in documents()]
        self.settings = next(each for each in found if each["kind"] == "ConfigMap")["data"]
        self.ray = next(each for each in found if each["kind"] == "RayCluster")["spec"]
        deployments = {each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == "Deployment"}
        self.deployer, self.console = deployments["plancast-deployer"], deployments["plancast-console"]
        self.secrets = self._secrets()

    def _secrets(self) -> dict[str, dict[str, str]]:
        names = ["nats.plancast.svc", *(f"{server}.nats-headless" for server in SERVERS), *SERVERS]
        certificates = make_certificates(self.folder, *names)
        certificate, key = certificates.server
        made = {
            "plancast-nats-tls": {
                "tls.crt": certificate.read_text(), "tls.key": key.read_text(), "ca.crt": certificates.ca.read_text()
            },
            "plancast-nats-ca": {"ca.crt": certificates.ca.read_text()},
            "plancast-ray": {"auth_token": RAY_TOKEN},
            "plancast-console": {"tokens": json.dumps({"ada": CONSOLE_TOKEN})},
        }  # fmt: skip
        for secret in yaml.safe_load_all((self.folder / "nats-secrets.yaml").read_text()):
            made[secret["metadata"]["name"]] = secret["stringData"]
        return made

    def start_nats(self) -> None:
        """Start the servers, each with its own disk."""
        tls = {"cert_file": "/certs/tls.crt", "key_file": "/certs/tls.key", "ca_file": "/certs/ca.crt"}
        for server in SERVERS:
            base = {
                "server_name": server, "listen": "0.0.0.0:4222", "http": "0.0.0.0:8222", "tls": tls,
                "jetstream": {"store_dir": "/data"},
                "cluster": {
                    "name": "nats", "listen": "0.0.0.0:6222", "tls": tls, "no_advertise": True,
                    "routes": [f"tls://{each}:6222" for each in SERVERS],
                },
            }  # fmt: skip
            config = self.folder / f"{server}.conf"
            config.write_text(rendered_nats_config(base, self.folder / "nats-accounts.yaml"))
            files = {
                "/usr/local/bin/nats-server": Path(find_binary()),
                "/etc/nats.conf": config,
                "/certs": self.secret("plancast-nats-tls"),
            }
            self.network.start(
                server, ["nats-server", "-c", "/etc/nats.conf"], files=files, memory=("/tmp", "/data"),
                aliases=["nats.plancast.svc"],
            )  # fmt: skip
        for server in SERVERS:
            self.network.containers[server].wait_until("wget", "-qO-", "http://127.0.0.1:8222/healthz")

    def start_ray(self) -> None:
        """Start the head, then a worker node for each replica, by the commands that KubeRay makes."""
        head, workers = self.ray["headGroupSpec"], self.ray["workerGroupSpecs"][0]
        self.start_node("head", head, ["--head"], aliases=[HEAD])
        for number in range(workers["replicas"]):
            self.start_node(f"worker-{number}", workers, [f"--address={HEAD}:6379"])

    def start_node(self, name: str, group: Document, options: list[str], aliases: list[str] | None = None) -> None:
        """Start a node of Ray, and wait until its probes succeed."""
        spec = group["template"]["spec"]
        said = [f"--{key}={value}" for key, value in group["rayStartParams"].items()]
        limits = spec["containers"][0]["resources"]["limits"]
        if "num-cpus" not in group["rayStartParams"]:
            said.append(f"--num-cpus={limits['cpu']}")
        command = ["ray", "start", "--block", "--dashboard-agent-listen-port=52365", *options, *said]
        node = self.start(name, spec, spec["containers"][0] | {"command": command}, aliases=aliases or [])
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            node.wait_until(*spec["containers"][0][probe]["exec"]["command"])

    def start(
        self, name: str, spec: Document, container: Document, *, aliases: list[str] | None = None,
        files: Mapping[str, Path] | None = None,
    ) -> Container:  # fmt: skip
        """Start a container of a pod."""
        volumes = {each["name"]: each for each in spec["volumes"]}
        mounts = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}
        environment = dict(self.settings) if "envFrom" in container else {}
        for each in container.get("env", ()):
            wanted = each.get("valueFrom", {}).get("secretKeyRef")
            environment[each["name"]] = self.secrets[wanted["name"]][wanted["key"]] if wanted else each["value"]
        files = dict(files or {})
        files |= {path: self.secret(each["secret"]["secretName"]) for path, each in mounts.items() if "secret" in each}
        return self.network.start(
            name, container["command"], environment=environment, aliases=aliases or [], files=files,
            memory=[path for path, volume in mounts.items() if "emptyDir" in volume],
            user=str(spec["securityContext"]["runAsUser"]),
            read_only=container["securityContext"].get("readOnlyRootFilesystem", False),
        )  # fmt: skip

    def secret(self, name: str) -> Path:
        """The folder of a secret's files."""
        place = self.folder / "secrets" / name
        place.mkdir(parents=True, exist_ok=True)
        for file, value in self.secrets[name].items():
            (place / file).write_text(value)
        return place


def test_what_the_files_describe_runs_a_plan(cluster: Cluster) -> None:
    cluster.start_nats()
    cluster.start_ray()
    spec = cluster.deployer["template"]["spec"]
    container = spec["containers"][0]
    deployer = cluster.start("deployer", spec, container, files={"/app": cluster.folder / "app"})
    deployer.wait_until(*container["readinessProbe"]["exec"]["command"])

    spec = cluster.console["template"]["spec"]
    console = cluster.start("console", spec, spec["containers"][0])
    for probe in ("livenessProbe", "readinessProbe"):
        console.wait_until("wget", "-qO-", f"http://127.0.0.1:7878{spec['containers'][0][probe]['httpGet']['path']}")
    run_plan(console)

    drain = cluster.ray["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]
    cluster.network.containers["worker-0"].wait_until(*drain["exec"]["command"])
    cluster.network.containers["worker-0"].kill()
    run_plan(console)

    deployer.wait_until_said("watching")
    for name in [name for name in cluster.network.containers if name == "head" or name.startswith("worker-")]:
        cluster.network.containers[name].kill()
    cluster.start_ray()
    deployer.wait_until_said("deployed again")
    run_plan(console)


def run_plan(console: Container) -> None:
    """Run a plan by the HTTP API."""
    header = f"--header=Authorization: Bearer {CONSOLE_TOKEN}"
    submitted = console.wait_until(
        "wget", "-qO-", header, "--header=Content-Type: application/json", f"--post-data={GOAL}",
        "http://127.0.0.1:7878/api/v1/plans",
    )  # fmt: skip
    place = f"http://127.0.0.1:7878/api/v1/plans/{json.loads(submitted)['plan_id']}"
    console.wait_until("sh", "-c", f"wget -qO- '{header}' {place} | grep -q '\"completed\"'")
