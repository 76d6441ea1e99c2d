"""Senders who wait for one node's answer however long it takes, whoever is master meanwhile.

The workload gives a request up and goes to the next master; what an old one says late, out of its
buffers, only somebody like this hears.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import aiohttp
import msgpack

from drills.calls import HEADERS
from drills.ledger import Outcome, Place, Request, Told
from drills.stage import Stage
from drills.workload import TOPIC

ANSWER_TIMEOUT_S: Final = 60.0
SEND_TIMEOUT_MS: Final = 30_000
FIRST_PRODUCER: Final = 100


def patient_sends(stage: Stage, name: str, count: int) -> list[asyncio.Task[Outcome]]:
    """So many of them at once, each a producer of its own."""
    numbers = (int(key.partition(".")[0]) for key in stage.ledger.sent)
    taken = sum(number >= FIRST_PRODUCER for number in numbers)
    keys = [f"{FIRST_PRODUCER + taken + number}.0" for number in range(count)]
    for key in keys:
        stage.ledger.sent[key] = time.monotonic()
    return [asyncio.create_task(patient_send(stage, name, key)) for key in keys]


async def patient_send(stage: Stage, name: str, key: str) -> Outcome:
    """Send one message and wait for its answer however long that takes; into the ledger.

    key: ``producer.number``, of a producer that the workload does not have.
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
                f"{stage.group.nodes[name].api}/v1/topics/{TOPIC}/messages",
                data=body,
                headers=HEADERS,
            ) as response,
        ):
            answer = msgpack.unpackb(await response.read())
            if response.status == 200:
                outcome = Outcome.ACKED
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        answer = {"code": type(error).__name__}
    ended_at = time.monotonic()
    stage.ledger.requests.append(
        Request(FIRST_PRODUCER, sent_at, ended_at, outcome, str(answer.get("code", "")), name, 1)
    )
    if outcome is Outcome.ACKED:
        (result,) = answer["results"]
        stage.ledger.tell(
            key,
            Told(
                Place(result["queue"], result["queue_offset"]),
                result["physical_offset"],
                answer["ack"]["level"],
                answer["ack"]["copies"],
                name,
                sent_at,
                ended_at,
                repeated=False,
            ),
        )
    return outcome
