"""Maps correlation ids to groups, shards and hosts, and measures the balance.

``shard_of`` and ``host_of`` are the product's functions: the nats-server's partition function, and the dispatchers'
choice of a host. The others are compared with them.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from itertools import accumulate

from plancast_actors.dispatch import slots
from plancast_bus.subjects import encode_token

FNV_OFFSET, FNV_PRIME = 0x811C9DC5, 0x01000193
Place = Callable[[str, int], int]
"""Maps a correlation id and a number of places to a place."""


def shard_of(correlation_id: str, shards: int) -> int:
    """Return the shard by the server's ``partition``: 32-bit FNV-1a over the subject's token."""
    found = FNV_OFFSET
    for byte in encode_token(correlation_id).encode():
        found = (found ^ byte) * FNV_PRIME & 0xFFFFFFFF
    return found % shards


def host_of(correlation_id: str, hosts: int) -> int:
    """Return the shared host that dispatchers choose: the owner of the slot of the subject's token."""
    return slots.host_of(encode_token(correlation_id), hosts)


def group_of(correlation_id: str, groups: int) -> int:
    """Return a group by a hash that is independent of those of shards and hosts."""
    return _digest(correlation_id) % groups


def jump_host(correlation_id: str, hosts: int) -> int:
    """Return a host by jump consistent hashing (Lamping and Veach): numbered hosts, added and removed at the end."""
    key, last, following = _digest(correlation_id), -1, 0
    while following < hosts:
        last = following
        key = (key * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
        following = int((last + 1) * ((1 << 31) / ((key >> 33) + 1)))
    return last


def rendezvous(hosts: int) -> Callable[[str], int]:
    """Return a function from ids to hosts by rendezvous hashing of slots; hashes per slot and host are precomputed."""
    owners = [max(range(hosts), key=lambda host: _digest(f"{slot}/{host}")) for slot in range(slots.SLOTS)]
    return lambda correlation_id: owners[slots.slot_of(encode_token(correlation_id))]


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


# Kinds of ids.


def hex_ids(count: int, seed: int) -> list[str]:
    """Generate ids like the client: 32 hexadecimal digits."""
    chance = random.Random(seed)
    return [f"{chance.getrandbits(128):032x}" for _ in range(count)]


def numbered_ids(count: int, seed: int) -> list[str]:
    """Generate sequential ids."""
    return [f"order-{number:09d}" for number in range(seed, seed + count)]


def tenants_ids(count: int, seed: int, tenants: int = 1000) -> list[str]:
    """Generate sequential ids per tenant, with Zipf-distributed tenants (exponent 1)."""
    chance = random.Random(seed)
    of = chance.choices(range(tenants), [1 / (1 + rank) for rank in range(tenants)], k=count)
    return [f"tenant-{tenant:04d}:{number}" for number, tenant in enumerate(of)]


def hot_events(ids: Sequence[str], count: int, seed: int, exponent: float = 0.8) -> list[str]:
    """Return the plan ids of events, Zipf-distributed over plans."""
    chance = random.Random(seed)
    sums = list(accumulate((1 + rank) ** -exponent for rank in range(len(ids))))
    return [ids[bisect(sums, chance.random() * sums[-1])] for _ in range(count)]


# Balance.


def peak(places: Iterable[int], count: int) -> float:
    """Return the maximum load divided by the mean; 1 is even."""
    loads = [0] * count
    for place in places:
        loads[place] += 1
    return max(loads) * count / sum(loads)


def dispatcher_peak(shards: int, dispatchers: int) -> float:
    """Return the maximum number of shards per dispatcher divided by the mean; shards are assigned round-robin."""
    return -(-shards // dispatchers) * dispatchers / shards


def moved(before: Callable[[str], int], after: Callable[[str], int], ids: Sequence[str]) -> float:
    """Return the share of ids whose place changes."""
    return sum(before(each) != after(each) for each in ids) / len(ids)
