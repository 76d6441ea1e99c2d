"""Redaction: facts of our own are kept; no message content and no secret leaves the machine."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.for_each import for_each
from tidemark.cli.support import redact


def line(**facts: object) -> str:
    return json.dumps({"time": "t", "level": "info", "service": "broker", **facts})


def test_facts_of_our_own_stay() -> None:
    facts = {"event": "granted", "message": "ha granted epoch 3", "epoch": 3, "path": "/var/x"}
    assert json.loads(redact.log_line(line(**facts)) or "") == {
        "time": "t", "level": "info", "service": "broker", **facts,
    }  # fmt: skip


@for_each(
    "name",
    ["body", "body_text", "keys", "key", "properties", "tags", "secret", "headers", "unique_id"],
)
@for_each("value", ["planted", ["planted"], {"x": "planted"}])
def test_possible_message_contents_are_left_out_everywhere(name: str, value: object) -> None:
    for facts in ({name: value}, {"inside": {name: value}}, {"list": [{name: value}]}):
        kept = redact.log_line(line(event="odd", message="m", **facts))
        assert kept is not None
        assert "planted" not in kept


def test_the_type_and_the_places_of_an_error_are_kept() -> None:
    stack = (
        "Traceback (most recent call last):\n"
        '  File "/opt/x/append.py", line 12, in append\n'
        '    raise ValueError(f"cannot store {body}")\n'
        "ValueError: cannot store planted\n"
    )
    raw = line(
        event="internal-error",
        message="defect: planted",
        error="ValueError: planted",
        stack=stack,
    )
    kept = redact.log_line(raw)
    assert kept is not None
    assert "planted" not in kept
    facts = json.loads(kept)
    assert facts["error"] == "ValueError"
    assert facts["stack"] == ['File "/opt/x/append.py", line 12, in append']


@pytest.mark.parametrize(
    "text",
    [
        "planted",
        '"planted"',
        '{"message": "planted"}',
        '{"event": 3, "message": "planted"}',
        line(event="x", message="planted")[:-3],
        line(event="x", message="planted" * 5000),
    ],
)
def test_a_line_that_is_not_a_services_is_left_out(text: str) -> None:
    assert redact.log_line(text) is None


def test_texts_of_a_library_are_left_out() -> None:
    kept = redact.log_line(line(event="library", message="planted", logger="aiohttp"))
    assert kept is not None
    assert "planted" not in kept
    assert "aiohttp" in kept


def test_addresses_lose_user_info_and_headers_their_tokens() -> None:
    text = redact.text("GET http://user:planted@host:8080/x with Bearer planted.token==")
    assert "planted" not in text
    assert "host:8080/x" in text
    assert redact.text("http://me:plan@ted@h:1/x, http://h") == (
        f"http://{redact.LEFT_OUT}@h:1/x, http://h"
    )
    assert redact.settings({"url": ["http://me:planted@h"], "n": 3}) == {
        "url": [f"http://{redact.LEFT_OUT}@h"],
        "n": 3,
    }


@given(
    st.binary(min_size=16, max_size=64),
    st.binary(max_size=20),
    st.binary(max_size=20),
    st.sampled_from(["raw", "hex", "HEX", "base64", "url"]),
)
def test_a_secret_is_found_in_whatever_form_it_stands(
    secret: bytes, before: bytes, after: bytes, form: str
) -> None:
    disguised = {
        "raw": before + secret + after,
        "hex": before + secret.hex().encode() + after,
        "HEX": before + secret.hex().upper().encode() + after,
        "base64": base64.b64encode(before + secret + after),
        "url": base64.urlsafe_b64encode(before + secret + after),
    }[form]
    clean, count = redact.without(disguised, [secret])
    assert count >= 1
    for form_of_it in (secret, secret.hex().encode(), secret.hex().upper().encode()):
        assert form_of_it not in clean


def test_other_texts_are_kept() -> None:
    assert redact.without(b"all of it", [b"0123456789abcdef"]) == (b"all of it", 0)
    assert redact.without(b"a b c", [b"a"]) == (b"a b c", 0), "too short to be looked for"
