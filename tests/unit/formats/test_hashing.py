import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tests.support.for_each import for_each
from tidemark.formats import hashing

LEVELS_MS = [1000, 5000, 10_000]


def plain_hash(text: str) -> int:
    """The definition, one UTF-16 unit at a time."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) % (1 << 32)
    return value - (1 << 32) if value >= 1 << 31 else value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("中文😀", 622957533),
        ("ORDER_CREATED", -394906953),
        ("polygenelubricants", -(1 << 31)),
        ("Aa", 2112),
        ("BB", 2112),
    ],
)
def test_known_strings_have_their_known_hashes(text: str, expected: int) -> None:
    assert hashing.string_hash(text) == expected
    assert hashing.tags_code(text) == expected


@given(st.text(st.characters(), max_size=40))
def test_the_hash_is_over_utf16_units_lone_surrogates_included(text: str) -> None:
    assert hashing.string_hash(text) == plain_hash(text)


@for_each("letter", ["z", "é", "😀"])
@for_each("length", [255, 256, 257, 511, 512, 513, 1024, 5000])
def test_long_strings_hash_like_short_ones(length: int, letter: str) -> None:
    assert hashing.string_hash(letter * length) == plain_hash(letter * length)


def test_no_tags_and_empty_tags_have_code_zero() -> None:
    assert hashing.tags_code(None) == hashing.tags_code("") == 0


@pytest.mark.parametrize(
    ("key", "expected"),
    [("7F000001000118B4AAC2088D5C800000", 569321660), ("k1", 0x717125C9)],
)
def test_known_keys_have_their_known_index_hashes(key: str, expected: int) -> None:
    assert hashing.index_hash("TopicA", key) == expected


@given(st.text(max_size=12), st.text(st.characters(), max_size=40))
def test_the_index_hash_is_the_absolute_value(topic: str, key: str) -> None:
    assert hashing.index_hash(topic, key) == abs(plain_hash(f"{topic}#{key}")) % (1 << 31)


@given(st.text("ab", min_size=250, max_size=262))
def test_the_index_hash_of_long_keys_is_the_absolute_value(key: str) -> None:
    assert hashing.index_hash("orders", key) == abs(plain_hash(f"orders#{key}")) % (1 << 31)


def test_the_one_hash_without_absolute_value_becomes_zero() -> None:
    # -2^31 has no positive twin in 32 bits. A key with that hash, found by search:
    assert plain_hash("T#jllgvmc") == -(1 << 31)
    assert hashing.index_hash("T", "jllgvmc") == 0


@given(st.text("ABab\x7f0", max_size=8), st.text("ABab\x7f0é", max_size=8))
def test_colliding_keys_collide(left: str, right: str) -> None:
    assert hashing.index_hash("T", left + "Aa" + right) == hashing.index_hash(
        "T", left + "BB" + right
    )


def test_a_scheduled_record_is_due_after_its_levels_delay() -> None:
    assert hashing.delivery_time_code("3", 1795166908153, LEVELS_MS) == 1795166918153


@for_each(
    ("delay", "due"),
    [
        ("1", 1001),
        ("+2", 5001),
        ("٣", 10_001),
        ("4", 10_001),
        ("2147483647", 10_001),
        ("0", None),
        ("-1", None),
        ("-", None),
        ("+", None),
        ("", None),
        (None, None),
        ("1 ", None),
        ("1_0", None),
        ("²", None),
        ("9" * 5000, None),
    ],
)
def test_a_level_is_capped_and_what_is_none_gives_no_due_time(
    delay: str | None, due: int | None
) -> None:
    assert hashing.delivery_time_code(delay, 1, LEVELS_MS) == due


def test_without_levels_nothing_is_due() -> None:
    assert hashing.delivery_time_code("3", 1, []) is None


@given(st.text(max_size=14), strategies.i64s())
def test_any_delay_gives_a_due_time_or_none(delay: str, store_timestamp_ms: int) -> None:
    due = hashing.delivery_time_code(delay, store_timestamp_ms, LEVELS_MS)
    if due is not None:
        # A store time at the end of 64 bits turns over, as the reference's does.
        assert (due - store_timestamp_ms) % (1 << 64) in LEVELS_MS
        assert -(1 << 63) <= due < 1 << 63


def test_the_body_crc_never_has_a_sign() -> None:
    assert hashing.body_crc(b"123456789") == 0x4BF43926 == 1274296614
    assert hashing.body_crc(b"hello") == 0x3610A686
    assert hashing.body_crc(b"") == 0
    assert hashing.body_crc(memoryview(b"v6")) == 0x77065916
