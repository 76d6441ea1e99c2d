"""A record's properties: ``name 0x01 value 0x02 …`` (docs/formats.md, sections 2.6 and 2.7). Pure.

The bytes are kept unchanged, and properties are searched for on demand. The parsing rules are the
reference implementation's: a missing last 0x02 is accepted, empty names and values are ignored, the
last of equal names wins. The record CRC property ``__CRC32#`` is the last 20 bytes of a record.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

PROPERTIES_SIZE_MAX: Final = 32_767
PAIR_END: Final = 0x02

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
UNIQ_KEY: Final = "UNIQ_KEY"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
TRAN_MSG: Final = "TRAN_MSG"
PGROUP: Final = "PGROUP"
CLUSTER: Final = "CLUSTER"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
SHARDING_KEY: Final = "__SHARDINGKEY"
DELAY_ORIGIN: Final = "TIDEMARK_DELAY_ORIGIN"
CRC32: Final = "__CRC32#"

RESERVED: Final = frozenset(
    """
    KEYS TAGS UNIQ_KEY WAIT DELAY REAL_TOPIC REAL_QID RETRY_TOPIC ORIGIN_MESSAGE_ID RECONSUME_TIME
    MAX_RECONSUME_TIMES DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID TRAN_MSG PGROUP __transactionId__
    TRAN_PREPARED_QUEUE_OFFSET TRANSACTION_CHECK_TIMES MSG_REGION TRACE_ON CLUSTER POP_CK
    POP_CK_OFFSET 1ST_POP_TIME INNER_NUM INNER_BASE INNER_MULTI_QUEUE_OFFSET DUP_INFO
    TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_DELIVER_MS TIMER_OUT_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS
    TIMER_ROLL_TIMES TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL CORRELATION_ID REPLY_TO_CLIENT TTL
    ARRIVE_TIME PUSH_REPLY_TIME MSG_TYPE INSTANCE_ID EXTEND_UNIQ_INFO BUYER_ID TRANSFER_FLAG
    CORRECTION_FLAG MQ2_FLAG MIN_OFFSET MAX_OFFSET CONSUME_START_TIME __BORNHOST BORN_TIMESTAMP
    TRACE_CONTEXT PROPERTY_FORWARD_QUEUE_ID REDIRECT __CRC32#
    """.split()  # noqa: SIM905 (a literal would be one name per line)
)
"""Names set by the broker, the store or the client library; users may not set them (2.7)."""

RESERVED_PREFIXES: Final = ("TIDEMARK_", "__RMQ.TRANSIENT.")
"""Prefixes of Tidemark's own names, and of client-only ones that are never stored."""

REFUSED: Final = RESERVED | {"CHECK_IMMUNITY_TIME_IN_SECONDS"}
REFUSED_PREFIXES: Final = (*RESERVED_PREFIXES, "__", "INNER_", "TIMER_")
"""Names that a sender may not set. Beyond 2.7 these are names with a meaning inside a store that
RocketMQ's clients may set: INNER_* would make one record count as several messages, __… belongs to
protocol layers."""

CRC_SLOT_NAME: Final = b"__CRC32#\x01"
CRC_SLOT_SIZE: Final = 20

# UTF-16 surrogates encoded as three UTF-8 bytes each: one replacement character in the reference
# implementation, three in Python.
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
_REPLACEMENT: Final = b"\xef\xbf\xbd"  # U+FFFD


class BadPropertyText(ValueError):
    """A name or value that could not be read back unchanged."""


def size_max(*, record_crc: bool) -> int:
    """Return the largest size [bytes] of a record's properties without the record CRC property."""
    return PROPERTIES_SIZE_MAX - (CRC_SLOT_SIZE if record_crc else 0)


def is_reserved(name: str) -> bool:
    """Whether users may not set this property."""
    return name in RESERVED or name.startswith(RESERVED_PREFIXES)


def is_refused(name: str) -> bool:
    """Whether a sender may not set this property through the HTTP API."""
    return name in REFUSED or name.startswith(REFUSED_PREFIXES)


def text(raw: bytes) -> str:
    """Decode stored UTF-8; invalid bytes become U+FFFD exactly as in the reference."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub(_REPLACEMENT, raw).decode(errors="replace")


def encode(pairs: Mapping[str, str]) -> bytes:
    """Encode in the mapping's order, each pair ending in 0x02. ``record`` checks the size.

    Raises BadPropertyText for an empty name, a separator that would end a name or a value early
    (0x01 inside a value is allowed), and text that is not Unicode. An empty value is written like
    in the reference implementation, and ignored by readers.
    """
    out = bytearray()
    for name, value in pairs.items():
        if not name or "\x01" in name or "\x02" in name:
            raise BadPropertyText(f"property name {name!r} is empty or holds 0x01 or 0x02")
        if "\x02" in value:
            raise BadPropertyText(f"value of property {name!r} holds 0x02")
        try:
            out += name.encode() + b"\x01" + value.encode() + b"\x02"
        except UnicodeEncodeError:
            raise BadPropertyText(f"property {name!r} is not valid Unicode text") from None
    return bytes(out)


def parse(raw: bytes | bytearray | memoryview) -> dict[str, str]:
    """All properties by name, in the order of their first occurrence. Never raises."""
    pairs: dict[str, str] = {}
    for segment in bytes(raw).split(b"\x02"):
        name, _, value = segment.partition(b"\x01")
        if name and value:
            pairs[text(name)] = text(value)
    return pairs


def find(raw: bytes, name: bytes) -> bytes | None:
    """Value of one property, still encoded; None if it is missing or empty. The last one wins."""
    needle = name + b"\x01"
    end = len(raw)
    while (at := raw.rfind(needle, 0, end)) >= 0:
        if at == 0 or raw[at - 1] == PAIR_END:
            value_at = at + len(needle)
            stop = raw.find(b"\x02", value_at)
            value = raw[value_at:] if stop < 0 else raw[value_at:stop]
            if value:
                return value
        # A match inside another name or value, or an empty value, which is ignored.
        end = at + len(needle) - 1
    return None


def changed(raw: bytes, removed: Collection[bytes], pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the properties without those in removed, followed by the pairs.

    The others keep their bytes and order; a missing 0x02 after the last of them is added.
    """
    kept = [
        segment + b"\x02"
        for segment in raw.split(b"\x02")
        if segment and segment.partition(b"\x01")[0] not in removed
    ]
    return b"".join([*kept, *[name + b"\x01" + value + b"\x02" for name, value in pairs]])


def crc_slot_inset(raw: bytes) -> bytes:
    """Bytes between these properties and the record CRC: 0x02 if they do not end with it."""
    return b"\x02" if raw and raw[-1] != PAIR_END else b""


def crc_slot(crc: int) -> bytes:
    """The 20 bytes of the record CRC property: ten digits, least significant first."""
    return CRC_SLOT_NAME + (b"%010d" % crc)[::-1] + b"\x02"


def strip_crc(raw: bytes) -> bytes:
    """Remove every ``__CRC32#``, wherever it is; all other bytes are unchanged."""
    if CRC_SLOT_NAME not in raw:
        return raw
    segments = raw.split(b"\x02")
    kept = [segment for segment in segments if not segment.startswith(CRC_SLOT_NAME)]
    stripped = b"\x02".join(kept)
    # If the removed last segment had no 0x02 of its own, the pair before it must keep its 0x02.
    if kept and segments[-1].startswith(CRC_SLOT_NAME):
        stripped += b"\x02"
    return stripped
