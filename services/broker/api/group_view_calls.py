"""The call that shows one group: ``GET /v1/groups/{group}``. It holds no rules.

Step before: ``http_api`` routes. Step after: ``views`` answers.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from services.broker.api.calls import CallTools, Route, answer
from services.broker.api.http_requests import query_of
from services.broker.fields import check_name
from services.broker.schema.values import NoParameters


class GroupViewCalls:
    """The calls that show groups."""

    def __init__(self, tools: CallTools) -> None:
        self._tools = tools

    @property
    def routes(self) -> Sequence[Route]:
        """Return all routes."""
        return [Route("GET", "/v1/groups/{group}", "group-get", self._get)]

    async def _get(self, request: web.Request) -> web.StreamResponse:
        query_of(request, NoParameters)
        group = check_name(request.match_info["group"], "group")
        return answer(request, await self._tools.for_reads().groups.views.one(group))
