"""Files and folders that are created readable by their owner alone."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import IO

FILE, FOLDER, OTHERS = 0o600, 0o700, 0o077
TOKEN_BYTES = 32


def make_folder(folder: Path) -> None:
    """Create a folder with mode 0700; an existing one is closed to other users.

    Raises:
        OSError: it cannot be created, is a symbolic link, or belongs to another user.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=FOLDER)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(f"{folder} is not a folder") from None
        if found.st_uid != os.geteuid():
            raise PermissionError(
                f"{folder} belongs to another user, who could read and replace what is in it"
            ) from None
        if found.st_mode & OTHERS:
            folder.chmod(FOLDER)


def opener(path: str, flags: int) -> int:
    """An opener for :func:`open` that sets mode 0600, on existing files too."""
    descriptor = os.open(path, flags, FILE)
    os.fchmod(descriptor, FILE)
    return descriptor


def write(file: Path, text: str) -> None:
    """Replace a file atomically; processes that have the old one open do not see the new content."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE)
        with open(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text)
        draft.replace(file)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def sync(file: IO[bytes]) -> None:
    """Have what was written to an open file on disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_ours(descriptor: int) -> bool:
    """Return whether an open file belongs to this process's user."""
    return os.fstat(descriptor).st_uid == os.geteuid()


def load_token(file: Path) -> str:
    """Read the random token in a file; create a new one when there is none or others could have read it."""
    try:
        with open(file, encoding="ascii") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            token = opened.read().strip()
            if token and is_ours(opened.fileno()) and not mode & OTHERS:
                return token
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    token = secrets.token_hex(TOKEN_BYTES)
    write(file, token)
    return token
