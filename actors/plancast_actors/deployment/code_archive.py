"""CodeArchive: the user's code as a zip file that Ray distributes to every node."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

from plancast_bus.errors import PlancastError

LEFT_OUT = (
    *(".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".plancast", ".tox", ".nox"),
    *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".import_linter_cache", ".ipynb_checkpoints"),
    *("*.pyc", "*.egg-info", ".DS_Store"),
    # Secrets.
    *(".env", ".env.*", "*.pem", "*.key", "*.nk", "*.creds", "nats-secrets.yaml"),
)
"""Names of files and folders that are never included."""
MAX_FILE_BYTES = 20 * 1024**2
"""Size of the largest file that is included; larger data belongs into shared storage."""
MAX_BYTES = 90 * 1024**2
"""Total size of the files; Ray's job server accepts 100 MiB."""
DIGITS = 12
"""Length of the digest."""


class CannotShip(PlancastError):
    """Raised when a folder of code is missing, empty or too large."""


@dataclass(frozen=True)
class CodeArchive:
    """The files of a project for the cluster, and the packages that they need."""

    folder: Path
    files: tuple[str, ...]
    """Relative to the folder, with forward slashes, sorted."""
    too_large: tuple[str, ...] = ()
    """Files that are left out because of their size."""
    requirements: tuple[str, ...] = ()
    """Requirements that pip installs on each node."""

    @classmethod
    def of(cls, folder: Path, *, exclude: Iterable[str] = (), requirements: Iterable[str] = ()) -> CodeArchive:
        """Collect a folder's files except :data:`LEFT_OUT`, virtual environments, large and excluded files.

        The folder's content becomes the working directory of every actor. ``exclude`` has patterns such as ``data`` or
        ``*.csv`` for names or relative paths; pip installs the requirements on each node.

        Raises:
            CannotShip: the folder is missing, empty or too large.
        """
        if not folder.is_dir():
            raise CannotShip(f"there is no folder {folder}")
        files, too_large, total = [], [], 0
        for path, size in _walk(folder.resolve(), (*LEFT_OUT, *exclude)):
            if size > MAX_FILE_BYTES:
                too_large.append(path)
                continue
            files.append(path)
            total += size
        if not files:
            raise CannotShip(f"there is nothing to ship in {folder}")
        if total > MAX_BYTES:
            raise CannotShip(
                f"{folder} has {total / 1024**2:.0f} MiB, and no more than {MAX_BYTES // 1024**2} MiB can be shipped; "
                f"most is in {', '.join(_largest(folder, files))}: leave it out, or name a smaller folder"
            )
        return cls(folder.resolve(), tuple(sorted(files)), tuple(sorted(too_large)), tuple(requirements))

    @cached_property
    def digest(self) -> str:
        """Hash of files and requirements, independent of the folder's location."""
        sha = hashlib.sha256()
        for name in self.files:
            content = (self.folder / name).read_bytes()
            sha.update(f"{name}\0{len(content)}\0".encode())
            sha.update(content)
        sha.update("\0".join(self.requirements).encode())
        return sha.hexdigest()[:DIGITS]

    def write(self, archive: Path) -> None:
        """Write the zip file; equal files give equal bytes."""
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
            for name in self.files:
                path = self.folder / name
                info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
                info.external_attr = (0o100755 if os.access(path, os.X_OK) else 0o100644) << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                made.writestr(info, path.read_bytes())

    def runtime_env(self, archive: Path) -> dict[str, Any]:
        """Ray's runtime environment for an archive that :meth:`write` has written."""
        env: dict[str, Any] = {"working_dir": str(archive)}
        if self.requirements:
            env["pip"] = list(self.requirements)
        return env


def _walk(folder: Path, patterns: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yield paths and sizes. Links to folders are not followed: they may form circles."""
    for root, folders, names in os.walk(folder):
        here = Path(root).relative_to(folder)
        folders[:] = [
            name
            for name in folders
            if not _matches(here / name, patterns) and not (Path(root) / name / "pyvenv.cfg").exists()
        ]
        for name in names:
            path = Path(root) / name
            if not _matches(here / name, patterns) and path.is_file():
                yield (here / name).as_posix(), path.stat().st_size


def _matches(path: Path, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(path.name, each) or fnmatch(path.as_posix(), each.rstrip("/")) for each in patterns)


def _largest(folder: Path, files: list[str]) -> list[str]:
    sizes: dict[str, int] = {}
    for name in files:
        top = name.split("/", 1)[0]
        sizes[top] = sizes.get(top, 0) + (folder / name).stat().st_size
    most = sorted(sizes, key=lambda top: -sizes[top])[:3]
    return [f"{top} ({sizes[top] / 1024**2:.0f} MiB)" for top in most]
