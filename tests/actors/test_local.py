"""What a local runtime makes of its settings before it starts anything."""

from __future__ import annotations

import pytest

from plancast.settings import Settings
from plancast_actors.local import LocalRuntime


@pytest.mark.parametrize(
    ("sync_interval", "said", "group_commit", "max_outstanding"),
    [
        ("", {}, "auto", 4096),
        ("always", {}, "always", 8192),
        ("always", {"dispatchers": {"max_outstanding": 50}}, "always", 50),
        ("always", {"bus": {"group_commit": "never"}}, "never", 8192),
    ],
)
def test_where_every_write_is_synced_writes_are_batches_with_enough_under_way_to_fill_them(
    sync_interval: str, said: dict[str, object], group_commit: str, max_outstanding: int
) -> None:
    given = Settings.model_validate(said)
    found = LocalRuntime("any:app", given, sync_interval=sync_interval).settings
    assert (found.bus.group_commit, found.dispatchers.max_outstanding) == (group_commit, max_outstanding)
    assert given == Settings.model_validate(said)
