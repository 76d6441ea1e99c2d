"""Sends of the drills themselves, to one node.

Patient sends wait for the response without a short timeout, whatever the role of the node: the
workload gives up a request and goes on to the next master, so it would miss late responses that an
old master still has in its buffers. Tails are appended to the log of a cut-off master at the ack
level ``memory``, so no other node receives them. All may be lost, and the checker expects none.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import aiohttp
import msgpack

from drills.calls import HEADERS
from drills.ledger import Ack, Outcome, Request
from drills.node_group import LOG_FILE_SIZE, ask_async, slot
from drills.stage import DrillFailed, Stage
from drills.workload import TOPIC
from tidemark.errors import NotEnoughReplicas
from tidemark.formats.checkpoint import Slot

ANSWER_TIMEOUT_S: Final = 60.0
SEND_TIMEOUT_MS: Final = 30_000
FIRST_PRODUCER: Final = 100
TAIL_TOPIC: Final = "tail"
TAIL: Final = msgpack.packb(
    {"messages": [{"body": b"t" * (64 << 10)}] * 16, "ack": "memory", "timeout_ms": 1000}
)
TAIL_SIZE_MIN: Final = 4 * LOG_FILE_SIZE
"""Of a tail that was to be longer [bytes]; its cut must pass the ends of several files."""
TAIL_TIMEOUT_S: Final = 3.0
MAKE_TIMEOUT_S: Final = 40.0
GIVE_UP_S: Final = 60.0


def patient_sends(stage: Stage, name: str, count: int) -> list[asyncio.Task[Outcome]]:
    """Start count concurrent sends, each as a producer of its own."""
    numbers = (int(key.partition(".")[0]) for key in stage.ledger.sent)
    taken = sum(number >= FIRST_PRODUCER for number in numbers)
    keys = [f"{FIRST_PRODUCER + taken + number}.0" for number in range(count)]
    for key in keys:
        stage.ledger.sent[key] = time.monotonic()
    return [asyncio.create_task(patient_send(stage, name, key)) for key in keys]


async def patient_send(stage: Stage, name: str, key: str) -> Outcome:
    """Send one message, wait up to ANSWER_TIMEOUT_S for the response, and record it in the ledger.

    key: ``producer.number``, with a producer number that the workload does not use.
    """
    body = msgpack.packb(
        {
            "messages": [{"body": f"{key} .".encode(), "unique_id": f"drill-{key}", "queue": 0}],
            "timeout_ms": SEND_TIMEOUT_MS,
        }
    )
    sent_at = time.monotonic()
    stage.ledger.sent[key] = sent_at
    outcome = Outcome.UNKNOWN
    answer: dict[str, Any] = {}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)) as session,
            session.post(
                f"{stage.group.nodes[name].api_url}/v1/topics/{TOPIC}/messages",
                data=body,
                headers=HEADERS,
            ) as response,
        ):
            answer = msgpack.unpackb(await response.read())
            if response.status == 200:
                outcome = Outcome.ACKED
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        answer = {"code": type(error).__name__}
    code = str(answer.get("code", ""))
    request = Request(FIRST_PRODUCER, sent_at, time.monotonic(), outcome, code, name, 1)
    stage.ledger.requests.append(request)
    if outcome is Outcome.ACKED:
        stage.ledger.record_ack(key, Ack.of(answer, 0, request))
    return outcome


async def make_topic(stage: Stage) -> None:
    """Create the topic of tails on the current master."""
    url = _tail_url(stage, await stage.master())
    status, answer = await ask_async(url, "PUT", {"queues": 1}, timeout_s=MAKE_TIMEOUT_S)
    if status not in (200, 201):
        raise DrillFailed(f"the topic {TAIL_TOPIC} cannot be made: {status} {answer}")


async def grow_tail(stage: Stage, name: str, size: int) -> int:
    """Append at least size bytes at a node that is cut off; return the number of bytes appended.

    It uses one connection. The node soon notices that it is alone and rejects sends; until then, a
    slow machine may append less, in proportion, but at least TAIL_SIZE_MIN of a longer tail.
    """
    store_dir, url = stage.group.nodes[name].store_dir, _tail_url(stage, name) + "/messages"
    began = slot(store_dir, Slot.WRITTEN)
    pace = stage.finder.pace
    enough = min(size, max(size / pace.now, TAIL_SIZE_MIN))
    deadline = time.monotonic() + GIVE_UP_S * pace.now
    timeout = aiohttp.ClientTimeout(total=TAIL_TIMEOUT_S * pace.now)
    async with aiohttp.ClientSession(timeout=timeout, headers=HEADERS) as session:
        while (grown := slot(store_dir, Slot.WRITTEN) - began) < size:
            async with session.post(url, data=TAIL) as answer:
                answered = msgpack.unpackb(await answer.read())
            is_alone = answered.get("code") == NotEnoughReplicas.code
            if is_alone and grown >= enough:
                return grown
            if answer.status != 200 or time.monotonic() > deadline:
                raise DrillFailed(
                    f"{name} took {grown} bytes of a tail of {size} and answered {answer.status} "
                    f"{str(answered)[:300]}"
                )
    return grown


def _tail_url(stage: Stage, name: str) -> str:
    return f"{stage.group.nodes[name].api_url}/v1/topics/{TAIL_TOPIC}"
