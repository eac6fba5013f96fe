"""Audits the locked packages.

``locks`` checks that every package in requirements/*.txt and in the locks of the benchmarks' peers is pinned by version
and hash, without an address, and satisfies pyproject.toml; and that the npm lock of a peer has an integrity for each
package, and no address. It needs no network and is deterministic, so `make check` runs it.

``advisories`` queries https://osv.dev for known vulnerabilities of locked packages, through pip-audit, which uv fetches
for this run. Exit codes: 0 none known, or osv.dev is unreachable, which is printed; 1 some are known. With
``--strict``, an unreachable osv.dev is a failure too.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = [ROOT / "requirements" / name for name in ("runtime.txt", "dev.txt", "bench.txt", "image.txt", "next.txt")]
PEERS = ROOT / "benchmarks" / "peers"
"""Each peer has an environment of its own, so its lock need not agree with others."""
PIP_AUDIT = "pip-audit==2.10.1"
ADVISORIES = ("api.osv.dev", 443)
_PINNED = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==(\S+)(?: ; .*)?( --hash=sha256:[0-9a-f]{64})+")


def locks() -> int:
    """Print each fault of the lock files; return 1 if there are any."""
    locked = {file.name: _locked(file) for file in LOCKS}
    faults = [fault for _, found in locked.values() for fault in found]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {"runtime.txt": project["project"]["dependencies"], "bench.txt": project["dependency-groups"]["bench"]}
    wanted["dev.txt"] = [*wanted["runtime.txt"], *project["dependency-groups"]["dev"]]
    telemetry = project["project"]["optional-dependencies"]["telemetry"]
    wanted["image.txt"] = [*wanted["runtime.txt"], *telemetry, *project["dependency-groups"]["image"]]
    for name, requirements in wanted.items():
        faults += _unmet(name, locked[name][0], requirements)
    for package, version in locked["runtime.txt"][0].items():
        if locked["dev.txt"][0].get(package) != version:
            faults.append(f"{package} is {version} in runtime.txt and not in dev.txt; run `make lock`")
    for name in ("bench.txt", "image.txt"):
        for package, version in locked[name][0].items():
            if locked["dev.txt"][0].get(package, version) != version:
                faults.append(f"{package} is {version} in {name} and not in dev.txt; run `make lock`")
    for file in _of_peers("requirements.txt"):
        pins, found = _locked(file)
        faults += found if pins or found else [f"{_name(file)} pins nothing"]
        source = file.with_suffix(".in")
        if source.exists():
            faults += _unmet(_name(file), pins, source.read_text().split())
    faults += [fault for file in _of_peers("package-lock.json") for fault in _npm(file)]
    for fault in faults:
        print(fault)
    return 1 if faults else 0


def _of_peers(name: str) -> list[Path]:
    return sorted(PEERS.glob(f"*/{name}"))


def _name(file: Path) -> str:
    """Return the display name of a lock file; those of peers include their folder."""
    return f"{file.parent.name}/{file.name}" if file.is_relative_to(PEERS) else file.name


def _unmet(name: str, pins: dict[str, str], requirements: list[str]) -> list[str]:
    faults = []
    for requirement in map(Requirement, requirements):
        version = pins.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            faults.append(f"{name}: {requirement} is locked at {version or 'no version'}; lock it again")
    return faults


def _npm(file: Path) -> list[str]:
    """Return faults for packages of an npm lock that are not pinned by version and hash alone."""
    packages = json.loads(file.read_text())["packages"]
    return [
        f"{_name(file)}: {path} is not pinned by version and hash alone"
        for path, facts in packages.items()
        if (path and not (facts.get("version") and facts.get("integrity", "").startswith("sha512-")))
        or "resolved" in facts
    ]


def _locked(file: Path) -> tuple[dict[str, str], list[str]]:
    """Return the versions in a lock file by package, and faults for lines that pin nothing."""
    pins: dict[str, str] = {}
    faults: list[str] = []
    for line in re.sub(r"\s*\\\n\s*", " ", file.read_text()).splitlines():
        pin = _PINNED.fullmatch(line.strip())
        if pin is not None and "://" not in line:
            pins[canonicalize_name(pin[1])] = pin[2]
        elif line.strip() and not line.startswith("#"):
            faults.append(f"{_name(file)}: {line.split(' --hash')[0][:80]!r} is not pinned by version and hash alone")
    return pins, faults


def advisories(*, strict: bool) -> int:
    """Query for known vulnerabilities of locked packages."""
    try:
        socket.create_connection(ADVISORIES, timeout=10).close()
    except OSError as error:
        print(f"not audited: {ADVISORIES[0]} cannot be reached ({error}). Run `make audit` with access to it.")
        return 1 if strict else 0
    command = [str(ROOT / ".venv" / "bin" / "uv"), "tool", "run", "--from", PIP_AUDIT, "pip-audit"]
    options = ["--disable-pip", "--require-hashes", "--vulnerability-service", "osv", "--progress-spinner", "off"]
    # Peers' locks differ from each other and from ours, so each is queried separately.
    groups = [LOCKS, *([file] for file in _of_peers("requirements.txt"))]
    codes = []
    for files in groups:
        print(f"auditing {', '.join(map(_name, files))}", flush=True)
        named = [part for file in files for part in ("-r", str(file))]
        codes.append(subprocess.run([*command, *options, *named], check=False).returncode)
    return max(codes)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["locks"]:
        sys.exit(locks())
    if arguments[:1] == ["advisories"]:
        sys.exit(advisories(strict="--strict" in arguments))
    sys.exit(f"{__doc__}\nusage: python scripts/audit.py locks | advisories [--strict]")
