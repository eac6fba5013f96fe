"""What the documentation says of autoscaling: Ray takes the sample, and Prometheus gives KEDA the number of tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.autoscaler._private.util import validate_config
from tests.deploy.manifests import RayCluster, documents
from tests.deploy.test_alerts import PROMTOOL, promtool
from tests.docs.blocks import blocks_of

from plancast_bus.subjects import task_consumer_name

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"
SAMPLES = [yaml.safe_load(block.text) for block in blocks_of(PAGE) if block.language == "yaml"]
RAY = next(each for each in SAMPLES if "enableInTreeAutoscaling" in each.get("spec", {}))
KEDA = next(each for each in SAMPLES if each.get("kind") == "ScaledObject")
(TRIGGER,) = KEDA["spec"]["triggers"]
BACKLOG = next(
    line.split("`")[1] for line in PAGE.read_text().splitlines() if line.startswith("`sum(max by (consumer)")
)


def merged(base: Any, changes: Any) -> Any:
    """Lay a part of a manifest over the whole; groups of workers by their names."""
    if isinstance(base, dict):
        return base | {key: merged(base.get(key), value) for key, value in changes.items()}
    if isinstance(base, list) and all("groupName" in each for each in changes):
        by_name = {each["groupName"]: each for each in changes}
        assert by_name.keys() <= {each["groupName"] for each in base}
        return [merged(each, by_name.get(each["groupName"], {})) for each in base]
    return changes


def test_ray_takes_the_cluster_with_its_autoscaler() -> None:
    found = merged(next(each for _, each in documents() if each["kind"] == "RayCluster"), RAY)
    spec = RayCluster.model_validate(found).spec
    assert spec.enableInTreeAutoscaling
    config = _derive_autoscaling_config_from_ray_cr(found)
    validate_config(config)
    assert config["idle_timeout_minutes"] == 5
    types = config["available_node_types"]
    assert types[config["head_node_type"]]["resources"]["CPU"] == 0
    assert (types["plans"]["min_workers"], types["plans"]["max_workers"], types["plans"]["resources"]["CPU"]) == (
        2,
        8,
        4,
    )


def test_the_autoscaler_has_the_tokens_of_ray_and_kubernetes() -> None:
    spec = RayCluster.model_validate(merged(next(e for _, e in documents() if e["kind"] == "RayCluster"), RAY)).spec
    pod = spec.headGroupSpec.template["spec"]
    (head,) = pod["containers"]
    options = spec.autoscalerOptions
    assert options is not None
    assert options.env == head["env"]
    (mount,) = options.volumeMounts
    assert mount in head["volumeMounts"]
    assert options.env[1]["value"].startswith(mount["mountPath"])
    assert pod["automountServiceAccountToken"] is True, "the autoscaler reads the RayCluster from Kubernetes"
    assert options.securityContext == head["securityContext"]


def test_keda_counts_the_tasks_of_the_consumer_that_workers_read() -> None:
    assert f'"{task_consumer_name("web.search.requested")}"' in TRIGGER["metadata"]["query"]


WAITING, RUNNING = "ray_plancast_consumer_pending", "ray_plancast_consumer_unacknowledged"
SEARCH = {"deployment": "plancast", "consumer": "task-web-search-requested"}
PLANS = {"deployment": "plancast", "consumer": "plans-results"}


def series(name: str, actor: str, value: int, **labels: str) -> dict[str, str]:
    rendered = ",".join(f"{key}={json.dumps(each)}" for key, each in {**labels, "actor": actor}.items())
    return {"series": f"{name}{{{rendered}}}", "values": str(value)}


@pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool")
@pytest.mark.parametrize(
    ("query", "given", "expected"),
    [
        (
            TRIGGER["metadata"]["query"],
            [
                *(series(WAITING, each, 70, **SEARCH) for each in ("dispatcher-0", "dispatcher-spare")),
                *(series(RUNNING, each, 3, **SEARCH) for each in ("dispatcher-0", "dispatcher-spare")),
                series(WAITING, "dispatcher-0", 500, **SEARCH | {"deployment": "other"}),
                series(WAITING, "dispatcher-0", 500, **PLANS),
            ],
            73,
        ),
        (
            TRIGGER["metadata"]["query"],
            [series(WAITING, "dispatcher-0", 0, **SEARCH), series(RUNNING, "dispatcher-0", 3, **SEARCH)],
            3,
        ),
        (
            BACKLOG,
            [
                *(series(WAITING, each, 70, **PLANS) for each in ("dispatcher-0", "dispatcher-spare")),
                *(series("ray_plancast_events_waiting", f"dispatcher-{n}", 5, deployment="plancast") for n in (0, 1)),
                *(
                    series("ray_plancast_events_outstanding", f"dispatcher-{n}", 2, deployment="plancast")
                    for n in (0, 1)
                ),
                series(WAITING, "dispatcher-0", 500, **PLANS | {"deployment": "other"}),
                series("ray_plancast_events_waiting", "dispatcher-0", 500, deployment="other"),
                series("ray_plancast_events_outstanding", "dispatcher-0", 500, deployment="other"),
            ],
            84,
        ),
    ],
    ids=["tasks that wait and run", "tasks that run", "backlog of hosts"],
)
def test_queries_give_what_is_to_be_done(
    query: str, given: list[dict[str, str]], expected: int, tmp_path: Path
) -> None:
    wanted = {"expr": query, "eval_time": "1m", "exp_samples": [{"labels": "{}", "value": expected}]}
    cases = [
        {
            "interval": "1m",
            "input_series": [s | {"values": f"{s['values']}x2"} for s in given],
            "promql_expr_test": [wanted],
        }
    ]
    (tmp_path / "cases.yaml").write_text(
        yaml.safe_dump({"rule_files": [], "evaluation_interval": "1m", "tests": cases})
    )
    done = promtool("test", "rules", tmp_path / "cases.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
