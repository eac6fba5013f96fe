"""The table of what plans wait for people to decide."""

from __future__ import annotations

import pytest

from plancast.cli.plans.approvals import _show
from plancast.plan_store.approvals import Approval
from plancast_bus.ports.checkpoints import PlanSummary

PLAN = PlanSummary("p", "waiting", "buy.goal", "ask", 1, updated_at=1_000.0)


@pytest.mark.parametrize(("due", "shown"), [(None, "never"), (1_060.0, "in 1 min 00 s"), (999.0, "overdue")])
def test_the_time_left_is_shown(due: float | None, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    _show([(PLAN, Approval("p", "Buy?", {}, "buy.decided", due=due), {})], 1_000.0)
    assert shown in capsys.readouterr().out


def test_what_is_decided_on_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    state = {"goal_data": {"what": "a desk"}}
    asked = Approval("p", "Buy?", {"question": "Buy?", "amount": 19.9}, "buy.decided")
    _show([(PLAN, asked, state), (PLAN, Approval("p", "Buy?", {"question": "Buy?"}, "buy.decided"), state)], 1_000.0)
    printed = capsys.readouterr().out
    assert '{"amount": 19.9}' in printed
    assert '{"what": "a desk"}' in printed
    assert "question" not in printed
