"""``PUT /v1/groups/{group}/nodes/{node}``: reads, checks and applies what a node reports.

A body counts against a budget while it arrives, that of an unknown node against another budget than
those of registered nodes. Small ones do not count: ``connections_max`` bounds them. A body is
charged to its address first, and to the node once the signature is valid: strangers cannot keep a
registered node from renewing its entry. Step after: ``core.directory``.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Final

import msgspec
from aiohttp import hdrs, web

from services.names.config import NamesConfig
from services.names.core import pace
from services.names.core.directory import Directory
from services.names.core.pace import Pace
from services.names.core.table import Changes
from services.names.metrics import NamesMetrics
from shared.cluster import signature
from shared.cluster.routes import NAME_PATTERN, Registration
from shared.runtime.budget import Budget
from shared.runtime.media_types import Encoding, of_request
from shared.runtime.rate_limited_logger import RateLimitedLogger
from tidemark.clock import Clock
from tidemark.errors import BadName, BadRequest, MessageTooLarge, SlowRequest

_NAME: Final = re.compile(NAME_PATTERN)
_JSON: Final = msgspec.json.Decoder(Registration)
_MSGPACK: Final = msgspec.msgpack.Decoder(Registration)
_ADVICE: Final = "A broker tries again by itself."


class Registrations:
    """Takes the registrations of one instance."""

    def __init__(
        self,
        config: NamesConfig,
        secret: bytes | None,
        directory: Directory,
        metrics: NamesMetrics,
        clock: Clock,
        limited_log: RateLimitedLogger,
    ) -> None:
        """secret: registrations must be signed with it; None: any is taken."""
        self._size_max, self._timeout_s = config.registration_size_max, config.read_timeout_s
        self._secret = secret
        self._directory = directory
        self._metrics = metrics
        self._clock = clock
        self._limited_log = limited_log
        size = config.waiting_bytes_max
        self._of_known = Budget("bytes of registrations in memory", size, _ADVICE)
        self._of_strangers = Budget("bytes of registrations of unknown nodes", size, _ADVICE)
        self._pace_of_nodes, self._pace_of_addresses = Pace(pace.NODE), Pace(pace.ADDRESS)

    async def take(self, request: web.Request) -> Changes:
        """Apply the registration in a request; return what has changed.

        Raises RegistrationRefused, RequestError and Overloaded; nothing is changed then.
        """
        group = _name(request, "group")
        node = _name(request, "node")
        body = await self._body(request, group, node)
        began_s = self._clock.monotonic()
        self._check_signature(request, body)
        self._pace_of_nodes.admit(f"node {node} of broker group {group}", len(body), began_s)
        said = _decoded(body, of_request(request.headers.get(hdrs.CONTENT_TYPE)))
        before = self._directory.table.groups.get(group)
        master = None if before is None else before.master
        changes = self._directory.register(group, node, said, began_s)
        self._metrics.register_duration.observe(self._clock.monotonic() - began_s)
        kind = "slave" if said.role != "master" else "whole" if said.topics is not None else ""
        self._metrics.registrations.labels(kind or "difference").inc()
        if said.role == "master" and master != node:
            self._limited_log.say(
                f"master of {group}",
                "master-registered",
                "a broker group has another master",
                level=logging.INFO,
                group=group,
                node=node,
                epoch=said.epoch,
                before=master,
            )
        return changes

    async def _body(self, request: web.Request, group: str, node: str) -> bytes:
        """Read the body within its bounds of size, memory, time and pace."""
        size = request.content_length
        if size is None:
            raise BadRequest("a registration needs Content-Length.", field="Content-Length")
        if size > self._size_max:
            raise MessageTooLarge(
                f"the registration has {size} bytes, {self._size_max} are allowed. Nothing was "
                "changed.",
                "Remove topics that are not needed, or raise registration_size_max of the name "
                "services.",
                limit=self._size_max,
            )
        found = self._directory.table.groups.get(group)
        is_known = found is not None and node in found.nodes
        self._pace_of_addresses.admit(str(request.remote), size, self._clock.monotonic())
        budget = self._of_known if is_known else self._of_strangers
        return await self._arrived(request, budget if size > pace.COST_MIN else None)

    async def _arrived(self, request: web.Request, budget: Budget | None) -> bytes:
        parts: list[bytes] = []
        taken = 0
        try:
            async with asyncio.timeout(self._timeout_s):
                while part := await request.content.readany():
                    if budget is not None:
                        budget.take(len(part), taken)
                    taken += len(part)
                    parts.append(part)
        except TimeoutError:
            raise SlowRequest(
                f"after {self._timeout_s} s only {taken} bytes of the registration had arrived. "
                "Nothing was changed.",
                limit=self._timeout_s,
            ) from None
        except web.RequestPayloadError as error:
            raise BadRequest(f"the body is broken: {error}. Nothing was changed.") from None
        finally:
            if budget is not None:
                budget.give_back(taken)
        return b"".join(parts)

    def _check_signature(self, request: web.Request, body: bytes) -> None:
        if self._secret is not None:
            signature.check(
                self._secret,
                request.headers.get(signature.HEADER),
                self._clock.wall_ms(),
                request.method,
                request.raw_path,
                body,
            )


def _name(request: web.Request, what: str) -> str:
    name = request.match_info[what]
    if not _NAME.match(name):
        raise BadName(
            f"{what} {name[:60]!r} is not a name: 1 to 127 of the characters a-z A-Z 0-9 _ . -.",
            "Choose another name.",
            field=what,
        )
    return name


def _decoded(body: bytes, encoding: Encoding) -> Registration:
    """Return the registration. Raises BadRequest."""
    try:
        return (_JSON if encoding is Encoding.JSON else _MSGPACK).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(
            f"the registration is not understood: {error}. Nothing was changed."
        ) from None
