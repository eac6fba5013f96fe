"""A Ray that is started as deploy/ starts it runs code for who has its token, and for nobody else."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.isolation.ray_head import Head, ray_head

from plancast_actors.ray import jobs
from plancast_bus.errors import BusUnavailable

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with ray_head() as head:
        yield head


@pytest.mark.attack(who="stranger", what="submit a job to Ray's dashboard", expected="401 or 403 without its token")
def test_the_job_server_runs_nothing_without_the_token(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    job = {"entrypoint": "touch /tmp/never"}
    assert [head.ask("/api/jobs/", token, job) for token in ("", "0" * 64)] == [401, 403]
    assert head.ask("/api/jobs/") == 401
    assert head.ask("/api/jobs/", head.token.read_text()) == 200
    with pytest.raises(BusUnavailable, match="token"):
        jobs.run(head.dashboard, ["true"], {})


def test_the_job_server_runs_a_job_with_the_token_of_the_settings(head: Head) -> None:
    before = dict(os.environ)
    outcome = jobs.run(head.dashboard, ["echo", "ran"], {}, token=head.token)
    assert (outcome.succeeded, "ran" in outcome.output.splitlines()) == (True, True), outcome
    assert head.token.read_text() not in outcome.output
    assert os.environ.get("RAY_AUTH_TOKEN_PATH") == before.get("RAY_AUTH_TOKEN_PATH"), "the token is for the call alone"
