"""Logging of an actor's process to stderr, which Ray writes to a file of the node's session."""

from __future__ import annotations

import logging
import os
import sys

from plancast.settings import TelemetrySettings
from plancast.telemetry.logging import FieldFormatter, formatter

_OURS = ("plancast", "plancast_actors", "plancast_bus")


def configure(settings: TelemetrySettings, deployment: str, actor: str) -> None:
    """Configure logging; JSON records name the deployment, the actor and its process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(settings.log_format, {"deployment": deployment, "actor": actor, "pid": os.getpid()}))
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each.formatter, FieldFormatter)]:
        root.removeHandler(old)
    root.addHandler(handler)
    for name in _OURS:
        logging.getLogger(name).setLevel(settings.log_level.upper())
