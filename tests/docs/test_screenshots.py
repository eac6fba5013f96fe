"""The screenshots of the documentation: those that are shown exist, and the command makes them."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from tests.docs.test_site import DOCS, script

pytestmark = pytest.mark.slow
screenshots = script("screenshots")


def size(picture: Path) -> tuple[int, int]:
    """Width and height of a PNG, in pixels."""
    head = picture.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return int(width), int(height)


def made(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.stem: size(path) for path in folder.glob("*.png")}


def expected() -> dict[str, tuple[int, int]]:
    sizes = {name: screenshots.SIZES[kind] for name, (_, kind, _) in screenshots.DOCUMENTED.items()}
    return {name: (size["width"], size["height"]) for name, size in sizes.items()}


def test_each_screenshot_is_in_the_documentation() -> None:
    pages = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    assert set(re.findall(r"screenshots/([\w-]+)\.png", pages)) == set(screenshots.DOCUMENTED)
    assert made(screenshots.FOLDER) == expected()


@pytest.mark.skipif(screenshots.CHROMIUM is None, reason="no Chromium on this machine; PLANCAST_CHROMIUM can name one")
async def test_a_command_makes_the_screenshots(tmp_path: Path) -> None:
    await screenshots.main(tmp_path)
    assert made(tmp_path) == expected()
