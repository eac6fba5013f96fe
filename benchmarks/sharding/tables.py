"""Renders tables for a terminal, and between markers in a document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Shown


@dataclass(frozen=True)
class Table:
    """A table; its name is also that of its markers."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[int] = (0,)
    """Indices of text columns; the others hold numbers and are right-aligned."""

    def shown(self) -> Shown:
        """Render for a terminal; long cells wrap."""
        table = Shown(title=self.title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for index, column in enumerate(self.columns):
            words = [word for row in self.rows for word in _plain(row[index]).split()]
            widest = max(map(len, words), default=1)
            justify: Literal["left", "right"] = "left" if index in self.words else "right"
            table.add_column(column, justify=justify, overflow="fold", min_width=widest)
        for row in self.rows:
            table.add_row(*map(_plain, row))
        return table

    def markdown(self) -> str:
        """Render for a document."""
        rule = ["---" if index in self.words else "---:" for index in range(len(self.columns))]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in (self.columns, rule, *self.rows))


def _plain(cell: str) -> str:
    return cell.replace("**", "").replace("`", "")


def show(tables: Iterable[Table], console: Console) -> None:
    """Print tables."""
    for table in tables:
        console.print(table.shown())
        console.print()


def write(tables: Iterable[Table], path: Path) -> list[str]:
    """Write tables between their markers in a document; return the names of those without markers.

    A table's markers are ``<!-- name -->`` and ``<!-- /name -->``, each on a line of its own.
    """
    text, missing = path.read_text(), []
    for table in tables:
        before, begin, rest = text.partition(f"<!-- {table.name} -->\n")
        _, end, after = rest.partition(f"<!-- /{table.name} -->")
        if end:
            text = f"{before}{begin}{table.markdown()}\n{end}{after}"
        else:
            missing.append(table.name)
    path.write_text(text)
    return missing
