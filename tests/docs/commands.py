"""The commands of a console block: whether they could run, and whether their output is what a page says."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass, field

import typer
from tests.docs.blocks import ROOT, Block

from plancast.cli.root import app

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SHELL = re.compile(r"[|&;<>$`*?(){}]|^\s*[A-Z_]+=")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_ID = re.compile(r"\b[0-9a-f]{32}\b")
_TIME = re.compile(r"# ?(?:µs|ms|s|min|h|d)\b")


@dataclass
class Command:
    """One command, and the lines that a page shows as its output."""

    text: str
    expected: list[str] = field(default_factory=list)

    @property
    def words(self) -> list[str]:
        """Its words, without a comment behind it."""
        return shlex.split(self.text, comments=True)

    @property
    def simple(self) -> bool:
        """Whether it needs no shell."""
        return _SHELL.search(_unquoted(self.text)) is None


def commands_of(block: Block) -> list[Command]:
    """The commands of a shell block. In a console block they begin with ``$ ``, and the rest is output."""
    found: list[Command] = []
    lines = block.text.replace("\\\n", " ").splitlines()
    for line in lines:
        if block.language != "console":
            if line.strip() and not line.lstrip().startswith("#"):
                found.append(Command(line.strip()))
        elif line.startswith("$ "):
            found.append(Command(line[2:]))
        elif line.strip():
            assert found, f"{block.place}: output without a command"
            found[-1].expected.append(line)
    return found


def check_commands(block: Block) -> None:
    """Check what can be checked without running: shell syntax, plancast's commands and options, make's targets."""
    commands = commands_of(block)
    assert commands, f"{block.place}: there is no command in it"
    script = "\n".join(command.text for command in commands)
    read = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert read.returncode == 0, f"{block.place}: bash cannot read it: {read.stderr}"
    for command in commands:
        for words in simple_commands(command.text):
            check_words(words, block.place)


def check_words(words: list[str], place: str) -> None:
    """Check one command of plancast's, or make's."""
    program = words[0].rpartition("/")[2]
    if program == "plancast":
        check_plancast(words[1:], place)
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        for word in words[1:]:
            assert "=" in word or word.startswith("-") or word in targets, f"{place}: make has no target {word}"


def check_plancast(words: list[str], place: str) -> None:
    """Check that a command of plancast's exists, with these arguments and options."""
    command = typer.main.get_command(app)
    path, rest = "plancast", list(words)
    while getattr(command, "commands", None):
        if not rest or rest[0].startswith("-"):
            return  # plancast --version
        name = rest.pop(0)
        assert name in command.commands, f"{place}: there is no command {path} {name}"
        command, path = command.commands[name], f"{path} {name}"
    try:
        command.make_context(path, rest)
    except Exception as error:
        said = error.format_message() if hasattr(error, "format_message") else str(error)
        raise AssertionError(f"{place}: {path} {shlex.join(rest)}: {said}") from error


def simple_commands(text: str) -> list[list[str]]:
    """The commands of a line, without assignments before them and what they are joined with."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|&;"):
            commands.append([])
        elif commands[-1] or not _ASSIGNMENT.match(word):
            commands[-1].append(word)
    return [words for words in commands if words]


def _unquoted(text: str) -> str:
    return re.sub(r"'[^']*'|\"[^\"$`]*\"", "''", text)


def missing_output(expected: list[str], actual: str) -> str | None:
    """The first expected line that is not there, in order; None if all are.

    Loosely: numbers, times, ids and spaces may differ, and ``…`` stands for anything.
    """
    lines = iter([_loose(line) for line in actual.splitlines()])
    for line in expected:
        wanted = re.compile(".*".join(re.escape(part) for part in _loose(line).split("…")))
        if not any(wanted.fullmatch(each) for each in lines):
            return line
    return None


def _loose(line: str) -> str:
    plain = _NUMBER.sub("#", _ID.sub("ID", line))
    return " ".join(_TIME.sub("TIME", plain).split())
