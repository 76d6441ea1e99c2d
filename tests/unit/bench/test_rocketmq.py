from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from bench import compared, servers
from bench.exchange import Exchange, LoadFailed
from bench.redis_streams import Shape
from bench.rocketmq import SEND_BATCH, RocketMQConnection, encode, send_request

ANSWER = bytes.fromhex("0000001d 00000013") + b'{"code":0,"flag":1}' + bytes(6)


def test_a_request_has_its_sizes_a_json_header_with_texts_and_the_body() -> None:
    frame = encode(310, {"b": "bench", "e": -1}, b"body")
    head_size = int.from_bytes(frame[4:8])
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    head = json.loads(frame[8 : 8 + head_size])
    assert (head["code"], head["flag"], head["extFields"]) == (310, 0, {"b": "bench", "e": "-1"})
    assert frame[8 + head_size :] == b"body"


def test_many_messages_are_sent_as_one_batch_of_entries() -> None:
    frame = send_request(Shape(messages=3, body_size=5))
    head_size = int.from_bytes(frame[4:8])
    head = json.loads(frame[8 : 8 + head_size])
    assert (head["code"], head["extFields"]["m"]) == (SEND_BATCH, "true")
    assert len(frame) - 8 - head_size == 3 * (22 + 5)  # per entry: its fields and the body


class Open(asyncio.Transport):
    def is_closing(self) -> bool:
        return False


def connected(exchange: Exchange) -> RocketMQConnection:
    connection = RocketMQConnection(exchange, b"request", 2)
    connection.connection_made(Open())
    exchange.begin()
    return connection


@pytest.mark.parametrize("step", [1, 7, 100])
async def test_an_answer_is_counted_however_it_arrives(step: int) -> None:
    exchange = Exchange(1, None, 0)
    connection = connected(exchange)
    for at in range(0, len(ANSWER), step):
        connection.data_received(ANSWER[at : at + step])
    assert await exchange.finished >= 0
    assert exchange.messages == 2


@pytest.mark.parametrize("wrong", [ANSWER.replace(b":0,", b":2,"), ANSWER + b"\0"])
async def test_an_error_or_more_than_one_answer_fails_the_run(wrong: bytes) -> None:
    exchange = Exchange(1, None, 0)
    connected(exchange).data_received(wrong)
    with pytest.raises(LoadFailed, match="the server answered"):
        await exchange.finished
    assert exchange.messages == 0


def test_servers_are_left_out_with_a_note_until_they_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "KAFKA_LIB", tmp_path)
    monkeypatch.setattr(servers, "ROCKETMQ_LIB", tmp_path)
    without_kafka = "without Kafka, which `make kafka` fetches"
    without_rocketmq = "without RocketMQ, which `make referee` fetches"
    assert compared.left_out() == [without_kafka, without_rocketmq]
    assert compared.left_out("Kafka") == [without_kafka]
    (tmp_path / "kafka_2.13-4.2.0.jar").touch()
    (tmp_path / "rocketmq-broker-5.3.3.jar").touch()
    assert (servers.kafka_version(), servers.rocketmq_version()) == ("4.2.0", "5.3.3")
    assert compared.left_out() == []
