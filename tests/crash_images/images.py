"""Crash images: what a disk may hold after the power is lost at some point of a recording.

The model is that of ext4 and XFS:

- What a returned ``fsync`` covers is kept: all changes of the file's content that had returned before it began.
- Of later changes of a file, a prefix is kept, and of the last one perhaps only some sectors. Files are independent.
- Changes of names are journaled: a prefix of all of them is kept, at least up to the last sync of whatever file.

Damage comes on top of that: flipped bits, and tails that are cut off, zeroed or overwritten.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from tests.crash_images.recording import Inode, Recording, Span, renamed, syncs_before

SECTOR = 512
Keep = Literal["synced", "some", "all"]
"""Ways of keeping changes that were not synced."""


@dataclass(frozen=True, slots=True)
class Image:
    """The content of a store after a crash."""

    time: float
    """When the power was lost, in seconds since the epoch."""
    files: dict[str, bytes]
    folders: frozenset[str]
    about: str

    def write(self, store: Path) -> None:
        """Write it to a folder that does not exist yet."""
        store.mkdir(parents=True)
        for name in sorted(self.folders):
            (store / name).mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (store / name).parent.mkdir(parents=True, exist_ok=True)
            (store / name).write_bytes(content)


def make_image(recording: Recording, line: int, random: Random, keep: Keep = "some", *, settled: int = 0) -> Image:
    """Make an image of a crash before a line of the recording.

    Args:
        recording: The recording.
        line: Where the power is lost.
        random: Decides what is kept.
        keep: What is kept of what was not synced.
        settled: The line before which everything is on disk: kernels write it back by themselves, after 30 s or so.
    """
    entries = [entry for entry in recording.entries if entry.span.ended < line]
    synced = max(_synced_entries(recording, line), sum(entry.span.ended < settled for entry in entries))
    count = {"synced": synced, "all": len(entries), "some": random.randint(synced, len(entries))}[keep]
    journaled = entries[synced - 1].span.ended if synced else -1
    names: dict[str, Inode] = {}
    for entry in entries[:count]:
        if entry.inode is None:
            for name in [each for each in names if each == entry.name or each.startswith(f"{entry.name}/")]:
                del names[name]
        elif entry.source:
            if entry.source in names:
                renamed(names, entry.source, entry.name)
        else:
            names[entry.name] = entry.inode
    contents: dict[int, bytes] = {}
    for inode in names.values():
        if not inode.is_folder and id(inode) not in contents:
            contents[id(inode)] = _content(inode, line, journaled, settled, random, keep)
    return Image(
        recording.times[min(line, len(recording.times) - 1)],
        {name: contents[id(inode)] for name, inode in names.items() if not inode.is_folder},
        frozenset(name for name, inode in names.items() if inode.is_folder),
        f"line {line}, {keep} of what was not synced",
    )


def _synced_entries(recording: Recording, line: int) -> int:
    """Return how many changes of names are kept for certain."""
    last = max((sync.begun for sync in syncs_before(recording.syncs, line)), default=-1)
    return sum(entry.span.ended < last for entry in recording.entries)


def _content(inode: Inode, line: int, journaled: int, settled: int, random: Random, keep: Keep) -> bytes:
    changes = [change for change in inode.changes if change.span.begun < line]
    last: Span | None = max(syncs_before(inode.syncs, line), key=lambda sync: sync.begun, default=None)
    floor = sum(change.span.ended <= last.begun for change in changes) if last is not None else 0
    for number, change in enumerate(changes):
        # A truncation is a change of metadata.
        if change.span.ended < settled or (change.data is None and change.span.ended <= journaled):
            floor = max(floor, number + 1)
    count = {"synced": floor, "all": len(changes), "some": random.randint(floor, len(changes))}[keep]
    content = bytearray()
    for change in changes[:count]:
        _apply(content, change.offset, change.data)
    if keep == "some" and count < len(changes) and (torn := changes[count]).data is not None:
        first = SECTOR - torn.offset % SECTOR
        cuts = [0, *range(first, len(torn.data), SECTOR)]
        _apply(content, torn.offset, torn.data[: random.choice(cuts)])
    return bytes(content)


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        content.extend(bytes(offset - len(content)))
    elif data:
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(data)] = data


def damaged(image: Image, random: Random) -> Image:
    """Return an image with one file damaged."""
    name = random.choice([name for name, content in sorted(image.files.items()) if content])
    content = bytearray(image.files[name])
    size = random.randint(1, min(len(content), 4096))
    match random.choice(["flip", "flip", "cut", "zero", "garbage"]):
        case "flip":
            for _ in range(random.choice([1, 1, 4])):
                content[random.randrange(len(content))] ^= 1 << random.randrange(8)
            what = "bits flipped"
        case "cut":
            del content[-size:]
            what = f"{size} bytes cut off"
        case "zero":
            content[-size:] = bytes(size)
            what = f"the last {size} bytes zeroed"
        case _:
            content[-size:] = random.randbytes(size)
            what = f"the last {size} bytes overwritten"
    return Image(
        image.time,
        image.files | {name: bytes(content)},
        image.folders,
        f"{image.about}; in {name} of {len(content)} bytes {what}",
    )
