"""Load for Apache Kafka: produce requests with acks=1, over several raw connections.

A request carries one record batch, which is encoded once and sent again and again; the broker
assigns the offsets. The layouts are those of https://kafka.apache.org/protocol and of "Message
format" in Kafka's documentation.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Sequence
from typing import Final

from bench.exchange import ANSWER_SIZE, LoadFailed, Outcome, SizedConnection, drive
from bench.redis_streams import Shape
from bench.servers import START_TIMEOUT_S, Compared, wait_until

TOPIC: Final = b"bench"
PRODUCE, LIST_OFFSETS, METADATA = 0, 2, 3
"""API keys."""
_VERSIONS: Final = {PRODUCE: 7, LIST_OFFSETS: 1, METADATA: 4}
"""Versions of the requests; all are from before the flexible ones, which have tagged fields."""
_NO_ERROR: Final = 0
_PRODUCED: Final = struct.Struct(f">iii h{len(TOPIC)}s i i h qqq i")
"""Size, correlation id, topics, name, partitions, partition, error, base offset, append time, log
start offset, throttle time."""
_LISTED: Final = struct.Struct(f">iii h{len(TOPIC)}s i i h qq")
"""Size, correlation id, topics, name, partitions, partition, error, timestamp, offset."""
_BATCH_HEAD: Final = struct.Struct(">qiibI")
"""Base offset, size of the rest, leader epoch, magic, CRC."""
_BATCH_REST: Final = struct.Struct(">hiqqqhii")
"""Attributes, last offset delta, first and last timestamp, producer's id, epoch and sequence,
number of records."""


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC_TABLE: Final = _crc_table()


def crc32c(data: bytes) -> int:
    """Compute the CRC-32 with Castagnoli's polynomial, which zlib does not have."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def varint(value: int) -> bytes:
    """Encode a signed number: zigzag, then 7 bits per byte, the lowest first."""
    rest, encoded = value << 1 ^ value >> 63, bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def record_batch(bodies: Sequence[bytes], timestamp_ms: int) -> bytes:
    """Encode an uncompressed batch, version 2, of records with a value and without key or headers.

    All records have the same timestamp.
    """
    records = bytearray()
    for number, body in enumerate(bodies):
        # attributes, timestamp delta, offset delta, no key, value, no headers
        fields = (b"\0", varint(0), varint(number), varint(-1), varint(len(body)), body, varint(0))
        record = b"".join(fields)
        records += varint(len(record)) + record
    count = len(bodies)
    rest = _BATCH_REST.pack(0, count - 1, timestamp_ms, timestamp_ms, -1, -1, -1, count) + records
    size = len(rest) + _BATCH_HEAD.size - 12  # the base offset and the size itself do not count
    return _BATCH_HEAD.pack(0, size, -1, 2, crc32c(rest)) + rest


def _request(api: int, body: bytes) -> bytes:
    """Put size and header before a body: API, version, correlation id 0, no client id."""
    rest = struct.pack(">hhih", api, _VERSIONS[api], 0, -1) + body
    return ANSWER_SIZE.pack(len(rest)) + rest


def _topic_part(fields: bytes) -> bytes:
    """Encode one topic with one partition, number 0, and its fields."""
    return struct.pack(f">ih{len(TOPIC)}sii", 1, len(TOPIC), TOPIC, 1, 0) + fields


def produce_request(batch: bytes) -> bytes:
    """Encode a request that appends a batch: no transaction, acks=1, a timeout of 30 s."""
    fields = struct.pack(">i", len(batch)) + batch
    return _request(PRODUCE, struct.pack(">hhi", -1, 1, 30_000) + _topic_part(fields))


def raw_connections(server: Compared, shape: Shape, seconds: float) -> Outcome:
    """Send the same batch again and again; check that the topic grew by what was acknowledged."""
    batch = record_batch([os.urandom(shape.body_size)] * shape.messages, time.time_ns() // 10**6)
    request = produce_request(batch)
    before = _end_offset(server)
    outcome = server.measured(
        lambda: drive(
            lambda exchange: KafkaConnection(exchange, request, shape.messages),
            server.address,
            connections=shape.connections,
            seconds=seconds,
        )
    )
    stored = _end_offset(server) - before
    if stored != outcome.messages:
        raise LoadFailed(f"{outcome.messages} messages acknowledged, {stored} in Kafka")
    return outcome


class KafkaConnection(SizedConnection):
    """All answers without an error have one size."""

    def fault(self, answer: bytes) -> str | None:
        """Return the error of an answer."""
        if len(answer) != _PRODUCED.size:
            return f"{len(answer)} bytes instead of {_PRODUCED.size}"
        error = _PRODUCED.unpack(answer)[7]
        return None if error == _NO_ERROR else f"error {error}"


def prepare(server: Compared, shape: Shape, seconds: float) -> None:
    """Make the topic, then send for some time, so that the JVM has compiled what runs often."""

    def has_leader() -> bool:
        # A question about a missing topic, with permission to make it, makes it.
        _ask(server, METADATA, struct.pack(f">ih{len(TOPIC)}s?", 1, len(TOPIC), TOPIC, True))
        return _listed(server)[0] == _NO_ERROR

    wait_until(has_leader, "Kafka to make a topic", START_TIMEOUT_S)
    raw_connections(server, shape, seconds)


def _end_offset(server: Compared) -> int:
    error, offset = _listed(server)
    if error != _NO_ERROR:
        raise LoadFailed(f"Kafka answered a question for the end offset with error {error}")
    return offset


def _listed(server: Compared) -> tuple[int, int]:
    """Ask for the end offset of the partition; return error and offset."""
    answer = _ask(server, LIST_OFFSETS, struct.pack(">i", -1) + _topic_part(struct.pack(">q", -1)))
    *_, error, _, offset = _LISTED.unpack(answer)
    return error, offset


def _ask(server: Compared, api: int, body: bytes) -> bytes:
    """Send one request over a connection of its own; return the whole answer."""
    with socket.create_connection(server.address, timeout=30) as connection:
        connection.sendall(_request(api, body))
        with connection.makefile("rb") as answers:
            head = answers.read(ANSWER_SIZE.size)
            return head + answers.read(*ANSWER_SIZE.unpack(head))
