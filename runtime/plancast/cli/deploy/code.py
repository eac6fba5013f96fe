"""Packs the user's code for a Ray cluster."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plancast.cli.errors import CommandFailed, usage_error
from plancast.terminal.output import note, size

if TYPE_CHECKING:
    from plancast_actors.deployment.code_archive import CodeArchive

WorkingDir = Annotated[
    Path | None,
    typer.Option(
        "--working-dir",
        metavar="FOLDER",
        help="Folder to ship.  \\[default: the folder that the app's module is imported from]",
        show_default=False,
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude", metavar="PATTERN", help="Files and folders to leave out, such as `data` or `*.csv`. Repeatable."
    ),
]
Pip = Annotated[
    list[str] | None, typer.Option("--pip", metavar="PACKAGE", help="Package to install on each node. Repeatable.")
]
Requirements = Annotated[
    Path | None,
    typer.Option("--requirements", metavar="FILE", help="Requirements file with packages to install on each node."),
]
NoShip = Annotated[
    bool, typer.Option("--no-ship", help="Ship nothing: every node already has the app, as in an image.")
]


@dataclass(frozen=True)
class Code:
    """The user's code for a cluster."""

    digest: str
    runtime_env: dict[str, Any] | None
    """Ray's runtime environment with a local archive; None when nothing is shipped."""
    import_paths: tuple[str, ...]
    """Import paths of the app on the nodes when nothing is shipped."""


@contextlib.contextmanager
def shipped_code(
    app_address: str,
    working_dir: Path | None,
    exclude: Sequence[str] | None,
    pip: Sequence[str] | None,
    requirements: Path | None,
    no_ship: bool,
    digest: str,
) -> Iterator[Code]:
    """Pack the code of a loaded app; the archive exists while the context is open. ``digest`` overrides its digest.

    Raises:
        CommandFailed: the options exclude each other, or the files cannot be shipped.
    """
    from plancast_actors.deployment.code_archive import CannotShip, CodeArchive

    packages = [*(pip or ()), *_packages(requirements)]
    folder = working_dir or folder_of(app_address)
    if no_ship and (working_dir or packages):
        raise usage_error("--no-ship excludes --working-dir, --pip and --requirements")
    try:
        shipment = CodeArchive.of(folder, exclude=exclude or (), requirements=packages) if folder is not None else None
    except CannotShip as error:
        raise CommandFailed(
            str(error), hint="--exclude PATTERN leaves files out; --working-dir selects a folder."
        ) from error
    if inside_job():  # actors of a job run the job's own code
        yield Code(digest or (shipment.digest if shipment is not None else ""), None, ())
        return
    if no_ship or shipment is None:
        digest = digest or (shipment.digest if shipment is not None else _of_package(app_address))
        env = {"pip": packages} if packages else None
        yield Code(digest, env, (str(Path.cwd()),))
        return
    _note_files(shipment)
    with tempfile.TemporaryDirectory(prefix="plancast-ship-") as scratch:
        archive = Path(scratch) / f"{shipment.digest}.zip"
        shipment.write(archive)
        yield Code(digest or shipment.digest, shipment.runtime_env(archive), ())


def inside_job() -> bool:
    """True if Ray's Jobs API started this process with submitted code."""
    try:
        config = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
    except ValueError:
        return False
    return bool((config.get("runtime_env") or {}).get("working_dir"))


def folder_of(app_address: str) -> Path | None:
    """The folder that the app's module was imported from; None for an installed package."""
    name = app_address.partition(":")[0]
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return Path.cwd()
    path = Path(file).resolve()
    levels = name.count(".") + (path.name == "__init__.py")
    folder = path.parents[levels]
    installed = {Path(sysconfig.get_path(each)).resolve() for each in ("purelib", "platlib", "stdlib")}
    return None if any(folder == each or each in folder.parents for each in installed) else folder


def _of_package(app_address: str) -> str:
    """Name and version of an installed package, in place of a digest."""
    from importlib.metadata import packages_distributions, version

    top = app_address.partition(":")[0].split(".")[0]
    distributions = packages_distributions().get(top, [])
    return f"{distributions[0]}-{version(distributions[0])}" if distributions else ""


def _packages(requirements: Path | None) -> list[str]:
    if requirements is None:
        return []
    try:
        lines = requirements.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise usage_error(f"--requirements: cannot read {requirements}: {error}") from error
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def _note_files(shipment: CodeArchive) -> None:
    bytes_in_all = sum((shipment.folder / name).stat().st_size for name in shipment.files)
    note(f"shipping {len(shipment.files)} files ({size(bytes_in_all)}) of {shipment.folder}")
    if shipment.too_large:
        shown = ", ".join(shipment.too_large[:3])
        more = f" and {len(shipment.too_large) - 3} more" if len(shipment.too_large) > 3 else ""
        note(f"left out, because too large for code: {shown}{more}")
