from __future__ import annotations

import contextlib
import struct
import zlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.ha.wire.frames import (
    AROUND_SIZE,
    BUFFER_SIZE_MIN,
    FRAME_SIZE_MAX,
    HEAD,
    BadFrame,
    Decoder,
    Frame,
    FrameType,
    encode,
    encode_head,
    encode_tail,
)
from tests.support import ha_fuzz
from tests.support.for_each import for_each

LARGE = st.binary(min_size=90, max_size=91).map(lambda piece: piece * 100)
"""Large payloads of repeated pieces: Hypothesis refuses inputs that need as many random bytes."""
FRAMES = st.builds(
    Frame,
    st.sampled_from(FrameType),
    st.integers(0, (1 << 63) - 1),
    st.one_of(st.binary(max_size=300), LARGE),
    st.integers(0, 255),
)


def test_a_frame_has_the_bytes_that_the_documentation_says() -> None:
    inside = struct.pack(">BBHq", 5, 1, 0, 7) + b"payload"
    expected = struct.pack(">I", len(inside) + 4) + inside + struct.pack(">I", zlib.crc32(inside))
    assert encode(Frame(FrameType.ACK, 7, b"payload", 1)) == expected


@given(st.lists(FRAMES, max_size=5), st.integers(1, 12_000))
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(
    sent: list[Frame], size: int
) -> None:
    stream = b"".join(map(encode, sent))
    decoder = Decoder()
    got = [
        frame
        for at in range(0, len(stream), size)
        for frame in decoder.feed(stream[at : at + size])
    ]
    assert got == sent
    assert decoder.pending == 0


def test_frames_come_out_byte_by_byte() -> None:
    rng = Random(1)
    sent = [ha_fuzz.frame(rng) for _ in range(20)]
    decoder = Decoder()
    got = [frame for byte in b"".join(map(encode, sent)) for frame in decoder.feed(bytes([byte]))]
    assert got == sent


@given(FRAMES, st.data())
def test_no_flipped_bit_is_read_as_a_frame(frame: Frame, data: st.DataObject) -> None:
    damaged = bytearray(encode(frame))
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    decoder = Decoder()
    with contextlib.suppress(BadFrame):  # nothing: the damaged length asks for more bytes
        assert decoder.feed(damaged) == []


@given(FRAMES, FRAMES)
def test_whole_frames_before_a_cut_one_are_read(first: Frame, second: Frame) -> None:
    decoder = Decoder()
    assert decoder.feed(encode(first) + encode(second)[:-1]) == [first]
    assert decoder.feed(encode(second)[-1:]) == [second]


@pytest.mark.parametrize("length", [0, 1, AROUND_SIZE - 1, FRAME_SIZE_MAX + 1, (1 << 32) - 1])
def test_a_length_that_cannot_be_is_refused_with_its_four_bytes(length: int) -> None:
    with pytest.raises(BadFrame, match=str(length)):
        Decoder().feed(struct.pack(">I", length))


def test_a_length_is_judged_by_the_limit_of_the_moment() -> None:
    big = Frame(FrameType.HELLO, 1, bytes(5000))
    with pytest.raises(BadFrame, match="5016"):
        Decoder(size_max=2048).feed(encode(big))
    decoder = Decoder(size_max=2048)
    decoder.feed(b"")
    decoder.allow(FRAME_SIZE_MAX)
    assert decoder.feed(encode(big)) == [big]


@pytest.mark.parametrize(("kind", "epoch"), [(0, 1), (11, 1), (24, 1), (255, 1), (5, -1)])
def test_an_unknown_type_or_a_negative_epoch_is_refused_before_its_payload_came(
    kind: int, epoch: int
) -> None:
    with pytest.raises(BadFrame, match=f"type {kind}"):
        Decoder().feed(HEAD.pack(1000, kind, 0, 0, epoch))


def test_a_decoder_that_met_a_bad_frame_reads_nothing_any_more() -> None:
    decoder = Decoder()
    with pytest.raises(BadFrame):
        decoder.feed(b"\xff" * 4)
    with pytest.raises(BadFrame):
        decoder.feed(encode(Frame(FrameType.STATUS, 1, b"")))


def test_memory_follows_the_bytes_that_came_and_not_the_length_claimed() -> None:
    decoder = Decoder()
    decoder.feed(HEAD.pack(FRAME_SIZE_MAX, FrameType.APPEND, 0, 0, 1))
    assert decoder.pending + len(decoder.room()) == BUFFER_SIZE_MIN
    decoder.feed(bytes(100_000))
    assert decoder.pending + len(decoder.room()) <= 4 * 100_000


def test_the_largest_frame_passes_and_its_memory_is_bounded() -> None:
    largest = Frame(FrameType.APPEND, 1, bytes(FRAME_SIZE_MAX - AROUND_SIZE))
    decoder = Decoder()
    stream = encode(largest) * 2
    got: list[Frame] = []
    for at in range(0, len(stream), 1 << 20):
        got += decoder.feed(stream[at : at + (1 << 20)])
        assert decoder.pending + len(decoder.room()) <= 2 * (FRAME_SIZE_MAX + 4)
    assert [len(frame.payload) for frame in got] == [FRAME_SIZE_MAX - AROUND_SIZE] * 2
    with pytest.raises(ValueError, match=str(FRAME_SIZE_MAX + 1)):
        encode_head(largest, 1)


def test_a_transport_may_read_into_the_decoders_own_memory() -> None:
    rng = Random(2)
    sent = [ha_fuzz.frame(rng) for _ in range(50)]
    stream = memoryview(b"".join(map(encode, sent)))
    decoder = Decoder()
    got: list[Frame] = []
    held = []  # as a transport may, beyond the next call
    while len(stream):
        room = decoder.room()
        held.append(room)
        size = min(len(room), len(stream), rng.randint(1, 5000))
        room[:size] = stream[:size]
        stream = stream[size:]
        got += decoder.received(size)
    assert got == sent


def test_payloads_keep_their_bytes_when_more_comes() -> None:
    decoder = Decoder()
    (first,) = decoder.feed(encode(Frame(FrameType.APPEND, 1, b"a" * 3000)))
    decoder.feed(encode(Frame(FrameType.APPEND, 1, b"b" * 3000)) * 3)
    assert first.payload == b"a" * 3000


@given(FRAMES, st.binary(max_size=1000))
def test_bytes_streamed_from_where_they_are_make_the_same_frame(frame: Frame, data: bytes) -> None:
    head, crc = encode_head(frame, len(data))
    whole = frame._replace(payload=bytes(frame.payload) + data)
    assert head + data + encode_tail(crc, memoryview(data)) == encode(whole)


@for_each("seed", range(20))
def test_hostile_streams_end_in_a_refusal_or_in_waiting_and_never_elsewhere(seed: int) -> None:
    rng = Random(seed)
    streams = ha_fuzz.streams(rng)
    for _ in range(100):
        decoder = Decoder(size_max=2048)
        with contextlib.suppress(BadFrame):
            stream = next(streams)
            size = rng.choice((1, 17, 4096, len(stream)))
            for at in range(0, min(len(stream), 1000 * size), size):
                decoder.feed(stream[at : at + size])
                assert decoder.pending <= 2048 + 4
