"""What a local runtime makes of its settings before it starts anything."""

from __future__ import annotations

import pytest

from plancast.settings import Settings
from plancast_actors.deployment.local import LocalRuntime


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
