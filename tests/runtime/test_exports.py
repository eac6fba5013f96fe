"""What ``import plancast`` gives: every name, whether it is loaded at once or when it is first used."""

import subprocess
import sys

import pytest

import plancast


def test_every_export_is_there_and_listed() -> None:
    assert set(plancast.__all__) <= set(dir(plancast))
    assert set(plancast._LATER) <= set(plancast.__all__)
    assert all(getattr(plancast, name) is not None for name in plancast.__all__)


def test_names_that_do_not_exist_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = plancast.Nothing  # type: ignore[attr-defined]


def test_what_a_program_does_not_use_is_not_loaded() -> None:
    code = (
        "import sys, plancast; "
        "later = {'plancast.client.client', 'plancast.settings', 'plancast.planners.llm.choreography', "
        "'plancast.state_machine.conditions'}; "
        "assert not later & set(sys.modules), later & set(sys.modules); "
        "plancast.Client; from plancast import Settings; assert 'plancast.client.client' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
