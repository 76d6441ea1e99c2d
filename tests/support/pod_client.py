"""A program in a pod: it sends through the name services, and at the end reads what was acked.

It uses only what programs of users do: the URLs of the name services in ``NAMES``, and the client.
Messages without a key go to any broker group; those with a key keep their queue, and so wait for
its broker group. After SIGUSR1 it reads all messages and prints which are missing.
``cluster_on_pods`` starts it, and reads its lines.
"""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import count

import tidemark
from tidemark.errors import TidemarkError

TOPIC = "orders"
PAUSE_S = 0.02
SEND_MS = 60_000
READ_S = 120.0


async def send(
    mq: tidemark.Client, name: str, key: str | None, acked: set[bytes], stop: asyncio.Event
) -> None:
    """Send numbered messages until stop; print each ack with its broker group."""
    for number in count():
        if stop.is_set():
            return
        body = f"{name}-{number}".encode()
        try:
            sent = await mq.send(
                TOPIC, body, sharding_key=key, ack="replicated", timeout_ms=SEND_MS
            )
        except TidemarkError as error:
            print(f"failed {error.code}: {error}", flush=True)
        else:
            acked.add(body)
            print(f"acked {sent.broker_group} {sent.queue} {name}", flush=True)
        await asyncio.sleep(PAUSE_S)


async def read(mq: tidemark.Client, wanted: set[bytes]) -> None:
    """Take messages from the beginning until none is missing, or for READ_S."""
    try:
        async with (
            asyncio.timeout(READ_S),
            mq.subscribe(TOPIC, group="finder", start="first") as messages,
        ):
            async for message in messages:
                wanted.discard(message.body)
                if not wanted:
                    return
    except TimeoutError:
        print(f"missing: {sorted(wanted)[:20]}", flush=True)


async def main() -> None:
    """Send, read, and wait for the end of the pod."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stop.set)
    async with tidemark.connect(os.environ["NAMES"]) as mq:
        await mq.create_topic(TOPIC, queues=4)
        acked: set[bytes] = set()
        await asyncio.gather(
            send(mq, "plain", None, acked, stop),
            *(send(mq, key, key, acked, stop) for key in "abcd"),
        )
        missing = set(acked)
        await read(mq, missing)
        print(f"lost {len(missing)} of {len(acked)}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
