"""The API calls of one member of one group: sends requests and decodes the answers.

It does not decide when to call. Errors are the broker's, typed by their code. Calls that belong to
a generation are not repeated here, because their callers have to change them first (``member``,
``fetching``, ``committing``).
"""

from __future__ import annotations

import functools
import secrets
import struct
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from tidemark import errors
from tidemark.client.answers import RECORDS, Answer
from tidemark.client.connection import Connection
from tidemark.client.consumer import check_records
from tidemark.client.groups import Groups
from tidemark.client.paths import path
from tidemark.client.queue_names import NUMBERS, Queue, QueueNames
from tidemark.formats.message import Source

_SIZE: Final = struct.Struct(">I")
"""Size in bytes of the map before the records of a fetch."""
NEW_FIELDS: Final = frozenset({"incarnation", "paused", "sequence", "nack_id", "retry"})
"""Fields that a broker of the previous version rejects by name; it works without them."""


class Joined(NamedTuple):
    """The broker's answer to a join or a heartbeat."""

    generation: int
    assignment: list[Queue]
    session_ms: int
    order: bool
    """Whether a queue's next messages are delivered only after those before are committed or
    nacked."""
    broadcast: bool
    """Whether every member has all queues, and nothing is committed or nacked."""
    retry_max: int
    kept: Collection[Queue] = ()
    """After a join: the assigned queues that this member owned before the broker restarted and that
    had no other owner since. Empty if the broker does not report them."""


class FetchedQueue(NamedTuple):
    """The part of a fetch answer for one queue."""

    queue: Queue
    status: str
    """RetrievalStatus, as in pulls (docs/formats.md, section 11)."""
    from_offset: int
    next_offset: int
    min_offset: int
    records: memoryview
    """Whole records, one after another; empty if only the position changed."""


class Fetched(NamedTuple):
    """The answer to one fetch."""

    generation: int
    queues: list[FetchedQueue]
    poll_after_ms: int | None = None
    """Set if the broker could not hold the call: when to call again."""


class GroupCalls:
    """The calls of one member."""

    def __init__(
        self, connection: Connection, group: str, member: str, names: QueueNames = NUMBERS
    ) -> None:
        """names: how the program names the queues of the broker group."""
        self.connection, self.names = connection, names
        self._group, self._member = path("groups", group), path("groups", group, "members", member)
        self.group, self.member = group, member
        self._incarnation = secrets.token_hex(8)
        """Distinguishes this member from another program's that uses the same name."""
        self._unknown: set[str] = set()
        """Those ``NEW_FIELDS`` that the broker of this membership has rejected."""
        self._fetch_count = 0

    def __str__(self) -> str:
        """Return the name used in log messages."""
        at = "" if self.names is NUMBERS else f" at broker group {self.names.broker_group}"
        return f"member {self.member!r} of group {self.group!r}{at}"

    async def configure(self, settings: Mapping[str, object]) -> None:
        """Create the group, or change these settings."""
        await self.connection.call("PUT", self._group, body=settings, idempotent=True)

    async def heartbeat(
        self,
        subscriptions: Mapping[str, str],
        *,
        session_ms: int,
        holding: Sequence[Queue],
        generation: int | None,
        timeout_s: float | None = None,
    ) -> Joined:
        """Send a heartbeat with the subscriptions and the queues that the member still holds.

        generation: None joins anew. Raises UnknownMember if the broker does not know the member,
        MemberFenced if another program has joined under its name.
        timeout_s: time limit of the call; None: the client's default.
        """
        body: dict[str, object] = {
            "subscriptions": [
                {"topic": topic, "tags": tags} for topic, tags in subscriptions.items()
            ],
            "session_ms": session_ms,
            "holding": [self._packed_queue(queue) for queue in holding],
            "incarnation": self._incarnation,
        }
        if generation is None:
            self._unknown.clear()  # the broker may have been upgraded since
        else:
            body["generation"] = generation
        answer = await self._with_known(
            body,
            functools.partial(
                self.connection.call,
                "POST",
                self._member,
                idempotent=True,
                retry_for_s=None if generation is None else 0.0,
                ends_in_s=timeout_s,
            ),
        )
        wire = answer.map()
        try:
            return Joined(
                generation=wire["generation"],
                assignment=[(topic, self.names.name(queue)) for topic, queue in wire["assignment"]],
                session_ms=wire["session_ms"],
                order=wire["order"],
                broadcast=wire["broadcast"],
                retry_max=wire["retry_max"],
                kept=frozenset(
                    (topic, self.names.name(queue)) for topic, queue in wire.get("kept", ())
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _lacking("a heartbeat", error) from error

    async def leave(self) -> None:
        """Leave the group, which releases all queues. It is no error if the member or the group is
        unknown."""
        try:
            is_known = "incarnation" not in self._unknown
            query = {"incarnation": self._incarnation if is_known else None}
            await self.connection.call("DELETE", self._member, query=query, idempotent=True)
        except (errors.UnknownMember, errors.UnknownGroup):
            return

    async def fetch(
        self,
        *,
        generation: int,
        count_max: int,
        size_max: int,
        wait_ms: int,
        timeout_s: float,
        positions: Iterable[tuple[Queue, int]],
        paused: Sequence[Queue] = (),
    ) -> Fetched:
        """Wait up to ``wait_ms``, plus ``timeout_s`` for the answer, for messages of any queue.

        positions: the broker first sets its cursors of these queues. An answer that does not arrive
        has advanced the cursors all the same. paused: queues to exclude; a broker of the previous
        version ignores it.

        A cancelled fetch that reaches the broker after a later one moves no cursor: the broker
        compares their sequence numbers.
        """
        self._fetch_count += 1
        body: dict[str, object] = {
            "generation": generation,
            "sequence": self._fetch_count,
            "max": count_max,
            "max_bytes": size_max,
            "wait_ms": wait_ms,
        }
        placed = [self._position(*each) for each in positions]
        if placed:
            body["positions"] = placed
        if paused:
            body["paused"] = [self._packed_queue(queue) for queue in paused]
        answer = await self._with_known(
            body,
            functools.partial(
                self.connection.call,
                "POST",
                f"{self._member}/fetch",
                idempotent=False,
                accept=RECORDS,
                retry_for_s=0.0,
                wait_s=wait_ms / 1000,
                ends_in_s=timeout_s,
                is_held=True,
            ),
        )
        return read_fetched(answer.body, self.names)

    async def check(self, fetched: FetchedQueue) -> None:
        """Let the broker check the records that it has sent. Raises CorruptRecord."""
        topic, queue = fetched.queue
        start, end = fetched.from_offset, fetched.next_offset
        await check_records(self.connection, (topic, self.names.number(queue)), start, end)

    async def commit(
        self, offsets: Mapping[Queue, int], *, generation: int, ack: str | None = None
    ) -> None:
        """Commit offsets, all or none. ack: ``disk`` waits until the commit is on disk."""
        body: dict[str, object] = {
            "member": self.member,
            "generation": generation,
            "offsets": [self._position(*each) for each in offsets.items()],
        }
        if ack is not None:
            body["ack"] = ack
        await self.connection.call(
            "POST", f"{self._group}/offsets", body=body, idempotent=True, retry_for_s=0.0
        )

    async def committed(self) -> dict[Queue, int]:
        """Return every committed offset of the group."""
        return await Groups(self.connection, self.names).offsets(self.group)

    async def nack(
        self,
        source: Source,
        *,
        generation: int,
        delay_level: int,
        nack_id: str,
        is_repeat: bool,
    ) -> None:
        """Nack one message.

        nack_id: identifies this nack and its repetitions; the broker stores one copy for them. A
        broker of the previous version stores a copy for each. is_repeat: the nack may have been
        carried out before.

        Raises StaleGeneration, UnknownMember or NotAssigned for a fenced member. The new owner of
        the queue gets the message anyway, and another copy would be one too many.
        """
        body: dict[str, object] = {
            "topic": source.topic,
            "queue": self.names.number(source.queue),
            "queue_offset": source.queue_offset,
            "member": self.member,
            "generation": generation,
        }
        if delay_level:
            body["delay_level"] = delay_level
        body["nack_id"] = nack_id
        if is_repeat:
            body["retry"] = True

        async def call(body: Mapping[str, object]) -> Answer:
            may_mark_retry = "nack_id" in body and "retry" not in self._unknown
            repeat = {**body, "retry": True} if may_mark_retry else body
            return await self.connection.call(
                "POST",
                f"{self._group}/nack",
                body=body,
                again=functools.partial(_packed, repeat),
                idempotent=True,
            )

        await self._with_known(body, call)

    def _packed_queue(self, queue: Queue) -> list[object]:
        topic, name = queue
        return [topic, self.names.number(name)]

    def _position(self, queue: Queue, offset: int) -> dict[str, object]:
        topic, name = queue
        return {"topic": topic, "queue": self.names.number(name), "offset": offset}

    async def _with_known(
        self, body: Mapping[str, object], call: Callable[..., Awaitable[Answer]]
    ) -> Answer:
        """Make a call; repeat it without a new field that the broker rejects by name."""
        while True:
            known = {name: value for name, value in body.items() if name not in self._unknown}
            try:
                return await call(body=known)
            except errors.BadRequest as error:
                field = error.facts.get("field")
                if not isinstance(field, str) or field not in NEW_FIELDS - self._unknown:
                    raise
                self._unknown.add(field)


def read_fetched(body: bytes, names: QueueNames = NUMBERS) -> Fetched:
    """Decode the answer to a fetch. Records borrow from ``body``. Raises BrokenAnswer."""
    view = memoryview(body)
    try:
        (size,) = _SIZE.unpack_from(view)
        at = _SIZE.size + size
        if at > len(view):
            raise ValueError(f"a map of {size} bytes in an answer of {len(view)}")
        wire: dict[str, Any] = msgpack.unpackb(view[_SIZE.size : at])
        queues: list[FetchedQueue] = []
        for each in wire["queues"]:
            end = at + each["size"]
            queues.append(
                FetchedQueue(
                    (each["topic"], names.name(each["queue"])),
                    each["status"],
                    each["from_offset"],
                    each["next_offset"],
                    each["min_offset"],
                    view[at:end],
                )
            )
            at = end
        if at != len(view):
            raise ValueError(f"records of {at} bytes in an answer of {len(view)}")
        return Fetched(wire["generation"], queues, wire.get("poll_after_ms"))
    except (KeyError, TypeError, ValueError, struct.error, msgpack.UnpackException) as error:
        raise _lacking("a fetch", error) from error


def _packed(body: Mapping[str, object]) -> bytes:
    packed: bytes = msgpack.packb(body)
    return packed


def _lacking(what: str, error: Exception) -> errors.BrokenAnswer:
    return errors.BrokenAnswer(f"the answer to {what} cannot be read: {error!r}")
