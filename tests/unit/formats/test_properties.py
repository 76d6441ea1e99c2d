import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tidemark.formats import properties

MESSY = st.lists(
    st.sampled_from(
        [b"\x01", b"\x02", b"TAGS", b"KEYS", b"XTAGS", b"__CRC32#", b"a", "é".encode(), b"\xff"]
    ),
    max_size=14,
).map(b"".join)
"""Bytes in which separators and names stand everywhere."""


def with_crc_slot(raw: bytes, crc: int) -> bytes:
    return raw + properties.crc_slot_inset(raw) + properties.crc_slot(crc)


def reference_parse(text: str) -> dict[str, str]:
    """The reference's reader, line by line."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        end = text.find("\x02", at)
        end = len(text) if end < 0 else end
        if end - at >= 3:
            name_end = text.find("\x01", at)
            if name_end > at and name_end < end - 1:
                found[text[at:name_end]] = text[name_end + 1 : end]
        at = end + 1
    return found


def test_pairs_are_written_in_order_each_with_its_end() -> None:
    raw = properties.encode({"KEYS": "k1 k2", "TAGS": "TagA"})
    assert raw == b"KEYS\x01k1 k2\x02TAGS\x01TagA\x02"


def test_a_missing_last_end_is_accepted() -> None:
    assert properties.parse(b"KEYS\x01k\x02TAGS\x01TagA") == {"KEYS": "k", "TAGS": "TagA"}
    assert properties.find(b"KEYS\x01k\x02TAGS\x01TagA", b"TAGS") == b"TagA"


@pytest.mark.parametrize(
    "raw", [b"", b"\x02", b"\x02\x02", b"a\x01\x02", b"\x01v\x02", b"a\x02", b"\x01\x02", b"\x01"]
)
def test_empty_names_and_empty_values_do_not_count(raw: bytes) -> None:
    assert properties.parse(raw) == {}


def test_a_value_keeps_its_further_name_ends() -> None:
    assert properties.parse(b"a\x01b\x01c\x02") == {"a": "b\x01c"}


def test_the_last_of_equal_names_wins_but_not_with_an_empty_value() -> None:
    raw = b"TAGS\x01a\x02TAGS\x01b\x02TAGS\x01\x02"
    assert properties.parse(raw) == {"TAGS": "b"}
    assert properties.find(raw, b"TAGS") == b"b"


@pytest.mark.parametrize("raw", [b"XTAGS\x01a\x02", b"a\x01TAGS\x01b\x02", b"TAGSX\x01a\x02"])
def test_a_name_inside_another_name_or_value_is_not_found(raw: bytes) -> None:
    assert properties.find(raw, b"TAGS") is None


@given(strategies.property_maps())
def test_properties_come_back_as_they_were_given(pairs: dict[str, str]) -> None:
    raw = properties.encode(pairs)
    assert properties.parse(raw) == pairs
    assert properties.parse(memoryview(raw.removesuffix(b"\x02"))) == pairs


@given(MESSY)
def test_reading_follows_the_reference_on_any_bytes(raw: bytes) -> None:
    assert properties.parse(raw) == reference_parse(properties.text(raw))


@given(MESSY, st.sampled_from(["TAGS", "KEYS", "a", "XTAGS"]))
def test_finding_one_agrees_with_reading_all(raw: bytes, name: str) -> None:
    found = properties.find(raw, name.encode())
    value = None if found is None else properties.text(found)
    assert value == properties.parse(raw).get(name)


@given(st.binary(max_size=60))
def test_reading_never_raises(raw: bytes) -> None:
    assert properties.parse(raw) == reference_parse(properties.text(raw))
    properties.find(raw, raw[:3])


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"\xff", "�"),
        (b"a\xe4\xb8", "a�"),
        (b"\xed\xa0\x80b", "�b"),
        (b"\xf0\x9f\x98", "�"),
        (b"\xc0\x80", "��"),
        (b"\xf0\xed\xa0\x80", "��"),
    ],
)
def test_bytes_that_are_not_utf8_become_replacements_as_in_the_reference(
    raw: bytes, expected: str
) -> None:
    assert properties.text(raw) == expected


@pytest.mark.parametrize(
    "pairs",
    [
        {"": "v"},
        {"a\x01b": "v"},
        {"a\x02b": "v"},
        {"a": "v\x02TAGS\x01smuggled"},
        {"a": "\ud800"},
        {"\ud800": "a"},
    ],
)
def test_a_pair_that_would_not_come_back_is_refused(pairs: dict[str, str]) -> None:
    with pytest.raises(properties.BadPropertyText):
        properties.encode(pairs)


@pytest.mark.parametrize("name", ["KEYS", "TAGS", "__CRC32#", "REAL_QID", "TIDEMARK_DELAY_ORIGIN"])
def test_names_of_the_store_are_reserved(name: str) -> None:
    assert properties.is_reserved(name)


@pytest.mark.parametrize(
    "name", ["color", "__SHARDINGKEY", "keys", "CHECK_IMMUNITY_TIME_IN_SECONDS"]
)
def test_names_of_users_are_not_reserved(name: str) -> None:
    assert not properties.is_reserved(name)


def test_crc_digits_stand_least_significant_first() -> None:
    assert properties.crc_slot(1891196287) == b"__CRC32#\x017826911981\x02"
    assert properties.crc_slot(7) == b"__CRC32#\x017000000000\x02"
    assert len(properties.crc_slot(0x7FFFFFFF)) == properties.CRC_SLOT_SIZE


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", b""),
        (b"a\x01b\x02", b"a\x01b\x02"),
        (b"a\x01b", b"a\x01b\x02"),
    ],
)
def test_a_missing_pair_end_is_put_before_the_crc(raw: bytes, expected: bytes) -> None:
    assert with_crc_slot(raw, 7) == expected + b"__CRC32#\x017000000000\x02"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"__CRC32#\x017826911981\x02", b""),
        (b"__CRC32#\x01", b""),
        (b"a\x01b\x02__CRC32#\x0178\x02", b"a\x01b\x02"),
        (b"a\x01b\x02__CRC32#\x0178", b"a\x01b\x02"),
        (b"__CRC32#\x0178\x02a\x01b\x02", b"a\x01b\x02"),
        (b"a\x01b\x02__CRC32#\x0178\x02c\x01d", b"a\x01b\x02c\x01d"),
        (b"a\x01__CRC32#\x0178\x02", b"a\x01__CRC32#\x0178\x02"),
        (b"x__CRC32#\x0178\x02", b"x__CRC32#\x0178\x02"),
    ],
)
def test_a_crc_that_arrives_is_removed_and_nothing_else(raw: bytes, expected: bytes) -> None:
    assert properties.strip_crc(raw) == expected


@given(MESSY)
def test_without_its_crc_a_message_has_all_its_other_properties(raw: bytes) -> None:
    others = properties.parse(raw)
    others.pop(properties.CRC32, None)
    stripped = properties.strip_crc(raw)
    assert properties.parse(stripped) == others
    assert properties.strip_crc(stripped) == stripped
    with_crc = with_crc_slot(stripped, 7)
    assert properties.parse(with_crc) == others | {properties.CRC32: "7000000000"}
