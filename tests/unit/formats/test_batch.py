import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tidemark.formats import batch
from tidemark.formats.batch import BadBatch, BadEntrySize, TruncatedEntry, WireMessage

wire_messages = st.builds(
    WireMessage, st.binary(max_size=40), st.binary(max_size=40), strategies.i32s()
)


def test_an_entry_has_22_bytes_around_body_and_properties() -> None:
    raw = batch.encode([WireMessage(b"hello", b"TAGS\x01a\x02", 7)])
    assert raw == (struct.pack(">5i", 34, 0, 0, 7, 5) + b"hello" + b"\x00\x07" + b"TAGS\x01a\x02")


def test_the_first_body_has_the_size_of_the_first_message() -> None:
    raw = batch.encode([WireMessage(b"first", b"a\x01b\x02", 7), WireMessage(b"other message")])
    assert batch.first_body_size(raw) == 5


def test_an_empty_batch_has_no_entries() -> None:
    assert batch.encode([]) == b""
    assert list(batch.iterate(b"")) == []


@given(st.lists(wire_messages, max_size=6))
def test_messages_come_back_in_order(messages: list[WireMessage]) -> None:
    assert list(batch.iterate(batch.encode(messages))) == messages


@given(st.lists(wire_messages, min_size=1, max_size=4))
def test_the_first_three_fields_are_not_read(messages: list[WireMessage]) -> None:
    raw = bytearray(batch.encode(messages))
    raw[:12] = b"\xff" * 12
    assert list(batch.iterate(raw)) == messages


@given(st.lists(wire_messages, min_size=1, max_size=4), st.data())
def test_a_cut_batch_gives_its_whole_entries_then_says_where_it_was_cut(
    messages: list[WireMessage], data: st.DataObject
) -> None:
    raw = batch.encode(messages)
    borders = [len(batch.encode(messages[:count])) for count in range(len(messages) + 1)]
    cut = data.draw(st.integers(0, len(raw)))
    found: list[WireMessage] = []
    iterator = batch.iterate(raw[:cut])
    if cut in borders:
        assert list(iterator) == messages[: borders.index(cut)]
        return
    with pytest.raises(TruncatedEntry) as caught:
        found.extend(iterator)
    whole = caught.value.entry
    assert borders[whole] == caught.value.at < cut < borders[whole + 1]


@given(st.binary(max_size=120))
def test_any_bytes_are_a_batch_or_a_bad_batch(raw: bytes) -> None:
    try:
        messages = list(batch.iterate(raw))
    except BadBatch as error:
        at = error.at
    else:
        at = len(batch.encode(messages))
    assert 0 <= at <= len(raw)


@pytest.mark.parametrize(
    "raw", [struct.pack(">5ih", 22, 0, 0, 0, -1, 0), struct.pack(">5ih", 22, 0, 0, 0, 0, -1)]
)
def test_a_negative_length_is_refused(raw: bytes) -> None:
    with pytest.raises(BadEntrySize, match=r"batch entry 0 at byte 0: .* size -1"):
        list(batch.iterate(raw))


def test_properties_that_no_record_takes_are_refused() -> None:
    good = WireMessage(b"", b"x" * 32_767)
    assert list(batch.iterate(batch.encode([good]))) == [good]
    with pytest.raises(BadEntrySize, match="batch entry 1 at byte 32789"):
        batch.encode([good, WireMessage(b"", b"x" * 32_768)])
