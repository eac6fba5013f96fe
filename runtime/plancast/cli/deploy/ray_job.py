"""Runs commands as a job inside the Ray cluster, when the address is that of its dashboard."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, SecretStr

from plancast.cli.deploy.code import Code
from plancast.cli.errors import FAILED, CommandFailed
from plancast.terminal.output import note

if TYPE_CHECKING:
    from plancast.settings import Settings

_OWN = ("PLANCAST_RAY__ADDRESS", "PLANCAST_RAY__AUTH_TOKEN_PATH", "PLANCAST_DATA_DIR")
"""Variables that are valid on this machine alone."""
_NOISE = ("Running entrypoint for job", "INFO job_manager", "INFO worker.py", "INFO packaging.py")


def is_dashboard(address: str) -> bool:
    """True for the address of Ray's dashboard, which runs jobs but cannot be joined."""
    return address.startswith(("http://", "https://"))


def run_in_cluster(arguments: Sequence[str], settings: Settings, code: Code | None = None) -> dict[str, Any]:
    """Run ``plancast <arguments> --json`` on the cluster's head, and return the JSON that it prints.

    Settings of this environment are passed along, except secrets: the cluster needs its own.

    Raises:
        CommandFailed: the command failed there; carries its message and exit code.
        BusUnavailable: the dashboard does not answer.
    """
    from plancast_actors.ray import jobs

    env = dict(code.runtime_env) if code is not None and code.runtime_env else {}
    env["env_vars"] = _environment(settings)
    printed: list[str] = []

    def follow(line: str) -> None:
        if line == "{" or printed:
            printed.append(line)
        elif line.strip() and not line.startswith(("error: ", "hint: ")) and not any(each in line for each in _NOISE):
            note(f"  {line}")

    note(f"submitting a job to {settings.ray.address}")
    outcome = jobs.run(
        settings.ray.address,
        ["python", "-m", "plancast", *arguments, "--json"],
        env,
        follow,
        settings.ray.auth_token_path,
    )
    lines = outcome.output.splitlines()
    document = _document(printed)
    if document is None or not (outcome.succeeded or outcome.exit_code == FAILED):
        raise CommandFailed(
            _after("error: ", lines) or f"the job {outcome.job_id} failed: {outcome.message[-500:]}",
            hint=_after("hint: ", lines) or f"`ray job logs {outcome.job_id}` shows its output.",
            code=outcome.exit_code or FAILED,
        )
    return document


def _document(lines: Sequence[str]) -> dict[str, Any] | None:
    """The JSON document in the output; Ray may print other lines around it."""
    for end in range(len(lines), 0, -1):
        if lines[end - 1] == "}":
            try:
                document: dict[str, Any] = json.loads("\n".join(lines[:end]))
            except ValueError:
                continue
            return document
    return None


def _after(prefix: str, lines: Sequence[str]) -> str:
    return next((line.removeprefix(prefix) for line in reversed(lines) if line.startswith(prefix)), "")


def _environment(settings: Settings) -> dict[str, str]:
    secret = _secrets(type(settings), "PLANCAST_")
    found = {name: value for name, value in os.environ.items() if name.upper().startswith("PLANCAST_")}
    kept_back = sorted(name for name in found if f"{name.upper()}__".startswith(tuple(f"{each}__" for each in secret)))
    if kept_back:
        note(f"not sent, because others can read jobs: {', '.join(kept_back)}; the cluster needs its own")
    sent = {name: value for name, value in found.items() if name not in kept_back and name.upper() not in _OWN}
    sent["PLANCAST_RAY__NAMESPACE"] = settings.ray.namespace
    if settings.nats.url:
        sent["PLANCAST_NATS__URL"] = settings.nats.url  # reading the settings has removed a login from it
    return sent


def _secrets(model: type[BaseModel], prefix: str) -> set[str]:
    """Names of the variables of all secret settings."""
    found = set()
    for name, field in model.model_fields.items():
        kind: Any = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found |= _secrets(kind, f"{prefix}{name.upper()}__")
        elif "SecretStr" in str(kind) or kind is SecretStr:
            found.add(f"{prefix}{name.upper()}")
    return found
