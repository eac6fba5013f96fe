"""Signatures of webhooks: those of the standard's and of GitHub's own examples, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plancast.webhooks.signature import TOLERANCE_SECONDS, Unverified, claimed_id, sign, verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY, NOW = b'{"test": 2432232314}', 1614265330
STANDARD = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": str(NOW),
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}
"""The example of the Standard Webhooks' libraries."""
GITHUB_BODY, GITHUB_SECRET = b"Hello, World!", "It's a Secret to Everybody"
GITHUB = {
    "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
    "x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
}
"""The example of GitHub's documentation."""


def test_the_examples_of_both_schemes_are_verified() -> None:
    assert verify(STANDARD, BODY, [SECRET], NOW) == STANDARD["webhook-id"]
    assert verify(GITHUB, GITHUB_BODY, [GITHUB_SECRET], NOW) == GITHUB["x-github-delivery"]


@given(secret=st.text(min_size=1).filter(lambda text: text != "whsec_"), body=st.binary(max_size=200))
def test_what_is_signed_is_verified_and_nothing_else(secret: str, body: bytes) -> None:
    try:
        secret.encode()
    except UnicodeEncodeError:
        return
    headers = sign(secret, "m1", NOW, body)
    assert verify(headers, body, ["another secret", secret], NOW) == "m1"
    for other in (headers | {"webhook-id": "m2"}, headers | {"webhook-timestamp": str(NOW + 1)}):
        with pytest.raises(Unverified):
            verify(other, body, [secret], NOW)
    with pytest.raises(Unverified):
        verify(headers, body + b" ", [secret], NOW)
    with pytest.raises(Unverified):
        verify(headers, body, [f"{secret} "], NOW)


def test_a_secret_without_its_prefix_is_taken_as_libraries_take_it() -> None:
    assert verify(STANDARD, BODY, [SECRET.removeprefix("whsec_")], NOW)


@pytest.mark.parametrize("late", [-TOLERANCE_SECONDS, 0, TOLERANCE_SECONDS])
def test_a_message_counts_for_five_minutes(late: float) -> None:
    assert verify(STANDARD, BODY, [SECRET], NOW + late)
    beyond = late + (1 if late >= 0 else -1)
    if late:
        with pytest.raises(Unverified, match="webhook-timestamp"):
            claimed_id(STANDARD, NOW + beyond)


@pytest.mark.parametrize(
    "changed",
    [
        {"webhook-id": ""}, {"webhook-id": "m" * 257}, {"webhook-id": "m\n1"}, {"webhook-id": "mü"},
        {"webhook-timestamp": ""}, {"webhook-timestamp": "now"}, {"webhook-timestamp": "-1"},
        {"webhook-timestamp": "٣" * 10}, {"webhook-timestamp": "1e9"}, {"webhook-timestamp": "9" * 5_000},
        {"webhook-signature": ""}, {"webhook-signature": "v1,"}, {"webhook-signature": "v1"},
        {"webhook-signature": STANDARD["webhook-signature"].replace("v1", "v1a")},
        {"webhook-signature": "v1,ü\udcff"}, {"webhook-signature": "v1,x " * 16 + STANDARD["webhook-signature"]},
    ],
)  # fmt: skip
def test_malformed_headers_are_refused(changed: dict[str, str]) -> None:
    with pytest.raises(Unverified):
        verify(STANDARD | changed, BODY, [SECRET], NOW)


def test_one_of_several_signatures_is_enough() -> None:
    headers = STANDARD | {"webhook-signature": f"v1,x v2,y {STANDARD['webhook-signature']}"}
    assert verify(headers, BODY, [SECRET], NOW)


@pytest.mark.parametrize("signature", ["", "sha256=", "sha1=757107", "757107ea", "sha256=" + "0" * 64])
def test_a_wrong_signature_of_github_is_refused(signature: str) -> None:
    with pytest.raises(Unverified):
        verify(GITHUB | {"x-hub-signature-256": signature}, GITHUB_BODY, [GITHUB_SECRET], NOW)
    with pytest.raises(Unverified):
        verify({**GITHUB, "x-github-delivery": ""}, GITHUB_BODY, [GITHUB_SECRET], NOW)


def test_a_message_without_a_signature_is_refused_before_its_body_is_read() -> None:
    for headers in ({}, {"webhook-id": "m1"}, {"x-github-delivery": "d1"}, {"authorization": "Bearer x"}):
        with pytest.raises(Unverified):
            claimed_id(headers, NOW)


def test_the_signature_of_one_scheme_is_none_of_the_other() -> None:
    secret = "a plain secret"
    signed = f"m1.{NOW}.".encode() + BODY
    digest = hmac.digest(secret.encode(), signed, hashlib.sha256)
    assert sign(secret, "m1", NOW, BODY)["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    claimed = {"x-github-delivery": "other", "x-hub-signature-256": f"sha256={digest.hex()}"}
    with pytest.raises(Unverified):
        verify(claimed, BODY, [secret], NOW)
