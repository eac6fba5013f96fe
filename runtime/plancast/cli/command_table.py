"""A group of commands that imports the module of a command when the command is called, or its help is shown."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

MARKUP: Final = "markdown"
"""Markup of help texts; without it, paragraphs would keep the line breaks of the source."""
Places = Mapping[str, tuple[str, str]]
"""By the name of a command: its panel in the help, and the place of its function or group, as ``module:name``."""


class CommandTable(TyperGroup):
    """A group whose commands are those of a table of places."""

    places: ClassVar[Places]

    def __init__(self, **options: Any) -> None:
        super().__init__(**(options | {"commands": _Commands(self.places)}))


class _Commands(UserDict[str, Any]):
    """Commands by name; each is imported when it is read."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.data.update(dict.fromkeys(places))
        self._places = places

    def __getitem__(self, name: str) -> Any:
        command = self.data[name]
        if command is None:
            command = self.data[name] = _load(name, *self._places[name])
        return command


def _load(name: str, panel: str, place: str) -> Any:
    module, _, attribute = place.partition(":")
    found = getattr(import_module(module), attribute)
    alone = typer.Typer(rich_markup_mode=MARKUP)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name, rich_help_panel=panel)
    else:
        alone.command(name, rich_help_panel=panel)(found)
    return get_group(alone).commands[name]
