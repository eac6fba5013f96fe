"""Adds generated tables and linked files to the pages that `mkdocs build` renders.

A page marks the place of a table: ``<!-- generated: settings -->``, ``cli``, ``errors`` or ``benchmarks``.
"""

from __future__ import annotations

import ast
import html
import inspect
import logging
import os
import posixpath
import re
import sys
import textwrap
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
TAKEN_IN = {
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Files of the repository that are also pages of the site."""
FILES = "files"
"""Folder of the site with other linked files of the repository."""

logger = logging.getLogger("mkdocs.hooks")
_LINK = re.compile(r"(?<!\\)(\]\()([^)\s]+?)((?:#[^)\s]*)?\))")
_FENCE = re.compile(r"^( *)(`{3,}).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_SEE = re.compile(r"\b([Ss]ee )(?:<code>([^<]+)</code>|(docs/[\w/-]+\.md))")
_ROLE = re.compile(r":(?:class|meth|func|attr|exc|mod|data):<code>~?([^<]+)</code>")

for _folder in ("runtime", "bus", "actors"):  # for mkdocs without the project installed
    if str(ROOT / _folder) not in sys.path:
        sys.path.append(str(ROOT / _folder))


# Hooks of mkdocs.


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in docs, and the files that pages link to."""
    from mkdocs.structure.files import File

    made = {"decisions/index.md": decisions_page()}
    made |= {page: (ROOT / path).read_text(encoding="utf-8") for path, page in TAKEN_IN.items()}
    for uri, content in made.items():
        files.append(File.generated(config, uri, content=content))
    pages = [(DOCS / page.src_uri, page.src_uri) for page in files.documentation_pages() if page.src_uri not in made]
    pages += [(ROOT / path, page) for path, page in TAKEN_IN.items()]
    linked = {path for source, _ in pages for path in _linked_files(source)}
    for path in sorted(linked):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, f"{FILES}/{name}", content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Insert generated tables, and turn links to the rest of the repository into links within the site."""
    uri = page.file.src_uri
    markdown = re.sub(r"<!-- generated: (\w+) -->", lambda found: GENERATED[found[1]](), markdown)
    source = next((ROOT / path for path, name in TAKEN_IN.items() if name == uri), DOCS / uri)
    return _outside_fences(markdown, lambda text: _LINK.sub(lambda link: _within_site(link, source, uri), text))


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Replace Sphinx roles in docstrings by code, and turn what they refer readers to into links."""
    content = _ROLE.sub(lambda found: f"<code>{found[1].removeprefix('plancast.')}</code>", content)
    return _SEE.sub(lambda found: found[1] + _reference(found[2] or found[3], content, page.file.src_uri), content)


# Links.


def _outside_fences(markdown: str, change: Any) -> str:
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(markdown[end:])])


def _target(source: Path, link: str) -> Path | None:
    """Return the file or folder of the repository that a link leads to; None for addresses and anchors."""
    if re.match(r"[a-z]+:|#|/", link):
        return None
    return Path(os.path.normpath(source.parent / link.partition("#")[0]))


def _linked_files(source: Path) -> Iterator[Path]:
    """Yield linked files outside of docs that are not pages."""
    for link in _LINK.finditer(_outside_fences(source.read_text(encoding="utf-8"), lambda text: text)):
        path = _target(source, link[2])
        if path is None or not path.is_file() or path.is_relative_to(DOCS) or not path.is_relative_to(ROOT):
            continue
        if path.relative_to(ROOT).as_posix() not in TAKEN_IN and path != ROOT / "README.md":
            yield path


def _within_site(link: re.Match[str], source: Path, uri: str) -> str:
    path = _target(source, link[2])
    if path is None or not path.is_relative_to(ROOT) or not path.exists():
        return link[0]  # mkdocs reports missing targets
    name = path.relative_to(ROOT).as_posix()
    if path == DOCS / "decisions" and path.is_dir():
        found = "decisions/index.md"
    elif path.is_relative_to(DOCS):
        found = path.relative_to(DOCS).as_posix()
    elif name == "README.md":
        found = "index.md"
    elif path.is_file():
        found = TAKEN_IN.get(name, f"{FILES}/{name}")
    elif (path / "README.md").is_file() and f"{name}/README.md" in TAKEN_IN:
        found = TAKEN_IN[f"{name}/README.md"]
    else:
        found = "index.md"  # folders of the repository are not on the site
    anchor = link[3] if found != "index.md" else ")"
    return f"{link[1]}{posixpath.relpath(found, posixpath.dirname(uri) or '.')}{anchor}"


def _reference(name: str, content: str, uri: str) -> str:
    """Return a link to a page, a public name, a setting or a command; warns, which fails the build, of any other."""
    found = _place(html.unescape(name), content)
    if found is None:
        logger.warning(
            "%s: 'see %s' leads nowhere: name a page of docs, a public name, a setting or a command", uri, name
        )
        return f"<code>{name}</code>"
    page, anchor = found
    text = f"<code>{name}</code>"
    if not anchor:
        text = html.escape((DOCS / page).read_text(encoding="utf-8").splitlines()[0].removeprefix("# "))
    url = posixpath.relpath(page.removesuffix(".md") + ".html", posixpath.dirname(uri) or ".") if page else ""
    return f'<a href="{url}{anchor}">{text}</a>'


def _place(name: str, content: str) -> tuple[str, str] | None:
    """Return the page of a name and its anchor there."""
    from plancast.settings import Settings

    page = name.removeprefix("docs/")
    if page != name:
        return (page, "") if (DOCS / page).is_file() else None
    if name.startswith("plancast "):
        return "reference/cli.md", f"#{name.replace(' ', '-')}"
    first, _, rest = name.removeprefix("plancast.").partition(".")
    if rest and first in Settings.model_fields:
        return "reference/settings.md", f"#{first}"
    for path in sorted((DOCS / "reference").glob("*.md")):
        if named := re.search(
            rf"^::: (plancast[\w.]*\.{re.escape(first)})$", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            return f"reference/{path.name}", f"#{named[1]}{'.' if rest else ''}{rest}"
    same = re.search(rf'id="([\w.]+\.{re.escape(name)})"', content)
    return ("", f"#{same[1]}") if same else None


# Pages and tables generated from the code.


def decisions_page() -> str:
    """List all architecture decisions, by number."""
    lines = ["# Decisions", "", "The reasons for the design, half a page each.", ""]
    for path in sorted((DOCS / "decisions").glob("[0-9]*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def settings_tables() -> str:
    """Render each setting with its environment variable, type, default and meaning."""
    from plancast.settings import Settings

    groups: list[str] = []
    single: list[str] = []
    for name, field in Settings.model_fields.items():
        model = field.annotation
        if not (inspect.isclass(model) and hasattr(model, "model_fields")):
            single.append(_setting_row(Settings, name, ""))
            continue
        about = inspect.cleandoc(model.__doc__ or "")
        rows = [_setting_row(model, each, f"{name}__") for each in model.model_fields]
        groups.append("\n".join([f"## {name}", "", about, "", *_SETTING_HEAD, *rows]))
    return "\n\n".join(["\n".join([*_SETTING_HEAD, *single]), *groups])


_SETTING_HEAD = ["| setting | type | default | |", "|---|---|---|---|"]


def _setting_row(model: Any, name: str, prefix: str) -> str:
    field = model.model_fields[name]
    default = field.default_factory() if field.default_factory else field.default
    shown = "–" if default is None or default == "" else f"`{default}`"
    limits = ", ".join(
        f"{sign} {getattr(limit, attribute)}"
        for limit in field.metadata
        for attribute, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
        if hasattr(limit, attribute)
    )
    kind = _type_name(field.annotation) + (f", {limits}" if limits else "")
    words = " ".join(attribute_docstrings(model).get(name, "").split()).replace("``", "`")
    return f"| `PLANCAST_{(prefix + name).upper()}` | {_cell(kind)} | {_cell(shown)} | {_cell(words)} |"


def _type_name(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return ", ".join(f"`{value}`" for value in typing.get_args(annotation))
    if arguments := typing.get_args(annotation):
        if type(None) in arguments:
            return " or ".join(_type_name(each) for each in arguments if each is not type(None)) + ", or nothing"
        return "JSON object"
    return {"str": "text", "int": "integer", "float": "number", "bool": "true or false", "Path": "path"}.get(
        annotation.__name__, "secret" if annotation.__name__ == "SecretStr" else annotation.__name__
    )


def attribute_docstrings(model: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for before, after in zip(definition.body, definition.body[1:], strict=False):
        named = isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name)
        if named and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[before.target.id] = str(after.value.value)  # type: ignore[union-attr]
    return found


def cli_pages() -> str:
    """Render each command with its arguments and options."""
    import typer

    from plancast.cli.root import EPILOG, app

    root = typer.main.get_command(app)
    parts = [f"{html.escape(root.help or '')}\n\n{EPILOG}"]
    for path, command in sorted(_commands(root, ("plancast",)), key=lambda each: each[0]):
        parts.append(_command_text(path, command))
    return "\n\n".join(parts)


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, below in getattr(command, "commands", {}).items():
        if getattr(below, "commands", None):
            yield from _commands(below, (*path, name))
        elif not below.hidden:
            yield (*path, name), below


def _command_text(path: tuple[str, ...], command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    usage = " ".join([*path, *map(_metavar, arguments), "[OPTIONS]"])
    rows = [f"| `{_metavar(each)}` | {_cell(_plain(getattr(each, 'help', '')))} |" for each in arguments]
    rows += [f"| {_option_names(each)} | {_option_text(each)} |" for each in options]
    text = " ".join(inspect.cleandoc(command.help or "").split())
    return "\n".join([f"## {' '.join(path)}", "", text, "", f"`{usage}`", "", "| option | |", "|---|---|", *rows])


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _option_names(option: Any) -> str:
    value = "" if option.is_flag or option.count else f" {option.metavar or 'VALUE'}"
    return _cell(", ".join(f"`{name}{value}`" for name in [*option.opts, *option.secondary_opts]))


def _option_text(option: Any) -> str:
    text = _plain(option.help or "")
    kind = getattr(getattr(option, "type_descriptor", None), "annotation", None)
    if inspect.isclass(kind) and issubclass(kind, Enum):
        text += " One of " + ", ".join(f"`{each.value}`" for each in kind) + "."
    if option.required:
        text += " Required."
    elif not option.is_flag and not option.count and option.default not in (None, "", ()) and "default" not in text:
        text += f" Default: `{option.default}`."
    return _cell(text)


def _plain(text: str) -> str:
    """Return help text without rich's markup."""
    return text.replace("\\[", "[").replace("  ", " ")


def errors_page() -> str:
    """Render the error trees from the modules' docstrings, and each error with its condition."""
    import plancast.errors
    import plancast_bus.errors

    parts: list[str] = []
    for module in (plancast.errors, plancast_bus.errors):
        docstring = (module.__doc__ or "").strip()
        _, _, tree = docstring.partition("\n\n")
        drawing, _, rest = tree.partition("\n\n")
        parts += [f"```text\n{drawing}\n```", " ".join(rest.split())]
    rows = ["| error | raised when |", "|---|---|"]
    found = {
        value.__name__: value
        for module in (plancast_bus.errors, plancast.errors)
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, BaseException) and value.__module__ == module.__name__
    }
    for name, error in sorted(found.items()):
        text = inspect.cleandoc(error.__doc__ or "").split("\n\n")[0]
        rows.append(f"| `{name}` | {_cell(' '.join(text.split()).replace('``', '`'))} |")
    return "\n\n".join([*filter(None, parts), "\n".join(rows)])


def benchmarks_table() -> str:
    """Return the README's table, which `python -m benchmarks --report` writes from the stored rows."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- benchmarks: .*? -->\n(.*?)<!-- /benchmarks -->", readme, re.DOTALL)
    return found[1].strip() if found else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").strip()


GENERATED = {
    "settings": settings_tables,
    "cli": cli_pages,
    "errors": errors_page,
    "benchmarks": benchmarks_table,
}
"""Tables by their names in pages."""
