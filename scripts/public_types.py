"""Checks that the public surface is typed: every public name, and whatever its classes offer, has a known type.

Public are the names that `plancast`, `plancast.planners` and `plancast.testing` export. `basedpyright --verifytypes`
judges every module; its findings on public names are printed. More of them than `MOST_UNKNOWN` fail the check.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import plancast
import plancast.planners
import plancast.testing

MOST_UNKNOWN = 3
"""Public names and members without a known type. It may only fall."""


def public_names() -> tuple[str, ...]:
    """The full names of what is public, where it is exported and where it is defined."""
    names = set()
    for package in (plancast, plancast.planners, plancast.testing):
        for name in package.__all__:
            value = getattr(package, name)
            names.add(f"{package.__name__}.{name}")
            names.add(f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', name)}")
    return tuple(sorted(names))


def report() -> list[dict[str, Any]]:
    """The symbols of the package, as basedpyright reports them."""
    # It looks for the package where the first `python` on the path finds it.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["basedpyright", "--verifytypes", "plancast", "--ignoreexternal", "--outputjson"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    symbols: list[dict[str, Any]] = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    return symbols


def main() -> int:
    """Print what is not known, and how much is; 1 when more than `MOST_UNKNOWN` is not."""
    public = public_names()
    members = tuple(f"{name}." for name in public)
    checked = [each for each in report() if each["name"] in public or each["name"].startswith(members)]
    unknown = [each for each in checked if not each["isTypeKnown"] or each["isTypeAmbiguous"]]
    for each in unknown:
        for diagnostic in each["diagnostics"]:
            print(f"{each['name']}: {' '.join(diagnostic['message'].split())}")
    print(f"{len(checked) - len(unknown)} of {len(checked)} public names and members have a known type")
    return 0 if checked and len(unknown) <= MOST_UNKNOWN else 1


if __name__ == "__main__":
    sys.exit(main())
