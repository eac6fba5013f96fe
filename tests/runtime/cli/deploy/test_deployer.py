"""What `plancast deploy --watch` does runs in a process of its own, and the watch outlives that one's end."""

from __future__ import annotations

import os
import signal
import zipfile
from pathlib import Path

import pytest

from plancast.cli.deploy.code import Code
from plancast.cli.deploy.deployer import _unpacked, apart
from plancast.cli.errors import CommandFailed


async def look(parent: int) -> None:
    raise CommandFailed("in another process" if os.getpid() != parent else "in the same process")


async def fail(text: str) -> None:
    raise CommandFailed(text, hint="a hint")


async def end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def succeed() -> None:
    pass


async def test_an_action_runs_in_another_process() -> None:
    await apart(succeed)
    with pytest.raises(CommandFailed, match="in another process"):
        await apart(look, os.getpid())


async def test_errors_of_the_action_and_the_end_of_its_process_are_told() -> None:
    with pytest.raises(CommandFailed, match="no cluster"):
        await apart(fail, "no cluster")
    with pytest.raises(CommandFailed, match="ended with -9"):
        await apart(end)


def test_code_that_was_shipped_is_deployed_again_although_the_files_have_changed(tmp_path: Path) -> None:
    archive = tmp_path / "code.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("shop/app.py", "VERSION = 1")
    scratch = tmp_path / "scratch"
    assert _unpacked(Code("abc", {"working_dir": str(archive)}, ()), scratch) == str(scratch)
    assert (scratch / "shop/app.py").read_text() == "VERSION = 1"
    assert _unpacked(Code("abc", {"pip": ["rich"]}, ()), scratch) == _unpacked(Code("abc", None, ()), scratch) == ""
