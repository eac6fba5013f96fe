"""A page that is tried: its Python in one namespace, its commands against one `plancast run` for all pages."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from tests.docs.blocks import DATA, FIGURES, ROOT, SHELLS, Block, blocks_of, pages
from tests.docs.commands import Command, check_commands, check_plancast, commands_of, missing_output, simple_commands

from plancast.cli import main
from plancast.terminal import logging

README = "README.md"
"""Its files are there on every page: `greetings.py` is everybody's example."""
HARMLESS = frozenset({"awk", "cat", "cd", "echo", "export", "ls", "plancast", "python", "xargs"})
"""What is run. Everything else could reach what is no test's: a cluster, an account, the machine."""
_START_SECONDS = 100
_STOP_SECONDS = 60
_PATIENCE = 60.0
"""Seconds in which what a command shows may become what the page says: plans move while one looks."""
_BLOCK_SECONDS = 100
_LOOKS = re.compile(r"(plancast (plans (show|list|history|watch)|status|deadletters list))\b")
_PLAN_ID = re.compile(r"\b[0-9a-f]{32}\b")

COMBINED = '''"""All apps that pages run, as one."""
import importlib, importlib.util, json, sys
from pathlib import Path
from plancast import App

apps = []
for name, path, attribute in json.loads(Path(__file__).with_suffix(".json").read_text()):
    if path:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(name)
    apps.append(getattr(module, attribute))
planners = [each for app in apps for each in app.planners]
app = App("docs", planners=planners, workers=[each for app in apps for each in app.workers])
'''


class SharedRun:
    """One `plancast run` of every app that a page runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.apps: dict[tuple[str, str], list[str]] = {}
        """Module and attribute of what pages run, by page and address."""
        self.process: subprocess.Popen[bytes] | None = None
        self.ready = ""

    def page_folder(self, page: str) -> Path:
        """Where a page's reader is."""
        made = self.folder / "pages" / re.sub(r"\W", "_", page)
        made.mkdir(parents=True, exist_ok=True)
        return made

    def __enter__(self) -> SharedRun:
        for path in pages():
            self._prepare(blocks_of(path))
        chosen = {tuple(each): None for each in self.apps.values()}
        (self.folder / "docs_app.py").write_text(COMBINED)
        (self.folder / "docs_app.json").write_text(json.dumps(list(chosen)))
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PLANCAST_HOSTS__COUNT": "2",
            "PLANCAST_DISPATCHERS__ACK_WAIT": "5",
            "PLANCAST_WORKERS__ACK_WAIT": "2",
        }
        environment.pop("NATS_URL", None)
        out, log = self.folder / "run.out", self.folder / "run.log"
        with out.open("w") as printed, log.open("w") as logged:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "plancast", "run", "docs_app:app", "--no-console", "--data-dir", str(self.data)],
                cwd=self.folder, env=environment, stdout=printed, stderr=logged, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + _START_SECONDS
        while not (ready := out.read_text()).endswith("\n"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise AssertionError(f"plancast run did not start: {log.read_text()}")
            time.sleep(0.05)
        self.ready = ready
        return self

    def __exit__(self, *_: object) -> None:
        process = self.process
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _prepare(self, blocks: list[Block]) -> None:
        """Write what the page's reader saves, and note which of it is run."""
        files: dict[str, str] = {}
        for block in blocks:
            if block.title and block.language == "python":
                files[block.title] = files.get(block.title, "") + block.text + "\n\n\n"
        for name, text in files.items():
            (self.page_folder(block.page) / name).write_text(text)
        project: Path | None = None
        for block in blocks:
            for command in commands_of(block) if block.language in SHELLS and not block.not_run else ():
                if command.text.startswith("plancast new "):
                    project = self._new_project(command)
                elif command.text.startswith("plancast run "):
                    address = command.words[2]
                    if (where := self._where(block, address, project)) is not None:
                        self.apps[block.page, address] = where

    def _new_project(self, command: Command) -> Path:
        """The project that the reader will make, made beforehand elsewhere."""
        folder = self.folder / "projects" / command.words[2]
        if not folder.exists():
            folder.parent.mkdir(exist_ok=True)
            with contextlib.redirect_stdout(io.StringIO()):
                assert main([*command.words[1:], "--directory", str(folder)]) == 0
        return folder

    def _where(self, block: Block, address: str, project: Path | None) -> list[str] | None:
        """The app's module, its file unless it can be imported, and its attribute; None without such a module."""
        module, _, attribute = address.partition(":")
        if project is not None and (project / f"{module}.py").is_file():
            return [f"project_{re.sub('[^a-z]', '_', project.name)}_{module}", str(project / f"{module}.py"), attribute]
        for page in (block.page, README):
            file = self.page_folder(page) / f"{module}.py"
            if file.is_file():
                return [f"{re.sub(r'[^a-z]', '_', page.lower())}_{module}", str(file), attribute]
        there = (ROOT / module.replace(".", "/")).with_suffix(".py").is_file()
        return [module, "", attribute] if there else None


class Reader:
    """Somebody who follows one page from its top, doing what it says."""

    def __init__(self, shared: SharedRun, page: str) -> None:
        self.shared = shared
        self.folder = shared.page_folder(page)
        self.module = ModuleType("page")
        self.module.__file__ = str(self.folder / "page.py")
        self.names = self.module.__dict__
        self.printed = ""
        self.plan_id = ""
        self._runner = asyncio.Runner()
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> Reader:
        known, path = set(sys.modules), list(sys.path)
        self._exit.callback(self._forget, known, path)
        self._exit.enter_context(warnings.catch_warnings())
        warnings.simplefilter("default")  # readers have no filter that makes errors of litellm's warnings
        self._exit.enter_context(contextlib.chdir(self.folder))
        self._exit.enter_context(self._runner)
        sys.path[:0] = [str(self.folder), str(self.shared.page_folder(README))]
        sys.modules["page"] = self.module
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def _forget(self, known: set[str], path: list[str]) -> None:
        """The next page has modules of the same names."""
        sys.path[:] = path
        for name in set(sys.modules) - known:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(str(self.shared.folder)):
                del sys.modules[name]

    def read(self, block: Block) -> str:
        """Do what a block says; returns what was done."""
        if block.not_run:
            self.check(block)
            return "checked"
        if given := block.marks.get("given"):
            self.execute(given, f"{block.place} (given)")
        if block.language == "python":
            self.run_python(block)
        elif block.language in SHELLS:
            self.run_commands(block)
        elif block.language in DATA:
            parse_data(block)
        elif block.is_output:
            missing = missing_output([line for line in block.text.splitlines() if line.strip()], self.printed)
            assert missing is None, f"{block.place}: not printed: {missing}\nprinted was:\n{self.printed}"
        else:
            assert block.language in FIGURES, f"{block.place}: say why a block of {block.language} is not run"
            return "figure"
        return "run"

    def check(self, block: Block) -> None:
        """Check a block that is not run."""
        if block.language == "python":
            compile(block.text, block.place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        elif block.language in SHELLS:
            check_commands(block)
        elif block.language in DATA:
            parse_data(block)

    # Python.

    def run_python(self, block: Block) -> None:
        """Run a block, and the tests that it defines."""
        before = dict(self.names)
        with (self.folder / "page.py").open("a") as file:  # for what reads the source of what it is given
            file.write(f"{block.text}\n\n\n")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            self.execute(block.text, block.place)
            for name, value in list(self.names.items()):
                if name.startswith("test_") and callable(value) and before.get(name) is not value:
                    self._finish(value())
        self.printed = printed.getvalue()

    def execute(self, text: str, place: str) -> None:
        """Execute Python as a notebook does: `await` is allowed at the top."""
        lines = place.rpartition(":")[2]
        offset = int(lines) if lines.isdigit() else 0
        code = compile("\n" * offset + text, place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            self._finish(eval(code, self.names))
        else:
            exec(code, self.names)

    def _finish(self, value: Any) -> None:
        if inspect.isawaitable(value):
            self._runner.run(_awaited(value))

    # Commands.

    def run_commands(self, block: Block) -> None:
        """Run a block's commands one after the other, and compare what they print."""
        commands = commands_of(block)
        assert commands, f"{block.place}: there is no command in it"
        for command in commands:
            last = command is commands[-1]
            self._run_command(command, block, int(block.marks.get("exits", 0)) if last else 0)

    def _run_command(self, command: Command, block: Block, wanted: int) -> None:
        command = Command(
            self._with_plan(command.text, block), [self._with_plan(line, block) for line in command.expected]
        )
        deadline = time.monotonic() + _PATIENCE
        while True:
            code, output = self._output(command, block)
            missing = missing_output(command.expected, output)
            if (code == wanted and missing is None) or not _LOOKS.match(command.text) or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        said = f"{block.place}: $ {command.text}"
        assert code == wanted, f"{said}\nended with {code}:\n{output}"
        assert missing is None, f"{said}\ndid not print: {missing}\nprinted was:\n{output}"
        if found := _PLAN_ID.search(output if "submit" in command.text else ""):
            self.plan_id = found[0]

    def _with_plan(self, text: str, block: Block) -> str:
        if not re.search(r"\bPLAN\b", text):
            return text
        assert self.plan_id, f"{block.place}: PLAN is named before anything was submitted"
        return re.sub(r"\bPLAN\b", self.plan_id, text)

    def _output(self, command: Command, block: Block) -> tuple[int, str]:
        words = command.words
        if words[:2] == ["plancast", "run"]:
            check_plancast(words[1:], block.place)
            assert (block.page, words[2]) in self.shared.apps, f"{block.place}: the page has no {words[2]}"
            self._check_app(words[2])
            return 0, self.shared.ready
        programs = {each[0].rpartition("/")[2] for each in simple_commands(command.text)}
        assert programs <= HARMLESS, f"{block.place}: say why {', '.join(programs - HARMLESS)} is not run"
        if words[0] == "cd" and command.simple:
            os.chdir(words[1])  # until the end of the page
            return 0, ""
        if words[0] == "plancast" and command.simple:
            return self._plancast(words[1:])
        if words[0] == "python" and words[1:] == [f for f in words[1:] if f.endswith(".py")] and command.simple:
            return self._script(words[1])
        ended = subprocess.run(["bash", "-c", command.text], capture_output=True, text=True, timeout=60, check=False)
        return ended.returncode, ended.stdout + ended.stderr

    def _script(self, name: str) -> tuple[int, str]:
        """Run a script in this process: what it imports is imported once for all pages."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(self.folder / name), run_name="__main__")
        return 0, printed.getvalue()

    def _check_app(self, address: str) -> None:
        code, output = self._plancast(["validate", address])
        assert code == 0, output

    def _plancast(self, words: list[str]) -> tuple[int, str]:
        """Run the command line in this process, which is ten times as fast as in one of its own."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), warnings.catch_warnings():
            code = main(words)
        return code, printed.getvalue()


async def _awaited(value: Any) -> Any:
    return await asyncio.wait_for(value, _BLOCK_SECONDS)


def parse_data(block: Block) -> Any:
    """Parse a block of JSON, YAML or TOML."""
    try:
        if block.language == "json":
            return json.loads(block.text)
        return tomllib.loads(block.text) if block.language == "toml" else list(yaml.safe_load_all(block.text))
    except ValueError as error:
        raise AssertionError(f"{block.place}: it is no {block.language}: {error}") from error


@contextlib.contextmanager
def environment(shared: SharedRun) -> Iterator[None]:
    """The environment of somebody who has started `plancast run` in this folder."""
    kept = dict(os.environ)
    os.environ["PLANCAST_DATA_DIR"] = str(shared.data)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ["COLUMNS"] = "160"
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # readers have none of ours, which take seconds to load
    os.environ.pop("NATS_URL", None)
    try:
        yield
    finally:
        logging.reset()
        os.environ.clear()
        os.environ.update(kept)
