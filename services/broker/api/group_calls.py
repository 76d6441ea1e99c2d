"""The calls of groups and their members: configuration, join, leave, fetch, commit, reset.

The calls hold no rules: each parses its request, calls one part and encodes the answer.
Step before: ``http_api`` routes. Step after: ``coordinator``, ``commits``, ``fetch_answers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp import hdrs, web
from msgspec import structs

from services.broker.api import encodings
from services.broker.api.calls import CallTools, Route, answer, encoding_of
from services.broker.api.encodings import Encoding
from services.broker.api.fetch_answers import answer_map, raw_answer
from services.broker.api.http_requests import peer_of, query_of
from services.broker.api.large_answers import LARGE, Reserved
from services.broker.api.traces import HEADER
from services.broker.fields import check_name
from services.broker.groups.fetch import Fetched
from services.broker.groups.views import as_map
from services.broker.limits import DECODED_BYTES_MAX, DECODED_FETCH_MAX
from services.broker.read.listing import page_of
from services.broker.schema.groups import GroupConfig
from services.broker.schema.members import Fetch, Join, Joined, LeaveQuery
from services.broker.schema.offsets import (
    Commit,
    Committed,
    CommittedOffset,
    Offsets,
    Reset,
    ResetDone,
)
from services.broker.schema.parsing import parsed
from services.broker.schema.values import ListQuery, NoParameters
from shared.metrics.instruments import Count

ROOM_MIN: Final = LARGE
"""Bytes that must be free for answers before a fetch that is not raw begins."""


class GroupCalls:
    """The HTTP calls of groups and their members."""

    def __init__(self, tools: CallTools) -> None:
        self._tools = tools
        self._counted_out: dict[tuple[str, str], tuple[Count, Count]] = (
            tools.metrics.registry.kept()
        )

    @property
    def routes(self) -> Sequence[Route]:
        """Return all routes."""
        group, member = "/v1/groups/{group}", "/v1/groups/{group}/members/{member}"
        return [
            Route("GET", "/v1/groups", "groups", self._list),
            Route("PUT", group, "group-put", self._put),
            Route("DELETE", group, "group-delete", self._delete),
            Route("POST", member, "member-join", self._join),
            Route("DELETE", member, "member-leave", self._leave),
            Route("POST", member + "/fetch", "fetch", self._fetch),
            Route("POST", group + "/offsets", "commit", self._commit),
            Route("GET", group + "/offsets", "committed", self._committed),
            Route("POST", group + "/reset", "group-reset", self._reset),
        ]

    async def _list(self, request: web.Request) -> web.StreamResponse:
        asked = query_of(request, ListQuery)
        components = self._tools.for_reads()
        configs, coordinator = components.groups.configs, components.groups.coordinator

        def exists(name: str) -> bool:
            return configs.find(name) is not None

        names = [config.name for config in configs.all()]
        page = await page_of(names, exists, asked, self._tools.clock)
        listed = [
            {
                **as_map(config),
                "members": coordinator.member_count(name),
                "state": coordinator.state(name),
            }
            for name in page.names
            if (config := configs.find(name)) is not None
        ]
        return answer(request, {"groups": listed, "next": page.next})

    async def _put(self, request: web.Request) -> web.StreamResponse:
        group = _plain(request)
        async with self._tools.change(request, GroupConfig, GroupConfig()) as (components, changes):
            config = await components.groups.coordinator.put(group, changes)
        return answer(request, as_map(config))

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        group = _plain(request)
        await self._tools.for_changes().groups.coordinator.delete(group)
        return web.Response(status=204)

    async def _join(self, request: web.Request) -> web.StreamResponse:
        group, member = _plain(request), _member(request)
        async with self._tools.change(request, Join) as (components, join):
            joined = await components.groups.coordinator.join(group, member, join)
        return answer(
            request,
            Joined(
                joined.generation,
                [[*queue] for queue in joined.assignment],
                [[*queue] for queue in joined.kept],
                joined.session_ms,
                joined.config.order,
                joined.config.broadcast,
                joined.config.retry_max,
            ),
        )

    async def _leave(self, request: web.Request) -> web.StreamResponse:
        asked = query_of(request, LeaveQuery)
        group, member = check_name(request.match_info["group"], "group"), _member(request)
        coordinator = self._tools.for_reads().groups.coordinator
        coordinator.leave(group, member, asked.incarnation)
        return web.Response(status=204)

    async def _fetch(self, request: web.Request) -> web.StreamResponse:
        group, member = _plain(request), _member(request)
        fetch, answers = Fetch(), self._tools.answers
        if request.body_exists:
            # Released before the fetch, which may wait long: body bytes count against a limit.
            async with self._tools.bodies.read(request) as body:
                fetch = parsed(body, Fetch)
        components = self._tools.for_reads()
        if not (raw := encodings.wants_records(request.headers.get(hdrs.ACCEPT))):
            # Bounded, because all records are checked in one step of the loop: the member's place
            # moves to the first damaged record.
            fetch = structs.replace(
                fetch,
                bytes_max=min(fetch.bytes_max, DECODED_BYTES_MAX),
                count_max=min(fetch.count_max, DECODED_FETCH_MAX),
            )
            # Checked before the member's places move: moving them back counts as another delivery.
            answers.check(peer_of(request.transport), ROOM_MIN)
        transport = request.transport
        fetched = await components.groups.coordinator.fetch(
            group,
            member,
            fetch,
            lambda: transport is None or transport.is_closing(),
            self._check_role,
            divides_batches=not raw,
        )
        if raw:
            self._count_out(group, fetched)
            self._trace_out(request, group, fetched)
            return raw_answer(fetched)
        json_body = encoding_of(request) is Encoding.JSON
        results = [piece.result for piece in fetched.pieces]
        reserved: Reserved | None = None
        try:
            reserved = answers.reserve(
                request,
                size=sum(each.bytes_total for each in results),
                count=sum(each.message_count for each in results),
            )
            found = answer_map(fetched, components.read.puller.checks_at, json_body=json_body)
            self._count_out(group, fetched)
            self._trace_out(request, group, fetched)
            return answers.answer(request, found, reserved)
        except Exception:
            # Otherwise: 1. one body is damaged or there is no room, and the caller gets an error;
            # 2. its next fetch begins behind everything in this answer; 3. its next commit covers
            # messages that no member got.
            if reserved is not None:
                reserved.release()
            fetched.take_back()
            raise

    async def _commit(self, request: web.Request) -> web.StreamResponse:
        group = _plain(request)
        async with self._tools.change(request, Commit) as (components, commit):
            level = await components.groups.commits.commit(group, commit)
        if (trace := self._tools.traces.of(request.headers)) is not None:
            trace.committed(group, commit.moves, str(level))
        return answer(request, Committed(level))

    async def _committed(self, request: web.Request) -> web.StreamResponse:
        group = _plain(request)
        committed = self._tools.for_reads().groups.commits.committed(group)
        return answer(
            request,
            Offsets(
                [
                    CommittedOffset(topic, queue, offset)
                    for (topic, queue), offset in sorted(committed.items())
                ]
            ),
        )

    async def _reset(self, request: web.Request) -> web.StreamResponse:
        group = _plain(request)
        async with self._tools.change(request, Reset) as (components, reset):
            moved = await components.groups.commits.reset(group, reset)
        return answer(request, ResetDone([*moved], reset.dry_run))

    def _check_role(self) -> None:
        """Raise the gate's error if the node, in a group, serves no reads any more. A standalone
        node that stops answers the fetches that it holds."""
        if self._tools.gate.role is not None:
            self._tools.gate.check_reads()

    def _trace_out(self, request: web.Request, group: str, fetched: Fetched) -> None:
        """Write the delivery to the traces. A fetch without messages is not traced."""
        if HEADER not in request.headers:
            return
        found = [piece for piece in fetched.pieces if piece.result.message_count]
        trace = self._tools.traces.of(request.headers) if found else None
        if trace is not None:
            for piece in found:
                trace.delivered(*piece.queue, piece.result, group)

    def _count_out(self, group: str, fetched: Fetched) -> None:
        for piece in fetched.pieces:
            if piece.result.message_count:
                messages, size = self._counters_of(piece.queue[0], group)
                messages(piece.result.message_count)
                size(piece.result.bytes_total)

    def _counters_of(self, topic: str, group: str) -> tuple[Count, Count]:
        """Cache the counters: looking one up by its labels costs more than counting."""
        metrics = self._tools.metrics
        pair = (topic, group)
        counters = self._counted_out.get(pair)
        if counters is None:
            counters = self._counted_out[pair] = (
                metrics.messages_out.labels(*pair).inc,
                metrics.sent_bytes.labels(*pair).inc,
            )
        return counters


def _plain(request: web.Request) -> str:
    """Return the group in the path of a call that takes no parameters."""
    query_of(request, NoParameters)
    return check_name(request.match_info["group"], "group")


def _member(request: web.Request) -> str:
    return check_name(request.match_info["member"], "member")
