"""Hypothesis strategies for the values of the formats: hosts, properties, messages, records."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from tidemark.formats import properties, record
from tidemark.formats.hosts import Host
from tidemark.formats.record import Message
from tidemark.offsets import PhysicalOffset

I32_MAX = (1 << 31) - 1
I64_MAX = (1 << 63) - 1

_ADDRESSES = st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16))
_TOPICS = st.one_of(
    st.sampled_from(["TopicA", "orders", "SCHEDULE_TOPIC_XXXX", "%RETRY%" + "g" * 130]),
    st.from_regex(r"[%|a-zA-Z0-9_-]{1,127}", fullmatch=True),
)
# No surrogates (they are no text) and no 0x02; 0x01 only where readers keep it, inside a value.
_VALUES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x02"), min_size=1, max_size=20
)
_NAMES = st.one_of(
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "XTAGS", "KEY", "UNIQ_KEYS", "WAIT"]),
    st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"),
        min_size=1,
        max_size=12,
    ).filter(lambda name: name != properties.CRC32),
)


class MadeRecord(NamedTuple):
    """A record's bytes and all that they were made from."""

    message: Message
    queue_offset: int
    physical_offset: PhysicalOffset
    store_timestamp_ms: int
    record_crc: bool
    data: bytes


def i32s() -> st.SearchStrategy[int]:
    return st.integers(-I32_MAX - 1, I32_MAX)


def i64s() -> st.SearchStrategy[int]:
    return st.integers(-I64_MAX - 1, I64_MAX)


def hosts() -> st.SearchStrategy[Host]:
    """IPv4 and IPv6 hosts with every port that a record can hold."""
    return st.builds(Host, _ADDRESSES, st.one_of(st.integers(0, 65_535), i32s()))


def property_maps() -> st.SearchStrategy[dict[str, str]]:
    """Properties that come back as they are: no empty name or value, no ``__CRC32#``."""
    return st.dictionaries(_NAMES, _VALUES, max_size=6)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Messages that fit into a record; about half of their properties lack the last 0x02."""
    raw = properties.encode(draw(property_maps()))
    if draw(st.booleans()):
        raw = raw.removesuffix(b"\x02")
    return Message(
        topic=draw(_TOPICS),
        queue_id=draw(st.one_of(st.integers(0, 16), i32s())),
        body=draw(st.binary(max_size=300)),
        born_host=draw(hosts()),
        store_host=draw(hosts()),
        properties=raw,
        flag=draw(i32s()),
        sys_flag=draw(st.one_of(st.just(0), i32s())),
        born_timestamp_ms=draw(st.integers(0, I64_MAX)),
        reconsume_times=draw(i32s()),
        prepared_transaction_offset=draw(i64s()),
    )


@st.composite
def records(draw: st.DrawFn, *, record_crc: bool | None = None) -> MadeRecord:
    """A record at any physical offset, with or without record CRC; both by default."""
    message = draw(messages())
    queue_offset = draw(st.integers(0, I64_MAX))
    physical_offset = PhysicalOffset(draw(st.integers(0, I64_MAX >> 1)))
    store_timestamp_ms = draw(st.integers(0, I64_MAX >> 1))
    with_crc = draw(st.booleans()) if record_crc is None else record_crc
    data = record.encode(
        message,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        store_timestamp_ms=store_timestamp_ms,
        record_crc=with_crc,
    )
    return MadeRecord(message, queue_offset, physical_offset, store_timestamp_ms, with_crc, data)
