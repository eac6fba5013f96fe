"""`plancast new`: creates a project."""

from __future__ import annotations

import re
from enum import StrEnum
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from plancast.cli.errors import DONE, CommandFailed, usage_error
from plancast.cli.options import AsJson, Verbose
from plancast.terminal.output import cell, out, print_json, report_line

MAX_NAME = 50
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([_-][A-Za-z0-9]+)*")
_TAKEN = frozenset({"app", "plancast", "tests"})
"""Names that would shadow modules of the project or of plancast."""
_SUFFIX = ".tmpl"


class ProjectTemplate(StrEnum):
    """Templates of a new project."""

    MACHINE = "machine"
    AGENT = "agent"
    WORKER = "worker"


_WORDS = {
    ProjectTemplate.MACHINE: (
        '{"topic": "tides"}',
        "Plans that follow a state machine: an outline, then a text.",
        "`app.py` has the state machine and the worker for its tasks; `tests/test_app.py` runs them in memory.",
    ),
    ProjectTemplate.AGENT: (
        '{"question": "What makes the tides?"}',
        "Plans whose next step a model decides: it searches notes and answers from them.",
        "Without a model a decision tree takes the same steps. Set `${variable}` to a litellm model, such as `gpt-4o`, "
        "and its provider's key (`OPENAI_API_KEY`), before `plancast run` to have that model decide.",
    ),
    ProjectTemplate.WORKER: (
        '{"text": "two words"}',
        "A worker that joins a deployment: `plancast worker app:app`, with its server in `NATS_URL`.",
        "`app.py` also has a plan with one step, so that the worker can be tried on its own.",
    ),
}


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the project, such as my-agents.")],
    template: Annotated[
        ProjectTemplate,
        typer.Option(
            help="machine: plans that follow a state machine. agent: plans decided by a model; they also run without "
            "a key. worker: tasks for the plans of other apps."
        ),
    ] = ProjectTemplate.MACHINE,
    directory: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of the project.  \\[default: ./NAME]", show_default=False),
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Create a working project: an app with a worker, tests and a README. Existing files are not overwritten."""
    _check(name)
    folder = Path(name) if directory is None else directory
    made = make(name, template, folder)
    if as_json:
        print_json({"name": name, "template": template, "directory": str(folder), "files": made, "goal": _goal(name)})
        return DONE
    report_line(f"created {name} in {folder}: {', '.join(made)}", good=True)
    data, *_ = _WORDS[template]
    out().print(cell("Next steps:", "bold"))
    for line in (
        f"cd {folder}",
        "pip install pytest && pytest",
        "plancast run app:app",
        f"plancast submit {_goal(name)} --data '{data}' --wait    # in another terminal",
    ):
        out().print(cell(f"  {line}"), soft_wrap=True)
    return DONE


def make(name: str, template: ProjectTemplate, folder: Path) -> list[str]:
    """Write a project into a new or empty folder, and return its files.

    Raises:
        CommandFailed: the folder is not empty, or cannot be written.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise usage_error(
                f"{folder} is not empty, and existing files are not overwritten",
                "Use another NAME, or another folder with --directory.",
            )
        texts = {
            path: text
            for part in ("common", template.value)
            for path, text in _read(files("plancast.cli.apps.templates").joinpath(part), "")
        }
        data, about, more = _WORDS[template]
        variable = re.sub(r"\W", "_", name).upper() + "_MODEL"
        words = {"name": name, "goal": _goal(name), "data": data, "variable": variable, "version": version("plancast")}
        words |= {"about": about, "more": Template(more).substitute(variable=variable)}
        for path, text in texts.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(Template(text).safe_substitute(words), encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"cannot write {error.filename or folder}: {error.strerror}") from error
    return sorted(texts)


def _check(name: str) -> None:
    hint = "Use letters and digits, with single - or _ between them, as in my-agents."
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        fault = f"longer than {MAX_NAME} characters" if len(name) > MAX_NAME else "not a valid project name"
        raise usage_error(f"{name[:80]!r} is {fault}", hint)
    if name.lower() in _TAKEN:
        raise usage_error(f"a project named {name!r} would shadow a module of that name", hint)


def _goal(name: str) -> str:
    return f"{name}.goal"


def _read(folder: Traversable, path: str) -> list[tuple[str, str]]:
    found = []
    for each in folder.iterdir():
        if each.is_dir():
            found += _read(each, f"{path}{each.name}/")
        elif each.name.endswith(_SUFFIX):
            name = each.name.removesuffix(_SUFFIX)
            if name in ("gitignore", "dockerignore"):  # a real .gitignore here would exclude files from the wheel
                name = f".{name}"
            found.append((f"{path}{name}", each.read_text(encoding="utf-8")))
    return found
