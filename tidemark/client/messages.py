"""What a program gives and gets: messages to send, messages read, results. Values only.

A message read, ``Message``, comes from one of two forms: raw commit log records (what ``pull`` asks
for) or the map of the API (what queries answer). Both are ``formats.message``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from tidemark import errors
from tidemark.client import checks
from tidemark.client.batching import MESSAGE_OVERHEAD
from tidemark.formats import ids
from tidemark.formats.message import Message

__all__ = [
    "Ack",
    "Message",
    "NewMessage",
    "Outgoing",
    "PullResult",
    "QueueRange",
    "RawPull",
    "SendResult",
    "Topic",
    "is_offset_id",
    "outgoing",
]


@dataclass(frozen=True, slots=True)
class NewMessage:
    """One message to send.

    queue: number of the queue; None lets the broker choose one for the request, or ``sharding_key``
    does: equal keys share a queue. At most one of delay_level, delay_ms, deliver_at_ms.
    """

    body: bytes
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    queue: int | None = None
    sharding_key: str | None = None
    flag: int = 0
    delay_level: int | None = None
    delay_ms: int | None = None
    deliver_at_ms: int | None = None

    def __post_init__(self) -> None:
        """Refuse what would be sent as something else than was meant."""
        checks.check_body(self.body)
        checks.check_no_string(self.keys)

    def outgoing(self, queue: int | None = None) -> Outgoing:
        """What goes over the wire; queue: for a message that says nothing of one."""
        return outgoing(
            self.body,
            tags=self.tags,
            keys=self.keys,
            properties=self.properties,
            queue=queue if self.queue is None and self.sharding_key is None else self.queue,
            sharding_key=self.sharding_key,
            flag=self.flag,
            delay_level=self.delay_level,
            delay_ms=self.delay_ms,
            deliver_at_ms=self.deliver_at_ms,
        )


Ack = Literal["memory", "disk", "replicated"]
"""Level at which a send is answered."""


class Outgoing(NamedTuple):
    """A message as the API takes it."""

    wire: dict[str, object]
    """The map of the API; what was not given is left out."""
    weight: int
    """Roughly the bytes that it adds to a request; what batches are bounded by."""


def outgoing(
    body: bytes,
    *,
    tags: str | None = None,
    keys: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    queue: int | None = None,
    sharding_key: str | None = None,
    flag: int = 0,
    delay_level: int | None = None,
    delay_ms: int | None = None,
    deliver_at_ms: int | None = None,
) -> Outgoing:
    """The message as it goes over the wire, checked: packing it cannot fail.

    Raises TypeError, and BadRequest, BadProperty or DelayOutOfRange, as the broker would.
    """
    checks.check_body(body)
    wire: dict[str, object] = {"body": body}
    size = 0
    if tags is not None and tags != "":
        checks.check_text(tags, "tags")
        wire["tags"] = tags
        size += len(tags)
    if keys != () and (listed := checks.check_keys(keys)):
        wire["keys"] = listed
        size += sum(map(len, listed))
    if properties is not None and (pairs := checks.check_properties(properties)):
        wire["properties"] = pairs
        size += sum(len(name) + len(value) for name, value in pairs.items())
    if queue is not None:
        checks.check_whole(queue, "queue", 0, checks.I32_MAX)
        if sharding_key is not None:
            raise errors.BadRequest(
                "a message has both queue and sharding_key; one of them picks the queue. "
                f"{checks.NOTHING_SENT}",
                field="queue",
            )
        wire["queue"] = queue
    if sharding_key is not None:
        checks.check_text(sharding_key, "sharding_key")
        wire["sharding_key"] = sharding_key
        size += len(sharding_key)
    if size:
        checks.check_properties_size(size)
    if flag != 0:
        checks.check_whole(flag, "flag", -checks.I32_MAX - 1, checks.I32_MAX)
        wire["flag"] = flag
    if delay_level is not None or delay_ms is not None or deliver_at_ms is not None:
        name, value = checks.check_delay(
            delay_level=delay_level,
            delay_ms=delay_ms,
            deliver_at_ms=deliver_at_ms,
        )
        wire[name] = value
    return Outgoing(wire, len(body) + size + MESSAGE_OVERHEAD)


class SendResult(NamedTuple):
    """Where one message was stored, and what that is worth.

    level: ``memory``, ``disk`` or ``replicated``, as reached; copies: on how many nodes. A delayed
    message is stored in a topic of the broker's until ``deliver_at_ms``: queue and offsets are that
    topic's.
    """

    message_id: str
    queue: int
    queue_offset: int
    physical_offset: int
    store_timestamp_ms: int
    level: str
    copies: int
    deliver_at_ms: int | None = None
    """When a delayed message is due; None: it was not delayed."""
    unique_id: str | None = None
    """What cancels a delayed message; None where the broker did not say."""


class PullResult(NamedTuple):
    """What a pull gave. ``messages`` is empty, never missing, when there was nothing.

    next_offset: where to pull next. status: RocketMQ's word for why (docs/formats.md, section 11).
    """

    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[Message]
    poll_after_ms: int | None = None
    """The broker was asked to hold the call, and could not: when it is to come again."""


class RawPull(NamedTuple):
    """A pull as the broker answered it: whole records, one after another, not decoded."""

    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    records: memoryview
    poll_after_ms: int | None = None
    """As of ``PullResult``."""


class QueueRange(NamedTuple):
    """One queue of a topic: offsets [min_offset, max_offset) can be read."""

    queue: int
    min_offset: int
    max_offset: int


class Topic(NamedTuple):
    """A topic and its queues."""

    name: str
    queues: int
    ranges: tuple[QueueRange, ...]
    settings: dict[str, Any]
    """All that the broker says of it, as answered."""

    @property
    def write_queues(self) -> int:
        """Queues that take new messages: the first so many."""
        return int(self.settings.get("write_queues", self.queues))

    @property
    def system(self) -> bool:
        """Kept by the broker for itself."""
        return self.settings.get("system") is True


def is_offset_id(text: str) -> bool:
    """Whether a message id is one that names a physical offset (section 2.8), by its form only.

    A unique id has the same length and alphabet; the broker is asked first by offset, then by key.
    """
    try:
        ids.parse_offset_id(text)
    except ValueError:
        return False
    return True
