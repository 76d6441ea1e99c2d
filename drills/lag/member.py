"""``python -m drills.lag.member TOPIC GROUP SESSION_MS URL…``: reads until killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import tidemark


async def read(topic: str, group: str, session_ms: int, urls: Sequence[str]) -> None:
    async with (
        tidemark.connect(list(urls)) as client,
        client.subscribe(topic, group=group, session_ms=session_ms) as messages,
    ):
        async for _ in messages.batches():
            pass


if __name__ == "__main__":
    asyncio.run(read(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
