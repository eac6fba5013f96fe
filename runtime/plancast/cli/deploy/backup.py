"""`plancast backup` and `restore`: the durable state of a deployment as files."""

from __future__ import annotations

import asyncio
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plancast.cli.connection import open_bus, reachable_settings
from plancast.cli.errors import DONE, CommandFailed, usage_error
from plancast.cli.options import AsJson, DataDir, NatsUrl, Verbose
from plancast.terminal.output import plural, print_json, public_url, report_line, size
from plancast.terminal.progress import transferring

if TYPE_CHECKING:
    from plancast.settings import Settings
    from plancast_bus.jetstream.backup.archive import Manifest, Record
    from plancast_bus.jetstream.backup.link import Report

TAR = ".tar"

Target = Annotated[
    Path, typer.Argument(metavar="DIR|FILE", help="A new folder, or a new file whose name ends with .tar.")
]
Source = Annotated[Path, typer.Argument(metavar="DIR|FILE", help="The folder or file of a backup.")]


def backup(
    target: Target, nats_url: NatsUrl = None, data_dir: DataDir = None, as_json: AsJson = False, verbose: Verbose = 0
) -> int:
    """Copy everything durable of a deployment, while it runs, to a new folder or file.

    The copy holds the keys that sign checkpoints and all data of plans: keep it as you keep the server's own files.
    """
    settings = reachable_settings(nats_url, data_dir)
    if target.exists() and (target.suffix == TAR or not target.is_dir()):
        raise usage_error(f"{target} exists: give a new folder or file")
    try:
        with transferring("copying") as report:
            manifest = asyncio.run(_back_up(settings, target, report))
    except OSError as error:
        raise CommandFailed(
            f"the backup cannot be written to {target}: {error.strerror or error}", hint="What was written is removed."
        ) from error
    if as_json:
        print_json(_document(manifest, target))
    else:
        report_line(f"{target} holds {_described(manifest)}", good=True)
    return DONE


async def _back_up(settings: Settings, target: Path, report: Report) -> Manifest:
    from plancast_bus.jetstream.backup.backup import back_up
    from plancast_bus.jetstream.backup.link import open_link

    async with open_link(settings.nats, settings.bus) as link:
        if target.suffix != TAR:
            return await back_up(link, target, report)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            inside = Path(folder, "backup")
            manifest = await back_up(link, inside, report)
            await asyncio.to_thread(_pack, inside, Path(folder, target.name), target)
        return manifest


def _pack(folder: Path, draft: Path, target: Path) -> None:
    from plancast_bus import private_files

    with (
        open(draft, "xb", opener=private_files.opener) as opened,
        tarfile.open(fileobj=opened, mode="w") as tar,
    ):
        for each in sorted(folder.iterdir()):
            tar.add(each, each.name)
            each.unlink()  # so that the disk has to hold one backup, and not two
    draft.replace(target)


def restore(
    source: Source,
    force: Annotated[
        bool, typer.Option("--force", help="Delete the deployment that exists there, with all its plans.")
    ] = False,
    nats_url: NatsUrl = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Create a deployment's streams as a backup holds them; then start the app as usual.

    Nothing may run meanwhile: what starts is refused until the restoration is over. One that was interrupted is begun
    again with the same command.
    """
    settings = reachable_settings(nats_url, data_dir)
    try:
        with transferring("restoring") as report, _unpacked(source) as folder:
            manifest = asyncio.run(_restore(settings, folder, report, force=force))
    except OSError as error:
        raise CommandFailed(f"the backup cannot be read from {source}: {error.strerror or error}") from error
    if as_json:
        print_json(_document(manifest, source))
    else:
        report_line(f"restored {_described(manifest)} to {public_url(settings.nats.url)}", good=True)
    return DONE


@contextmanager
def _unpacked(source: Path) -> Iterator[Path]:
    """The folder of a backup; that of a file is temporary."""
    if not source.is_file():
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="plancast-restore-") as folder:
        try:
            with tarfile.open(source, "r:") as tar:
                tar.extractall(folder, filter="data")
        except tarfile.TarError as error:
            raise usage_error(f"{source} is no backup, or a damaged one: {error}") from error
        yield Path(folder)


async def _restore(settings: Settings, folder: Path, report: Report, *, force: bool) -> Manifest:
    from plancast.plan_store.restored_events import RestoredEvents
    from plancast_actors.maintenance.stalled_plans import RESTORED_KEY, RESTORED_KIND
    from plancast_bus.jetstream.backup.link import open_link
    from plancast_bus.jetstream.backup.restoration import restore

    async with open_bus(settings) as bus, open_link(settings.nats, settings.bus) as link:
        events = RestoredEvents(bus)

        async def is_wanted(record: Record) -> bool:
            return await events.is_wanted(record.headers, record.payload)

        manifest = await restore(link, folder, is_wanted, report, force=force)
        await bus.clock.follow()
        await bus.registry.put(RESTORED_KIND, RESTORED_KEY, {"at": bus.clock.time(), "moment": manifest.moment})
        return manifest


def _described(manifest: Manifest) -> str:
    streams = sum(bool(part.stream) for part in manifest.parts)
    return f"{plural(streams, 'stream')} of {manifest.moment} ({size(manifest.bytes)})"


def _document(manifest: Manifest, path: Path) -> dict[str, Any]:
    return {
        "path": str(path),
        "prefix": manifest.prefix,
        "begun": manifest.begun,
        "moment": manifest.moment,
        "bytes": manifest.bytes,
        "streams": {part.stream: part.messages for part in manifest.parts if part.stream},
        "journal": sum(part.messages for part in manifest.parts if not part.stream),
    }
