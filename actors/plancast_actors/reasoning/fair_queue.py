"""FairQueue: a queue that serves tenants in turn."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Container, Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class FairQueue(Generic[Item]):
    """First in, first out within a tenant; round robin between tenants.

    Items are in lanes (one for each model), so that a lane that is closed for now does not block the others.
    """

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, dict[str, OrderedDict[Item, int]]] = OrderedDict()
        self._by_lane: Counter[str] = Counter()
        self._arrivals = 0
        self._returns = 0

    def __len__(self) -> int:
        return self._by_lane.total()

    def waiting(self, closed: Container[str] = ()) -> int:
        """Number of items in lanes that are not closed."""
        return sum(count for lane, count in self._by_lane.items() if lane not in closed)

    def by_tenant(self) -> dict[str, int]:
        return {tenant: sum(map(len, lanes.values())) for tenant, lanes in self._tenants.items()}

    def push(self, tenant: str, lane: str, item: Item, *, first: bool = False) -> None:
        """Append an item; ``first`` puts one that was taken before ahead of its tenant's others."""
        items = self._tenants.setdefault(tenant, {}).setdefault(lane, OrderedDict())
        if first:
            self._returns -= 1
            items[item] = self._returns
            items.move_to_end(item, last=False)
        else:
            self._arrivals += 1
            items[item] = self._arrivals
        self._by_lane[lane] += 1

    def peek(self, closed: Container[str] = ()) -> tuple[str, str, Item] | None:
        """Tenant, lane and item that is next; None when all items are in closed lanes."""
        for tenant, lanes in self._tenants.items():
            heads = [(next(iter(items.items())), lane) for lane, items in lanes.items() if lane not in closed]
            if heads:
                (item, _), lane = min(heads, key=lambda head: head[0][1])
                return tenant, lane, item
        return None

    def take(self, tenant: str, lane: str, item: Item) -> None:
        """Remove an item and move its tenant to the end of the round."""
        self.remove(tenant, lane, item)
        if tenant in self._tenants:
            self._tenants.move_to_end(tenant)

    def remove(self, tenant: str, lane: str, item: Item) -> None:
        """Remove an item, if it is there."""
        lanes = self._tenants.get(tenant, {})
        if item not in lanes.get(lane, ()):
            return
        del lanes[lane][item]
        self._by_lane[lane] -= 1
        if not self._by_lane[lane]:
            del self._by_lane[lane]
        if not lanes[lane]:
            del lanes[lane]
        if not lanes:
            del self._tenants[tenant]
