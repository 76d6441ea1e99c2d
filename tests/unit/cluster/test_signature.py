from __future__ import annotations

import pytest

from shared.cluster.signature import SKEW_MAX_MS, check, sign
from tidemark.errors import BadSignature, ClockSkew

SECRET, NOW_MS, PATH, BODY = b"0123456789abcdef", 1_795_000_000_000, "/v1/groups/g0/nodes/n0", b"{}"
DAY_MS = 86_400_000


def checked(
    header: str | None, *, now_ms: int = NOW_MS, path: str = PATH, body: bytes = BODY
) -> None:
    check(SECRET, header, now_ms, "PUT", path, body)


def signed(at_ms: int = NOW_MS, secret: bytes = SECRET) -> str:
    return sign(secret, at_ms, "PUT", PATH, BODY)


@pytest.mark.parametrize("skew_ms", [-SKEW_MAX_MS, 0, SKEW_MAX_MS])
def test_a_signature_within_the_allowed_skew_is_accepted(skew_ms: int) -> None:
    checked(signed(NOW_MS + skew_ms))


def test_the_header_is_that_of_the_contract() -> None:
    # hmac-sha256(secret, ms + method + path + body), as `openssl dgst -sha256 -hmac` gives it.
    assert sign(b"k" * 16, 7, "PUT", "/p", b"b") == (
        "7:2bf9cae04853bf8d169132a2ff9400769b6f031574b8ee566559b6bdbaf0e514"
    )


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (None, "has no header"),
        ("", "malformed"),
        ("x:" + "0" * 64, "malformed"),
        (f"{NOW_MS}:" + "0" * 63, "malformed"),
        (signed(secret=b"another secret..."), "another secret"),
        (f"{NOW_MS + 1}:" + signed().partition(":")[2], "another secret"),
    ],
)
def test_a_wrong_signature_is_refused(header: str | None, text: str) -> None:
    with pytest.raises(BadSignature, match=text):
        checked(header)


def test_path_and_body_are_signed() -> None:
    with pytest.raises(BadSignature):
        checked(signed(), path="/v1/groups/g1/nodes/n0")
    with pytest.raises(BadSignature):
        checked(signed(), body=b"{ }")


@pytest.mark.parametrize(
    ("at_ms", "side"), [(NOW_MS + DAY_MS, "ahead of"), (NOW_MS - DAY_MS, "behind")]
)
def test_a_day_between_two_clocks_is_named(at_ms: int, side: str) -> None:
    with pytest.raises(ClockSkew, match=f"86400 s {side} .*300 s are allowed") as caught:
        checked(signed(at_ms))
    assert caught.value.difference_ms == at_ms - NOW_MS
