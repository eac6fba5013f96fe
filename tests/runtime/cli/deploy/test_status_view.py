"""Renders a deployment for `plancast status`."""

from __future__ import annotations

from typing import Any

import pytest

from plancast.cli.deploy.status_view import show_status

DOCUMENT: dict[str, Any] = {
    "pid": None, "namespace": "plancast", "nats": None, "plans": None, "ray": "head:6379",
    "actors": {"dispatchers": [{"name": "dispatcher-0", "alive": True}], "hosts": []},
    "scale": {"hosts": {"wanted": 4, "actual": 3}, "dispatchers": {"wanted": 1, "actual": 1}},
    "hot": {
        "plans": {"sampled": 200, "busiest": {"order-7": 150, "order 8": 10}},
        "tenants": {"sampled": 0, "busiest": {}},
    },
}  # fmt: skip


def test_wanted_and_actual_numbers_are_shown_while_they_differ(capsys: pytest.CaptureFixture[str]) -> None:
    show_status(DOCUMENT, 0.0)
    assert "3 of 4 hosts: run `plancast scale`" in " ".join(capsys.readouterr().out.split())
    show_status(DOCUMENT | {"scale": {"hosts": {"wanted": 3, "actual": 3}}}, 0.0)
    assert "plancast scale" not in capsys.readouterr().out


def test_effects_that_a_person_has_to_decide_about_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show_status(DOCUMENT | {"effects_unknown": 2}, 0.0)
    assert "to be decided about in 2 plans: `plancast effects list`" in " ".join(capsys.readouterr().out.split())
    show_status(DOCUMENT | {"effects_unknown": 0}, 0.0)
    assert "effects" not in capsys.readouterr().out


def test_the_busiest_are_shown_on_request_with_their_share(capsys: pytest.CaptureFixture[str]) -> None:
    show_status(DOCUMENT, 0.0)
    assert "order-7" not in capsys.readouterr().out
    show_status(DOCUMENT, 0.0, top=True)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[lines.index("busiest plans events") + 1 :][:2] == ["order-7 75%", "order 8 5%"]
    assert "none: one event in 64 is counted –" in lines


def test_numbers_that_scale_has_set_are_shown_beside_those_of_the_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    numbers = {"hosts": {"scale": 6, "settings": 4}, "reasoners": {"scale": [0, 9], "settings": None}}
    show_status(DOCUMENT | {"overridden": numbers}, 0.0)
    shown = " ".join(capsys.readouterr().out.split())
    assert "6 hosts (settings: 4), 0..9 reasoners (settings: unknown); `plancast scale --reset` undoes it" in shown
