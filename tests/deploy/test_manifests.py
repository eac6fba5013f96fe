"""What deploy/ says can be said: schemas, commands and settings that there are, roles as they are tested."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any, get_args

import kubernetes_validate
import pytest
import ray
import yaml
from pydantic import BaseModel
from tests.deploy.manifests import (
    DEPLOY,
    KUBERNETES,
    VALUES,
    Compose,
    RayCluster,
    commands,
    compose,
    containers,
    documents,
    environments,
    images,
    rendered_nats_config,
)
from typer.main import get_command

from plancast.cli import main
from plancast.cli.root import app
from plancast.settings import Settings
from plancast_bus.nats_server.process import find_binary

KUBERNETES_VERSION = "1.31"
RAY_TOKEN = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")
DOCUMENTS = list(documents())


@pytest.mark.parametrize("found", [found for _, found in DOCUMENTS], ids=[f"{f}-{d['kind']}" for f, d in DOCUMENTS])
def test_every_object_is_one_that_kubernetes_takes(found: dict[str, Any]) -> None:
    if found["kind"] != "RayCluster":
        kubernetes_validate.validate(found, KUBERNETES_VERSION, strict=True)
        return
    cluster = RayCluster.model_validate(found).spec
    for group in (cluster.headGroupSpec, *cluster.workerGroupSpecs):
        template = {"metadata": {"name": "t"}, "template": group.template}
        kubernetes_validate.validate(
            {"apiVersion": "v1", "kind": "PodTemplate", **template}, KUBERNETES_VERSION, strict=True
        )


def test_a_name_that_is_spelled_wrongly_is_found() -> None:
    found = json.loads(json.dumps(next(d for _, d in DOCUMENTS if d["kind"] == "RayCluster")))
    found["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        test_every_object_is_one_that_kubernetes_takes(found)


def test_the_compose_file_is_one() -> None:
    made = Compose.model_validate(compose())
    for service in made.services.values():
        assert set(service.depends_on) <= set(made.services)
        assert all(port.startswith("127.0.0.1:") for port in service.ports), "nothing listens beyond the machine"


def test_images_of_others_are_named_by_their_digest() -> None:
    found = [image for image in images() if image.partition(":")[0] != "plancast"]
    assert len(found) == 4
    assert [image for image in found if not re.fullmatch(r"[a-z]+:[\w.-]+@sha256:[0-9a-f]{64}", image)] == []
    values = yaml.safe_load(VALUES.read_text())
    assert not values["natsBox"]["enabled"]


def test_a_renewed_certificate_is_taken_up(tmp_path: Path) -> None:
    reloader = yaml.safe_load(VALUES.read_text())["reloader"]["merge"]["command"]
    for name in ("nats-config/nats.conf", "nats-certs/nats/tls.crt", "nats-certs/cluster/tls.crt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old")
    script = reloader[-1].replace("/etc/", f"{tmp_path}/").replace("/var/run/nats/", f"{tmp_path}/")
    server = subprocess.Popen(
        ["sh", "-c", "trap 'echo reloaded; exit' HUP; echo up; while :; do sleep 0.05; done"],
        stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # a shell cannot trap what nohup has ignored
    )  # fmt: skip
    (tmp_path / "nats.pid").write_text(str(server.pid))
    assert server.stdout is not None
    assert server.stdout.readline() == "up\n"
    sidecar = subprocess.Popen([*reloader[:-1], f"PS4=; set -x; {script.replace('sleep 15', 'sleep 0.05')}"],
                               stderr=subprocess.PIPE, text=True)  # fmt: skip
    try:
        assert sidecar.stderr is not None
        while not sidecar.stderr.readline().startswith("sleep"):
            pass  # until it has seen what there is
        (tmp_path / "nats-certs/cluster/tls.crt").write_text("new")
        assert server.stdout.readline() == "reloaded\n"
    finally:
        for process in (sidecar, server):
            process.kill()
            process.communicate()


@pytest.mark.attack(
    who="neighbour", what="reach Ray's job server or join Ray in a cluster", expected="it asks for a token"
)
def test_all_that_runs_or_joins_ray_does_so_with_a_token() -> None:
    seen = 0
    for where, container in containers():
        if container["name"].startswith("ray-") or container["name"] in ("deploy", "upgrade"):
            seen += 1
            said = {each["name"]: each["value"] for each in container["env"]}
            assert said == dict(zip(RAY_TOKEN, ("token", "/etc/plancast/ray/auth_token"), strict=True)), where
            assert "/etc/plancast/ray" in [each["mountPath"] for each in container["volumeMounts"]], where
    assert seen == 4
    services = compose()["services"]
    asked = {name for name, each in services.items() if each.get("environment", {}).get(RAY_TOKEN[0]) == "token"}
    assert asked == {"ray", "deploy", "upgrade"}
    for name in asked:
        assert services[name]["environment"][RAY_TOKEN[1]] == "/run/secrets/ray_token"
        assert "ray_token" in services[name]["secrets"]
    assert compose()["secrets"]["ray_token"] == {"environment": "PLANCAST_RAY_TOKEN"}


def test_what_is_published_asks_who_it_is() -> None:
    published = {name: each["ports"] for name, each in compose()["services"].items() if each.get("ports")}
    # Ray's dashboard and the console ask for tokens; monitoring pages and metrics, which ask nobody, stay inside.
    assert set(published) <= {"nats", "ray", "console"}
    assert [port for ports in published.values() for port in ports if port.rpartition(":")[2] in ("8222", "8080")] == []


def test_ray_is_the_one_that_is_tested() -> None:
    cluster = next(found for _, found in DOCUMENTS if found["kind"] == "RayCluster")
    assert cluster["spec"]["rayVersion"] == ray.__version__


def test_every_command_is_one_of_the_command_line() -> None:
    group, seen = get_command(app), set()
    for words in commands():
        command = group.commands[words[0]]  # type: ignore[attr-defined]
        seen.add(words[0])
        command.make_context(words[0], list(words[1:]))  # parses, and refuses what it does not know
    assert seen == {"deploy", "upgrade", "probe", "console", "drain", "backup"}


def test_pods_with_actors_are_drained_before_they_stop() -> None:
    cluster = next(found for _, found in DOCUMENTS if found["kind"] == "RayCluster")
    assert cluster["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0", "it has no actors to move"
    for group in cluster["spec"]["workerGroupSpecs"]:
        spec = group["template"]["spec"]
        command = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert command[:4] == ["plancast", "drain", "--node", "here"]
        # Each actor may take --timeout; the rest of the period is for processes to start.
        assert spec["terminationGracePeriodSeconds"] > 4 * float(command[-1])
    ray = compose()["services"]["ray"]
    (hook,) = ray["pre_stop"]
    assert hook["command"][:2] == ["plancast", "drain"]
    assert float(ray["stop_grace_period"].removesuffix("s")) > 2 * float(hook["command"][-1])


def test_every_variable_is_a_setting() -> None:
    names = set(environments())
    assert "PLANCAST_NATS__NKEY" in names
    assert {name for name in names if not is_setting(name)} == {*RAY_TOKEN, "POD_NAME"}


def test_every_pod_has_limits_no_root_and_no_token() -> None:
    for where, container in containers():
        assert container["resources"]["limits"]["memory"], where
        assert container["securityContext"]["allowPrivilegeEscalation"] is False, where
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, where
    for _, found in DOCUMENTS:
        assert found["metadata"].get("namespace", "plancast") == "plancast"


def test_probes_of_a_pod_ask_ray_and_plancast() -> None:
    for where, container in containers():
        if container["name"].startswith("ray-"):
            live, ready = (container[each]["exec"]["command"][-1] for each in ("livenessProbe", "readinessProbe"))
            assert live.endswith("plancast probe live"), where
            assert ready.endswith("plancast probe ready --role nats"), where


def test_nats_takes_the_configuration_and_none_without_accounts(tmp_path: Path) -> None:
    assert main(["nats-config", "examples.research:app", "--format", "helm", "--output", str(tmp_path)]) == 0
    config = tmp_path / "nats.conf"
    base = {"server_name": "n", "jetstream": {"store_dir": str(tmp_path / "store")}, "listen": "127.0.0.1:-1"}
    config.write_text(rendered_nats_config(base, tmp_path / "nats-accounts.yaml"))
    done = subprocess.run([find_binary(), "-t", "-c", config], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr

    config.write_text(rendered_nats_config(base))
    done = subprocess.run([find_binary(), "-t", "-c", config], capture_output=True, text=True, timeout=30, check=False)
    assert "ACCOUNTS_OF_PLANCAST_NATS_CONFIG" in done.stderr
    assert done.returncode != 0


def test_the_secrets_that_are_made_are_those_that_pods_use(tmp_path: Path) -> None:
    assert main(["nats-config", "--format", "helm", "--backup", "backup", "--output", str(tmp_path)]) == 0
    made = list(yaml.safe_load_all((tmp_path / "nats-secrets.yaml").read_text()))
    for each in made:
        kubernetes_validate.validate(each, KUBERNETES_VERSION, strict=True)
        assert each["stringData"]["user.nk"].startswith("SU")
    names = {each["metadata"]["name"] for each in made}
    used = set(
        re.findall(r"secretName: (plancast-\w+-nkey)", "".join(f.read_text() for f in KUBERNETES.glob("*.yaml")))
    )
    assert used == {"plancast-runtime-nkey", "plancast-console-nkey", "plancast-backup-nkey"} <= names


def test_the_server_in_deploy_is_the_one_that_is_written(tmp_path: Path) -> None:
    assert main(["nats-config", "--output", str(tmp_path)]) == 0
    assert (DEPLOY / "nats" / "nats-server.conf").read_text() == (tmp_path / "nats-server.conf").read_text()


def test_the_containers_of_compose_have_their_own_seeds(tmp_path: Path) -> None:
    assert main(["nats-config", "--output", str(tmp_path)]) == 0
    made = Compose.model_validate(compose())
    seeds = {name: secret.file for name, secret in made.secrets.items() if name != "ray_token"}
    for file in seeds.values():
        assert (tmp_path / file.removeprefix("${PLANCAST_NATS_CONFIG:-./nats}/")).is_file()
    for name, service in made.services.items():
        wanted = [] if name == "nats" else ["console" if name == "console" else "runtime"]
        assert [each for each in service.secrets if each in seeds] == wanted
        assert service.environment.get("PLANCAST_NATS__NKEY", "") == "".join(f"/run/secrets/{each}" for each in wanted)
    config = (DEPLOY / "compose" / "nats-server.conf").read_text().replace("/data", str(tmp_path / "store"))
    (tmp_path / "compose.conf").write_text(config)
    subprocess.run([find_binary(), "-t", "-c", tmp_path / "compose.conf"], check=True, timeout=30)


def test_three_servers_keep_three_replicas() -> None:
    cluster = yaml.safe_load(VALUES.read_text())["config"]["cluster"]
    settings = next(found for _, found in DOCUMENTS if found["kind"] == "ConfigMap")["data"]
    assert (cluster["replicas"], settings["PLANCAST_BUS__REPLICAS"]) == (3, "3")


def test_servers_refuse_a_write_before_the_disk_does_and_the_runtime_knows_their_limit() -> None:
    store = yaml.safe_load(VALUES.read_text())["config"]["jetstream"]["fileStore"]
    settings = next(found for _, found in DOCUMENTS if found["kind"] == "ConfigMap")["data"]
    limit, disk = (int(each.removesuffix("Gi")) << 30 for each in (store["maxSize"], store["pvc"]["size"]))
    assert limit == int(settings["PLANCAST_BUS__VOLUME_BYTES"]) <= 0.95 * disk
    config = (DEPLOY / "compose" / "nats-server.conf").read_text()
    service = Compose.model_validate(compose()).services["ray"]
    assert f"max_file_store: {service.environment['PLANCAST_BUS__VOLUME_BYTES']}\n" in config


def test_each_pod_uses_the_key_and_the_inbox_of_its_own_login() -> None:
    settings = next(found for _, found in DOCUMENTS if found["kind"] == "ConfigMap")["data"]
    seen = set()
    for _, found in DOCUMENTS:
        for spec in pod_specs(found):
            secrets = {each["name"]: each["secret"]["secretName"] for each in spec["volumes"] if "secret" in each}
            for container in spec["containers"]:
                environment = settings | {each["name"]: each.get("value") for each in container.get("env", ())}
                folder, _, _ = environment["PLANCAST_NATS__NKEY"].rpartition("/")
                (mount,) = (each for each in container["volumeMounts"] if each["mountPath"] == folder)
                login = environment["PLANCAST_NATS__INBOX_PREFIX"].removeprefix("_INBOX.")
                assert secrets[mount["name"]] == f"plancast-{login}-nkey"
                seen.add((container["name"], login))
    assert {("console", "console"), ("ray-head", "runtime"), ("ray-worker", "runtime")} <= seen


def test_prometheus_may_reach_what_has_metrics_and_nothing_else() -> None:
    policies = [found for _, found in DOCUMENTS if found["kind"] == "NetworkPolicy"]
    exporter = yaml.safe_load(VALUES.read_text())["promExporter"]
    monitoring = {"kubernetes.io/metadata.name": "monitoring"}
    admitted = {
        policy["metadata"]["name"]: [each["port"] for each in rule["ports"]]
        for policy in policies
        for rule in policy["spec"].get("ingress", ())
        if any(each.get("namespaceSelector", {}).get("matchLabels") == monitoring for each in rule["from"])
    }
    assert admitted == {"ray": [8080], "nats": [exporter["port"]]}
    assert exporter["enabled"]
    ray = next(found for _, found in DOCUMENTS if found["kind"] == "RayCluster")["spec"]
    for group in (ray["headGroupSpec"], *ray["workerGroupSpecs"]):
        assert group["rayStartParams"]["metrics-export-port"] == "8080"


def pod_specs(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods' specifications in an object."""
    spec = document.get("spec", {})
    templates = [spec.get("jobTemplate", {}).get("spec", {}).get("template")]
    templates += [spec.get("template"), spec.get("headGroupSpec", {}).get("template")]
    templates += [each["template"] for each in spec.get("workerGroupSpecs", ())]
    return [each["spec"] for each in templates if each]


def is_setting(name: str) -> bool:
    """Whether a variable is one that the settings read."""
    model: Any = Settings
    for part in name.removeprefix("PLANCAST_").lower().split("__"):
        if not (isinstance(model, type) and issubclass(model, BaseModel)) or part not in model.model_fields:
            return False
        annotation = model.model_fields[part].annotation
        model = next((each for each in (annotation, *get_args(annotation)) if isinstance(each, type)), None)
    return name.startswith("PLANCAST_")
