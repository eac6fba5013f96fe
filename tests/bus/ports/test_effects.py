"""Effects as plain values and back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plancast_bus.errors import InvalidEnvelope
from plancast_bus.events.codec import pack, unpack
from plancast_bus.ports.effects import Effect, Withdraw, effect_kind, from_fields, to_fields

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "str": st.text(),
    "bytes": st.binary(),
    "bool": st.booleans(),
    "int": st.integers(0, 2**63),
    "float": st.floats(allow_nan=False),
}
KINDS = get_args(Effect)
effects = st.one_of(
    [st.builds(kind, **{field.name: VALUES[str(field.type)] for field in fields(kind)}) for kind in KINDS]
)


@given(effects)
def test_an_effect_comes_back_as_it_was(effect: Effect) -> None:
    assert from_fields(unpack(pack(to_fields(effect)))) == effect


def test_each_kind_has_a_name_of_its_own() -> None:
    names = {effect_kind(kind(*([""] * len(fields(kind))))) for kind in KINDS}
    assert len(names) == len(KINDS)
    assert {"publish", "respond", "set_timer", "cancel_timer", "withdraw", "seal_history"} <= names


def test_a_withdrawal_of_an_earlier_version_has_no_task_type() -> None:
    assert from_fields(["withdraw", 7]) == Withdraw(7, "")
    assert to_fields(Withdraw(7, "web.search")) == ["withdraw", 7, "web.search"]  # as earlier versions read it


@pytest.mark.parametrize("stored", [[], ["no_such_effect", 1], ["publish"], ["cancel_timer", 1, 2, 3], [[]], [None]])
def test_what_is_no_effect_is_refused(stored: list[Any]) -> None:
    with pytest.raises(InvalidEnvelope):
        from_fields(stored)
