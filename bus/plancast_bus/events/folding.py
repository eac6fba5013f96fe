"""Folding: large parts of JSON values become references to contents that are stored once, apart from the value.

A value that is stored with references costs what is new in it. A part is a text of :data:`PART_BYTES` and more, or a
run of the entries of a list or an object, of :data:`RUN_BYTES` on average. Entries decide by their content where a run
ends, so that a change leaves all other runs as they are. Equal values have equal references, wherever they occur.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from math import isfinite
from operator import is_
from typing import Any, Final, NamedTuple
from zlib import crc32

from plancast_bus.errors import PayloadTooLarge
from plancast_bus.events.codec import is_json, pack
from plancast_bus.events.lazy_object import LazyObject, Unloaded
from plancast_bus.events.value_parts import CONTAINERS, Part, Reference, digest_of, reference_extension, runs_extension

PART_BYTES: Final = 2048
"""Packed size from which a text is stored apart, and a list or an object is cut into runs."""
RUN_BYTES: Final = 1024
"""Average size of a run."""
_LONGEST_RUN: Final = 4 * RUN_BYTES
_GROUP: Final = 8
"""Runs whose references are stored apart together, once there are more."""
_CHECKED_FIRST: Final = 16
"""Entries up to which a container is packed before its entries are looked at: most small ones have no parts."""
_DEEPEST: Final = 64
"""Depth of the lists and objects that are cut; what is deeper stays whole, so that no recursion is deep."""
_KNOWN: Final = (*CONTAINERS, LazyObject)
"""Classes whose entries are certainly those that are stored; others may give anything for them."""


class Folded(NamedTuple):
    """A folded value."""

    packed: bytes
    """The value in msgpack, with references in the place of its parts."""
    references: dict[bytes, Reference]
    """All references by digest, also those in contents."""
    contents: dict[bytes, bytes]
    """Contents by digest, without those of parts that were known already."""
    size: int = 0
    """Bytes of the value in msgpack, in full; the headers of large lists and objects are not counted."""
    is_json: bool = True
    """All that was not known already is JSON. True is certain, as it is of :func:`~plancast_bus.events.codec.is_json`.
    """


class _Run(NamedTuple):
    """Entries that follow one another, as they were when they were folded.

    They are unchanged if their keys and values are the same ones, by identity, and the lists and objects among the
    values are unchanged: all other values are immutable. An object without lists and objects in it is flat: flat ones
    are compared together, which is many times faster.
    """

    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    flat: list[dict[str, Any]]
    flat_sizes: list[int]
    flat_keys: tuple[str, ...]
    flat_values: tuple[Any, ...]
    others: list[_Container]
    """All other lists and objects among the values."""
    part: Part


class _Container(NamedTuple):
    """A list or an object as it was when it was folded."""

    value: Any
    part: Part
    full: Sequence[_Run] = ()
    """Its runs, but for the last one if that has not ended."""
    beginning: _Run | None = None
    """All of them as one, so that they are compared together; references stand in the place of each."""
    rest: _Run | None = None
    """The last run if it has not ended."""
    packed: bytes | None = None
    """A small one is unchanged if it is packed to these bytes."""


class Folder:
    """Folds values; one for each plan.

    Texts, lists and objects that the fold before has seen, and that did not change, are not read again.

    Args:
        max_bytes: Largest text or run, in bytes.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._texts: dict[int, tuple[str, Part]] = {}
        self._containers: dict[int, _Container] = {}
        self._seen_texts: dict[int, tuple[str, Part]] = {}
        self._seen: dict[int, _Container] = {}
        """Containers that this fold has folded or found unchanged, by identity, as the texts are."""
        self._contents: dict[bytes, bytes] = {}
        self._is_json = True

    def fold(self, value: dict[str, Any], unchanged: Iterable[Any] = ()) -> Folded:
        """Fold an object. Its own entries stay, however many they are; what is in them is folded.

        Args:
            value: The object.
            unchanged: Values in it that nothing can have changed since the fold before, if it has folded them: they
                are not compared with what they were.

        Raises:
            PayloadTooLarge: a text, or an entry of a list or an object, is larger than ``max_bytes``.
            InvalidEnvelope: the value cannot be packed.
        """
        self._seen_texts, self._seen, self._contents, self._is_json = {}, {}, {}, True
        known = ((id(each), self._containers.get(id(each))) for each in unchanged)
        self._seen |= {key: each for key, each in known if each is not None}
        whole = self._run((*value,), (*value.values(),), 0, 0, cut=False)[0].part
        self._texts, self._containers = self._seen_texts, self._seen
        return Folded(pack(whole.folded or {}), dict(whole.references), self._contents, whole.size, self._is_json)

    def _text(self, text: str) -> Part:
        if 4 * len(text) < PART_BYTES:  # a character has at most four bytes
            return Part(text, size=len(text) + 1)
        known = self._texts.get(id(text))
        if known is None:
            packed = pack(text)
            if len(packed) < PART_BYTES:
                return Part(text, size=len(packed))
            reference = self._store(packed, has_references=False)
            known = text, Part(reference_extension(reference), {reference.digest: reference}, len(packed))
        self._seen_texts[id(text)] = known
        return known[1]

    def _scalar(self, value: Any) -> Part:
        if isinstance(value, str):
            return self._text(value)
        if not (value is None or isinstance(value, int) or (isinstance(value, float) and isfinite(value))):
            if isinstance(value, Unloaded):
                part: Part = value.part
                return part
            self._is_json = False
        return Part(value)

    def _container(self, value: Any, depth: int) -> _Container:
        folded = self._seen.get(id(value)) or self._folded(value, self._containers.get(id(value)), depth)
        if type(value) in _KNOWN:
            self._seen[id(value)] = folded
        return folded

    def _is_unchanged(self, known: _Container) -> bool:
        value = known.value
        if (seen := self._seen.get(id(value))) is not None or type(value) not in _KNOWN:
            return seen is known
        if known.packed is not None:
            unchanged = pack(value) == known.packed
        else:
            runs = [run for run in (known.beginning, known.rest) if run is not None]
            if sum(len(run.values) for run in runs) != len(value):
                return False
            keys, values = _entries(value)
            starts = (0, len(runs[0].values)) if runs else ()
            unchanged = all(self._is_same(run, keys, values, at) for run, at in zip(runs, starts, strict=False))
        if unchanged:
            self._seen[id(value)] = known
        return unchanged

    def _is_same(self, run: _Run, keys: tuple[Any, ...], values: tuple[Any, ...], at: int) -> bool:
        """Return whether the entries from this place on are those of the run, unchanged."""
        end = at + len(run.values)
        return (
            end <= len(values)
            and all(map(is_, values[at:end], run.values))
            and all(map(is_, keys[at:end], run.keys))
            and [*map(len, run.flat)] == run.flat_sizes
            and all(map(is_, chain.from_iterable(run.flat), run.flat_keys))
            and all(map(is_, chain.from_iterable(map(dict.values, run.flat)), run.flat_values))
            and all(map(self._is_unchanged, run.others))
        )

    def _folded(self, value: Any, known: _Container | None, depth: int) -> _Container:
        """Fold a container that was folded to ``known`` before."""
        if known is not None and self._is_unchanged(known):
            return known
        keys, values = _entries(value)
        if depth >= _DEEPEST or (len(values) <= _CHECKED_FIRST and _may_be_small(value)):
            packed = pack(value)
            if len(packed) < PART_BYTES or depth >= _DEEPEST:
                self._is_json = self._is_json and is_json(packed)
                return _Container(value, Part(value, size=len(packed)), packed=packed)
        full: list[_Run] = []
        rest: _Run | None = None
        at = 0
        if known is not None and known.beginning is not None and self._is_same(known.beginning, keys, values, 0):
            full, at = [*known.full], len(known.beginning.values)
        before = {id(run.values[0]): run for run in known.full[len(full) :]} if known is not None else {}
        while at < len(values):
            run, ends = before.get(id(values[at])), True
            if run is None or not self._is_same(run, keys, values, at):
                run, ends = self._run(keys, values, at, depth + 1)
            if ends:
                full.append(run)
            else:
                rest = run
            at += len(run.values)
        if known is not None and len(full) == len(known.full) and all(map(is_, full, known.full)):
            beginning = known.beginning
        else:
            beginning = self._as_one(full)
        return _Container(value, _joined(beginning, rest), full, beginning, rest)

    def _run(
        self, keys: tuple[Any, ...], values: tuple[Any, ...], at: int, depth: int, *, cut: bool = True
    ) -> tuple[_Run, bool]:
        """Fold the entries from this place on to the end of a run; returns also whether it ends by its content."""
        folded: list[Any] = []
        flat: list[dict[str, Any]] = []
        others: list[_Container] = []
        references: dict[bytes, Reference] = {}
        length = size = 0
        ends = False
        for place in range(at, len(values)):
            value = values[place]
            if isinstance(value, CONTAINERS):
                container = self._container(value, depth)
                if type(value) is dict and not any(isinstance(each, CONTAINERS) for each in value.values()):
                    flat.append(value)
                else:
                    others.append(container)
                part = container.part
            else:
                part = self._scalar(value)
            folded.append(part.folded)
            references.update(part.references)
            size += part.size
            if keys:
                size += len(key) + 1 if isinstance(key := keys[place], str) else 0
                self._is_json = self._is_json and isinstance(key, str)
            if cut:
                entry = pack((keys[place], part.folded) if keys else part.folded)
                length += len(entry)
                few = len(values) <= _CHECKED_FIRST
                if ends := length >= _LONGEST_RUN if few else _ends_run(entry, length, bool(part.references)):
                    break
        end = at + len(folded)
        entries: Any = dict(zip(keys[at:end], folded, strict=True)) if keys else folded
        if ends:
            reference = self._store(pack(entries), has_references=bool(references))
            references[reference.digest] = reference
            entries = reference_extension(reference)
        run = _Run(
            keys[at:end], values[at:end], flat, [*map(len, flat)], (*chain.from_iterable(flat),),
            (*chain.from_iterable(map(dict.values, flat)),), others, Part(entries, references, size),
        )  # fmt: skip
        return run, ends

    def _as_one(self, runs: Sequence[_Run]) -> _Run | None:
        """Return consecutive full runs as one, or None if there are none.

        References stand in the places of the runs; references to groups of them where they are many.
        """
        if not runs:
            return None
        references: dict[bytes, Reference] = {}
        for run in runs:
            references.update(run.part.references)
        pieces = [run.part.folded for run in runs]
        while len(pieces) > _GROUP:
            whole = len(pieces) // _GROUP * _GROUP
            groups = []
            for at in range(0, whole, _GROUP):
                group = self._store(pack(runs_extension(pieces[at : at + _GROUP])), has_references=True)
                references[group.digest] = group
                groups.append(reference_extension(group))
            pieces = groups + pieces[whole:]
        flat = [each for run in runs for each in run.flat]
        return _Run(
            (*chain.from_iterable(run.keys for run in runs),),
            (*chain.from_iterable(run.values for run in runs),),
            flat,
            [*map(len, flat)],
            (*chain.from_iterable(run.flat_keys for run in runs),),
            (*chain.from_iterable(run.flat_values for run in runs),),
            [each for run in runs for each in run.others],
            Part(pieces, references, sum(run.part.size for run in runs)),
        )

    def _store(self, content: bytes, *, has_references: bool) -> Reference:
        if len(content) > self._max_bytes:
            raise PayloadTooLarge(
                f"a value of {len(content):,} bytes is over plans.max_value_bytes ({self._max_bytes:,} bytes)"
            )
        reference = Reference(digest_of(content), len(content), has_references)
        self._contents[reference.digest] = content
        return reference


def _joined(beginning: _Run | None, rest: _Run | None) -> Part:
    """Return a container of its full runs as one, and of the last one, which stays."""
    if beginning is None:
        assert rest is not None, "a container without entries is small"
        return rest.part
    pieces, references, size = beginning.part
    if rest is not None:
        pieces = [*pieces, rest.part.folded]
        references, size = {**references, **rest.part.references}, size + rest.part.size
    return Part(pieces[0] if len(pieces) == 1 else runs_extension(pieces), references, size)


def _may_be_small(value: Any) -> bool:
    """Return whether a value may be less than :data:`PART_BYTES` packed, without reading much of a larger one."""
    least, inside = 0, [value]
    while inside and least < PART_BYTES:
        each = inside.pop()
        if isinstance(each, str):
            least += len(each)
        elif isinstance(each, Unloaded):
            return False
        elif isinstance(each, CONTAINERS):
            least += len(each)
            if least < PART_BYTES:
                inside.extend(_entries(each)[1])
    return least < PART_BYTES


def _entries(container: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return keys and values of an object; of a list, no keys."""
    if isinstance(container, LazyObject):
        container = container.entries()
    return ((*container,), (*container.values(),)) if isinstance(container, dict) else ((), (*container,))


def _ends_run(entry: bytes, size: int, has_references: bool) -> bool:
    """Return whether a run of this size ends with this entry.

    An entry decides by itself whether it ends a run, the more likely the larger it is, and the more so if it stands for
    more than its bytes. So a change moves no other end.
    """
    weight = 3 * len(entry) if has_references else len(entry)
    return crc32(entry) * RUN_BYTES < weight << 32 or size >= _LONGEST_RUN
