"""Prometheus itself reads the alert rules, and raises the alerts that figures call for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROMTOOL = shutil.which("promtool")
pytestmark = pytest.mark.skipif(
    PROMTOOL is None, reason="there is no promtool: `make tools`, or your system's package prometheus, installs it"
)


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("rules", sorted((ROOT / "deploy" / "prometheus").glob("*.yaml")), ids=lambda path: path.name)
def test_prometheus_reads_the_rules(rules: Path) -> None:
    done = promtool("check", "rules", rules)
    assert done.returncode == 0, done.stderr


def test_figures_raise_the_alerts_of_their_deployment_and_no_others() -> None:
    done = promtool("test", "rules", Path(__file__).parent / "alert_cases.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
