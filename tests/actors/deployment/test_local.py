"""A local runtime before Ray is started: its settings, and the turns that its server has lost."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import pytest

from plancast.settings import Settings
from plancast_actors.deployment.local import LocalRuntime
from plancast_actors.maintenance.turn_journal import BOOT, ENDED, FILE


@pytest.mark.parametrize(
    ("sync_interval", "said", "group_commit"),
    [
        ("", {}, "auto"),
        ("always", {}, "always"),
        ("always", {"bus": {"group_commit": "never"}}, "never"),
    ],
)
def test_where_every_write_is_synced_writes_are_batches(
    sync_interval: str, said: dict[str, object], group_commit: str
) -> None:
    given = Settings.model_validate(said)
    found = LocalRuntime("any:app", given, sync_interval=sync_interval).settings
    assert found.bus.group_commit == group_commit
    assert given == Settings.model_validate(said)


async def test_turns_that_the_embedded_server_has_lost_are_named_at_its_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "nats"
    folder.mkdir()
    (folder / FILE).write_text('["gone", 3, 0.0]\n')
    runtime = LocalRuntime("any:app", Settings(data_dir=tmp_path))
    async with contextlib.AsyncExitStack() as stack:
        with caplog.at_level(logging.ERROR):
            await runtime._start_server(stack)
        assert (folder / BOOT).read_text() != ENDED
    assert "plan gone had committed revision 3, and nothing of it is stored" in caplog.text
    assert (folder / BOOT).read_text() == ENDED
