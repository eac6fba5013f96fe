"""Credentials are hidden in any text, by their shapes or by their values; ordinary text is left alone."""

import base64
import json
import logging
import time

import nkeys
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plancast.plan.event_fields import error_text
from plancast.telemetry.logging import FieldFormatter
from plancast.telemetry.redaction import HIDDEN, redact, without

A = "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY"  # 32 characters, of no meaning
SEED = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER).decode()
ACCOUNT_SEED = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_ACCOUNT).decode()
JWT = ".".join(
    base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (b'{"alg":"HS256"}', b'{"sub":"12345"}', b"x" * 32)
)
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{A}\n{A}\n-----END RSA PRIVATE KEY-----"
CREDS = (
    f"-----BEGIN NATS USER JWT-----\n{JWT}\n------END NATS USER JWT------\n\n"
    f"-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------"
)

# The text around a secret, the secret.
SHAPES = [
    ("password={}", "hunter2"),
    ("passwd: {}", "hunter2"),
    ("PASSWORD = {}", "hunter2"),
    ('{{"password": "{}"}}', "hun, ter 2"),
    ('{{"user": {{"password":"{}"}}}}', "hunter2"),
    ("{{'passphrase': '{}'}}", "correct horse"),
    ('"{{\\"password\\": \\"{}\\"}}"', "hunter2"),
    ("secret={}", "hunter2"),
    ("client_secret: {}", "hunter2!"),
    ("api_key={}", "hunter2"),
    ("apikey: {}", "abc123"),
    ('"api-key":"{}"', "abc123"),
    ("X-Api-Key: {}", "abc123"),
    ("token={}", "abc123"),
    ("access_token: {}", "1234567890"),
    ("https://h/x?a=1&token={}&b=2", "abc123"),
    ("https://h/x?key={}", "abc123"),
    ("https://h/x?sv=1&sig={}&se=2", "abc%2F123%3D"),
    ("https://h/x?X-Amz-Signature={}", "0123456789abcdef"),
    ("postgres://{}@db:5432/x", "app:pa55"),
    ("nats://{}@h:4222", "a" * 32),
    ("redis://{}@h", ":hunter2"),
    ("Authorization: Bearer {}", "abcdefgh"),
    ("authorization: Basic {}", "dXNlcjpwYXNz"),
    ("'Authorization': 'Token {}'", "abcdefgh"),
    ("sent bearer {} to it", "abc123"),
    ("Basic {}", "dXNlcjpwYXNz"),
    ("key {} is wrong", f"sk-{A}"),
    ("key {} is wrong", f"sk-proj-{A}"),
    ("key {} is wrong", f"sk-ant-api03-{A}"),
    ("key {} is wrong", f"sk_live_{A}"),
    ("key {} is wrong", f"rk_test_{A}"),
    ("key {} is wrong", f"ghp_{A}"),
    ("key {} is wrong", f"gho_{A}"),
    ("key {} is wrong", f"github_pat_11ABC_{A}"),
    ("key {} is wrong", f"glpat-{A}"),
    ("key {} is wrong", "AKIAIOSFODNN7EXAMPLE"),
    ("aws_secret_access_key = {}", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    ("key {} is wrong", f"AIza{A}xyz"),
    ("key {} is wrong", f"ya29.{A}"),
    ("key {} is wrong", f"xoxb-123456789012-{A}"),
    ("key {} is wrong", f"hf_{A}"),
    ("key {} is wrong", f"gsk_{A}"),
    ("key {} is wrong", f"npm_{A}abcd"),
    ("key {} is wrong", f"pypi-AgEIcHlwaS5vcmc{A}"),
    ("DefaultEndpointsProtocol=https;AccountKey={};EndpointSuffix=core", f"{A}{A}=="),
    ("key {} is wrong", JWT),
    ("seed {} is wrong", SEED),
    ("seed {}", ACCOUNT_SEED),
    ("{}", PEM),
    ("{}", CREDS),
    ('{{"private_key": "{}"}}', PEM.replace("\n", "\\n")),
    ("cut off: {}", PEM[:60]),
    ("Cookie: {}", "sid=hunter2; csrf=swordfish"),
    ("Set-Cookie: {}; HttpOnly", "sid=hunter2; Path=/x"),
    ("{{'Cookie': '{}'}}", "sid=hunter2"),
    ("https://{}@github.com/a/b", "abc123"),
    ("https://api.telegram.org/bot{}/getMe", f"123456:AA{A}x"),
    ("https://hooks.slack.com/services/{}", f"T00000000/B00000000/{A[:24]}"),
    ("tool --password {} --verbose", "hunter2"),
    ("tool --auth-token {} --verbose", "abc123"),
    ("tool --api-key={} --verbose", "abc123"),
    ("Command '['tool', '--password', '{}']' failed", "swordfish"),
    ("curl -s -u admin:{} https://h/x", "hunter2"),
    ("curl --user admin:{} https://h/x", "hunter2"),
    ("Command '['curl', '-u', 'admin:{}']' failed", "hunter2"),
    ("pass={}", "hunter2"),
    ("DB_PASS={}", "hunter2"),
    ("sessionid={}", "abc123"),
    ("api key: {}", "abc123"),
    ("apikey {}", "abc123"),
    ("The api_key '{}' is invalid", "abc123"),
    ("Incorrect API key provided: {}", "abc123"),
    ("secret_key_base: {}", "swordfish"),
    ("DB_SECRET: {}", "swordfish"),
    ("token: {}", "hunter2hunter2"),
    ("invalid token: password: {}", "hunter2"),
    ("secret: {}", "abcdEfgh"),
    ("key {} is wrong", f"AGE-SECRET-KEY-1{A.upper()}"),
    ("key {} is wrong", "dapi0123456789abcdef0123456789abcdef"),
    ("key {} is wrong", f"sq0atp-{A}"),
    ("key {} is wrong", f"sq0csp-{A}"),
    ("key {} is wrong", f"lin_api_{A}"),
    ("key {} is wrong", f"figd_{A}"),
    ("key {} is wrong", f"ATATT3x{A}"),
    ("postgres://{}@host", "u:p@ss@5"),
    ('{{"password": "{}"}}', 'hunter\\"2 swordfish'),
    ('"{{\\"password\\": \\"{}\\"}}"', 'hunter\\\\\\"2 swordfish'),
]  # fmt: skip


@pytest.mark.parametrize(("text", "secret"), SHAPES, ids=range(len(SHAPES)))
def test_a_credential_is_hidden_and_the_text_around_it_kept(text: str, secret: str) -> None:
    for before, after in (("", ""), ("it failed: ", " , so nothing was done"), ("ä\n", "\n😀"), ("\ud800 ", " x")):
        clean = redact(f"{before}{text.format(secret)}{after}")
        assert secret not in clean
        assert not any(part in clean for part in secret.split() if len(part) > 4 and "-----" not in part)
        assert HIDDEN in clean
        assert clean.startswith(before)
        assert redact(clean) == clean


ORDINARY = [
    "plan order-2024-000017 has moved to 'priced' at revision 12",
    "event 0197f1c2-7f3a-7cc2-9f6b-0d6a1f0e6c11 of type order.priced.v2",
    "checkpoint 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "trace_id=4bf92f3577b34da6a3ce929d0e0e4736 span_id=00f067aa0ba902b7",
    "token count: 12, tokens: 4096, max_tokens=512, prompt_tokens: 17, token: 12",
    "token_type: x, secret_name: y, password_hint: z, api_key_env: OPENAI",
    "web.search.requested is answered by web.search.completed",
    "skyscraper, skeletonized, task-12345678, risk-assessment-2024, desk_reservation",
    "a basic understanding, a basic authentication scheme, the bearer certificate, a bearer of news",
    "the password is too short; the secret of success; a token of thanks; passwordless",
    "password: required",
    "api_key=None, token=null, secret: false",
    "hf_transfer and npm_config_registry and gsk_small and r8_width",
    "https://example.org:8080/a/b?page=2&sort=key#top",
    "nats://127.0.0.1:4222, ssh://git@github.com/x, ws://h/x@2",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "correlation id user@example.org, subject plancast.action-requests.x.y",
    "SUPERCALIFRAGILISTIC ACCOUNT SAMPLES, SUMMARY",
    '{"monkey": "banana", "keyboard": "qwerty", "author": "ada", "compass": "north"}',
    "KeyError: 'Plancast-Plan'",
    "unexpected token: }, unexpected token: '}', token: expected ')', token: Expected, token: EOF",
    "secret: santa, authorization: pending, credentials: missing, token: v2",
    "sk-learn-pipeline, sk-learn-pipeline-v2, npm_config_registry_of_the_company",
    "API key is missing, api key: none, the api_key parameter, usage: x [--token TOKEN] [--password PASSWORD]",
    "--password is required, --token-file /run/x1, compass=north, bypass=on, pass=12 fail=0",
    "docker run -u 1000:1000, curl -sS https://h:80/x, cookie: not set, cookies are off",
    "https://ada@example.org/x, secret 'db-credentials-1' not found, session_id=17",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "part",
    ["a", "eyJ", "eyJaaaaaaaaa.", "password=", '"token":"\\', "://", "://a:", "-----BEGIN PRIVATE KEY-----", "sk-",
     "SU", "AKIA", "xox", "?key=", "Basic ", "\\", "\ud800", "secret:'",
     "cookie:a=b;", "cookie:a=b; ", "curl ", "curl -u a:b ", "--token ", "--", "api key ", "token: a", "password='\\",
     "://a:b@", "https://a@", "sk-a", "sk-learn-Aa1"],
)  # fmt: skip
@pytest.mark.timeout(60)
def test_the_time_is_linear_in_the_text(part: str) -> None:
    text = part * (1_000_000 // len(part))
    redact(part * 100)
    begun = time.perf_counter()
    redact(text)
    assert time.perf_counter() - begun < 30  # a quadratic one takes hours


@given(
    st.lists(st.sampled_from([*(text.format(secret) for text, secret in SHAPES), *ORDINARY, '"', "\\", " ", "="])).map(
        "".join
    )
)
def test_what_was_cleaned_is_clean(text: str) -> None:
    once = redact(text)
    assert redact(redact(once)) == redact(once)


def test_errors_and_log_lines_are_cleaned() -> None:
    for text, secret in SHAPES:
        said = text.format(secret)
        assert secret not in error_text(RuntimeError(said))
        assert secret not in FieldFormatter().format(logging.LogRecord("x", 20, "", 0, "%s", (said,), None))


# By value.

KEY = 'of/no"shape-ä😀1'


@pytest.mark.parametrize(
    "said",
    [KEY, json.dumps(KEY), json.dumps(KEY, ensure_ascii=False), json.dumps(KEY).replace("/", "\\/"),
     "".join(f"\\u{ord(each):04X}" for each in KEY[:-3]) + "\\u00e4\\uD83D\\ude001"],
)  # fmt: skip
def test_a_known_secret_is_taken_out_however_json_spells_it(said: str) -> None:
    clean = without(f'{{"reasoning": "x {said} y"}}', [KEY, "short", ""])
    assert clean.count(HIDDEN) == 1
    assert "no" not in clean.replace("reasoning", "")
    assert without("a short word, anything, customer_id", ["short", "anything", "customer_id"]).count(HIDDEN) == 0
