"""The call that shows retention: ``GET /v1/retention``. It holds no rules.

Step before: ``http_api`` routes. Step after: ``keeper`` answers.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from services.broker.api.calls import CallTools, Route, answer
from services.broker.api.http_requests import query_of
from services.broker.schema.values import NoParameters


class RetentionCalls:
    """The calls that show retention."""

    def __init__(self, tools: CallTools) -> None:
        self._tools = tools

    @property
    def routes(self) -> Sequence[Route]:
        """Return all routes."""
        return [Route("GET", "/v1/retention", "retention", self._get)]

    async def _get(self, request: web.Request) -> web.StreamResponse:
        query_of(request, NoParameters)
        return answer(request, self._tools.for_reads().retention.as_dict())
