"""The code blocks of the documentation, and what pages say of how they are to be tried.

A comment right before a block says what is special about it:

``<!-- not run: why -->``    it needs what a test has not (a cluster, an account); commands and code are still parsed
``<!-- exits: 1 -->``        the last command ends with that code
``<!-- given: code -->``     Python that runs before the block, for what a snippet takes for granted
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHELLS = frozenset({"console", "sh", "bash"})
DATA = frozenset({"json", "yaml", "toml"})
FIGURES = frozenset({"", "text"})
OWN_TESTS = frozenset({"docs/reference/http.md"})
"""Pages whose examples are run elsewhere: `tests/runtime/console/test_http_reference.py`."""

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,})(?P<info>[^`]*)$")
_MARK = re.compile(r"<!--\s*(not run|exits|given):\s*(.*?)\s*-->", re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')
_SAVED = re.compile(r"[Ss]ave (?:it|this) as `([\w./-]+)`")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    """The page's path in the repository."""
    line: int
    """Of its first fence, from 1."""
    language: str
    text: str
    title: str = ""
    """The file that a reader saves it as."""
    marks: dict[str, str] = field(default_factory=dict)
    is_output: bool = False
    """Whether it is what the Python block before it prints."""

    @property
    def place(self) -> str:
        """Where it is, as editors read it."""
        return f"{self.page}:{self.line}"

    @property
    def not_run(self) -> str:
        """Why it is not run; empty for one that is."""
        return self.marks.get("not run", "")


def pages() -> list[Path]:
    """The README and every page of docs, but those whose examples have tests of their own."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / "README.md", *(path for path in found if path.relative_to(ROOT).as_posix() not in OWN_TESTS)]


def blocks_of(path: Path) -> list[Block]:
    """The blocks of a page, in order."""
    page = path.relative_to(ROOT).as_posix()
    lines = path.read_text(encoding="utf-8").splitlines()
    found: list[Block] = []
    ended = 0
    for start, end, info in _fences(lines):
        language, _, rest = info.strip().partition(" ")
        before = "\n".join(lines[ended:start])
        after = "\n".join(lines[end + 1 : end + 4])
        titled = _TITLE.search(rest) or (_SAVED.search(after) if language == "python" else None)
        indent = len(lines[start]) - len(lines[start].lstrip())
        text = "\n".join(line[indent:] for line in lines[start + 1 : end])
        prints = bool(found) and found[-1].language == "python" and not found[-1].not_run and len(before.split()) < 12
        found.append(
            Block(
                page,
                start + 1,
                language,
                text,
                titled[1] if titled else "",
                _marks(before),
                language == "text" and prints and "#" not in before,
            )
        )
        ended = end + 1
    return found


def _fences(lines: list[str]) -> Iterator[tuple[int, int, str]]:
    start, ticks, info = -1, "", ""
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        if start < 0:
            start, ticks, info = number, fence["ticks"], fence["info"]
        elif fence["ticks"].startswith(ticks) and not fence["info"].strip():
            yield start, number, info
            start = -1
    assert start < 0, f"a fence is never closed, from line {start + 1}"


def _marks(before: str) -> dict[str, str]:
    """What the comments right before a fence say: nothing but comments may be between."""
    marks: dict[str, str] = {}
    rest = before.rstrip()
    while rest.endswith("-->"):
        start = rest.rfind("<!--")
        found = _MARK.fullmatch(rest[start:])
        if found is None:
            break
        marks.setdefault(found[1], found[2])
        rest = rest[:start].rstrip()
    return marks
