"""The tests run benchmarks and do not judge their speed, so nothing has to be warm, and few plans are enough."""

from __future__ import annotations

import pytest
from benchmarks.peers import figures, restate_peer

from benchmarks.load import measuring


@pytest.fixture(autouse=True)
def _few_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    for system in measuring.WARM_UP:
        monkeypatch.setitem(measuring.WARM_UP, system, 5)
    for module in (figures, restate_peer):
        monkeypatch.setattr(module, "WARM_UP", 5)
        monkeypatch.setattr(module, "ALONE_WARM_UP", 2)
        monkeypatch.setattr(module, "ALONE", 20)
