"""LazyObject: a JSON object of which some values were not loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Unloaded:
    """Stands in the place of a value that was not loaded."""

    part: Any
    """The value as :class:`~plancast_bus.events.folding.Folder` has folded it."""


class NotLoaded(Exception):
    """Raised when values are read that were not loaded."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(f"not loaded: {', '.join(sorted(names))}")
        self.names = names


class LazyObject(dict[str, Any]):
    """A dict that refuses to give a value that was not loaded, however it is read; such a value can be replaced.

    Raises:
        NotLoaded: raised by all that reads values, with the names of those that are missing.
    """

    def entries(self) -> dict[str, Any]:
        """Return all entries; an :class:`Unloaded` is the value of those that were not loaded."""
        return dict(zip(self, super().values(), strict=True))

    __copy__ = entries  # ``copy.copy`` is for those who put all of it back

    @property
    def unloaded(self) -> dict[str, Unloaded]:
        """The entries whose values were not loaded."""
        return {name: each for name, each in self.entries().items() if type(each) is Unloaded}

    def __iter__(self) -> Iterator[str]:  # where it is overridden, dict's own methods do not pass the others by
        return super().__iter__()

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if type(value) is Unloaded:
            raise NotLoaded(frozenset((name,)))
        return value

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def setdefault(self, name: str, default: Any = None) -> Any:
        self.get(name)
        return super().setdefault(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        self.get(name)
        return super().pop(name, *default)

    def popitem(self) -> tuple[str, Any]:
        self._all()
        return super().popitem()

    def values(self) -> Any:
        self._all()
        return super().values()

    def items(self) -> Any:
        self._all()
        return super().items()

    def __eq__(self, other: object) -> bool:
        self._all()
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def _all(self) -> None:
        if unloaded := self.unloaded:
            raise NotLoaded(frozenset(unloaded))
