"""Every code block of the README and of docs does what its page says. None is skipped without a reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import typer
from tests.docs.blocks import DATA, ROOT, SHELLS, Block, blocks_of, pages
from tests.docs.commands import check_commands, missing_output
from tests.docs.running import Reader, SharedRun, environment

from plancast.cli.root import app
from plancast.settings import Settings

_FENCED = re.compile(r"^( *)(`{3,}).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
README_MARKS = {
    "$ make setup": {"not run": "it makes the environment that the tests run in"},
    "$ make demo": {"not run": "they set up an environment; tests/runtime/demo/test_demo.py runs the demo"},
}
"""What other pages say in comments, which would stand in the way of who reads the README as text."""


def blocks(path: Path) -> list[Block]:
    found = blocks_of(path)
    if path.name != "README.md":
        return found
    marks = [next((m for start, m in README_MARKS.items() if each.text.startswith(start)), {}) for each in found]
    return [replace(each, marks={**more, **each.marks}) for each, more in zip(found, marks, strict=True)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedRun]:
    with SharedRun(tmp_path_factory.mktemp("docs")) as run:
        yield run


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [each for each in pages() if blocks_of(each)], ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_every_block_of_a_page_does_what_the_page_says(shared: SharedRun, path: Path) -> None:
    done: Counter[str] = Counter()
    with environment(shared), Reader(shared, path.relative_to(ROOT).as_posix()) as reader:
        for block in blocks(path):
            done[reader.read(block)] += 1
    print(dict(done))
    fences = [line for line in path.read_text().splitlines() if re.match(r" *(```|~~~)", line)]
    assert sum(done.values()) * 2 == len(fences), "a block was left out"


def test_a_block_that_is_not_run_says_why() -> None:
    for path in pages():
        for block in blocks(path):
            if "not run" in block.marks:
                assert len(block.not_run.split()) >= 3, f"{block.place}: say why"
            known = block.language in SHELLS | DATA | {"python", "text", ""}
            assert known or block.not_run, f"{block.place}: say why a block of {block.language!r} is not run"


def test_most_blocks_are_run() -> None:
    every = [block for path in pages() for block in blocks(path) if block.language in SHELLS | {"python"}]
    run = [block for block in every if not block.not_run]
    assert len(run) >= 0.6 * len(every)


def test_every_setting_that_a_page_names_exists() -> None:
    known = {"PLANCAST_DATA_DIR"}
    for group, field in Settings.model_fields.items():
        for name in getattr(field.annotation, "model_fields", {}):
            known.add(f"PLANCAST_{group}__{name}".upper())
    for path in pages():
        # Streams are named alike: PLANCAST_CHECKPOINTS.
        for name in re.findall(r"\bPLANCAST_(?:[A-Z0-9]+__[A-Z0-9_]+|[A-Z0-9_]+(?==))", path.read_text()):
            assert name in known, f"{path.relative_to(ROOT)}: there is no setting {name}"


def test_every_value_that_a_page_gives_a_setting_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    given = 0
    for path in pages():
        for name, value in re.findall(r"\b(PLANCAST_\w+)=('[^']*'|[^\s`|,;)\\]+)", path.read_text()):
            if "..." in value:
                continue
            with monkeypatch.context() as patch:
                patch.setenv(name, value.strip("'"))
                Settings()
            given += 1
    assert given >= 10


def test_every_command_that_prose_names_exists() -> None:
    for path in pages():
        for line in _FENCED.sub("", path.read_text()).splitlines():
            for said in re.findall(r"`plancast ([a-z][^`]*)`", line):
                command, rest = typer.main.get_command(app), said.split()
                while getattr(command, "commands", None) and rest:
                    assert rest[0] in command.commands, f"{path.relative_to(ROOT)}: there is no plancast {said}"
                    command = command.commands[rest.pop(0)]


def test_pages_and_packages_name_no_document_that_users_do_not_have() -> None:
    packages = [path for folder in ("runtime", "actors", "bus") for path in (ROOT / folder).rglob("*.py*")]
    for path in [*pages(), ROOT / "SECURITY.md", *(each for each in packages if each.suffix in (".py", ".pyi"))]:
        found = re.search(r"\bseeds? \d{3}\b|\bRF-[A-Z]+", path.read_text())
        assert found is None, f"{path.relative_to(ROOT)} names {found and found[0]}"


def test_what_pages_refer_readers_to_is_a_link() -> None:
    for path in [*pages(), ROOT / "SECURITY.md", ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"]:
        text = _FENCED.sub("", path.read_text())
        found = re.search(r"\bsee (?:the )?(?:module |docstring of |class )?(?:`[^`]*`|docs/\S*)", text, re.IGNORECASE)
        assert found is None, f"{path.relative_to(ROOT)}: {found and found[0]} is no link"


def test_a_page_that_names_a_workload_defines_it_or_links_to_its_definition() -> None:
    defined = set(re.findall(r"^\*\*(W\d)\*\* \(", (ROOT / "benchmarks" / "README.md").read_text(), re.MULTILINE))
    compared = {"README.md", "docs/comparison.md", "docs/performance.md"}
    for path in pages():
        page, text = path.relative_to(ROOT).as_posix(), path.read_text()
        named = set(re.findall(r"\bW\d\b", text))
        assert named <= defined, f"{page}: {named - defined} are defined nowhere"
        assert not named or "benchmarks/README.md#workloads" in text, f"{page} names {named}"
        if page in compared:
            figures = set(re.findall(r"\bW\d\b", "".join(re.findall(r"^\|.*", text, re.MULTILINE))))
            for name in figures:
                assert re.search(rf"\*\*{name}\*\*|\({name}\)", text), f"{page}: say what {name} is"


def test_timeouts_of_samples_are_longer_than_the_recovery_from_crashes() -> None:
    settings, node_seconds = Settings(), 30
    recovery = 2 * (settings.dispatchers.ack_wait + settings.workers.ack_wait) + node_seconds
    samples = [*(ROOT / "examples").rglob("*.py")]
    samples += (ROOT / "runtime" / "plancast" / "cli" / "apps" / "templates").rglob("*.tmpl")
    samples += (ROOT / "runtime" / "plancast" / "demo" / "apps").rglob("*.py")
    found = 0
    for path in [*pages(), *samples]:
        for action in re.findall(r"StateAction\((?:[^()]|\([^()]*\))*\)", path.read_text()):
            if timeout := re.search(r"timeout_seconds=([\d *]+)", action):
                assert prod(map(int, timeout[1].split("*"))) >= recovery, (
                    f"{path.relative_to(ROOT)}: {timeout[0]} is under {recovery:g} s"
                )
                found += 1
    assert found >= 8


def test_what_is_expected_is_compared_loosely_but_compared() -> None:
    printed = "plan  0123456789abcdef0123456789abcdef\nstatus   completed\ntook 2.6 ms, 2 turns\n"
    assert missing_output(["plan ffffffffffffffffffffffffffffffff", "took 1 s, 3 turns"], printed) is None
    assert missing_output(["status …"], printed) is None
    assert missing_output(["status failed"], printed) == "status failed"
    assert missing_output(["took 1 s, 3 turns", "status completed"], printed) == "status completed"


@pytest.mark.parametrize(
    "text",
    [
        "$ plancast sumbit a.goal",
        "$ plancast submit a.goal --dada 1",
        "$ PLANCAST_BUS__PREFIX=a plancast plans list --status lost",
        "$ ls | plancast plans shwo 1",
        "$ make demos",
        "$ plancast run a:app && plancast stopp",
        "$ for each in",
    ],
)
def test_a_command_that_is_not_run_is_parsed_all_the_same(text: str) -> None:
    with pytest.raises(AssertionError, match=r"page\.md:1"):
        check_commands(Block("page.md", 1, "console", text))


def test_commands_that_are_right_pass() -> None:
    text = "$ plancast submit a.goal --data '{}' --wait | tee out   # and keep it\n$ make test TESTS=tests/docs"
    check_commands(Block("page.md", 1, "console", text))


def test_marks_are_read_from_the_comments_right_before_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    far, near = "<!-- not run: far away -->\n\nA word.\n\n", "<!-- exits: 1 -->\n<!-- given: a = 1 -->\n"
    page.write_text(f"{far}```sh\nls\n```\n\n{near}```python\nb\n```\n")
    monkeypatch.setattr("tests.docs.blocks.ROOT", tmp_path)
    first, second = blocks_of(page)
    assert not first.marks
    assert second.marks == {"exits": "1", "given": "a = 1"}
