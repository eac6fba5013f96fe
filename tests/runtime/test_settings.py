"""Settings: where they come from, which of them wins, and that they keep their secrets."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from plancast import App, Settings

ROOT = Path(__file__).parents[2]
SECRET = "s3cr3t-Zz"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PLANCAST_") or name in ("NATS_URL", "RAY_ADDRESS"):
            monkeypatch.delenv(name)


def test_defaults_need_no_environment() -> None:
    settings = Settings.load()
    assert (settings.nats.url, settings.ray.address, settings.ray.namespace) == ("", "", "plancast")
    assert (settings.hosts.placement, settings.bus.wire_format) == ("shared", "msgpack")
    assert settings.data_dir == Path(".plancast")


def test_the_environment_reaches_nested_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANCAST_HOSTS__COUNT", "4")
    monkeypatch.setenv("PLANCAST_BUS__MAX_EVENT_BYTES", "2048")
    monkeypatch.setenv("PLANCAST_DATA_DIR", "/data")
    settings = Settings.load()
    assert (settings.hosts.count, settings.bus.max_event_bytes, settings.data_dir) == (4, 2048, Path("/data"))


def test_the_environment_wins_over_an_app_which_wins_over_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("app", settings=Settings.model_validate({"hosts": {"count": 2, "idle_seconds": 9}, "bus": {"shards": 8}}))
    monkeypatch.setenv("PLANCAST_HOSTS__COUNT", "4")
    settings = Settings.load(app.settings)
    assert (settings.hosts.count, settings.hosts.idle_seconds, settings.bus.shards) == (4, 9, 8)
    assert settings.hosts.max_live_plans == Settings().hosts.max_live_plans


def test_saying_the_default_in_the_environment_counts_as_said(monkeypatch: pytest.MonkeyPatch) -> None:
    base = Settings.model_validate({"hosts": {"placement": "dedicated"}})
    monkeypatch.setenv("PLANCAST_HOSTS__PLACEMENT", "shared")
    assert Settings.load(base).hosts.placement == "shared"


def test_the_apps_own_settings_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_URL", "nats://there:4222")
    base = Settings()
    assert Settings.load(base).nats.url == "nats://there:4222"
    assert base.nats.url == ""


def test_the_common_variables_count_where_nothing_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_URL", "nats://common:4222")
    monkeypatch.setenv("RAY_ADDRESS", "common:6379")
    settings = Settings.load()
    assert (settings.nats.url, settings.ray.address) == ("nats://common:4222", "common:6379")
    monkeypatch.setenv("PLANCAST_NATS__URL", "nats://own:4222")
    monkeypatch.setenv("PLANCAST_RAY__ADDRESS", "own:6379")
    settings = Settings.load()
    assert (settings.nats.url, settings.ray.address) == ("nats://own:4222", "own:6379")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PLANCAST_CONSOLE_PORT", "tcp://10.0.0.7:7878"),  # as Kubernetes sets them for a service
        ("PLANCAST_CONSOLE_SERVICE_HOST", "10.0.0.7"),
        ("PLANCAST_CONSOLE_SERVICE_PORT_HTTP", "7878"),
        ("PLANCAST_CONSOLE_PORT_7878_TCP_ADDR", "10.0.0.7"),
        ("PLANCAST_RAY_TOKEN", "secret"),
        ("PLANCAST_TEST_SEED", "7"),
    ],
)
def test_variables_of_services_and_tools_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    Settings.load()


def test_every_variable_of_the_repository_is_a_setting_or_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that files for Docker and make, and the tests, read."""
    places = [*(ROOT / "deploy").rglob("*"), *(ROOT / "scripts").rglob("*.py"), ROOT / "Makefile"]
    places += [each for each in (ROOT / "tests").rglob("*.py") if "environ" in each.read_text()]
    texts = [each.read_text() for each in places if each.is_file() and each.suffix not in (".pyc", ".tgz")]
    names = {name for text in texts for name in re.findall(r"(?:\$\{?|get\(\"|environment: )(PLANCAST_[A-Z_]+)", text)}
    assert len(names) > 8
    for name in names:
        monkeypatch.setenv(name, "1")
    Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PLANCAST_HOSTS__COUNT", "-1"),
        ("PLANCAST_HOSTS__PLACEMENT", "nowhere"),
        ("PLANCAST_BUS__SHARDS", "0"),
        ("PLANCAST_PLANS__MAX_KEPT_EVENTS", "0"),
    ],
)
def test_what_is_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError, match=name.rpartition("__")[2].lower()):
        Settings.load()


@pytest.mark.parametrize("through_an_app", [False, True])
def test_secrets_are_shown_nowhere_and_survive_being_handed_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, through_an_app: bool
) -> None:
    base = None
    if through_an_app:
        base = Settings.model_validate({"nats": {"password": SECRET, "token": SECRET}})
    else:
        monkeypatch.setenv("PLANCAST_NATS__PASSWORD", SECRET)
        monkeypatch.setenv("PLANCAST_NATS__TOKEN", SECRET)
    settings = Settings.load(base)
    caplog.set_level(logging.DEBUG)
    logging.getLogger("test").info("settings: %s %r", settings, settings)
    shown = [repr(settings), str(settings), settings.model_dump_json(), caplog.text, f"{settings.nats}"]
    shown += [json.dumps(settings.model_dump(mode="json")), repr(settings.model_dump())]
    assert not any(SECRET in each for each in shown)
    for each in (settings, settings.model_copy(deep=True), pickle.loads(pickle.dumps(settings))):
        assert isinstance(each.nats.password, SecretStr)
        assert each.nats.password.get_secret_value() == SECRET
        assert each.nats.token is not None
        assert each.nats.token.get_secret_value() == SECRET


def test_a_bad_setting_does_not_show_its_neighbours_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANCAST_NATS__PASSWORD", SECRET)
    monkeypatch.setenv("PLANCAST_NATS__CONNECT_TIMEOUT", "never")
    with pytest.raises(ValidationError) as caught:
        Settings.load()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("PLANCAST_HOSTS__CONUT", "count"),
        ("PLANCAST_BUS__SHARD", "shards"),
        ("plancast_nats__urls", "url"),
        ("PLANCAST_REASONERS__LIMITS__GPT__RPN", "rpm"),
        ("PLANCAST_HOST__COUNT", "PLANCAST_HOSTS__COUNT"),
        ("PLANCAST_PLANS_MAX_DEPTH", "PLANCAST_PLANS__MAX_DEPTH"),
        ("PLANCAST_CONSOLE_PORT", "PLANCAST_CONSOLE__PORT"),
        ("plancast_data_folder", "PLANCAST_DATA_DIR"),
    ],
)
def test_a_misspelt_setting_is_refused_with_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch, name: str, right: str
) -> None:
    monkeypatch.setenv(name, "7")
    for load in (Settings, Settings.load):
        with pytest.raises(ValidationError, match=f"there is no setting .*; did you mean '{right}'"):
            load()


@pytest.mark.parametrize("fields", [{"host": {"count": 3}}, {"hosts": {"conut": 3}}, {"bus": {"shard": 3}}])
def test_a_misspelt_setting_of_an_app_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"did you mean '(hosts|count|shards)'"):
        Settings.model_validate(fields)
    with pytest.raises(ValidationError, match=r"did you mean '(hosts|count|shards)'"):
        Settings(**fields)


def test_tokens_have_any_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANCAST_CONSOLE__TOKENS__ADA", "0123456789abcdef")
    assert set(Settings.load().console.tokens) == {"ada"}
