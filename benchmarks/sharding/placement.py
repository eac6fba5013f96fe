"""Where correlation ids go: groups, shards, hosts, and how even that is.

``shard_of`` and ``host_of`` are what runs: the nats-server's partition function, and the dispatchers' choice of a host.
The others are what this package compares them with.
"""

from __future__ import annotations

import random
import zlib
from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from itertools import accumulate

from plancast_bus.subjects import encode_token

FNV_OFFSET, FNV_PRIME = 0x811C9DC5, 0x01000193
SLOTS = 4096
"""Slices of ids that rendezvous hashing gives to hosts: for each id by itself it would cost a hash for each host."""
Place = Callable[[str, int], int]
"""A correlation id's place among so many."""


def shard_of(correlation_id: str, shards: int) -> int:
    """The shard that the server's ``partition`` puts an id in: FNV-1a of 32 bits over the subject's token."""
    found = FNV_OFFSET
    for byte in encode_token(correlation_id).encode():
        found = (found ^ byte) * FNV_PRIME & 0xFFFFFFFF
    return found % shards


def host_of(correlation_id: str, hosts: int) -> int:
    """The shared host that dispatchers put an id on: CRC-32 of the subject's token, modulo the number of hosts."""
    return zlib.crc32(encode_token(correlation_id).encode()) % hosts


def group_of(correlation_id: str, groups: int) -> int:
    """A group for an id, by a hash that has nothing to do with those of shards and hosts."""
    return _digest(correlation_id) % groups


def jump_host(correlation_id: str, hosts: int) -> int:
    """A host by jump consistent hashing (Lamping and Veach), for hosts that are numbered and come and go at the end."""
    key, last, following = _digest(correlation_id), -1, 0
    while following < hosts:
        last = following
        key = (key * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
        following = int((last + 1) * ((1 << 31) / ((key >> 33) + 1)))
    return last


def rendezvous(hosts: int) -> Callable[[str], int]:
    """A function from ids to hosts by rendezvous hashing of slots; a hash for each slot and host is made at once."""
    owners = [max(range(hosts), key=lambda host: _digest(f"{slot}/{host}")) for slot in range(SLOTS)]
    return lambda correlation_id: owners[host_of(correlation_id, SLOTS)]


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


# Ids as they come.


def hex_ids(count: int, seed: int) -> list[str]:
    """As the client makes them: 32 hexadecimal digits."""
    chance = random.Random(seed)
    return [f"{chance.getrandbits(128):032x}" for _ in range(count)]


def numbered_ids(count: int, seed: int) -> list[str]:
    """As a shop makes them: one after the other."""
    return [f"order-{number:09d}" for number in range(seed, seed + count)]


def tenants_ids(count: int, seed: int, tenants: int = 1000) -> list[str]:
    """Numbered within tenants, of which few have most (Zipf, exponent 1)."""
    chance = random.Random(seed)
    of = chance.choices(range(tenants), [1 / (1 + rank) for rank in range(tenants)], k=count)
    return [f"tenant-{tenant:04d}:{number}" for number, tenant in enumerate(of)]


def hot_events(ids: Sequence[str], count: int, seed: int, exponent: float = 0.8) -> list[str]:
    """The ids of events, when few plans have many of them (Zipf)."""
    chance = random.Random(seed)
    sums = list(accumulate((1 + rank) ** -exponent for rank in range(len(ids))))
    return [ids[bisect(sums, chance.random() * sums[-1])] for _ in range(count)]


# How even it is.


def peak(places: Iterable[int], count: int) -> float:
    """The load of the fullest place by the mean; 1 is even."""
    loads = [0] * count
    for place in places:
        loads[place] += 1
    return max(loads) * count / sum(loads)


def dispatcher_peak(shards: int, dispatchers: int) -> float:
    """The shards of the dispatcher that has most, by the mean: they are dealt out in turn."""
    return -(-shards // dispatchers) * dispatchers / shards


def moved(before: Callable[[str], int], after: Callable[[str], int], ids: Sequence[str]) -> float:
    """The part of the ids that has another place afterwards."""
    return sum(before(each) != after(each) for each in ids) / len(ids)
