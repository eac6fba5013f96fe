"""A short run of the chaos of effects; `make chaos-effects` has long ones."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from tests.chaos.effects.cases import Case, make_cases
from tests.chaos.effects.lane import Verdict
from tests.chaos.effects.repeats import Repeats
from tests.chaos.effects.report import Report
from tests.chaos.effects.strikes import DURING

ROOT = Path(__file__).parents[3]
KILLS, LEGITIMATE = 50, 200
TWICE, ONCE = Verdict(Case(0, "control", DURING, "kill"), acts=2), Verdict(Case(1, "control", DURING, "kill"), acts=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_what_is_protected_is_done_once_and_what_is_not_is_done_twice() -> None:
    seed = os.environ.get("PLANCAST_TEST_SEED", "7")
    asked = ["--kills", str(KILLS), "--legitimate", str(LEGITIMATE), "--seed", seed, "--quiet"]
    # In a process of its own: it starts others by its main module.
    pipe = asyncio.subprocess.PIPE
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.chaos.effects.run", *asked, cwd=ROOT, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    try:
        said, _ = await run.communicate()
    finally:
        if run.returncode is None:
            run.terminate()
            await run.wait()
    print(said.decode(errors="replace"))
    assert run.returncode == 0, said.decode(errors="replace")
    assert b"every promise was kept" in said


def test_a_run_has_the_kills_that_were_asked_for_and_is_fixed_by_its_seed() -> None:
    cases = make_cases(7, 40)
    assert sum(each.blow == "kill" for each in cases) == 40
    assert {each.blow for each in cases} == {"kill", "freeze", "lose"}
    assert cases == make_cases(7, 40) != make_cases(8, 40)


@pytest.mark.parametrize(
    ("verdicts", "broken"),
    [
        ([TWICE], []),
        ([TWICE, ONCE], ["the run proves nothing: 1 of 2 unprotected tasks were done twice"]),
        ([], ["the run proves nothing: 0 of 0 unprotected tasks were done twice"]),
        (
            [TWICE, Verdict(Case(2, "never", DURING, "lose"), faults=["was done 2 times"])],
            ["case 2: lose at act.during of never: was done 2 times"],
        ),
    ],
)
def test_a_run_without_proof_or_with_a_fault_has_failed(verdicts: list[Verdict], broken: list[str]) -> None:
    assert Report(verdicts, Repeats(), 1.0).broken == broken


def test_a_second_act_of_a_reissued_call_is_a_broken_promise() -> None:
    repeats = Repeats(legitimate=5, reissued=1, second_acts=1, faults=["x was held up"])
    assert Report([TWICE], repeats, 1.0).broken == ["x was held up", "1 calls that were issued twice were done twice"]
