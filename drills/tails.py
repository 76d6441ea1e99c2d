"""Append bytes to the log of a cut-off master, which no other node receives.

The messages are sent directly to the node, at the ack level ``memory``. They may all be lost, so
the checker does not expect any of them.
"""

from __future__ import annotations

import asyncio
from typing import Final

import aiohttp
import msgpack

from drills.node_group import ask_async
from drills.positions import slot
from drills.stage import DrillFailed, Stage
from tidemark.formats.checkpoint import Slot

TOPIC: Final = "tail"
MSGPACK: Final = "application/msgpack"
BODY_SIZE: Final = 64 << 10
BODIES: Final = 16
TIMEOUT_S: Final = 3.0
MAKE_TIMEOUT_S: Final = 40.0
GIVE_UP_S: Final = 60.0


async def make_topic(stage: Stage) -> None:
    """Create the topic of tails on the current master."""
    node = stage.group.nodes[await stage.master()]
    url = f"{node.api_url}/v1/topics/{TOPIC}"
    status, answer = await ask_async(url, "PUT", {"queues": 1}, timeout_s=MAKE_TIMEOUT_S)
    if status not in (200, 201):
        raise DrillFailed(f"the topic {TOPIC} cannot be made: {status} {answer}")


async def grow_tail(stage: Stage, name: str, size: int) -> int:
    """Append at least size bytes at a node that is cut off; return the number of bytes appended."""
    node = stage.group.nodes[name]
    began = slot(node.store_dir, Slot.WRITTEN)
    body = msgpack.packb(
        {
            "messages": [{"body": bytes([65 + number]) * BODY_SIZE} for number in range(BODIES)],
            "ack": "memory",
            "timeout_ms": 1000,
        }
    )
    headers = {"Content-Type": MSGPACK, "Accept": "application/json"}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    answered = "nothing"
    try:
        async with (
            asyncio.timeout(GIVE_UP_S),
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
        ):
            while slot(node.store_dir, Slot.WRITTEN) - began < size:
                url = f"{node.api_url}/v1/topics/{TOPIC}/messages"
                async with session.post(url, data=body) as answer:
                    answered = f"{answer.status} {(await answer.text())[:300]}"
                    if answer.status != 200:
                        raise DrillFailed(f"{name} takes no tail: {answered}")
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise DrillFailed(
            f"{name} took {slot(node.store_dir, Slot.WRITTEN) - began} bytes of a tail of "
            f"{size}: {error!r}; it answered {answered}"
        ) from None
    return slot(node.store_dir, Slot.WRITTEN) - began
