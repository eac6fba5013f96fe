"""The site: it builds without a fault, names all that is public, and fetches nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer
import yaml
from tests.docs.blocks import ROOT

import plancast
import plancast.errors
import plancast.planners
import plancast.testing
import plancast_bus.errors
from plancast.cli.root import app
from plancast.settings import Settings

pytestmark = pytest.mark.slow

DOCS = ROOT / "docs"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"scripts_{name}", ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="make docs and make test-all install it")
    pytest.importorskip("mkdocstrings_handlers.python", reason="make docs and make test-all install it")
    made = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(made)],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    return made


def nav(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in nav(part)]  # type: ignore[union-attr]


def test_it_builds_strictly_and_each_page_of_the_navigation_is_there(site: Path) -> None:
    pages = nav(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert len(pages) == len(set(pages))
    for page in pages:
        assert (site / page.replace(".md", ".html")).is_file(), page


def test_every_page_of_docs_is_in_the_navigation() -> None:
    pages = set(nav(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert {page for page in there if not page.startswith("decisions/")} <= pages


def test_it_fetches_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        for tag in re.findall(r"<(?:script|img|iframe|source|video)\b[^>]*>", text) + re.findall(r"<link[^>]*>", text):
            where = re.search(r'(?:src|href)="([^"]*)"', tag)
            canonical = 'rel="canonical"' in tag or 'rel="next"' in tag or 'rel="prev"' in tag
            assert where is None or canonical or not re.match(r"(?:https?:)?//", where[1]), f"{page.name}: {tag}"
        assert 'class="mermaid"' not in text, f"{page.name}: mermaid would be fetched"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )['\"]?https?:", sheet.read_text()), sheet.name


def test_decisions_and_files_that_pages_link_to_are_in_it(site: Path) -> None:
    listed = (site / "decisions" / "index.html").read_text()
    for decision in (DOCS / "decisions").glob("0*.md"):
        assert decision.stem in listed
    assert (site / "files" / "deploy" / "nats" / "nats-server.conf").is_file()
    assert "plans/s" in (site / "comparison.html").read_text(), "the measured figures are missing"


def test_docstrings_are_free_of_markup_of_other_systems(site: Path) -> None:
    for page in (site / "reference").glob("*.html"):
        text = re.sub(r"<pre.*?</pre>", "", page.read_text(), flags=re.DOTALL)
        assert not re.search(r":(?:class|meth|func|attr):", text), page.name


def test_what_docstrings_refer_readers_to_is_a_link_that_leads_there(site: Path) -> None:
    links: list[str] = []
    for page in site.rglob("*.html"):
        text = re.sub(r"<pre.*?</pre>", "", page.read_text(), flags=re.DOTALL)
        loose = re.search(r"\b[Ss]ee (?:<code>[^<]*</code>|docs/)", text)
        assert loose is None, f"{page.relative_to(site)}: {loose and loose[0]}"
        for where, anchor in re.findall(r'\b[Ss]ee <a href="([^"#:]*)(#[^"]*)?">', text):
            target = (page.parent / where).resolve() if where else page
            assert target.is_file(), f"{page.relative_to(site)}: {where}"
            assert f'id="{anchor[1:]}"' in target.read_text() or not anchor, (
                f"{page.relative_to(site)}: {where}{anchor}"
            )
            links.append(where)
    assert len(links) >= 10


def test_a_reference_that_leads_nowhere_fails_the_build(caplog: pytest.LogCaptureFixture) -> None:
    pages = script("pages")
    assert pages._reference("PlanHandle.replay", "", "time-travel.md").startswith(
        '<a href="reference/clients.html#plan'
    )
    assert pages._reference("docs/tracing.md", "", "reference/models.md") == '<a href="../tracing.html">Traces</a>'
    assert pages._reference("hosts.cpus", "", "reference/settings.md").startswith('<a href="settings.html#hosts">')
    assert not caplog.records
    assert pages._reference("plancast.turn.timers", "", "index.md") == "<code>plancast.turn.timers</code>"
    assert "leads nowhere" in caplog.text


def test_the_reference_has_every_public_name() -> None:
    named = re.findall(
        r"^::: [\w.]+\.(\w+)$", "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md")), re.MULTILINE
    )
    assert len(named) == len(set(named)), "a name is there twice"
    errors = {name for name in plancast.__all__ if name in vars(plancast.errors) or name in vars(plancast_bus.errors)}
    public = {*plancast.__all__, *plancast.planners.__all__, *plancast.testing.__all__} - errors - {"Settings"}
    assert public <= set(named), sorted(public - set(named))
    text = script("pages").GENERATED["errors"]()
    assert all(f"`{name}`" in text for name in errors)


def test_the_reference_has_every_setting() -> None:
    text = script("pages").GENERATED["settings"]()
    for group, field in Settings.model_fields.items():
        for name in getattr(field.annotation, "model_fields", {}):
            assert f"`PLANCAST_{group}__{name}`".upper() in text.upper()
    assert "| `PLANCAST_HOSTS__COUNT` | integer, ≥ 0 | `0` | Shared hosts; 0 takes one for each core but one" in text


def test_the_reference_has_every_command_with_its_options() -> None:
    text = script("pages").GENERATED["cli"]()
    groups = [("plancast", typer.main.get_command(app))]
    for path, group in groups:
        for name, command in group.commands.items():
            if getattr(command, "commands", None):
                groups.append((f"{path} {name}", command))
            elif not command.hidden:
                section = text.split(f"## {path} {name}\n")[1].split("\n## ")[0]
                for parameter in command.params:
                    shown = parameter.param_type_name == "option" and not parameter.hidden
                    for option in parameter.opts if shown else ():
                        assert option in section, f"{path} {name} {option}"


def test_pictures_are_what_the_script_draws() -> None:
    pictures = script("pictures")
    assert {path.name for path in pictures.FOLDER.iterdir()} == set(pictures.PICTURES)
    for name, draw in pictures.PICTURES.items():
        assert (pictures.FOLDER / name).read_text() == draw().svg(), f"{name}: run python scripts/pictures.py"
