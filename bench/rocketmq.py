"""Load for Apache RocketMQ: its clients' send requests, over several raw connections.

A request carries one message, or a batch that the broker takes apart; it is encoded once and sent
again and again. The broker makes no unique ids for messages of a batch and finds none in them, so
its index has no keys to store. The layouts are those of RocketMQ's ``RemotingCommand`` and
``MessageDecoder``.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, Final

from bench.exchange import ANSWER_SIZE, LoadFailed, Outcome, SizedConnection, drive
from bench.redis_streams import Shape
from bench.servers import START_TIMEOUT_S, Compared, wait_until
from tidemark.formats import batch
from tidemark.formats.batch import WireMessage

TOPIC: Final = "bench"
QUEUES: Final = 4
MAKE_TOPIC, MAX_OFFSET, SEND, SEND_BATCH = 17, 30, 310, 320
"""Request codes."""
_VERSION: Final = 401
"""Of a client: 5.0.0."""
_READ_AND_WRITE: Final = 6
_SUCCESS: Final = b'"code":0,'


def encode(code: int, fields: Mapping[str, object], body: bytes = b"") -> bytes:
    """Encode a request with a JSON header. fields: of the request, by name."""
    header = {
        "code": code,
        "language": "JAVA",
        "version": _VERSION,
        "opaque": 0,
        "flag": 0,
        "serializeTypeCurrentRPC": "JSON",
        "extFields": {name: str(value) for name, value in fields.items()},
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">ii", 4 + len(text) + len(body), len(text)) + text + body


def send_request(shape: Shape) -> bytes:
    """Encode a request that stores the messages of a shape in a queue that the broker chooses."""
    bodies = [os.urandom(shape.body_size)] * shape.messages
    fields = {
        "a": "bench",  # producer group
        "b": TOPIC,
        "c": "TBW102",  # template of topics that do not exist
        "d": QUEUES,
        "e": -1,  # queue
        "f": 0,  # system flag
        "g": time.time_ns() // 10**6,  # born timestamp
        "h": 0,  # flag
        "i": "",  # properties
        "j": 0,  # deliveries so far
        "k": "false",  # unit mode
        "l": 16,  # most deliveries
    }
    if shape.messages == 1:
        return encode(SEND, {**fields, "m": "false"}, bodies[0])
    entries = batch.encode([WireMessage(body) for body in bodies])
    return encode(SEND_BATCH, {**fields, "m": "true"}, entries)


def raw_connections(server: Compared, shape: Shape, seconds: float) -> Outcome:
    """Send the same request again and again, and wait until its messages are dispatched.

    Raises LoadFailed if the queues did not grow by what was acknowledged.
    """
    request = send_request(shape)
    before = _message_count(server)

    def run() -> Outcome:
        outcome = drive(
            lambda exchange: RocketMQConnection(exchange, request, shape.messages),
            server.address,
            connections=shape.connections,
            seconds=seconds,
        )
        wait_until(
            lambda: _message_count(server) - before >= outcome.messages,
            "RocketMQ to dispatch",
            START_TIMEOUT_S,
        )
        return outcome

    outcome = server.measured(run)
    stored = _message_count(server) - before
    if stored != outcome.messages:
        raise LoadFailed(f"{outcome.messages} messages acknowledged, {stored} in RocketMQ")
    return outcome


class RocketMQConnection(SizedConnection):
    def fault(self, answer: bytes) -> str | None:
        """Return the fault of an answer whose code is not that of success."""
        return None if _SUCCESS in answer else "an error"


def prepare(server: Compared, shape: Shape, seconds: float) -> None:
    """Make the topic, then send for some time, so that the JVM has compiled what runs often."""
    fields = {
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "readQueueNums": QUEUES,
        "writeQueueNums": QUEUES,
        "perm": _READ_AND_WRITE,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
    _ask(server, MAKE_TOPIC, fields)
    raw_connections(server, shape, seconds)


def _message_count(server: Compared) -> int:
    """Number of messages in all queues of the topic."""
    queues = ({"topic": TOPIC, "queueId": number} for number in range(QUEUES))
    return sum(int(_ask(server, MAX_OFFSET, queue)["offset"]) for queue in queues)


def _ask(server: Compared, code: int, fields: Mapping[str, object]) -> dict[str, Any]:
    """Send one request over a connection of its own; return the fields of the answer."""
    with socket.create_connection(server.address, timeout=30) as connection:
        connection.sendall(encode(code, fields))
        with connection.makefile("rb") as answers:
            answer = answers.read(*ANSWER_SIZE.unpack(answers.read(ANSWER_SIZE.size)))
    (head_size,) = ANSWER_SIZE.unpack_from(answer)
    head: dict[str, Any] = json.loads(answer[ANSWER_SIZE.size : ANSWER_SIZE.size + head_size])
    if head["code"] != 0:
        raise LoadFailed(f"RocketMQ answered request {code} with {head}")
    return dict(head.get("extFields") or {})
