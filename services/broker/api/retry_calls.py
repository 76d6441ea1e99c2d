"""The calls for messages that a group could not handle: nack, dead letters, redrive, trace.

They hold no rules.
Step before: ``http_api`` routes. Step after: ``send_back``, ``dead_letters``, ``redrive``,
``trace``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from aiohttp import web

from services.broker.api.calls import CallTools, Route, answer, encoding_of
from services.broker.api.encodings import Encoding
from services.broker.api.http_requests import number, parameters
from services.broker.fields import (
    I64_MAX,
    check_name,
    known_fields,
    one_of,
    shown,
    string,
    table,
    whole_number,
)
from services.broker.groups.dead_letters import LetterFilter
from services.broker.groups.redrive import RedriveRequest
from services.broker.groups.stored_messages import Place
from tidemark.errors import BadRequest
from tidemark.formats.nack import NACK_ID_SIZE_MAX

I32_MAX: Final = (1 << 31) - 1
DEAD_MAX: Final = 1000
DEAD_DEFAULT: Final = 100
REDRIVE_MAX: Final = 10_000
REDRIVE_DEFAULT: Final = 1000
ID_SIZE_MAX: Final = 255
"""Bound of the characters of an id in a path: producers choose their unique ids."""
NACK_FIELDS: Final = frozenset(
    {
        "message_id",
        "topic",
        "queue",
        "queue_offset",
        "delay_level",
        "member",
        "generation",
        "without_member",
        "nack_id",
        "retry",
    }
)
REDRIVE_FIELDS: Final = frozenset(
    {"to", "topic", "key", "begin_ms", "end_ms", "message_id", "from_offset", "max", "dry_run"}
)
DEAD_PARAMETERS: Final = frozenset({"from_offset", "max", "topic"})
TRACE_PARAMETERS: Final = frozenset({"topic"})


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
        parameters(request, frozenset())
        group = _group_of(request)
        self._tools.gate.check_sends()
        async with self._tools.bodies.read(request) as body:
            fields = known_fields(table(body, "the request body"), NACK_FIELDS, "")
            member, generation = fields.get("member"), fields.get("generation")
            if generation is not None and member is None:
                raise BadRequest("generation goes with member only.", field="generation")
            without = _flag(fields, "without_member")
            if without and member is not None:
                raise BadRequest("give either member or without_member.", field="without_member")
            nack_id, is_repeat = _nack_id(fields), _flag(fields, "retry")
            if is_repeat and nack_id is None:
                raise BadRequest("retry goes with nack_id only.", field="retry")
            sent = await self._tools.parts().groups.send_back.nack(
                group,
                _message(fields),
                delay_level=_optional(fields, "delay_level", -I32_MAX, I32_MAX) or 0,
                member=None if member is None else check_name(string(member, "member"), "member"),
                generation=_optional(fields, "generation", 0, I64_MAX),
                without_member=without,
                nack_id=nack_id,
                is_repeat=is_repeat,
            )
            if (trace := self._tools.traces.of(request.headers)) is not None:
                trace.sent_back(group, _message(fields), sent.as_dict())
        return answer(request, sent.as_dict())

    async def _dead(self, request: web.Request) -> web.StreamResponse:
        given = parameters(request, DEAD_PARAMETERS)
        group = _group_of(request)
        topic = given.get("topic")
        wanted = LetterFilter(None if topic is None else check_name(topic))
        self._tools.gate.check_reads()
        letters = self._tools.parts().groups.redrive.letters
        self._check_group(group)
        listed = await letters.list(
            group,
            wanted,
            number(given, "from_offset", 0, 0, I64_MAX),
            number(given, "max", DEAD_DEFAULT, 1, DEAD_MAX),
        )
        return answer(request, listed)

    async def _redrive(self, request: web.Request) -> web.StreamResponse:
        parameters(request, frozenset())
        group = _group_of(request)
        self._tools.gate.check_sends()
        if request.body_exists:
            async with self._tools.bodies.read(request) as body:
                wanted = _redrive_request(table(body, "the request body"))
        else:
            wanted = _redrive_request({})
        self._check_group(group)
        done = await self._tools.parts().groups.redrive.redrive(group, wanted)
        return answer(request, done.as_dict())

    async def _trace(self, request: web.Request) -> web.StreamResponse:
        given = parameters(request, TRACE_PARAMETERS)
        message_id = request.match_info["message_id"]
        if len(message_id) > ID_SIZE_MAX:
            raise BadRequest(
                f"message_id {shown(message_id)} has more than {ID_SIZE_MAX} characters.",
                field="message_id",
            )
        topic = given.get("topic")
        if topic is not None:
            check_name(topic)
        self._tools.gate.check_reads()
        tracer = self._tools.parts().groups.tracer
        trace = await tracer.trace(message_id, topic)
        json_body = encoding_of(request) is Encoding.JSON
        return answer(request, trace.as_dict(tracer.as_map(trace.message, json_body=json_body)))

    def _check_group(self, group: str) -> None:
        """Raise UnknownGroup unless the group exists or has dead letters, which outlive it."""
        parts = self._tools.parts()
        if not parts.groups.redrive.letters.exist(group):
            parts.groups.configs.get(group)


def _group_of(request: web.Request) -> str:
    return check_name(request.match_info["group"], "group")


def _message(fields: Mapping[str, object]) -> str | Place:
    """Parse the message that a nack refers to: an id, or its topic, queue and offset."""
    place = [fields.get(name) for name in ("topic", "queue", "queue_offset")]
    if fields.get("message_id") is not None:
        if place != [None, None, None]:
            raise BadRequest(
                "give either message_id or topic, queue and queue_offset.", field="message_id"
            )
        return string(fields["message_id"], "message_id")
    if None in place:
        raise BadRequest(
            "the message is not named: give message_id, or topic, queue and queue_offset.",
            field="message_id",
        )
    return Place(
        check_name(string(place[0], "topic")),
        whole_number(place[1], "queue", 0, I32_MAX),
        whole_number(place[2], "queue_offset", 0, I64_MAX),
    )


def _nack_id(fields: Mapping[str, object]) -> str | None:
    """Parse the caller's id of this nack and its repetitions; it is stored in a property."""
    value = fields.get("nack_id")
    if value is None:
        return None
    name = check_name(string(value, "nack_id"), "nack_id")
    if len(name) > NACK_ID_SIZE_MAX:
        raise BadRequest(
            f"nack_id {shown(name)} has more than {NACK_ID_SIZE_MAX} characters.", field="nack_id"
        )
    return name


def _redrive_request(body: Mapping[str, object]) -> RedriveRequest:
    fields = known_fields(body, REDRIVE_FIELDS, "")
    to = fields.get("to")
    topic = _text(fields, "topic")
    matched_max = _optional(fields, "max", 1, REDRIVE_MAX)
    return RedriveRequest(
        to_group=to is not None and one_of(to, "to", ["topic", "group"]) == "group",
        filter=LetterFilter(
            topic=None if topic is None else check_name(topic),
            key=_text(fields, "key"),
            begin_ms=_optional(fields, "begin_ms", 0, I64_MAX),
            end_ms=_optional(fields, "end_ms", 0, I64_MAX),
            message_id=_text(fields, "message_id"),
        ),
        from_offset=_optional(fields, "from_offset", 0, I64_MAX) or 0,
        matched_max=REDRIVE_DEFAULT if matched_max is None else matched_max,
        dry_run=_flag(fields, "dry_run"),
    )


def _optional(fields: Mapping[str, object], name: str, low: int, high: int) -> int | None:
    value = fields.get(name)
    return None if value is None else whole_number(value, name, low, high)


def _text(fields: Mapping[str, object], name: str) -> str | None:
    value = fields.get(name)
    return None if value is None else string(value, name)


def _flag(fields: Mapping[str, object], name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{name} must be true or false, not {shown(value)}.", field=name)
    return bool(value)
