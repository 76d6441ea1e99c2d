"""The calls of delayed messages: list and cancel.

Step before: ``http_api`` has the route. Step after: ``delayed``.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from services.broker.api.calls import CallTools, Route, answer
from services.broker.api.http_requests import number, parameters
from services.broker.api.openapi_delayed import LIST_DEFAULT, LIST_MAX
from services.broker.delay.listing import ListTime
from services.broker.fields import check_name, one_of, parameter_int, shown
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
        given = parameters(request, frozenset({"topic", "max", "after"}))
        topic = check_name(given["topic"]) if "topic" in given else None
        count_max = number(given, "max", LIST_DEFAULT, 1, LIST_MAX)
        after = parse_after(given["after"]) if "after" in given else None
        self._tools.gate.check_reads()
        delayed = self._tools.parts().delayed
        page = await delayed.page(after, topic, count_max)
        return answer(
            request,
            {
                "messages": list(page.messages),
                "pending": delayed.pending,
                "next": None if page.after is None else after_text(page.after),
            },
        )

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        given = parameters(request, frozenset({"topic", "retry"}))
        topic = check_name(given["topic"]) if "topic" in given else None
        is_retry = one_of(given.get("retry", "false"), "retry", ["false", "true"]) == "true"
        unique_id = request.match_info["unique_id"]
        if len(unique_id) > UNIQUE_ID_SIZE_MAX:
            raise BadRequest(
                f"a unique id has at most {UNIQUE_ID_SIZE_MAX} characters, not {len(unique_id)}.",
                field="unique_id",
                limit=UNIQUE_ID_SIZE_MAX,
            )
        self._tools.gate.check_sends()
        cancelled = await self._tools.parts().delayed.cancel(unique_id, topic, is_retry=is_retry)
        return answer(
            request,
            {
                "cancelled": len(cancelled),
                "unique_id": unique_id,
                "deliver_at_ms": list(cancelled),
            },
        )


def after_text(after: ListTime) -> str:
    """Return the position of the next page as the text of ``next``."""
    return "-".join(map(str, after))


def parse_after(text: str) -> ListTime:
    """Parse ``next`` of the page before. Raises BadRequest."""
    parts = text.split("-")
    if len(parts) != len(ListTime._fields):
        raise BadRequest(
            f"after must be the next of an earlier answer, not {shown(text)}.", field="after"
        )
    return ListTime(*(parameter_int(part, "after", 0) for part in parts))
