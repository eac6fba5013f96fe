"""PromptTemplate: the texts of the two messages, around the values of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from string import Formatter
from typing import Final

from plancast.errors import InvalidPlannerConfig

_PLACES = """role rules instructions strategy schema plan goal trigger history results tasks events agents
    expected context injected budget time"""
PLACEHOLDERS: Final = frozenset(_PLACES.split())
"""The placeholders of a template."""

_SYSTEM = """\
{role}

Rules:
{rules}

Answer with one JSON object and nothing else: a Decision. A "?" marks what may be left out.
{schema}

{instructions}{strategy}"""

_USER = """\
Publishable events, with the type of their data:
{events}

Agents, with the goals they take and the events they send besides those:
{agents}

Goal:
{goal}

Custom context:
{context}

What happened so far, oldest first (the trigger's data are not repeated below):
{history}

Other results:
{results}

Tasks and groups:
{tasks}

Further events to wait for:
{expected}

Injected context:
{injected}

Trigger:
{trigger}

Plan: {plan}
Budget:
{budget}
Time: {time}

Your decision, as JSON:"""


@dataclass(frozen=True)
class PromptTemplate:
    """Texts of the two messages, with placeholders such as ``{goal}``; a literal brace is written twice.

    A custom template should keep ``{rules}``, which separate data from instructions, and ``{schema}``.

    Raises:
        InvalidPlannerConfig: a placeholder does not exist, or is more than a name.
    """

    system: str = _SYSTEM
    user: str = _USER

    def __post_init__(self) -> None:
        for part in ("system", "user"):
            unknown = [name for name in _placeholders(getattr(self, part), part) if name not in PLACEHOLDERS]
            if unknown:
                raise InvalidPlannerConfig(
                    f"prompt template, {part}: no placeholder {', '.join(f'{{{name:.60}}}' for name in unknown)}, "
                    f"allowed: {', '.join(sorted(PLACEHOLDERS))}"
                )


def _placeholders(text: str, part: str) -> Iterator[str]:
    try:
        for _, name, spec, conversion in Formatter().parse(text):
            if name is not None:
                yield name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
    except (TypeError, ValueError) as error:
        raise InvalidPlannerConfig(f"prompt template, {part}: {error}; write a literal brace twice") from None


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace a text's placeholders; values are not parsed as templates."""
    return "".join([literal + (values[name] if name else "") for literal, name in _parts(text)])


@lru_cache(maxsize=64)
def _parts(text: str) -> tuple[tuple[str, str | None], ...]:
    return tuple((literal, name) for literal, name, _, _ in Formatter().parse(text))


def placeholders(text: str) -> frozenset[str]:
    """The placeholders of a template's text."""
    return frozenset(name for _, name in _parts(text) if name)


DEFAULT_TEMPLATE: Final = PromptTemplate()
