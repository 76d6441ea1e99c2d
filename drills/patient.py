"""Senders that wait for the response of one node without a short timeout, whatever its role.

The workload gives up a request and goes on to the next master, so it would miss late responses that
an old master still has in its buffers. These senders receive them.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import aiohttp
import msgpack

from drills.calls import HEADERS
from drills.ledger import Ack, Outcome, Request
from drills.stage import Stage
from drills.workload import TOPIC

ANSWER_TIMEOUT_S: Final = 60.0
SEND_TIMEOUT_MS: Final = 30_000
FIRST_PRODUCER: Final = 100


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
