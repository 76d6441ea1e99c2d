"""The calls of delayed messages: list and cancel.

Step before: ``http_api`` has the route. Step after: ``delayed``.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from services.broker.api.calls import CallTools, Route, answer
from services.broker.api.http_requests import query_of
from services.broker.delay.listing import ListTime
from services.broker.schema.delayed import CancelledMessages, CancelQuery, DelayedQuery
from tidemark.errors import BadRequest
from tidemark.formats.produce_wire import UNIQUE_ID_SIZE_MAX


class DelayCalls:
    """The HTTP calls below ``/v1/delayed``."""

    def __init__(self, tools: CallTools) -> None:
        self._tools = tools

    @property
    def routes(self) -> Sequence[Route]:
        """Return all routes."""
        return (
            Route("GET", "/v1/delayed", "delayed", self._list),
            Route("DELETE", "/v1/delayed/{unique_id}", "delayed-cancel", self._cancel),
        )

    async def _list(self, request: web.Request) -> web.StreamResponse:
        asked = query_of(request, DelayedQuery)
        after = None if asked.after is None else parse_after(asked.after)
        delayed = self._tools.for_reads().delayed
        page = await delayed.page(after, asked.topic, asked.count_max)
        return answer(
            request,
            {
                "messages": list(page.messages),
                "pending": delayed.pending,
                "next": None if page.after is None else after_text(page.after),
            },
        )

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        asked = query_of(request, CancelQuery)
        unique_id = request.match_info["unique_id"]
        if len(unique_id) > UNIQUE_ID_SIZE_MAX:
            raise BadRequest(
                f"a unique id has at most {UNIQUE_ID_SIZE_MAX} characters, not {len(unique_id)}.",
                field="unique_id",
                limit=UNIQUE_ID_SIZE_MAX,
            )
        cancelled = await self._tools.for_changes().delayed.cancel(
            unique_id, asked.topic, is_retry=asked.retry == "true"
        )
        return answer(request, CancelledMessages(len(cancelled), unique_id, list(cancelled)))


def after_text(after: ListTime) -> str:
    """Return the position of the next page as the text of ``next``."""
    return "-".join(map(str, after))


def parse_after(text: str) -> ListTime:
    """Parse ``next`` of the previous page, whose form has been checked."""
    return ListTime(*map(int, text.split("-")))
