"""Runs a command inside the cluster by Ray's Jobs API, and follows its output."""

from __future__ import annotations

import contextlib
import logging
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plancast_actors.ray import connection
from plancast_bus.errors import BusUnavailable

POLL_SECONDS = 0.5
START_SECONDS = 60.0
"""Seconds for which submission is retried, since a cluster that has just started accepts no jobs."""


@dataclass(frozen=True)
class JobOutcome:
    """The outcome of a job."""

    job_id: str
    succeeded: bool
    exit_code: int | None
    """The command's exit code; None if it never ran."""
    output: str
    """The command's output, both streams."""
    message: str
    """Ray's message."""


def run(
    address: str,
    command: Sequence[str],
    runtime_env: dict[str, Any],
    follow: Callable[[str], None] = lambda _: None,
    token: Path | None = None,
) -> JobOutcome:
    """Run a command on the cluster's head node, and wait for its end. Blocks.

    Args:
        address: Ray's dashboard, ``http://head:8265``.
        command: The command's words.
        runtime_env: Ray's; a local archive in it is uploaded.
        follow: Called with each line of output.
        token: File with the cluster's token; None uses the one that Ray finds.

    Raises:
        BusUnavailable: the dashboard does not answer, or refuses the job.
    """
    with connection.authenticated(token) if token is not None else contextlib.nullcontext():
        return _run(address, command, runtime_env, follow)


def _run(
    address: str, command: Sequence[str], runtime_env: dict[str, Any], follow: Callable[[str], None]
) -> JobOutcome:
    from ray.exceptions import RayError
    from ray.job_submission import JobSubmissionClient

    try:
        client = JobSubmissionClient(address)
        logging.getLogger("ray.dashboard.modules.dashboard_sdk").setLevel(logging.WARNING)
        job_id = _submit(client, shlex.join(command), runtime_env)
        seen = 0
        while True:
            status = client.get_job_status(job_id)
            lines = client.get_job_logs(job_id).splitlines(keepends=True)
            whole = lines if status.is_terminal() else [line for line in lines if line.endswith("\n")]
            for line in whole[seen:]:
                follow(line.rstrip("\n"))
            seen = max(seen, len(whole))
            if status.is_terminal():
                break
            time.sleep(POLL_SECONDS)
        info = client.get_job_info(job_id)
    except (ConnectionError, OSError, RuntimeError, ValueError, RayError) as error:
        raise BusUnavailable(f"cannot run a job on the Ray cluster at {address}: {error}") from error
    return JobOutcome(
        job_id, str(status.value) == "SUCCEEDED", info.driver_exit_code, "".join(lines), str(info.message or "")
    )


def _submit(client: Any, entrypoint: str, runtime_env: dict[str, Any]) -> str:
    give_up = time.monotonic() + START_SECONDS
    while True:
        try:
            return str(client.submit_job(entrypoint=entrypoint, runtime_env=runtime_env))
        except RuntimeError as error:
            if "try again later" not in str(error) or time.monotonic() > give_up:
                raise
        time.sleep(POLL_SECONDS)
