import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tests.support.strategies import MadeRecord
from tidemark.formats import hosts, properties, record
from tidemark.formats.hosts import Host
from tidemark.formats.record import (
    SHAPE_ONLY,
    Checks,
    FieldOutOfRange,
    Kind,
    Message,
    PropertiesTooLarge,
    TopicTooLong,
    UndecodableRecord,
)

STRICT = Checks(require_record_crc=True)
ALL_CHECKS = [
    Checks(body, crc, position, required)
    for body in (False, True)
    for crc in (False, True)
    for position in (False, True)
    for required in (False, True)
]
HERE = hosts.parse("127.0.0.1:10911")

V1 = bytes.fromhex(
    "000000a5 daa320a7 3610a686 00000001 00000007 0000000000000000 0000000000000000 00000000"
    "0000018bcfe5687b 0a010203000011d7 000001a1f8492ead 7f00000100002a9f 00000002"
    "0000000000000000 00000005 68656c6c6f 06 546f70696341 003f"
    "4b455953 01 6b31206b32 02 554e49515f4b4559 01"
    "3746303030303031303030313138423441414332303838443543383030303030 02 54414753 01 54616741 02"
)
"""A V1 record as the reference wrote it, at physical offset 0."""
V6 = bytes.fromhex(
    "00000083 daa320a7 77065916 00000000 00000007 0000000000000002 0000000000000379 00000030"
    "0000018bcfe5687b 20010db8000000000000000000000001 00000457 000001a1f8492efa"
    "20010db8000000000000000000000002 000008ae 00000002 0000000000000000"
    "00000002 7636 06 546f70696341 0008 54414753 01 5636 02"
)
"""A record with two IPv6 hosts as the reference wrote it, at physical offset 889."""


def message(**changed: object) -> Message:
    plain = Message("TopicA", 1, b"hello", HERE, HERE)
    return plain._replace(**changed)  # type: ignore[arg-type]


def encode(made: Message, *, at: int = 0, record_crc: bool = False) -> bytes:
    return record.encode(
        made, queue_offset=0, physical_offset=at, store_timestamp_ms=5, record_crc=record_crc
    )


def flips(data: bytes) -> Iterator[tuple[int, bytearray]]:
    """(bit number, copy with that bit flipped), for every bit."""
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bit, flipped


# --- what the reference wrote -------------------------------------------------------------------


def test_a_v1_record_encodes_to_the_references_bytes() -> None:
    pairs = {"KEYS": "k1 k2", "UNIQ_KEY": "7F000001000118B4AAC2088D5C800000", "TAGS": "TagA"}
    made = Message(
        "TopicA",
        1,
        b"hello",
        hosts.parse("10.1.2.3:4567"),
        HERE,
        properties.encode(pairs),
        flag=7,
        born_timestamp_ms=1700000000123,
        reconsume_times=2,
    )
    data = record.encode(
        made,
        queue_offset=0,
        physical_offset=0,
        store_timestamp_ms=1795166908077,
        record_crc=False,
    )
    assert data == V1
    assert len(data) == 165 == record.encoded_size(made, record_crc=False)


def test_a_v1_record_decodes_to_what_the_reference_put() -> None:
    found = record.decode(V1)
    assert found.topic == "TopicA"
    assert (found.size, found.queue_id, found.flag, found.queue_offset) == (165, 1, 7, 0)
    assert (found.born_timestamp_ms, found.store_timestamp_ms) == (1700000000123, 1795166908077)
    assert (found.born_host.text, found.store_host.text) == ("10.1.2.3:4567", "127.0.0.1:10911")
    assert (found.reconsume_times, found.prepared_transaction_offset) == (2, 0)
    assert bytes(found.body) == b"hello"
    assert found.keys == ["k1", "k2"]
    assert found.tags == "TagA"
    assert found.unique_id == "7F000001000118B4AAC2088D5C800000"
    assert found.message_id == "7F00000100002A9F0000000000000000"
    assert found.transaction == 0


def test_a_record_with_ipv6_hosts_encodes_and_decodes_to_the_references_bytes() -> None:
    found = record.decode(V6)
    assert found.sys_flag == record.BORN_HOST_V6 | record.STORE_HOST_V6
    assert found.born_host.text == "[2001:db8::1]:1111"
    assert found.message_id == "20010DB8000000000000000000000002000008AE0000000000000379"
    made = Message(
        "TopicA",
        0,
        b"v6",
        found.born_host,
        found.store_host,
        b"TAGS\x01V6\x02",
        flag=7,
        born_timestamp_ms=1700000000123,
        reconsume_times=2,
    )
    data = record.encode(
        made,
        queue_offset=2,
        physical_offset=889,
        store_timestamp_ms=found.store_timestamp_ms,
        record_crc=False,
    )
    assert data == V6
    assert record.validate(V6, 0, at=889, checks=Checks()).kind is Kind.VALID


def test_a_long_topic_makes_a_v2_record() -> None:
    made = message(topic="%RETRY%" + "g" * 130, body=b"long", properties=b"TAGS\x01L\x02")
    data = encode(made)
    assert len(data) == 240
    assert data[:8].hex() == "000000f0daa320ab"
    assert data[88:92] == b"long"
    assert data[92:94].hex() == "0089"
    assert data[94:231] == b"%RETRY%" + b"g" * 130
    assert data[231:] == b"\x00\x07TAGS\x01L\x02"
    assert record.decode(data).topic == made.topic


def test_the_filler_has_the_room_and_its_magic() -> None:
    assert record.encode_blank(749).hex() == "000002edcbd43194"
    outcome = record.validate(record.encode_blank(749), 0, at=7443, checks=STRICT)
    assert (outcome.kind, outcome.size) == (Kind.BLANK, 749)


@pytest.mark.parametrize("stored", [7, 0, -1])
def test_a_filler_ends_the_file_whatever_room_it_names(stored: int) -> None:
    outcome = record.validate(record.encode_blank(stored), 0, at=0, checks=STRICT)
    assert (outcome.kind, outcome.size) == (Kind.BLANK, 0)


# --- encoding -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "magic"), [(127, record.MAGIC_V1), (128, record.MAGIC_V2)])
def test_a_topic_up_to_127_bytes_is_v1(size: int, magic: int) -> None:
    found = record.decode(encode(message(topic="t" * size)))
    assert (found.magic, found.topic) == (magic, "t" * size)


def test_the_v6_bits_are_set_and_cleared_to_fit_the_hosts() -> None:
    v6 = hosts.parse("[::1]:1")
    for born in (HERE, v6):
        for store in (HERE, v6):
            made = message(born_host=born, store_host=store, sys_flag=0x30 | 0x8)
            found = record.decode(encode(made))
            assert found.sys_flag == 0x8 | born.is_v6 << 4 | store.is_v6 << 5
            assert (found.born_host, found.store_host) == (born, store)


@given(strategies.records())
def test_a_record_comes_back_as_it_was_made(made: MadeRecord) -> None:
    view = memoryview(b"\xff" * 3 + made.data + b"\xff" * 3)
    found = record.decode(view, 3)
    original = made.message
    assert found.size == len(made.data) == record.encoded_size(original, record_crc=made.record_crc)
    assert found[5:7] == (made.queue_offset, made.physical_offset)
    assert (found.topic, found.queue_id, found.flag) == (
        original.topic,
        original.queue_id,
        original.flag,
    )
    assert found.sys_flag & ~0x30 == original.sys_flag & ~0x30
    assert found.transaction == original.sys_flag & 0xC
    assert (found.born_host, found.store_host) == (original.born_host, original.store_host)
    assert found.born_timestamp_ms == original.born_timestamp_ms
    assert found.store_timestamp_ms == made.store_timestamp_ms
    assert found.reconsume_times == original.reconsume_times
    assert found.prepared_transaction_offset == original.prepared_transaction_offset
    assert bytes(found.body) == original.body
    kept = found.property_map
    assert (kept.pop(properties.CRC32, None) is not None) == made.record_crc
    assert kept == properties.parse(original.properties)
    assert found.tags == kept.get("TAGS")
    assert found.unique_id == kept.get("UNIQ_KEY")
    assert found.keys == [key for key in kept.get("KEYS", "").split(" ") if key]
    if not made.record_crc:
        assert found.properties == original.properties


@given(strategies.records())
def test_a_record_is_valid_at_its_place_under_all_checks_it_can_pass(made: MadeRecord) -> None:
    for checks in ALL_CHECKS:
        if checks.require_record_crc and not made.record_crc:
            continue
        outcome = record.validate(made.data, 0, at=made.physical_offset, checks=checks)
        assert outcome == (Kind.VALID, len(made.data), ""), checks


@given(strategies.records(record_crc=True))
def test_the_record_crc_covers_all_but_the_last_20_bytes(made: MadeRecord) -> None:
    digits = made.data[-11:-1]
    assert made.data[-20:-11] == b"__CRC32#\x01"
    assert made.data[-1:] == b"\x02"
    assert int(digits[::-1]) == zlib.crc32(made.data[:-20]) & 0x7FFFFFFF


def test_a_crc_property_that_arrives_is_replaced() -> None:
    made = message(properties=b"__CRC32#\x010000000000\x02a\x01b")
    assert record.decode(encode(made)).properties == b"a\x01b"
    with_crc = encode(made, record_crc=True)
    assert record.decode(with_crc).properties[:4] == b"a\x01b\x02"
    assert record.decode(with_crc).properties.count(b"__CRC32#") == 1
    for crc in (False, True):
        assert record.encoded_size(made, record_crc=crc) == len(encode(made, record_crc=crc))


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"topic": "t" * 256}, TopicTooLong),
        ({"properties": b"a\x01" + b"x" * 32_766}, PropertiesTooLarge),
        ({"flag": 1 << 31}, FieldOutOfRange),
        ({"queue_id": -(1 << 31) - 1}, FieldOutOfRange),
        ({"born_timestamp_ms": 1 << 63}, FieldOutOfRange),
        ({"born_host": Host(b"12345", 1)}, FieldOutOfRange),
        ({"store_host": Host(b"1234", 1 << 40)}, FieldOutOfRange),
    ],
)
def test_a_message_that_no_record_can_hold_is_refused(
    changed: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        encode(message(**changed))


@pytest.mark.parametrize(("raw_size", "fits"), [(32_746, True), (32_747, False), (32_748, False)])
def test_the_record_crc_counts_against_the_properties_limit(raw_size: int, fits: bool) -> None:
    # 20 bytes of CRC, and one more for the 0x02 that these properties lack: 32,767 in all.
    made = message(properties=b"a\x01".ljust(raw_size, b"x"))
    if fits:
        assert len(record.decode(encode(made, record_crc=True)).properties) == 32_767
        return
    with pytest.raises(PropertiesTooLarge):
        encode(made, record_crc=True)
    with pytest.raises(PropertiesTooLarge):
        record.encoded_size(made, record_crc=True)


# --- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", [{}, {"TAGS": "a"}, {"TAGS": "a", "KEYS": "k1 k2"}])
@pytest.mark.parametrize("body", [b"", b"hello"])
@pytest.mark.parametrize("store", ["127.0.0.1:10911", "[::1]:1"])
def test_no_flipped_bit_passes_with_a_record_crc(
    pairs: dict[str, str], body: bytes, store: str
) -> None:
    made = message(body=body, properties=properties.encode(pairs), store_host=hosts.parse(store))
    data = encode(made, at=777, record_crc=True)
    for bit, flipped in flips(data):
        for checks in (STRICT, Checks(), Checks(body_crc=False, position=False)):
            outcome = record.validate(flipped, 0, at=777, checks=checks)
            assert outcome.kind is not Kind.VALID, f"bit {bit % 8} of byte {bit // 8}, {checks}"


@given(strategies.records(record_crc=True), st.data())
def test_no_flipped_bit_of_any_record_passes(made: MadeRecord, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, len(made.data) * 8 - 1))
    flipped = bytearray(made.data)
    flipped[bit // 8] ^= 1 << bit % 8
    for checks in (STRICT, Checks()):
        outcome = record.validate(flipped, 0, at=made.physical_offset, checks=checks)
        assert outcome.kind is not Kind.VALID


def test_without_a_record_crc_only_lengths_place_and_body_are_guarded() -> None:
    # What the default checks find in a record of the reference, by field: the rest is opaque.
    missed = {
        bit // 8
        for bit, flipped in flips(V1)
        if record.validate(flipped, 0, at=0, checks=Checks()).kind is Kind.VALID
    }
    guarded = {*range(12), *range(28, 36), *range(84, 94), 100, 101}
    assert not missed & guarded
    # Queue, flag, queue offset, most system flags, times, hosts, counters, topic, properties.
    assert missed == set(range(165)) - guarded


@given(strategies.records(), st.data())
def test_a_cut_record_is_incomplete(made: MadeRecord, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(made.data) - 1))
    outcome = record.validate(made.data[:cut], 0, at=made.physical_offset, checks=Checks())
    assert outcome.kind is Kind.INCOMPLETE
    assert outcome.size == (len(made.data) if cut >= 8 else 0)
    with pytest.raises(UndecodableRecord):
        record.decode(made.data[:cut])


@given(strategies.records(record_crc=True), st.data())
def test_a_torn_record_with_zeros_behind_is_bad(made: MadeRecord, data: st.DataObject) -> None:
    written = data.draw(st.integers(0, len(made.data) - 1))
    torn = made.data[:written] + bytes(len(made.data) - written + 50)
    outcome = record.validate(torn, 0, at=made.physical_offset, checks=STRICT)
    assert outcome.kind in (Kind.BAD, Kind.INCONSISTENT)


def test_a_size_that_leads_past_the_view_is_inconsistent_if_the_lengths_are_seen() -> None:
    grown = bytearray(V1)
    grown[2] = 0x7F
    outcome = record.validate(grown, 0, at=0, checks=SHAPE_ONLY)
    assert outcome.kind is Kind.INCONSISTENT
    assert outcome.reason == "the fields have 165 bytes in total, not 32677"


def test_zeros_have_a_name() -> None:
    assert record.validate(bytes(8), 0, at=0, checks=Checks()) == (Kind.BAD, 0, "zeros")


def test_another_magic_is_named() -> None:
    outcome = record.validate(b"\0\0\0\xa5" + b"\xde\xad\xbe\xef" * 50, 0, at=0, checks=Checks())
    assert outcome == (Kind.BAD, 0, "magic 0xdeadbeef is not the magic of a record")


def test_a_record_at_another_place_is_bad() -> None:
    outcome = record.validate(V6, 0, at=890, checks=Checks())
    assert outcome == (Kind.BAD, 131, "stored physical offset 889, not 890")
    assert record.validate(V6, 0, at=None, checks=Checks()).kind is Kind.VALID
    assert record.validate(V6, 0, at=890, checks=Checks(position=False)).kind is Kind.VALID


def test_a_record_without_crc_is_bad_where_one_is_required() -> None:
    outcome = record.validate(V1, 0, at=0, checks=STRICT)
    assert outcome == (Kind.BAD, 165, "record crc: the property is missing")


def test_a_body_that_ends_like_a_crc_property_is_not_taken_for_one() -> None:
    # Its name would stand 20 bytes before the record's end: inside the body, by the sender's will.
    made = message(topic="t", body=b"__CRC32#\x01" + b"1" * 7)
    data = encode(made)
    assert data[-20:-11] == properties.CRC_SLOT_NAME
    assert record.validate(data, 0, at=0, checks=Checks()).kind is Kind.VALID


def test_a_value_that_ends_like_a_crc_property_is_not_taken_for_one() -> None:
    raw = b"a\x01x__CRC32#\x011234567890\x02"
    data = encode(message(properties=raw))
    assert record.validate(data, 0, at=0, checks=Checks()).kind is Kind.VALID
    strict = record.validate(data, 0, at=0, checks=STRICT)
    assert strict.reason == "record crc: the property is missing"


@pytest.mark.parametrize("name", [b"ORDER_ID", b"__CRC64_", b"__SHARD#", b"C32#C32#"])
def test_another_property_of_ten_digits_is_no_damaged_crc(name: bytes) -> None:
    data = encode(message(properties=name + b"\x011700000000\x02"))
    assert record.validate(data, 0, at=0, checks=Checks()).kind is Kind.VALID


@pytest.mark.parametrize("size", [-(1 << 31), -1, 0, 8, 90])
def test_a_size_below_any_records_is_bad(size: int) -> None:
    damaged = bytearray(V1)
    damaged[:4] = size.to_bytes(4, "big", signed=True)
    outcome = record.validate(damaged, 0, at=0, checks=Checks())
    assert outcome == (Kind.BAD, 0, f"size {size} is below the minimum of a record")


# --- any bytes ----------------------------------------------------------------------------------

MESSY = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.sampled_from([V1, V6, V1[:100], V6[:90], bytes(40), record.encode_blank(30)]),
        st.sampled_from([V1[:8], V1[4:8], b"\0\0\0", b"\x7f\xff\xff\xff\xda\xa3\x20\xa7"]),
    ),
    max_size=6,
).map(b"".join)


@given(MESSY, st.integers(-3, 260), st.sampled_from(ALL_CHECKS))
def test_judging_any_bytes_gives_an_outcome(raw: bytes, start: int, checks: Checks) -> None:
    outcome = record.validate(memoryview(raw), start, at=0, checks=checks)
    assert outcome.kind is Kind.VALID or outcome.kind is Kind.BLANK or outcome.reason
    if outcome.kind is Kind.VALID:
        assert start + outcome.size <= len(raw)
        assert record.decode(raw, start).size == outcome.size


@given(MESSY, st.integers(0, 260))
def test_decoding_any_bytes_gives_a_record_or_undecodable(raw: bytes, start: int) -> None:
    outcome = record.validate(raw, start, at=None, checks=SHAPE_ONLY)
    if outcome.kind is not Kind.VALID:
        with pytest.raises(UndecodableRecord):
            record.decode(raw, start)
        return
    found = record.decode(raw, start)
    assert found.size == outcome.size
    pairs = found.property_map
    assert (found.tags, found.unique_id) == (pairs.get("TAGS"), pairs.get("UNIQ_KEY"))
    assert "" not in found.keys
    assert len(found.message_id) in (32, 56)


@given(MESSY, st.integers(-3, 260))
def test_peeking_any_bytes_never_raises(raw: bytes, start: int) -> None:
    size = record.peek_size(raw, start)
    stored = record.peek_store_timestamp(raw, start)
    if record.validate(raw, start, at=None, checks=SHAPE_ONLY).kind is Kind.VALID:
        found = record.decode(raw, start)
        assert (size, stored) == (found.size, found.store_timestamp_ms)


def test_every_damaged_byte_of_a_record_is_judged_without_an_exception() -> None:
    for data in (V1, V6, encode(message(), record_crc=True)):
        for at in range(len(data)):
            for value in (0, 1, 0x7F, 0x80, 0xFF):
                damaged = bytearray(data)
                damaged[at] = value
                for checks in ALL_CHECKS:
                    record.validate(damaged, 0, at=0, checks=checks)
                if record.validate(damaged, 0, at=None, checks=SHAPE_ONLY).kind is Kind.VALID:
                    record.decode(damaged)
