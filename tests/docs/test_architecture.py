"""The pages for contributors name files and rooms that exist, and leave out no room."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from tests.docs.blocks import ROOT

PAGES = ("docs/architecture.md", "CONTRIBUTING.md")
PACKAGES = ("actors/plancast_actors", "runtime/plancast", "bus/plancast_bus")

_CODE = re.compile(r"`([^`\s]+)`")
_ROOM = re.compile(r"^\| `(\w+)/` \|", re.MULTILINE)


def paths_of(page: str) -> set[str]:
    """The paths in code spans of a page that begin with a file or folder of the repository."""
    top = {path.name for path in ROOT.iterdir()}
    return {
        span.rstrip("/")
        for span in _CODE.findall((ROOT / page).read_text(encoding="utf-8"))
        if span.partition("/")[0] in top
    }


def rooms_of(package: Path) -> set[str]:
    return {path.parent.name for path in package.glob("*/__init__.py")}


def listed_rooms(package: str) -> list[str]:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return _ROOM.findall(text.split(f"### `{package}`\n", 1)[1].split("\n#", 1)[0])


def layers_of(package: str) -> list[set[str]]:
    """The layers that import-linter enforces, from the top."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (
        each
        for each in project["tool"]["importlinter"]["contracts"]
        if each["type"] == "layers" and each["containers"] == [package]
    )
    return [set(re.findall(r"\w+", layer)) for layer in contract["layers"]]


@pytest.mark.parametrize("page", PAGES)
def test_every_path_of_the_repository_that_a_page_names_exists(page: str) -> None:
    missing = sorted(path for path in paths_of(page) if not (ROOT / path).exists())
    assert not missing, f"{page} names {', '.join(missing)}"


def test_paths_are_found_in_the_pages() -> None:
    assert len([path for path in paths_of("docs/architecture.md") if path.endswith(".py")]) >= 40
    assert len(paths_of("CONTRIBUTING.md")) >= 15


@pytest.mark.parametrize("package", PACKAGES)
def test_the_architecture_lists_every_room_of_a_package(package: str) -> None:
    rooms = listed_rooms(package)
    assert len(rooms) == len(set(rooms))
    assert set(rooms) == rooms_of(ROOT / package)


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_are_listed_in_the_order_of_the_layers(package: str) -> None:
    layers = layers_of(package.rpartition("/")[2])
    places = [next(place for place, layer in enumerate(layers) if room in layer) for room in listed_rooms(package)]
    assert places == sorted(places)
