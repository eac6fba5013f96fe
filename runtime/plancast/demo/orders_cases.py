"""The orders of the demo, and how each has to end."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Manager = Literal["", "approves", "rejects", "is silent"]
Outcome = Literal["shipped", "rejected", "expired", "refused"]
LIMIT = 5_000.0
"""Dollars over which a manager decides."""


@dataclass(frozen=True)
class OrderCase:
    """An order, what the manager makes of it, and how it has to end."""

    customer: str
    item: str
    amount: float
    method: str = "card"
    manager: Manager = ""
    """Empty where nobody may be asked."""
    outcome: Outcome = "shipped"
    order_id: str = ""

    @property
    def goal(self) -> dict[str, Any]:
        """What the goal says."""
        return {
            "order_id": self.order_id,
            "customer": self.customer,
            "item": self.item,
            "amount": self.amount,
            "payment_method": self.method,
        }


SMALL = tuple(
    OrderCase(customer, item, amount)
    for customer, item, amount in (
        ("Ada", "a desk lamp", 49.90), ("Ben", "a kettle", 35.00), ("Chloé", "headphones", 129.00),
        ("Deniz", "an office chair", 640.00), ("Emeka", "a standing desk", 1_190.00), ("Farah", "a monitor", 880.00),
        ("Goran", "a laptop", 2_450.00), ("Hana", "a camera", 4_999.99), ("Ines", "a printer", 310.00),
        ("Jun", "a server rack", 5_000.00), ("Kofi", "a keyboard", 75.50), ("Lena", "a projector", 1_720.00),
    )
)  # fmt: skip
"""The last but two costs 5,000 dollars, which is not over the limit."""
APPROVED = tuple(
    OrderCase(customer, item, amount, manager="approves")
    for customer, item, amount in (
        ("Maja", "ten laptops", 24_500.00), ("Nuri", "a laser cutter", 12_000.00), ("Olga", "a kiln", 6_300.00),
        ("Pavel", "a server", 5_000.01), ("Quinn", "a 3D printer", 7_800.00), ("Rosa", "a lathe", 9_950.00),
    )
)  # fmt: skip
REJECTED = tuple(
    OrderCase(customer, item, amount, manager="rejects", outcome="rejected")
    for customer, item, amount in (
        ("Sami", "a hot tub", 8_700.00), ("Tess", "a grand piano", 61_000.00),
        ("Umar", "a drone", 5_400.00), ("Vera", "gold-plated pens", 15_000.00),
    )
)  # fmt: skip
EXPIRED = (OrderCase("Wim", "an espresso machine", 5_900.00, manager="is silent", outcome="expired"),)
WIRED = (
    OrderCase("Xenia", "a violin", 3_200.00, "wire"),
    OrderCase("Yusuf", "a bicycle", 1_450.00, "wire"),
    OrderCase("Zoe", "a sewing machine", 780.00, "wire"),
    OrderCase("Arun", "a telescope", 4_100.00, "wire"),
    OrderCase("Northwind Shell Ltd", "a telescope", 4_100.00, "wire", outcome="refused"),
)
WIRED_AND_ASKED = (
    OrderCase("Bea", "a pipe organ", 88_000.00, "wire", manager="approves"),
    OrderCase("Carlos", "a speedboat", 47_000.00, "wire", manager="rejects", outcome="rejected"),
)

KINDS = (APPROVED, WIRED, REJECTED, EXPIRED, WIRED_AND_ASKED, SMALL)
ORDERS = tuple(case for row in itertools.zip_longest(*KINDS) for case in row if case is not None)
"""Every order, in an order in which the first few are of every kind."""


def choose_orders(plans: int, seed: int) -> Sequence[OrderCase]:
    """So many orders, numbered, in an order that follows from the seed; beyond those that there are they come again."""
    chosen = list(itertools.islice(itertools.cycle(ORDERS), plans))
    random.Random(seed).shuffle(chosen)
    return [replace(case, order_id=f"A-{number:03}") for number, case in enumerate(chosen, 1)]
