"""Numbers of actors in a deployment's record: those of the settings, and those that `plancast scale` has set."""

from __future__ import annotations

from plancast import Settings
from plancast_actors.dispatcher_options import DispatcherOptions
from plancast_actors.ray.process import Blueprint, host_names
from plancast_actors.scale import CONFIGURED, WANTED, Scale, overridden


def test_a_blueprint_knows_the_numbers_of_its_settings_however_often_it_is_scaled() -> None:
    made = Blueprint("m:app", Settings(), options=DispatcherOptions(count=2), shared_hosts=host_names(4))
    bounds = (made.settings.reasoners.min, made.settings.reasoners.max)
    assert made.configured == Scale(4, 2, bounds)
    scaled = made.scaled(Scale(hosts=6)).scaled(Scale(3, 1, (0, 9)))
    assert (len(scaled.shared_hosts), scaled.options.count, scaled.settings.reasoners.max) == (3, 1, 9)
    assert scaled.configured == made.configured
    assert len(scaled.scaled(scaled.configured).shared_hosts) == 4


def test_numbers_of_scale_are_told_from_those_of_the_settings() -> None:
    assert overridden(None) is None
    assert overridden({CONFIGURED: {"hosts": 4}}) is None
    record = {WANTED: {"hosts": 6, "reasoners": [0, 9]}, CONFIGURED: {"hosts": 4, "reasoners": [1, 4]}}
    assert overridden(record) == {
        "hosts": {"scale": 6, "settings": 4}, "reasoners": {"scale": (0, 9), "settings": (1, 4)}
    }  # fmt: skip
    assert overridden({WANTED: {"hosts": 6}}) == {"hosts": {"scale": 6, "settings": None}}
