import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tidemark.formats import hosts, ids
from tidemark.formats.hosts import Host
from tidemark.formats.ids import UniqueIdMaker


def test_an_ipv6_store_host_gives_the_known_id() -> None:
    host = hosts.parse("[2001:db8::2]:2222")
    text = "20010DB8000000000000000000000002000008AE0000000000000379"
    assert ids.offset_id(host, 0x379) == text
    assert ids.parse_offset_id(text) == (host, 0x379)


def test_an_ipv4_store_host_gives_32_digits() -> None:
    host = hosts.parse("10.9.8.7:10911")
    assert ids.offset_id(host, 7751) == "0A09080700002A9F0000000000001E47"


@given(strategies.hosts(), st.integers(0, strategies.I64_MAX))
def test_an_id_leads_back_to_host_and_offset_in_either_case(host: Host, offset: int) -> None:
    text = ids.offset_id(host, offset)
    assert text == text.upper()
    assert ids.parse_offset_id(text) == ids.parse_offset_id(text.lower()) == (host, offset)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0A09080700002A9F0000000000001E4",
        "0A09080700002A9F0000000000001E470",
        "0A09080700002A9F0000000000001E4G",
        "0A 9080700002A9F0000000000001E47",
        "0A09080700002A9F0000000000001E47\n",
        "0A09080700002A9FFFFFFFFFFFFFFFFF",
        "٠" * 32,
    ],
)
def test_text_that_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a message id"):
        ids.parse_offset_id(text)


@given(st.text("0123456789abcdefG", min_size=30, max_size=58))
def test_any_text_is_an_id_or_a_value_error(text: str) -> None:
    try:
        host, offset = ids.parse_offset_id(text)
    except ValueError:
        return
    assert ids.offset_id(host, offset) == text.upper()


def test_a_unique_id_has_its_parts_in_order() -> None:
    maker = UniqueIdMaker(bytes([127, 0, 0, 1]), pid=0x10001, salt=0x18B4AAC2)
    assert maker.make(0x088D5C80) == "7F000001000118B4AAC2088D5C800000"
    assert maker.make(0x088D5C80) == "7F000001000118B4AAC2088D5C800001"


def test_a_time_past_31_bits_stays_unsigned() -> None:
    maker = UniqueIdMaker(bytes(16), pid=1, salt=1)
    text = maker.make(31 * 86_400_000 - 1)
    assert len(text) == 56
    assert text[-12:-4] == f"{31 * 86_400_000 - 1:08X}"


def test_the_counter_wraps_after_65536_ids() -> None:
    maker = UniqueIdMaker(bytes(4), pid=1, salt=1)
    made = [maker.make(5) for _ in range(65_537)]
    assert len(set(made)) == 65_536
    assert made[-1] == made[0]


def test_numbers_set_aside_are_not_made_again() -> None:
    maker = UniqueIdMaker(bytes([127, 0, 0, 1]), pid=0x10001, salt=0x18B4AAC2)
    assert maker.head == b"7F000001000118B4AAC2"
    assert maker.make(5).endswith("0000")
    assert maker.take(0) == 1
    assert maker.take(3) == 1
    assert maker.make(5) == maker.head.decode() + "000000050004"


def test_an_address_of_neither_family_is_refused() -> None:
    with pytest.raises(ValueError, match="4 or 16 bytes"):
        UniqueIdMaker(b"12345", pid=1, salt=1)
