"""Slots: slices of the plans, which are assigned to the shared hosts that live.

A change of the number of hosts moves few plans, and the loss of a host only its own.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from hashlib import blake2b

SLOTS = 4096
"""Number of slots: a multiple of most numbers of hosts that are in use, or large in proportion to it."""


def slot_of(correlation: str) -> int:
    """Return the slot of a plan by the token of its correlation id in subjects."""
    return zlib.crc32(correlation.encode()) % SLOTS


@lru_cache(maxsize=16)
def owners(hosts: int) -> tuple[int, ...]:
    """Return the host of each slot while all hosts live, by its number from 0.

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


@lru_cache(maxsize=16)
def living_owners(hosts: int, gone: frozenset[int]) -> tuple[int, ...]:
    """Return the host of each slot while some hosts are gone.

    Each slot of these goes to the living host with the highest hash of slot and host (rendezvous hashing), so that all
    of the living get a share, and dispatchers agree. While none lives, all keep their slots.
    """
    living = [host for host in range(hosts) if host not in gone]
    if not living:
        return owners(hosts)
    return tuple(
        owner if owner not in gone else max(living, key=lambda host, slot=slot: _weight(slot, host))  # type: ignore[misc]
        for slot, owner in enumerate(owners(hosts))
    )


def host_of(correlation: str, hosts: int) -> int:
    """Return the number of the shared host that has a plan while all live."""
    return owners(hosts)[slot_of(correlation)]


def _weight(slot: int, host: int) -> bytes:
    return blake2b(b"%d/%d" % (slot, host), digest_size=8).digest()
