"""Slots: slices of the plans, which are assigned to shared hosts. A change of the number of hosts moves few of them."""

from __future__ import annotations

import zlib
from functools import lru_cache

SLOTS = 4096
"""Number of slots: a multiple of most numbers of hosts that are in use, or large in proportion to it."""


def slot_of(correlation: str) -> int:
    """Return the slot of a plan by the token of its correlation id in subjects."""
    return zlib.crc32(correlation.encode()) % SLOTS


@lru_cache(maxsize=16)
def owners(hosts: int) -> tuple[int, ...]:
    """Return the host of each slot, by its number from 0.

    Numbers of slots differ by 1 at most. One host more takes an equal share from each of the others, and nothing else
    moves.
    """
    found = [0] * SLOTS
    for newest in range(1, hosts):
        least, more = divmod(SLOTS, newest + 1)
        kept = [0] * newest
        for slot, owner in enumerate(found):
            if kept[owner] < least + (owner < more):
                kept[owner] += 1
            else:
                found[slot] = newest
    return tuple(found)


def host_of(correlation: str, hosts: int) -> int:
    """Return the number of the shared host that has a plan; the arguments are those of the other functions."""
    return owners(hosts)[slot_of(correlation)]
