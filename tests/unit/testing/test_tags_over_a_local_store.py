"""A client that selects one tag of many, over the real store."""

from __future__ import annotations

import asyncio
from typing import Final

import tidemark
from tidemark.testing import LocalStore

pytest_plugins = ["tidemark.testing.fixtures"]

OTHERS: Final = 3000
IN_FLIGHT_MAX: Final = 200
"""Fewer than there are others: a fetch reads several times before it finds a message."""


async def test_a_message_behind_many_of_other_tags_comes(tidemark_store: LocalStore) -> None:
    async with tidemark.connect(tidemark_store.url) as mq:
        await mq.create_topic("orders", queues=1)
        await asyncio.gather(*(mq.send("orders", b"old", tags="old") for _ in range(OTHERS)))
        await mq.send("orders", b"new", tags="new")
        subscribed = mq.subscribe(
            "orders", group="billing", tags="new", max_in_flight=IN_FLIGHT_MAX
        )
        async with subscribed as messages:
            message = await asyncio.wait_for(anext(aiter(messages)), 30)
            assert message.body == b"new"
