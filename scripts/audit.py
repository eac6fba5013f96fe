"""Audit of the locked packages.

``locks``: is every package in requirements/*.txt pinned with hashes, from no named place, and as pyproject.toml asks?
It needs no network and says the same every time, so `make check` runs it.

``advisories``: has a locked package a known vulnerability? It asks https://osv.dev through pip-audit, which uv fetches
for this one run. Exit codes: 0 none known, or nobody could be asked, which it says; 1 some are known. With
``--strict`` it is a failure too that nobody could be asked.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = [ROOT / "requirements" / name for name in ("runtime.txt", "dev.txt")]
PIP_AUDIT = "pip-audit==2.10.1"
ADVISORIES = ("api.osv.dev", 443)
_PINNED = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==(\S+)(?: ; .*)?( --hash=sha256:[0-9a-f]{64})+")


def locks() -> int:
    """Print each fault of the lock files; 1 when there are some."""
    locked = {file.name: _locked(file) for file in LOCKS}
    faults = [fault for _, found in locked.values() for fault in found]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {"runtime.txt": project["project"]["dependencies"]}
    wanted["dev.txt"] = [*wanted["runtime.txt"], *project["dependency-groups"]["dev"]]
    for name, requirements in wanted.items():
        pins = locked[name][0]
        for requirement in map(Requirement, requirements):
            version = pins.get(canonicalize_name(requirement.name))
            if version is None or not requirement.specifier.contains(version, prereleases=True):
                faults.append(f"{name}: {requirement} is locked at {version or 'no version'}; run `make lock`")
    for package, version in locked["runtime.txt"][0].items():
        if locked["dev.txt"][0].get(package) != version:
            faults.append(f"{package} is {version} in runtime.txt and not in dev.txt; run `make lock`")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


def _locked(file: Path) -> tuple[dict[str, str], list[str]]:
    """The versions in a lock file by package, and the lines that pin nothing."""
    pins: dict[str, str] = {}
    faults: list[str] = []
    for line in re.sub(r"\s*\\\n\s*", " ", file.read_text()).splitlines():
        pin = _PINNED.fullmatch(line.strip())
        if pin is not None and "://" not in line:
            pins[canonicalize_name(pin[1])] = pin[2]
        elif line.strip() and not line.startswith("#"):
            faults.append(f"{file.name}: {line.split(' --hash')[0][:80]!r} is not pinned by version and hash alone")
    return pins, faults


def advisories(*, strict: bool) -> int:
    """Ask for known vulnerabilities of what is locked."""
    try:
        socket.create_connection(ADVISORIES, timeout=10).close()
    except OSError as error:
        print(f"not audited: {ADVISORIES[0]} cannot be reached ({error}). Run `make audit` where it can.")
        return 1 if strict else 0
    command = [str(ROOT / ".venv" / "bin" / "uv"), "tool", "run", "--from", PIP_AUDIT, "pip-audit"]
    options = ["--disable-pip", "--require-hashes", "--vulnerability-service", "osv", "--progress-spinner", "off"]
    files = [part for file in LOCKS for part in ("-r", str(file))]
    return subprocess.run([*command, *options, *files], check=False).returncode


if __name__ == "__main__":
    asked = sys.argv[1:]
    if asked[:1] == ["locks"]:
        sys.exit(locks())
    if asked[:1] == ["advisories"]:
        sys.exit(advisories(strict="--strict" in asked))
    sys.exit(f"{__doc__}\nusage: python scripts/audit.py locks | advisories [--strict]")
