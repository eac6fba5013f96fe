"""Questions and answers as bytes."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, SecretStr

from plancast.models.port import ReasonReply, ReasonRequest, Usage
from plancast.settings import ModelLimit
from plancast_actors.reasoning.rate_limits import ModelLimits, estimate
from plancast_actors.reasoning.serialization import opened, pack_call, pack_reply, read_call, read_reply, seal

REQUEST = ReasonRequest(
    messages=[{"role": "user", "content": "what next? " * 10}],
    model="openai/any",
    parameters={"temperature": 0.5, "response_format": {"type": "json_object"}},
    idempotency_key="plan-1/7",
    tenant_id="t",
    plan_id="plan-1",
    planner="p",
    fallback_models=("gpt-4o",),
    timeout=3.0,
    api_base="http://127.0.0.1:1/v1",
    api_key=SecretStr("sk-secret-of-theirs"),
)


def test_a_call_comes_out_as_it_went_in() -> None:
    call_id, sealed = read_call(pack_call("c1", REQUEST))

    assert (call_id, sealed.open(), opened(sealed), opened(REQUEST)) == ("c1", REQUEST, REQUEST, REQUEST)
    assert read_call(pack_call("c2", sealed)) == ("c2", sealed)
    told = (sealed.model, sealed.idempotency_key, sealed.tenant_id, sealed.plan_id, sealed.planner)
    assert told == ("openai/any", "plan-1/7", "t", "plan-1", "p")
    assert seal(sealed) is sealed


def test_no_secret_is_in_the_repr_of_a_sealed_question() -> None:
    sealed = seal(REQUEST)

    assert "sk-secret" not in f"{sealed!r} {sealed}"
    opened_key = sealed.open().api_key
    assert opened_key is not None
    assert opened_key.get_secret_value() == "sk-secret-of-theirs"


def test_a_class_of_a_script_goes_along_too() -> None:
    class Wanted(BaseModel):
        word: str

    sealed = seal(ReasonRequest(messages=[], model="m", parameters={"response_format": Wanted}))

    assert sealed.open().parameters["response_format"].model_fields.keys() == {"word"}


@pytest.mark.parametrize(
    "reply", [ReasonReply("yes", Usage(3, 4, 0.5), "m", 1.5, 2, fallback_used=True, cached=True), None]
)
def test_an_answer_comes_out_as_it_went_in(reply: ReasonReply | None) -> None:
    assert read_reply(pack_reply(reply)) == reply


def test_tokens_are_estimated_where_a_model_has_a_limit() -> None:
    limited = ModelLimits({"openai/any": ModelLimit(rpm=2)})

    assert limited.tokens_of(seal(REQUEST)) == limited.tokens_of(REQUEST) == estimate(REQUEST) > 0
    assert ModelLimits({}).tokens_of(REQUEST) == 0
