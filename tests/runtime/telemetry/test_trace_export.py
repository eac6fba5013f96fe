"""What sets up the export of spans: by the setting and OpenTelemetry's variables, and never at the cost of a plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import logging, sys
logging.basicConfig(level="WARNING")
from plancast.settings import Settings
from plancast.telemetry.trace_export import flush, open_tracing
tracing = open_tracing(Settings(), "host-7")
if tracing is None:
    print("off", sorted(each for each in sys.modules if each.startswith("opentelemetry")))
else:
    from opentelemetry.trace import SpanKind
    assert open_tracing(Settings(), "again") is not None
    tracing.begin("a turn", SpanKind.CONSUMER, {}).end()
    flush()
"""


def run(**variables: str) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own: OpenTelemetry is set up once in a process."""
    said = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PLANCAST_"))}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=said | variables, capture_output=True, text=True, check=True, timeout=30
    )


def test_off_is_the_default_and_loads_nothing() -> None:
    assert run().stdout == "off []\n"


def test_spans_go_where_opentelemetrys_variables_say_under_the_name_of_the_process() -> None:
    ran = run(PLANCAST_TELEMETRY__TRACES="on", OTEL_TRACES_EXPORTER="console")
    span = json.loads(ran.stdout)
    assert span["name"] == "a turn"
    about = span["resource"]["attributes"]
    assert (about["service.name"], about["service.instance.id"]) == ("plancast", "host-7")
    assert ran.stderr == ""


def test_the_resource_is_what_opentelemetrys_variables_say_first() -> None:
    said = "service.instance.id=mine,deployment.environment=test"
    ran = run(
        PLANCAST_TELEMETRY__TRACES="on",
        OTEL_TRACES_EXPORTER="console",
        OTEL_SERVICE_NAME="shop",
        OTEL_RESOURCE_ATTRIBUTES=said,
    )
    about = json.loads(ran.stdout)["resource"]["attributes"]
    assert (about["service.name"], about["service.instance.id"]) == ("shop", "mine")
    assert about["deployment.environment"] == "test"


def test_the_sampler_is_what_opentelemetrys_variables_say() -> None:
    ran = run(PLANCAST_TELEMETRY__TRACES="on", OTEL_TRACES_EXPORTER="console", OTEL_TRACES_SAMPLER="always_off")
    assert ran.stdout == ""


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "allowed: otlp, console, none"),
        ({"OTEL_TRACES_EXPORTER": "none"}, ""),
    ],
)
def test_an_exporter_that_there_is_not_is_logged_and_keeps_nothing_from_running(
    variables: dict[str, str], told: str
) -> None:
    ran = run(PLANCAST_TELEMETRY__TRACES="on", **variables)
    assert ran.stdout == ""
    assert told in ran.stderr
