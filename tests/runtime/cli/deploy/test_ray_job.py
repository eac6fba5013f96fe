"""What a job in the cluster is told of this machine's settings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from plancast.cli.deploy.code import folder_of
from plancast.cli.deploy.ray_job import _document, _environment, is_dashboard
from plancast.settings import Settings


def test_settings_go_with_a_job_and_secrets_do_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NATS_URL", "tls://somebody:s3cret-1@nats:4222")
    monkeypatch.setenv("PLANCAST_NATS__TOKEN", "s3cret-2")
    monkeypatch.setenv("PLANCAST_CONSOLE__TOKENS__ADA", "s3cret-3-of-16-characters")
    monkeypatch.setenv("PLANCAST_NATS__NKEY", "/etc/plancast/user.nk")
    monkeypatch.setenv("PLANCAST_HOSTS__COUNT", "7")
    monkeypatch.setenv("PLANCAST_RAY__ADDRESS", "http://head:8265")
    sent = _environment(Settings.load())
    assert sent == {
        "PLANCAST_NATS__URL": "tls://nats:4222",
        "PLANCAST_NATS__NKEY": "/etc/plancast/user.nk",
        "PLANCAST_HOSTS__COUNT": "7",
        "PLANCAST_RAY__NAMESPACE": "plancast",
    }
    said = capsys.readouterr().err
    assert "PLANCAST_CONSOLE__TOKENS__ADA, PLANCAST_NATS__TOKEN" in said
    assert "s3cret" not in said


def test_a_document_is_found_among_what_ray_says() -> None:
    assert _document(["{", '  "deployed": true,', '  "list": {', "  }", "}", "(raylet) bye", "}"]) == {
        "deployed": True,
        "list": {},
    }
    assert _document(["{", "no json", "}"]) is None
    assert _document([]) is None


@pytest.mark.parametrize(
    ("address", "dashboard"),
    [("http://h:8265", True), ("https://h", True), ("ray://h:10001", False), ("h:6379", False), ("auto", False)],
)
def test_a_dashboard_is_told_from_a_cluster_to_join(address: str, dashboard: bool) -> None:
    assert is_dashboard(address) is dashboard


def test_the_folder_to_ship_is_the_one_that_the_module_is_imported_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ship_a.py", "ship_b/__init__.py", "ship_b/c.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("ship_a", "ship_b", "ship_b.c"):
        __import__(name)
        assert folder_of(f"{name}:app") == tmp_path
    for name in ("ship_a", "ship_b", "ship_b.c"):
        sys.modules.pop(name)
    assert folder_of("pydantic:app") is None, "an installed package is on every node already"
