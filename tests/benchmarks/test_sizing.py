"""The table of volumes in the docs is computed from stored figures, and these are what a server holds."""

from __future__ import annotations

import pytest
import yaml
from benchmarks.systems.scratch import ROOT

from benchmarks import sizing
from plancast.settings import Settings


def test_the_page_has_the_table_of_the_stored_figures() -> None:
    written = sizing.DOCUMENT.read_text().partition("<!-- capacity -->\n")[2].partition("\n<!-- /capacity -->")[0]
    assert written == sizing.table(sizing.read(), sizing.message_memory()).markdown()
    found = [
        each["data"]["PLANCAST_BUS__VOLUME_BYTES"]
        for each in yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "namespace.yaml").read_text())
        if each["kind"] == "ConfigMap"
    ]
    assert [int(each) // sizing.GIB for each in found] == [45]
    assert 45 in sizing.VOLUMES


def test_a_rate_fills_three_quarters_of_the_volume_by_what_each_stream_keeps() -> None:
    settings = Settings.model_construct()
    plan = {"checkpoints": 3000.0, "responses": 700.0, "requests": 99.0}
    rate = sizing.plans_per_second(plan, 1_000_000_000, 7 * sizing.DAY, settings)
    assert rate * (3000 * 7 + 700 * 1) * sizing.DAY == pytest.approx(750_000_000)
    apart = {"checkpoints": 1000.0, "values": 2000.0, "responses": 700.0}
    assert sizing.plans_per_second(apart, 1_000_000_000, 7 * sizing.DAY, settings) == pytest.approx(rate)


def test_memory_is_that_of_all_messages_of_a_full_volume() -> None:
    settings = Settings.model_construct()
    memory = sizing.server_memory({"checkpoints": 1000.0, "responses": 1000.0}, 4_000_000_000, settings, 300.0)
    assert memory == pytest.approx(4_000_000 * 300)


def test_servers_in_kubernetes_have_the_memory_for_a_full_volume() -> None:
    values = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "nats-values.yaml").read_text())
    volume = _gib(values["config"]["jetstream"]["fileStore"]["maxSize"])
    settings = Settings.model_construct()
    needed = sizing.server_memory(sizing.read(), volume, settings, sizing.message_memory())
    container = values["container"]
    resources = container["merge"]["resources"]
    collected = _gib(container["env"]["GOMEMLIMIT"])
    assert needed < collected < 0.95 * _gib(resources["limits"]["memory"])
    assert resources["requests"]["memory"] == resources["limits"]["memory"]


def _gib(size: str) -> int:
    return int(size.removesuffix("B").removesuffix("Gi")) * sizing.GIB


@pytest.mark.slow
async def test_a_plan_takes_the_stored_bytes_on_a_server() -> None:
    found = await sizing.measure(500)
    kept = {stream for stream in {*found, *sizing.read()} if sizing.kept_seconds(stream, Settings(), 1.0)}
    for stream in kept:
        assert found[stream] == pytest.approx(sizing.read()[stream], rel=0.1), stream
