"""Entries become as few batches as fit, and those of a batch request are checked, by both twins."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from tests.support.for_each import for_each
from tests.support.twins import twin_modules_of
from tidemark.formats import batch, batch_parts, inner_batch, properties
from tidemark.formats.batch import BadBatch, WireMessage
from tidemark.formats.batch_parts import FIXED_SIZE, ID_SIZE_MAX, Fault, FaultKind, Part, fault_of

pytestmark = pytest.mark.parametrize("twin", twin_modules_of("parts", batch_parts))

LIMITS = {
    "message_size_max": 300,
    "message_properties_size_max": 200,
    "body_size_max": 5000,
    "properties_size_max": FIXED_SIZE + ID_SIZE_MAX + 100,
}


def entry(body: bytes = b"x", **pairs: str) -> WireMessage:
    return WireMessage(body, properties.encode(pairs))


def split(
    twin: ModuleType, *messages: WireMessage, body_size_max: int = 5000, words_max: int = 100
) -> list[Part]:
    made: list[Part] = twin.split(
        batch.encode(messages),
        body_size_max=body_size_max,
        properties_size_max=FIXED_SIZE + ID_SIZE_MAX + words_max,
    )
    assert b"".join(part.entries for part in made) == batch.encode(messages)
    assert [len(list(batch.iterate(part.entries))) for part in made] == [
        part.message_count for part in made
    ]
    return made


# -- splitting -------------------------------------------------------------------------------------


def test_all_messages_make_one_batch_without_a_copy(twin: ModuleType) -> None:
    entries = batch.encode([entry()] * 3)
    (part,) = twin.split(entries, body_size_max=1000, properties_size_max=1000)
    assert part == Part(entries, 3, None, None, None)
    assert part.entries is entries


def test_no_messages_make_no_batch(twin: ModuleType) -> None:
    assert split(twin) == []


@for_each(
    ("ids", "expected"),
    [
        (["A", "B"], b"A"),
        (["", "B"], None),
        (["A", ""], b"A"),
        (["x" * (ID_SIZE_MAX + 1)], None),
        (["x" * ID_SIZE_MAX], b"x" * ID_SIZE_MAX),
    ],
)
def test_the_batch_has_the_unique_id_of_its_first_message(
    twin: ModuleType, ids: list[str], expected: bytes | None
) -> None:
    (part,) = split(twin, *(entry(UNIQ_KEY=each) if each else entry() for each in ids))
    assert part.unique_id == expected


@for_each(
    ("tags", "expected"),
    [
        (["a", "a"], b"a"),
        (["a", "b"], None),
        (["a", ""], None),
        (["", "a"], None),
        (["a", "b", "a"], None),
        (["", ""], None),
        (["x" * 100], b"x" * 100),
        (["x" * 101], None),
        (["x" * 101, "x" * 101], None),
    ],
)
def test_a_batch_has_a_tag_if_all_messages_have_the_same(
    twin: ModuleType, tags: list[str], expected: bytes | None
) -> None:
    (part,) = split(twin, *(entry(TAGS=each) if each else entry() for each in tags))
    assert part.tags == expected


def test_the_keys_of_all_messages_are_joined_and_none_is_repeated(twin: ModuleType) -> None:
    (part,) = split(
        twin, entry(KEYS="b a"), entry(), entry(KEYS="a  c b "), entry(KEYS=" "), entry(KEYS="c")
    )
    assert part.keys == b"b a c"


def test_the_last_of_equal_properties_counts(twin: ModuleType) -> None:
    raw = b"KEYS\x01a\x02KEYS\x01b\x02TAGS\x01s\x02TAGS\x01t\x02TAGS\x01\x02xKEYS\x01c\x02"
    (part,) = split(twin, WireMessage(b"", raw))
    assert (part.keys, part.tags) == (b"b", b"t")


def test_keys_that_do_not_fit_begin_another_batch(twin: ModuleType) -> None:
    half = ["k" * 49 + letter for letter in "abc"]
    parts = split(twin, *(entry(KEYS=key) for key in half), words_max=101)
    assert [part.keys for part in parts] == [
        f"{half[0]} {half[1]}".encode(),
        half[2].encode(),
    ]
    parts = split(twin, *(entry(KEYS=key) for key in half), words_max=100)
    assert len(parts) == 3


def test_a_tag_takes_room_from_the_keys(twin: ModuleType) -> None:
    messages = [entry(KEYS="k" * 50, TAGS="t" * 47), entry(KEYS="ab", TAGS="t" * 47)]
    assert len(split(twin, *messages)) == 2
    assert len(split(twin, *messages, words_max=101)) == 1


def test_a_single_message_leaves_out_what_does_not_fit(twin: ModuleType) -> None:
    (part,) = split(twin, entry(KEYS=f"{'a' * 60} {'b' * 60} {'c' * 38}", TAGS="t" * 101))
    assert part.tags is None
    assert part.keys == f"{'a' * 60} {'c' * 38}".encode()


def test_the_size_of_the_body_limits_a_batch_but_not_a_message(twin: ModuleType) -> None:
    messages = [entry(b"x" * 78)] * 3
    assert [part.message_count for part in split(twin, *messages, body_size_max=200)] == [2, 1]
    assert [part.message_count for part in split(twin, *messages, body_size_max=199)] == [1, 1, 1]
    assert [part.message_count for part in split(twin, *messages, body_size_max=0)] == [1, 1, 1]


def test_a_batch_has_at_most_as_many_messages_as_its_unit_can_count(twin: ModuleType) -> None:
    entries = batch.encode([WireMessage(b"")] * (inner_batch.COUNT_MAX + 2))
    parts = twin.split(entries, body_size_max=1 << 22, properties_size_max=32_767)
    assert [part.message_count for part in parts] == [inner_batch.COUNT_MAX, 2]


def test_the_properties_of_a_batch_are_within_the_limit(twin: ModuleType) -> None:
    id_of = "i" * ID_SIZE_MAX
    for pairs in ({"KEYS": "k" * 100}, {"TAGS": "t" * 100}, {"KEYS": "k" * 49, "TAGS": "t" * 50}):
        raw = properties.encode({"UNIQ_KEY": id_of, **pairs})
        (part,) = split(twin, WireMessage(b"", raw))
        assert part.keys or part.tags
        made = inner_batch.encode_properties(id_of, 32_767, tags=part.tags, keys=part.keys)
        assert len(made) <= FIXED_SIZE + ID_SIZE_MAX + 100


def test_damaged_entries_are_refused(twin: ModuleType) -> None:
    with pytest.raises(BadBatch):
        twin.split(batch.encode([entry()])[:-1], body_size_max=9, properties_size_max=999)


# -- batch requests --------------------------------------------------------------------------------


def test_a_batch_request_is_one_batch_of_its_own_bytes(twin: ModuleType) -> None:
    entries = batch.encode([entry(UNIQ_KEY="A", TAGS="t", KEYS="k l"), entry(TAGS="t", KEYS="l m")])
    part = twin.read_batch(entries, **LIMITS)
    assert part == Part(entries, 2, b"A", b"t", b"k l m")
    assert part.entries is entries
    assert fault_of(entries, **LIMITS) is None


@for_each(
    "raw",
    [
        b"",
        b"a\x01b",
        b"a\x01b\x02c\x01d\x02",
        b"a\x01b\x01c\x02",
        b"__SHARDINGKEY\x01s\x02",
        "größe\x01中文\x02".encode(),
        b"UNIQ_KEY\x01" + "é".encode() * 128 + b"\x02",
        b"Xyz\x01b\x02",
    ],
)
def test_properties_that_a_sender_may_set_are_accepted(twin: ModuleType, raw: bytes) -> None:
    entries = batch.encode([WireMessage(b"x" * 300, raw)])
    limits = LIMITS | {"message_properties_size_max": 300}
    assert twin.read_batch(entries, **limits) is not None
    assert fault_of(entries, **limits) is None


LONG = "k" * 90


@for_each(
    ("messages", "kind", "index", "reason"),
    [
        ([], FaultKind.DAMAGED, None, "no messages"),
        ([WireMessage(b"x" * 301)], FaultKind.TOO_LARGE, 0, "the body has 301 bytes"),
        ([entry(), entry(a="b" * 200)], FaultKind.PROPERTY, 1, "the properties have 203 bytes"),
        ([entry(b"x" * 300)] * 16, FaultKind.TOO_LARGE, None, "bytes or more"),
        ([entry(KEYS=LONG), entry(KEYS=LONG + "x")], FaultKind.TOO_LARGE, 1, "keys of all"),
        ([entry(TAGS="t" * 50, KEYS="k" * 50)], FaultKind.TOO_LARGE, 0, "keys of all"),
        *(
            ([entry(), WireMessage(b"", raw)], FaultKind.PROPERTY, 1, reason)
            for raw, reason in [
                (b"\xff\x01a\x02", "not UTF-8"),
                (b"a\x01\xc3\x02b\x01\xa4\x02", "not UTF-8"),
                (b"a", "no name or no value"),
                (b"a\x02", "no name or no value"),
                (b"a\x01\x02", "no name or no value"),
                (b"\x01a\x02", "no name or no value"),
                (b"\x02", "no name or no value"),
                (b"a\x01b\x02\x02", "no name or no value"),
                (b"\x02a\x01b\x02", "no name or no value"),
                (b"TAGS\x01\x02", "no name or no value"),
                (b"INNER_NUM\x012\x02", "'INNER_NUM' is reserved"),
                (b"WAIT\x01true\x02", "'WAIT' is reserved"),
                (b"__CRC32#\x010123456789\x02", "'__CRC32#' is reserved"),
                (b"TIDEMARK_X\x01a\x02", "'TIDEMARK_X' is reserved"),
                (b"__SHARDINGKEYS\x01a\x02", "is reserved"),
                (b"UNIQ_KEY\x01a b\x02", "unique id"),
                (b"UNIQ_KEY\x01a\x01b\x02", "unique id"),
                (b"UNIQ_KEY\x01" + b"x" * 129 + b"\x02", "unique id"),
            ]
        ),
    ],
)
def test_a_fault_is_found_and_named(
    twin: ModuleType, messages: list[WireMessage], kind: FaultKind, index: int | None, reason: str
) -> None:
    entries = batch.encode(messages)
    assert twin.read_batch(entries, **LIMITS) is None
    fault = fault_of(entries, **LIMITS)
    assert fault is not None
    assert (fault.kind, fault.entry) == (kind, index)
    assert reason in fault.reason


def test_the_sixteenth_message_of_a_full_batch_is_refused_and_fifteen_are_not(
    twin: ModuleType,
) -> None:
    size = len(batch.encode([entry(b"x" * 300)]))
    limits: dict[str, Any] = LIMITS | {"body_size_max": 15 * size}
    assert twin.read_batch(batch.encode([entry(b"x" * 300)] * 15), **limits) is not None
    assert twin.read_batch(batch.encode([entry(b"x" * 300)] * 16), **limits) is None


def test_too_many_messages_are_refused(twin: ModuleType) -> None:
    limits = LIMITS | {"body_size_max": 1 << 22}
    most = inner_batch.COUNT_MAX
    entries = batch.encode([WireMessage(b"")] * most)
    assert twin.read_batch(entries, **limits).message_count == most
    entries += batch.encode([WireMessage(b"")])
    assert twin.read_batch(entries, **limits) is None
    fault = fault_of(entries, **limits)
    reason = f"the batch has {most + 1} messages or more"
    assert fault == Fault(FaultKind.TOO_MANY, None, reason, most)


def test_entries_of_another_type_are_read_too(twin: ModuleType) -> None:
    entries = bytearray(batch.encode([entry(KEYS="k")]))
    assert twin.read_batch(entries, **LIMITS).keys == b"k"
    (part,) = twin.split(entries, body_size_max=1000, properties_size_max=1000)
    assert part.keys == b"k"


def test_damaged_entries_have_a_fault(twin: ModuleType) -> None:
    whole = batch.encode([entry(a="b"), entry()])
    for cut in range(1, len(whole)):
        if cut != len(batch.encode([entry(a="b")])):
            assert twin.read_batch(whole[:cut], **LIMITS) is None
            fault = fault_of(whole[:cut], **LIMITS)
            assert fault is not None
            assert fault.kind is FaultKind.DAMAGED
