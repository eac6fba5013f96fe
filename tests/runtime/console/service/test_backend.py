"""The deployment as the API's routes use it."""

from __future__ import annotations

import pytest

from plancast import PlanNotFound, Settings
from plancast.console.service import backend as backend_module
from plancast.console.service.backend import Backend
from plancast.testing import MemoryBus
from plancast_bus.ports.checkpoints import Committed, PlanSummary


async def test_a_plan_that_begins_while_it_is_looked_up_stays_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Backend(MemoryBus(), Settings())
    began = Committed(1, "p", PlanSummary("p", "running", "goal", "start", 1))

    async def find(*_: object) -> None:
        if not len(backend.index):
            backend.index.take(began)  # its first turn is committed after the look

    monkeypatch.setattr(backend_module, "find_checkpoint", find)
    with pytest.raises(PlanNotFound):
        await backend.checkpoint("p")
    assert [row.key for row in backend.index.rows()] == ["p"]
    with pytest.raises(PlanNotFound):
        await backend.checkpoint("p")  # it is gone from the store
    assert len(backend.index) == 0
