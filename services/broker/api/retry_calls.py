"""The calls for messages that a group could not handle: nack, dead letters, redrive, trace.

They hold no rules.
Step before: ``http_api`` routes. Step after: ``nacks``, ``dead_letters``, ``redrive``,
``trace``.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from services.broker.api.calls import CallTools, Route, answer, encoding_of
from services.broker.api.encodings import Encoding
from services.broker.api.http_requests import query_of
from services.broker.fields import check_name, shown
from services.broker.groups.components import GroupComponents
from services.broker.groups.dead_letters import LetterFilter
from services.broker.groups.redrive import RedriveRequest
from services.broker.groups.stored_messages import Place
from services.broker.schema.retry import (
    TRACED_ID_SIZE_MAX,
    DeadQuery,
    Nack,
    Redrive,
    TraceQuery,
)
from services.broker.schema.values import NoParameters
from tidemark.errors import BadRequest


class RetryCalls:
    """The HTTP calls for messages that a group could not handle."""

    def __init__(self, tools: CallTools) -> None:
        self._tools = tools

    @property
    def routes(self) -> Sequence[Route]:
        """Return all routes."""
        return [
            Route("POST", "/v1/groups/{group}/nack", "nack", self._nack),
            Route("GET", "/v1/groups/{group}/dead", "dead-list", self._dead),
            Route("POST", "/v1/groups/{group}/redrive", "redrive", self._redrive),
            Route("GET", "/v1/messages/{message_id}/trace", "trace", self._trace),
        ]

    async def _nack(self, request: web.Request) -> web.StreamResponse:
        query_of(request, NoParameters)
        group = _group_of(request)
        async with self._tools.change(request, Nack) as (components, asked):
            message = _message(asked)
            sent = await components.groups.nacks.nack(
                group,
                message,
                delay_level=asked.delay_level,
                member=asked.member,
                generation=asked.generation,
                without_member=asked.without_member,
                nack_id=asked.nack_id,
                is_repeat=asked.retry,
            )
            if (trace := self._tools.traces.of(request.headers)) is not None:
                trace.sent_back(group, message, sent.as_dict())
        return answer(request, sent.as_dict())

    async def _dead(self, request: web.Request) -> web.StreamResponse:
        asked = query_of(request, DeadQuery)
        group = _group_of(request)
        groups = self._tools.for_reads().groups
        _check_group(groups, group)
        listed = await groups.redrive.letters.list(
            group, LetterFilter(asked.topic), asked.from_offset, asked.count_max
        )
        return answer(request, listed)

    async def _redrive(self, request: web.Request) -> web.StreamResponse:
        query_of(request, NoParameters)
        group = _group_of(request)
        async with self._tools.change(request, Redrive, Redrive()) as (components, asked):
            _check_group(components.groups, group)
            done = await components.groups.redrive.redrive(group, _redrive_request(asked))
        return answer(request, done.as_dict())

    async def _trace(self, request: web.Request) -> web.StreamResponse:
        asked = query_of(request, TraceQuery)
        message_id = request.match_info["message_id"]
        if len(message_id) > TRACED_ID_SIZE_MAX:
            raise BadRequest(
                f"message_id {shown(message_id)} has more than {TRACED_ID_SIZE_MAX} characters.",
                field="message_id",
            )
        tracer = self._tools.for_reads().groups.tracer
        trace = await tracer.trace(message_id, asked.topic, asked.queue_offset)
        json_body = encoding_of(request) is Encoding.JSON
        return answer(request, trace.as_dict(tracer.as_map(trace.message, json_body=json_body)))


def _group_of(request: web.Request) -> str:
    return check_name(request.match_info["group"], "group")


def _check_group(groups: GroupComponents, group: str) -> None:
    """Raise UnknownGroup unless the group exists or has dead letters, which outlive it."""
    if not groups.redrive.letters.exist(group):
        groups.configs.get(group)


def _message(asked: Nack) -> str | Place:
    """Return the message that a nack refers to: an id, or its topic, queue and offset."""
    if asked.message_id is not None:
        return asked.message_id
    assert asked.topic is not None
    assert asked.queue is not None
    assert asked.queue_offset is not None
    return Place(asked.topic, asked.queue, asked.queue_offset)


def _redrive_request(asked: Redrive) -> RedriveRequest:
    return RedriveRequest(
        to_group=asked.to == "group",
        filter=LetterFilter(
            topic=asked.topic,
            key=asked.key,
            begin_ms=asked.begin_ms,
            end_ms=asked.end_ms,
            message_id=asked.message_id,
        ),
        from_offset=asked.from_offset,
        matched_max=asked.matched_max,
        dry_run=asked.dry_run,
    )
