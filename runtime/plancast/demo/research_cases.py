"""What the demo asks, and how each question has to end."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A topic, and how its plan has to end."""

    topic: str
    path: tuple[str, ...]
    """The states that the plan goes through."""
    clarification: str = ""
    """What the person answers who is asked."""

    @property
    def ending(self) -> str:
        """The state that the plan ends in."""
        return self.path[-1]

    @property
    def query(self) -> str:
        """What is searched for in the end."""
        return self.clarification or self.topic


ANSWERED = ("analyzing", "done")
AT_ONCE = tuple(
    Case(topic, ("searching", *ANSWERED))
    for topic in (
        "coroutines", "exceptions", "slicing", "decorators", "lambda", "garbage collection", "match statement",
        "context managers", "descriptors", '"with statement"', "metaclasses", "yield expression", "unpacking",
        "tracebacks", "name resolution", "nonlocal", "boolean operations", "mutable sequences", "code objects",
        "class definitions", "integer literals", "operator precedence", "attribute access", "list comprehension",
    )
)  # fmt: skip
CLARIFIED = tuple(
    Case(topic, ("searching", "ask_user", "searching", *ANSWERED), clarification)
    for topic, clarification in {
        "hashmap": "dictionaries",
        "splat operator": "iterable unpacking",
        "spaceship operator": "rich comparison methods",
        "foreach": "for loop",
        "destructuring": "target list",
        "goto": "break",
    }.items()
)
RETRIED = tuple(
    Case(topic, ("searching", "retry_search", *ANSWERED))
    for topic in (
        "what is a decorator?", "what's a metaclass?", "try...finally", "async/await", "with AND",
        "what does nonlocal mean?", "what is a generator?", "@classmethod",
    )
)  # fmt: skip
"""No queries of the full-text index, so that the first search fails; their words find something."""
RETRIED_AND_CLARIFIED = (
    Case(
        "polymorphism?",
        ("searching", "retry_search", "ask_user", "searching", *ANSWERED),
        "method resolution order",
    ),
)
HOPELESS = (Case("???", ("searching", "retry_search", "failed")),)
"""Not a word in it: there is no way to search for this."""

KINDS = (AT_ONCE, CLARIFIED, RETRIED, HOPELESS, RETRIED_AND_CLARIFIED)
CASES = tuple(case for row in itertools.zip_longest(*KINDS) for case in row if case is not None)
"""Every case, in an order in which the first few are of every kind."""


def choose(plans: int, seed: int) -> Sequence[Case]:
    """So many cases in an order that follows from the seed; beyond the number that there are, they come again."""
    chosen = list(itertools.islice(itertools.cycle(CASES), plans))
    random.Random(seed).shuffle(chosen)
    return chosen
