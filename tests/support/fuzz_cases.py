"""Cases for every twin: valid input, and the same cut, flipped, overwritten and made longer.

One function per name in ``native``. Each calls both twins with equal input through ``same``, which
compares what they return or raise and what they leave in buffers. The input depends on nothing but
the random numbers handed in. ``fuzz_twins`` runs them; nothing here knows about sanitizers.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final, Literal, NamedTuple

import msgpack

from tests.support.runs import runs_of
from tidemark.formats import batch, checkpoint, hashing, inner_batch, properties, queue_unit, record
from tidemark.formats.batch import WireMessage
from tidemark.formats.hosts import Host
from tidemark.formats.index_chains import ENTRY_SIZE, HEADER_SIZE, ROW, SLOT_SIZE, put_rows
from tidemark.formats.outline import ROW as OUTLINE_ROW
from tidemark.formats.outline import outline_records
from tidemark.formats.queue_unit import Unit
from tidemark.formats.record import Checks, Message
from tidemark.formats.runs import Run
from tidemark.formats.select import Limits, Selected, Wanted

EXTREMES: Final = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000)
EXTREMES_64: Final = (0xFFFFFFFF, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 62) + 7)
DELAY_LEVELS_MS: Final = (1000, 5000)
ALL_CHECKS: Final = tuple(
    Checks(body, crc, position, required)
    for body in (False, True)
    for crc in (False, True)
    for position in (False, True)
    for required in (False, True)
)

Same = Callable[..., object]
"""``same(name, *arguments, **named)``: call both twins of that name and compare."""


class Exact(NamedTuple):
    """A buffer that ends where its data ends: each twin gets a copy of its own, with not a byte
    behind it, so that a read past its end is detected."""

    data: bytes
    writable: bool = False
    form: Literal["B", "Q"] = "B"
    """Format of its elements (``memoryview.cast``)."""

    def copy(self) -> memoryview:
        """A view of fresh memory. Small ones would lie inside their object: see ctypes."""
        size = len(self.data)
        if size <= 16:
            view = memoryview(bytearray(self.data))
        else:
            view = memoryview((ctypes.c_ubyte * size).from_buffer_copy(self.data)).cast("B")
        return (view if self.writable else view.toreadonly()).cast(self.form)


def damaged(rng: Random, data: bytes, count: int) -> Iterator[bytes]:
    """The data, every cut of it, every flipped bit and hostile numbers: about count in all."""
    yield data
    third = max(1, count // 3)
    yield from (data[:cut] for cut in sampled(rng, len(data), third))
    for bit in sampled(rng, 8 * len(data), third):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)
    for _ in range(third if data else 0):
        hostile = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            overwrite(rng, hostile)
        if rng.random() < 0.2:
            at = rng.randrange(len(hostile) + 1)
            hostile[at:at] = rng.randbytes(rng.randint(1, 9))
        yield bytes(hostile)


def sampled(rng: Random, size: int, count: int) -> list[int]:
    """All of range(size), or count of them."""
    return list(range(size)) if size <= count else rng.sample(range(size), count)


def overwrite(rng: Random, data: bytearray) -> None:
    """Put one number where a length may be."""
    width = rng.choice((1, 2, 4, 4, 4, 8))
    value = rng.choice(EXTREMES + EXTREMES_64 + (len(data), len(data) - 1, rng.getrandbits(64)))
    at = rng.randrange(len(data))
    raw = (value & (1 << 8 * width) - 1).to_bytes(width, "big")
    data[at : at + width] = raw[: len(data) - at]


# --- records ------------------------------------------------------------------------------------

TOPICS: Final = (
    "TopicA",
    "orders",
    hashing.SCHEDULE_TOPIC,
    "%RETRY%" + "g" * 130,
    "größe",
    "t" * 127,
)
TEXTS: Final = ("TagA", "k1 k2", "  ", "größe", "中文😀", "x" * 70, "3", "a\x01b", "7F" * 16)
NAMES: Final = ("TAGS", "KEYS", "UNIQ_KEY", "DELAY", "XTAGS", "a", "TAGS\x00", "REAL_QID")


def host(rng: Random) -> Host:
    """An IPv4 or an IPv6 host."""
    return Host(rng.randbytes(rng.choice((4, 16))), rng.choice((0, 10911, 65_535, -1)))


ODD_PROPERTIES: Final = (
    b"\x01\x02", b"a\x01\x02", b"\x01v\x02", b"a\x01b\x01c\x02", b"a\x01b",
    b"__CRC32#\x01x\x02a\x01b", b"\x02\x02a\x01b\x02", b"a\x011\x02b\x012\x02a\x013\x02",
    b"TAGS\x01\xff\x02", b"KEYS\x01 \x02",
    b"\xed\xa0\x80\x01\xed\xb0\x80\x02", "ключ\x01значение\x02".encode(),
    b"KEYS\x01\xe2\x80\x83a\xe2\x80\x83b\x02", b"".join(b"%d\x01v\x02" % n for n in range(40)) * 2,
    *(b"a\x01b\x03" + name + b"\x01v\x02" for name in (b"TAGS", b"KEYS", b"UNIQ_KEY")),
    *(b"DELAY\x01" + delay + b"\x02" for delay in (b"1", b"12", b"+", b"+1", b"99999999999", b"")),
)  # fmt: skip


def raw_properties(rng: Random) -> bytes:
    """Properties as records have them, well formed or not."""
    pairs = {rng.choice(NAMES): rng.choice(TEXTS) for _ in range(rng.randrange(5))}
    raw = properties.encode(pairs)
    match rng.randrange(8):
        case 0:
            return raw.removesuffix(b"\x02")
        case 1:
            return raw + properties.crc_slot(rng.getrandbits(31))
        case 2:
            return raw + b"TAGS\x01\xed\xa0\x80\xff\x02UNIQ_KEY\x01\xc3\x02"
        case 3:
            return b"\x02\x01" + raw + b"KEYS\x01\x02#" + b"__CRC32#\x01"
        case _:
            return raw


def message(rng: Random) -> Message:
    """A message of any shape, rarely one that no record can hold."""
    return Message(
        topic=rng.choice(TOPICS),
        queue_id=rng.choice((0, 1, 3, 3, -1, (1 << 31) - 1)),
        body=rng.randbytes(rng.choice((0, 1, 5, 15, 16, 17, 63, 64, 65, 100, 300))),
        born_host=host(rng),
        store_host=host(rng),
        properties=raw_properties(rng),
        flag=rng.choice((0, 7, -1)),
        sys_flag=rng.choice((0, 0, 0, 1, 4, 8, 12, 0x80, -1)),
        born_timestamp_ms=rng.choice((0, 1_700_000_000_000, -1)),
    )


def log(rng: Random, *, at: int, count: int) -> bytes:
    """Records one behind the other, the first at that physical offset; perhaps a filler."""
    made = bytearray()
    queue_offset = rng.choice((0, 5, (1 << 31)))
    for _ in range(count):
        queue_offset += rng.choice((1, 1, 1, 2))
        made += record.encode(
            message(rng),
            queue_offset=queue_offset,
            physical_offset=at + len(made),
            store_timestamp_ms=1_790_000_000_000 + len(made),
            record_crc=rng.random() < 0.6,
        )
    if rng.random() < 0.3:
        made += record.encode_blank(rng.choice((8, 100, 0)))
    return bytes(made)


def odd_log(rng: Random) -> bytes:
    """Records with each of the odd properties, so many that the compiled twins give the interpreter
    lock away."""
    made = bytearray()
    common = message(rng)._replace(queue_id=3, sys_flag=0, body=bytes(50))
    for number in range(900):
        made += record.encode(
            common._replace(
                topic=TOPICS[number % 3], properties=ODD_PROPERTIES[number % len(ODD_PROPERTIES)]
            ),
            queue_offset=number,
            physical_offset=len(made),
            store_timestamp_ms=1_790_000_000_000,
            record_crc=True,
        )
    return bytes(made)


def fuzz_whole(rng: Random, same: Same, name: str) -> None:
    """The odd log to its end."""
    same(
        name,
        Exact(odd_log(rng)),
        at=0,
        checks=Checks(),
        records_max=1 << 40,
        delay_levels_ms=DELAY_LEVELS_MS,
    )


def damaged_logs(rng: Random, rounds: int) -> Iterator[tuple[bytes, int]]:
    """(bytes, physical offset of the first)."""
    odd = odd_log(rng)
    yield odd, 0
    yield odd[:-30] + b"\xa5" + odd[-29:], 0
    for number in range(rounds):
        at = rng.choice((0, 1 << 30, 777))
        count = number % 4
        yield from ((data, at) for data in damaged(rng, log(rng, at=at, count=count), 150))
        yield rng.randbytes(rng.randrange(300)), at


def any_place(rng: Random, at: int, size: int) -> int:
    """The physical offset, or rarely one at an end of what 63 bits hold."""
    ends = (-5, (1 << 63) - 1 - size, (1 << 63) - size)
    return at if rng.random() < 0.9 else rng.choice(ends)


def fuzz_walk(rng: Random, same: Same, rounds: int) -> None:
    fuzz_whole(rng, same, "walk")
    for data, at in damaged_logs(rng, 12 * rounds):
        same(
            "walk",
            Exact(data),
            at=any_place(rng, at, len(data)),
            checks=rng.choice(ALL_CHECKS),
            records_max=rng.choice((1, 2, 100, 1 << 40)),
            delay_levels_ms=rng.choice(((), DELAY_LEVELS_MS)),
        )


def fuzz_plan_range(rng: Random, same: Same, rounds: int) -> None:
    fuzz_whole(rng, same, "plan_range")
    for data, at in damaged_logs(rng, 12 * rounds):
        same(
            "plan_range",
            Exact(data),
            at=any_place(rng, at, len(data)),
            checks=rng.choice(ALL_CHECKS),
            records_max=rng.choice((1, 2, 100, 1 << 40)),
            delay_levels_ms=rng.choice(((), DELAY_LEVELS_MS)),
            index=rng.random() < 0.7,
            batch_topics=rng.choice((frozenset(), frozenset({"TopicA", "größe"}))),
        )


def fuzz_read_record(rng: Random, same: Same, rounds: int) -> None:
    for data, at in damaged_logs(rng, 12 * rounds):
        same("read_record", Exact(data), at=at, checks=rng.choice(ALL_CHECKS))


def batch_record(body: bytes, count: int, base: int) -> bytes:
    """The record of an inner batch with this body, whose CRC is right."""
    raw = inner_batch.encode_properties("B", count, tags=None, keys=None)
    host = Host(b"\x0a\x00\x00\x01", 10911)
    return record.encode(
        Message(
            "orders", 3, body, host, host, inner_batch.with_base(raw, base), 0,
            inner_batch.SYS_FLAGS,
        ),
        queue_offset=base,
        physical_offset=91,
        store_timestamp_ms=5,
        record_crc=False,
    )  # fmt: skip


def fuzz_decode_messages(rng: Random, same: Same, rounds: int) -> None:
    for data, _ in damaged_logs(rng, 12 * rounds):
        same("decode_messages", Exact(data))
    for _ in range(12 * rounds):
        count = rng.randrange(1, 5)
        entries = batch.encode([WireMessage(rng.randbytes(rng.randrange(9))) for _ in range(count)])
        for body in damaged(rng, entries, 20):  # the record's CRC is right
            same("decode_messages", Exact(batch_record(body, count, rng.randrange(1 << 40))))


# --- runs ---------------------------------------------------------------------------------------


def damaged_runs(rng: Random, rounds: int) -> Iterator[list[Run]]:
    for _ in range(rounds):
        runs = runs_of([message(rng) for _ in range(rng.randrange(4))])
        same_queue = message(rng)
        runs += runs_of(
            [
                same_queue._replace(body=rng.randbytes(rng.randrange(90)), flag=number)
                for number in range(3)
            ]
        )
        victim = rng.randrange(len(runs))
        for entries in damaged(rng, runs[victim].entries, 150):
            changed = runs[victim]._replace(entries=entries)
            if rng.random() < 0.1:
                changed = changed._replace(
                    message_count=rng.choice((-1, 0, 1, 5, 1 << 31, 1 << 63, 1 << 70))
                )
            if rng.random() < 0.05:
                changed = changed._replace(
                    born_host=rng.choice((Host(b"123", 1), Host(b"1234", 1 << 40), host(rng))),
                    queue_id=rng.choice((1 << 31, -(1 << 31), 1 << 70)),
                    topic=rng.choice(("", "\ud800", "t" * 255, "t" * 256, "ö" * 128)),
                )
            yield [*runs[:victim], changed, *runs[victim + 1 :]]


def fuzz_runs_size(rng: Random, same: Same, rounds: int) -> None:
    for runs in damaged_runs(rng, 10 * rounds):
        same("runs_size", runs, record_crc=rng.random() < 0.5)


def fuzz_encode_runs(rng: Random, same: Same, rounds: int) -> None:
    for runs in damaged_runs(rng, 15 * rounds):
        record_crc = rng.random() < 0.5
        size = same("runs_size", runs, record_crc=record_crc)
        if not isinstance(size, int):
            size = 300
        size = max(0, size + rng.choice((0, 0, 0, 0, 1, -1, 100, -size)))
        same(
            "encode_runs",
            Exact(bytes(size), writable=rng.random() < 0.98),
            runs,
            firsts=[
                rng.choice((0, 5, -1, (1 << 63) - 1, (1 << 63) - 4, 1 << 63))
                if rng.random() < 0.1
                else 7
                for _ in range(len(runs) + (rng.random() < 0.02))
            ],
            physical_offset=rng.choice((0, 1 << 40, (1 << 63) - 1 if rng.random() < 0.1 else 3)),
            store_timestamp_ms=1_790_000_000_000,
            record_crc=record_crc,
        )


def fuzz_body_size_counts(rng: Random, same: Same, rounds: int) -> None:
    for runs in damaged_runs(rng, 10 * rounds):
        bounds = [rng.choice((-1, 0, 5, 64, 300, 1 << 40)) for _ in range(rng.randrange(5))]
        same("body_size_counts", runs[-1].entries, bounds)


def fuzz_entry_starts(rng: Random, same: Same, rounds: int) -> None:
    for runs in damaged_runs(rng, 10 * rounds):
        same("entry_starts", runs[-1].entries)
        same("entry_starts", memoryview(runs[-1].entries))


# --- requests and answers -----------------------------------------------------------------------

FIELDS: Final[dict[str, tuple[Any, ...]]] = {
    "tags": (None, "", "a", "größe", "x" * 40, "a\x01", 5),
    "keys": (None, [], ["k"], ["k1", "ö" * 20], ["a b"], [""], "k", [1]),
    "properties": (None, {}, {"a": "b"}, {"n" * 33: "v" * 300, "Größe": "中文😀"}, {"TAGS": "x"}),
    "unique_id": (None, "7F" * 16, "u", "ö" * 128, "x" * 129, ""),
    "flag": (None, 0, 7, -1, -(1 << 31), (1 << 31) - 1, 1 << 31, 1.0, True),
    "queue": (None, 3, 3, 3, 200, -1, 1 << 31),
    "sharding_key": (None,),
}


def request(rng: Random) -> bytes:
    """A produce request, mostly of the common form."""
    messages = []
    for _ in range(rng.choice((1, 1, 2, 5, 17))):
        made: dict[str, Any] = {"body": rng.randbytes(rng.choice((0, 1, 31, 256)))}
        if rng.random() < 0.2:
            made = {"body_text": rng.choice(("", "text", "中文😀" * 20, "a\x01\x02"))}
        for name, values in FIELDS.items():
            if rng.random() < (0.02 if name == "sharding_key" else 0.3):
                made[name] = rng.choice(values[:4] if rng.random() < 0.97 else values)
        messages.append(made)
    whole: dict[str, Any] = {"messages": messages}
    if rng.random() < 0.3:
        whole["ack"] = rng.choice((None, "memory", "disk", "replicated", "DISK"))
    if rng.random() < 0.3:
        whole["timeout_ms"] = rng.choice((None, 1, 300, 60_000, 0, 60_001))
    if rng.random() < 0.3:
        whole["make_unique_ids"] = rng.choice((None, True, False, False, 1))
    items = list(whole.items())
    rng.shuffle(items)
    return bytes(msgpack.packb(dict(items)))


def fuzz_read_plain(rng: Random, same: Same, rounds: int) -> None:
    for _ in range(15 * rounds):
        for body in damaged(rng, request(rng), 200):
            same(
                "read_plain",
                body,
                message_size_max=rng.choice((300, 1 << 22, 0)),
                properties_size_max=rng.choice((32_747, 32_767, 60)),
                messages_max=rng.choice((4096, 5)),
                timeout_ms_max=60_000,
                makes_ids=rng.random() < 0.8,
                id_head=rng.choice((b"7F000001ABCD12345678", b"7F" * 22, b"")),
                id_ms=rng.choice((0, 123_456_789, 1 << 40)),
                id_count=rng.choice((0, 65_534, 1 << 20)),
            )
        same_request = rng.randbytes(rng.randrange(200))
        same(
            "read_plain",
            same_request,
            message_size_max=300,
            properties_size_max=32_747,
            messages_max=4096,
            timeout_ms_max=60_000,
            makes_ids=True,
            id_head=b"7F000001ABCD12345678",
            id_ms=5,
            id_count=5,
        )


def fuzz_pack_answer(rng: Random, same: Same, rounds: int) -> None:
    for _ in range(15 * rounds):
        count = rng.choice((0, 1, 2, 5, 20))
        entries = batch.encode(
            WireMessage(rng.randbytes(rng.randrange(40)), raw_properties(rng)) for _ in range(count)
        )
        for raw in damaged(rng, entries, 150):
            sizes = struct.pack("=I", rng.choice((91, 300, 0xFFFFFFFF))) * count
            if rng.random() < 0.05:
                sizes = sizes[: rng.randrange(len(sizes) + 1)]
            same(
                "pack_answer",
                raw,
                sizes,
                level=rng.choice(("memory", "disk", "ö" * 40, "\ud800")),
                copies=rng.choice((1, 3, 200, 1 << 70)),
                host=rng.randbytes(rng.choice((8, 20, 20, 0, 21, 60))),
                queue=rng.choice((0, 127, 128, 1 << 30, -5)),
                first_queue_offset=rng.choice((0, 250, 65_530, (1 << 63) - 2)),
                first_physical_offset=rng.choice((0, 1 << 33, (1 << 63) - 2, -1)),
                store_timestamp_ms=1_790_000_000_000,
                batch_id=rng.choice((None, None, "A", "ö" * 40, "\ud800")),
            )


def batch_entries(rng: Random) -> bytes:
    """Entries of a batch request, most of them without a fault."""
    words = ("a", "b", "k1", "größe", "x" * 20, "k1 k2", " ", "a b  c")
    messages = []
    for _ in range(rng.choice((0, 1, 2, 5, 20))):
        pairs = {name: rng.choice(words) for name in ("TAGS", "KEYS", "a") if rng.random() < 0.5}
        if rng.random() < 0.5:
            pairs["UNIQ_KEY"] = rng.choice(("7F" * 16, "a", "é" * 128, "x" * 600))
        raw = properties.encode(pairs)
        match rng.randrange(20):
            case 0:
                raw = raw_properties(rng)
            case 1:
                raw += rng.choice(
                    (b"WAIT\x01t\x02", b"__SHARDINGKEY\x01s\x02", b"\x02", b"TAGS\x01")
                )
            case 2:
                raw = raw.removesuffix(b"\x02")
        messages.append(WireMessage(rng.randbytes(rng.randrange(40)), raw, rng.randrange(5)))
    return batch.encode(messages)


def fuzz_split(rng: Random, same: Same, rounds: int) -> None:
    for _ in range(15 * rounds):
        for raw in damaged(rng, batch_entries(rng), 150):
            same(
                "split",
                raw,
                body_size_max=rng.choice((1 << 22, 200, 0)),
                properties_size_max=rng.choice((32_767, 600, 620, 0)),
            )


def fuzz_read_batch(rng: Random, same: Same, rounds: int) -> None:
    for _ in range(15 * rounds):
        for raw in damaged(rng, batch_entries(rng), 150):
            same(
                "read_batch",
                raw,
                message_size_max=rng.choice((300, 300, 20)),
                message_properties_size_max=rng.choice((31_743, 31_743, 60)),
                body_size_max=rng.choice((1 << 22, 1 << 22, 200)),
                properties_size_max=rng.choice((32_767, 32_767, 600, 620)),
            )


# --- queues -------------------------------------------------------------------------------------


def fuzz_select(rng: Random, same: Same, rounds: int) -> None:
    for _ in range(15 * rounds):
        at = window_at = rng.choice((0, 4096))
        window, units = bytearray(), bytearray()
        common = message(rng)._replace(queue_id=3)
        is_batch, number = rng.random() < 0.4, 7
        for _ in range(rng.choice((1, 3, 8))):
            tag = rng.choice(("a", "b", "größe", "Aa", "BB"))
            raw = properties.encode({"TAGS": tag} if rng.random() < 0.8 else {})
            messages, sys_flag = 1, common.sys_flag
            if is_batch and rng.random() < 0.8:
                messages, sys_flag = rng.choice((1, 2, 300)), inner_batch.SYS_FLAGS
                raw = inner_batch.encode_properties("B", messages, tags=None, keys=None)
                raw = inner_batch.with_base(raw, number)
                if rng.random() < 0.2:
                    name = rng.choice((b"INNER_NUM", b"INNER_BASE"))
                    digits = rng.choice((b"", b"2", b"02", b"-1", b"2 ", b"9" * 19, b"1" * 20))
                    raw += name + b"\x01" + digits + rng.choice((b"", b"\x02"))
            made = record.encode(
                common._replace(
                    properties=raw, body=rng.randbytes(rng.randrange(60)), sys_flag=sys_flag
                ),
                queue_offset=number,
                physical_offset=at,
                store_timestamp_ms=5,
                record_crc=rng.random() < 0.5,
            )
            unit = Unit(at, len(made), rng.choice((hashing.tags_code(tag), 0)))
            if is_batch:
                units += queue_unit.encode_batch(unit, 5, number, messages)
            else:
                units += queue_unit.encode(unit)
            number += messages
            window += made
            at += len(made)
            if rng.random() < 0.2:
                gap = rng.randbytes(rng.randrange(30))
                window += gap
                at += len(gap)
        hits_units = rng.random() < 0.5
        for data in damaged(rng, bytes(units if hits_units else window), 150):
            total = rng.choice((0, 0, 400))
            found = same(
                "select",
                Exact(data if hits_units else bytes(units)),
                7,
                Exact(bytes(window) if hits_units else data),
                window_at,
                topic=rng.choice((*[common.topic.encode()] * 20, b"other", b"x" * 300)),
                queue=3,
                limits=Limits(
                    rng.choice((1, 3, 100)),
                    rng.choice((1, 500, 1 << 20)),
                    rng.choice((1, 2, 800)),
                    rng.choice((200, 1 << 20)),
                ),
                wanted=rng.choice(
                    (
                        None,
                        Wanted(frozenset({hashing.tags_code("a"), hashing.tags_code("größe")})),
                        Wanted(frozenset({hashing.tags_code("Aa")}), frozenset({"Aa", "\ud800"})),
                        Wanted(frozenset()),
                    )
                ),
                count=rng.choice((0, 0, 2)),
                bytes_total=total,
                skip_until=rng.choice((-1, window_at + 1, 1 << 40)),
                is_batch=is_batch,
            )
            if isinstance(found, Selected):
                size = len(window if hits_units else data)
                assert all(0 <= start < end <= size for start, end in found.stretches)
                assert (
                    sum(end - start for start, end in found.stretches) == found.bytes_total - total
                )


def fuzz_crc32(rng: Random, same: Same, rounds: int) -> None:
    for size in (0, 1, 15, 16, 17, 63, 64, 65, 300, 70_000):
        for _ in range(3 * rounds):
            data = rng.randbytes(size + rng.randrange(4))
            same("crc32", Exact(data), rng.choice((0, 1, rng.getrandbits(32))))


def fuzz_publish(rng: Random, same: Same, rounds: int) -> None:
    for _ in range(20 * rounds):
        page = Exact(rng.randbytes(checkpoint.SIZE), writable=True, form="Q")
        slot = rng.choice((*checkpoint.Slot, checkpoint.SIZE // 8))
        same("publish", page, slot, rng.choice((0, 7, 2**64 - 1, rng.getrandbits(64))))


def fuzz_leading_units(rng: Random, same: Same, rounds: int) -> None:
    for _ in range(15 * rounds):
        at = rng.choice((0, 500))
        units = bytearray(queue_unit.pre_blank_run(rng.randrange(3)))
        for _ in range(rng.randrange(9)):
            at += rng.choice((0, 0, 10))
            size = rng.choice((91, 300))
            units += queue_unit.encode(Unit(at, size, rng.getrandbits(31)))
            at += size
        for data in damaged(rng, bytes(units), 150):
            same(
                "leading_units",
                Exact(data),
                end=rng.choice((0, 0, 500, (1 << 63) - 1)),
                end_max=rng.choice((at, at - 1, 0, (1 << 63) - 1)),
            )


# --- outlines -----------------------------------------------------------------------------------


def fuzz_outline_records(rng: Random, same: Same, rounds: int) -> None:
    for data, at in damaged_logs(rng, 12 * rounds):
        same(
            "outline_records",
            Exact(data),
            at=rng.choice((at, at, at, None, -1, (1 << 63) - 1)),
            until=rng.choice((1 << 40, len(data), len(data) // 2, 0, -1)),
            records_max=rng.choice((1, 2, 100, 1 << 70)),
            verify=rng.choice((None, rng.choice(ALL_CHECKS))),
            topics=rng.choice((None, frozenset(), frozenset({"TopicA", "größe"}))),
        )


def fuzz_property_values(rng: Random, same: Same, rounds: int) -> None:
    for data, at in damaged_logs(rng, 4 * rounds):
        walked = outline_records(data, at=at, until=len(data), records_max=100)
        rows = walked.rows
        if rng.random() < 0.3:
            rows = rng.choice(list(damaged(rng, rows, 9)))
        if len(rows) % OUTLINE_ROW.size and rng.random() < 0.9:
            rows = rows[: len(rows) // OUTLINE_ROW.size * OUTLINE_ROW.size]
        view = Exact(data if rng.random() < 0.8 else data[: rng.randrange(len(data) + 1)])
        same("property_values", view, Exact(rows), wanted=rng.choice((b"TAGS", b"KEYS", b"a")))


def fuzz_unpack_rows(rng: Random, same: Same, rounds: int) -> None:
    for _ in range(8 * rounds):
        count = rng.randrange(6)
        entries = batch.encode(
            WireMessage(rng.randbytes(rng.randrange(9)), b"TAGS\x01%d\x02" % number, number)
            for number in range(count)
        )
        stated = rng.choice((count, count, count, count + 1, 0, rng.getrandbits(16)))
        message = Message(
            "t",
            0,
            entries,
            Host(bytes(4), 1),
            Host(bytes(4), 1),
            inner_batch.encode_properties("u", stated, tags=None, keys=None),
            sys_flag=rng.choice((0xC0, 0xC0, 0x80, 0, 0x40)),
        )
        log = rng.randrange(3) * record.encode(
            message, queue_offset=0, physical_offset=0, store_timestamp_ms=1, record_crc=True
        )
        for data in itertools.islice(damaged(rng, log, 3), 4):
            rows = outline_records(log, at=None, until=len(log), records_max=9).rows
            if rng.random() < 0.3:
                rows = rng.choice(list(damaged(rng, rows, 9)))
            if len(rows) % OUTLINE_ROW.size and rng.random() < 0.9:
                rows = rows[: len(rows) // OUTLINE_ROW.size * OUTLINE_ROW.size]
            same("unpack_rows", Exact(data), Exact(rows))


# --- index --------------------------------------------------------------------------------------


class IndexCase(NamedTuple):
    """A damaged index file, and rows of which it holds some."""

    data: bytes
    slots: int
    entries: int
    rows: bytes


def index_cases(rng: Random, rounds: int) -> Iterator[IndexCase]:
    for _ in range(rounds):
        slots, entries = rng.choice(((1, 8), (5, 12), (20, 30)))
        offset, rows = 0, bytearray()
        for _ in range(rng.randrange(entries + 4)):
            offset += rng.choice((0, 100))
            hash_value = rng.choice((0, 1, 7, 20, (1 << 31) - 1, rng.getrandbits(31)))
            rows += ROW.pack(offset, 1_790_000_000_000 + 500 * len(rows), hash_value)
        data = bytearray(HEADER_SIZE + SLOT_SIZE * slots + ENTRY_SIZE * entries)
        held = rng.randrange(len(rows) // ROW.size + 1)
        put_rows(memoryview(data), slots, entries, bytes(rows[: held * ROW.size]), 0)
        for raw in damaged(rng, bytes(data), 100):
            yield IndexCase(raw, slots, entries, bytes(rows))


def fuzz_put_rows(rng: Random, same: Same, rounds: int) -> None:
    for case in index_cases(rng, 12 * rounds):
        rows = case.rows
        if rng.random() < 0.3:
            rows = rng.choice(list(damaged(rng, rows, 9)))
        first = rng.choice((0, 0, 1, 3, -1, len(rows) // ROW.size, 1 << 40))
        same("put_rows", Exact(case.data, writable=True), *case[1:3], Exact(rows), first)


def fuzz_held_rows(rng: Random, same: Same, rounds: int) -> None:
    for case in index_cases(rng, 12 * rounds):
        rows = case.rows
        if rng.random() < 0.3:
            rows = rng.choice(list(damaged(rng, rows, 9)))
        count = len(rows) // ROW.size
        first = rng.choice((0, 0, 1, count))
        end = rng.choice((count, count, first, count + 1, -1, 1 << 40))
        same("held_rows", Exact(case.data), *case[1:3], Exact(rows), first, end)


def fuzz_look_up(rng: Random, same: Same, rounds: int) -> None:
    for case in index_cases(rng, 12 * rounds):
        same(
            "look_up",
            Exact(case.data),
            *case[1:3],
            rng.choice((0, 1, 7, 20, (1 << 31) - 1, -1, 1 << 31)),
            rng.choice((0, 1_790_000_000_000, -(1 << 63))),
            rng.choice((1_790_000_005_000, (1 << 63) - 1, 0)),
            rng.choice((0, 1, 2, 64)),
            rng.choice((0, 0, 1, 7, 1 << 40, -1)),
            rng.choice((0, 1, 5, 64, 1 << 40)),
        )


def fuzz_chains_are_sound(rng: Random, same: Same, rounds: int) -> None:
    for case in index_cases(rng, 12 * rounds):
        first = rng.choice((1, 1, 2, 0, -1, 9, 1 << 40))
        same("chains_are_sound", Exact(case.data), *case[1:3], first)


FUZZERS: Final[dict[str, Callable[[Random, Same, int], None]]] = {
    "body_size_counts": fuzz_body_size_counts,
    "chains_are_sound": fuzz_chains_are_sound,
    "crc32": fuzz_crc32,
    "decode_messages": fuzz_decode_messages,
    "encode_runs": fuzz_encode_runs,
    "entry_starts": fuzz_entry_starts,
    "held_rows": fuzz_held_rows,
    "leading_units": fuzz_leading_units,
    "look_up": fuzz_look_up,
    "outline_records": fuzz_outline_records,
    "pack_answer": fuzz_pack_answer,
    "plan_range": fuzz_plan_range,
    "property_values": fuzz_property_values,
    "publish": fuzz_publish,
    "put_rows": fuzz_put_rows,
    "read_batch": fuzz_read_batch,
    "read_plain": fuzz_read_plain,
    "read_record": fuzz_read_record,
    "runs_size": fuzz_runs_size,
    "select": fuzz_select,
    "split": fuzz_split,
    "unpack_rows": fuzz_unpack_rows,
    "walk": fuzz_walk,
}
"""By name in ``native``; rounds scale how many cases each makes."""
