"""The dashboard, the alerts and the document speak of metrics that there are, by labels that these have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.test_autoscaling import TRIGGER

from plancast_actors.telemetry.metrics import COMMON, METRICS, SECONDS, Metric, table

ROOT = Path(__file__).parent.parent.parent
DASHBOARD = json.loads((ROOT / "deploy/grafana/plancast.json").read_text())
ALERTS = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())
DOCUMENT = (ROOT / "docs/telemetry.md").read_text()

_SERIES = re.compile(r"ray_plancast_\w+")
_SELECTOR = re.compile(r"(ray_plancast_\w+)\{([^}]*)\}")
_GROUPING = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
_BY = re.compile(r"\bby\s*\(([^)]*)\)\s*\((.*)")
_LEGEND = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")


def panels() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        if panel["type"] != "row":
            yield panel


def queries() -> list[Any]:
    found = [
        pytest.param(target["expr"], target["legendFormat"], id=f"{panel['title']}-{target['refId']}")
        for panel in panels()
        for target in panel["targets"]
    ]
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            said = " ".join(re.findall(r"\{\{ \$labels\.\w+ \}\}", str(rule["annotations"])))
            found.append(pytest.param(rule["expr"], said, id=rule["alert"]))
    found.append(pytest.param(TRIGGER["metadata"]["query"], "", id="KEDA"))
    return found


def metric_of(series: str) -> Metric:
    name = series.removeprefix("ray_")
    if name in METRICS:
        assert METRICS[name].kind != "histogram", f"{series} is a histogram: use _bucket, _sum or _count"
        return METRICS[name]
    base, _, part = name.rpartition("_")
    assert METRICS[base].kind == "histogram", series
    assert part in ("bucket", "sum", "count"), series
    return METRICS[base]


def labels_of(series: str) -> set[str]:
    return {*COMMON, *metric_of(series).labels, *(("le",) if series.endswith("_bucket") else ())}


@pytest.mark.parametrize(("expression", "legend"), queries())
def test_a_query_asks_for_metrics_and_labels_that_there_are(expression: str, legend: str) -> None:
    series = set(_SERIES.findall(expression))
    assert series, "it asks for nothing of ours"
    for each in series:
        metric = metric_of(each)
        rated = re.search(rf"(?:rate|increase)\({each}\b", expression) is not None
        assert rated == (metric.kind != "gauge"), f"{each} is a {metric.kind}"
    for name, selector in _SELECTOR.findall(expression):
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", re.sub(r'"[^"]*"', '""', selector))) <= labels_of(name)
    grouped = {label.strip() for part in _GROUPING.findall(expression) for label in part.split(",")}
    known = set.intersection(*map(labels_of, series))
    assert grouped <= known
    assert set(_LEGEND.findall(legend)) <= grouped


def test_the_dashboard_shows_every_metric() -> None:
    shown = {
        metric_of(each).name for panel in panels() for t in panel["targets"] for each in _SERIES.findall(t["expr"])
    }
    assert shown == set(METRICS)


def test_the_dashboard_has_its_rows_and_no_two_panels_in_one_place() -> None:
    rows = [panel["title"].split(" (")[0] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Flow", "Latency", "Plans", "Hosts", "Models and cost", "Trouble"]
    taken = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_alerts_tell_what_to_do() -> None:
    rules = [rule for group in ALERTS["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description"} <= rule["annotations"].keys()
        assert re.fullmatch(r"\d+m", rule.get("for", "0m"))


def test_the_document_has_every_metric() -> None:
    written = DOCUMENT.partition("<!-- metrics: python -m plancast_actors.telemetry.metrics -->\n")[2]
    assert written.partition("\n<!-- /metrics -->")[0] == table()


def test_the_document_names_every_alert() -> None:
    nats = yaml.safe_load((ROOT / "deploy/prometheus/nats-alerts.yaml").read_text())
    for group in [*ALERTS["groups"], *nats["groups"]]:
        for rule in group["rules"]:
            assert rule["alert"] in DOCUMENT


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_names_are_as_prometheus_has_them(metric: Metric) -> None:
    assert re.fullmatch(r"plancast_[a-z][a-z_]*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    if metric.kind == "histogram":
        assert metric.name.endswith("_seconds")
        assert metric.boundaries == SECONDS
    assert not set(metric.labels) & {
        *COMMON,
        "plan_id",
        "tenant",
        "tenant_id",
        "correlation_id",
        "event_id",
        "session_id",
    }
    assert metric.description.endswith(".")
