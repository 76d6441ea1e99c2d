from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from bench import compared
from bench.exchange import Exchange, LoadFailed
from bench.kafka import KafkaConnection, crc32c, produce_request, record_batch, varint

BATCH = bytes.fromhex(
    "0000000000000000 00000047 ffffffff 02"  # base offset, size, leader epoch, magic
    "74dfcef7"  # CRC, which kafka.tools.DumpLogSegments of Kafka 4.2.0 calls valid
    "0000 00000001 00000000000003e8 00000000000003e8"  # attributes, last delta, timestamps
    "ffffffffffffffff ffff ffffffff 00000002"  # producer, its epoch, sequence, count
    "12 00 00 00 01 06 313233 00"  # size 9, attributes, deltas 0 and 0, no key, value, headers
    "16 00 00 02 01 0a 3435363738 00"  # size 11, offset delta 1
)
ANSWER = bytes.fromhex(  # of Kafka 4.2.0
    "00000035 00000000 00000001 0005 62656e6368 00000001 00000000"
    "0000 0000000000000087 ffffffffffffffff 0000000000000000 00000000"
)
ERROR_AT = 27


def test_the_crc_has_castagnolis_polynomial() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (300, "d804")],
)
def test_signed_numbers_are_zigzag_in_groups_of_seven_bits(value: int, encoded: str) -> None:
    assert varint(value).hex() == encoded


def test_a_batch_has_the_documented_layout_and_the_crc_from_the_attributes_on() -> None:
    assert record_batch([b"123", b"45678"], 1000) == BATCH
    assert struct.pack(">I", crc32c(BATCH[21:])) == BATCH[17:21]


def test_a_request_has_a_header_and_one_batch_for_partition_0_with_acks_of_the_leader() -> None:
    assert produce_request(BATCH) == bytes.fromhex(
        "0000007c 0000 0007 00000000 ffff"  # size, API, version, correlation id, no client id
        "ffff 0001 00007530"  # no transaction, acks, timeout
        "00000001 0005 62656e6368 00000001 00000000 00000053"  # topic, partition, size of batch
        + BATCH.hex()
    )


class Sent(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.requests += 1

    def is_closing(self) -> bool:
        return False


def connected(exchange: Exchange) -> tuple[KafkaConnection, Sent]:
    connection, transport = KafkaConnection(exchange, produce_request(BATCH), 2), Sent()
    connection.connection_made(transport)
    exchange.begin()
    connection.send_next()
    return connection, transport


@pytest.mark.parametrize("step", [1, 7, 100])
async def test_answers_are_counted_however_they_arrive(step: int) -> None:
    exchange = Exchange(1, None, 3)
    connection, transport = connected(exchange)
    for _ in range(3):
        for at in range(0, len(ANSWER), step):
            connection.data_received(ANSWER[at : at + step])
    assert await exchange.finished >= 0
    assert (exchange.messages, transport.requests) == (6, 3)


@pytest.mark.parametrize(
    "wrong", [ANSWER[:ERROR_AT] + b"\0\x02" + ANSWER[ERROR_AT + 2 :], ANSWER + b"\0"]
)
async def test_an_error_or_more_than_one_answer_fails_the_run(wrong: bytes) -> None:
    exchange = Exchange(1, None, 3)
    connection, _ = connected(exchange)
    connection.data_received(wrong)
    with pytest.raises(LoadFailed, match="the server answered"):
        await exchange.finished
    assert exchange.messages == 0


def test_cpu_times_are_of_the_last_runs_and_compared_with_kafka_if_they_have_a_goal() -> None:
    seen = {"Kafka": [9, 2, 4], "ours": [8, 1, 3]}
    ours, theirs = compared.cpu_figures(["ours", "Kafka"], seen, 2, {"ours": 1.5})
    assert (ours.median, ours.goal, ours.baseline, ours.ratio) == (2, 1.5, "Kafka", 0.625)
    assert (theirs.median, theirs.goal, theirs.baseline) == (3, None, "")
    (alone,) = compared.cpu_figures(["ours"], {"ours": [1]}, 2, {"ours": 1.5})
    assert (alone.goal, alone.baseline) == (1.5, "")
