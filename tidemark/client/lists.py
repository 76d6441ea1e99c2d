"""Reads a list that the broker answers in pages, one page after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from tidemark import errors
from tidemark.client.connection import Connection
from tidemark.client.paths import path


async def listed(
    connection: Connection, what: str, *, is_plain_read: bool = False
) -> AsyncIterator[Mapping[str, Any]]:
    """Yield all entries of ``/v1/WHAT`` in order. what: ``topics`` or ``groups``.

    Raises BrokenAnswer for an answer that is not a page or does not advance.
    """
    after: str | None = None
    while True:
        answer = await connection.call(
            "GET",
            path(what),
            query={"after": after},
            idempotent=True,
            is_plain_read=is_plain_read,
        )
        wire = answer.map()
        entries, following = wire.get(what), wire.get("next")
        if not isinstance(entries, list):
            raise errors.BrokenAnswer(f"the answer to a list of {what} has no list `{what}`")
        for entry in entries:
            yield entry
        if following is None:  # brokers without paging answer the whole list at once
            return
        if not isinstance(following, str) or (after is not None and following <= after):
            raise errors.BrokenAnswer(
                f"the answer to a list of {what} continues at {following!r}, the previous one at "
                f"{after!r}: the list would never end"
            )
        after = following
