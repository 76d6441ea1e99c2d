"""Values that a program passes and receives: messages to send, messages read, results.

A ``Message`` is decoded either from raw commit log records (the answer to a pull) or from the map
of the API (the answer to a query). Both are ``formats.message``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

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

    queue: queue number, or in a cluster its name, such as ``g0/3``. None: ``sharding_key``
    determines it (equal keys share a queue), else the broker chooses one per request. At most one
    of delay_level, delay_ms, deliver_at_ms.
    """

    body: bytes
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    queue: int | str | None = None
    sharding_key: str | None = None
    flag: int = 0
    delay_level: int | None = None
    delay_ms: int | None = None
    deliver_at_ms: int | None = None

    def __post_init__(self) -> None:
        """Reject values that would silently be sent as something else."""
        checks.check_body(self.body)
        checks.check_no_string(self.keys)

    def outgoing(self, queue: int | str | None = None) -> Outgoing:
        """Build the wire form. queue: used if the message has no queue and no sharding key."""
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
"""Level at which a send is acknowledged."""


class Outgoing(msgspec.Struct):
    """A message in the form of the API.

    A struct is made in a quarter of the time of a named tuple, and each message needs one.
    """

    wire: dict[str, object]
    """The map of the API; arguments not given are left out."""
    weight: int
    """Approximate bytes that it adds to a request; batches are bounded by it."""


def outgoing(
    body: bytes,
    *,
    tags: str | None = None,
    keys: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    queue: int | str | None = None,
    sharding_key: str | None = None,
    flag: int = 0,
    delay_level: int | None = None,
    delay_ms: int | None = None,
    deliver_at_ms: int | None = None,
) -> Outgoing:
    """Check a message and build its wire form; packing that cannot fail.

    Raises TypeError, and BadRequest, BadProperty or DelayOutOfRange like the broker.
    """
    checks.check_body(body)
    # A body of another type is copied, because its owner may change it before it is packed.
    wire: dict[str, object] = {"body": body if type(body) is bytes else bytes(body)}
    size = 0
    if tags is not None and tags != "":
        checks.check_text(tags, "tags")
        wire["tags"] = tags
        size += _packed_size(tags)
    if keys != () and (listed := checks.check_keys(keys)):
        wire["keys"] = listed
        size += sum(map(_packed_size, listed))
    if properties is not None and (pairs := checks.check_properties(properties)):
        wire["properties"] = pairs
        size += sum(_packed_size(name) + _packed_size(value) for name, value in pairs.items())
    if queue is not None:
        checks.check_queue(queue)
        if sharding_key is not None:
            raise errors.BadRequest(
                "a message has both queue and sharding_key; only one of them may choose the queue. "
                f"{checks.NOTHING_SENT}",
                field="queue",
            )
        wire["queue"] = queue
    if sharding_key is not None:
        checks.check_text(sharding_key, "sharding_key")
        wire["sharding_key"] = sharding_key
        size += _packed_size(sharding_key)
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


def _packed_size(text: str) -> int:
    """Return the bytes of a text in a request."""
    return len(text) if text.isascii() else len(text.encode())


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where one message was stored, and its acknowledged level.

    level: the reached one of ``memory``, ``disk`` or ``replicated``. copies: number of nodes that
    have it. A delayed message is stored in an internal topic until ``deliver_at_ms``; queue and
    offsets refer to that topic.
    """

    message_id: str
    queue: int
    queue_offset: int
    physical_offset: int
    store_timestamp_ms: int
    level: str = ""
    copies: int = 0
    deliver_at_ms: int | None = None
    """Delivery time of a delayed message; None if it was not delayed."""
    unique_id: str | None = None
    """Needed to cancel a delayed message; None if the broker did not return it."""
    broker_group: str | None = None
    """Broker group that stored it; None if the broker is not part of a cluster."""


class PullResult(NamedTuple):
    """The result of a pull. ``messages`` is empty if there were none.

    next_offset: start of the next pull. status: RocketMQ's status word (docs/formats.md, section
    11).
    """

    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[Message]
    poll_after_ms: int | None = None
    """Set if the broker was asked to hold the call and could not: when to call again."""


class RawPull(NamedTuple):
    """A pull as the broker answered it: whole records, one after another, not decoded."""

    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    records: memoryview
    poll_after_ms: int | None = None
    """See ``PullResult``."""


class QueueRange(NamedTuple):
    """One queue of a topic: offsets [min_offset, max_offset) can be read."""

    queue: int | str
    min_offset: int
    max_offset: int


class Topic(NamedTuple):
    """A topic and its queues."""

    name: str
    queues: int
    ranges: tuple[QueueRange, ...]
    settings: dict[str, Any]
    """All fields of the broker's answer."""

    @property
    def write_queues(self) -> int:
        """Number of queues that accept new messages; these are the first ones."""
        return int(self.settings.get("write_queues", self.queues))

    @property
    def queue_type(self) -> str:
        """Type of its queues: simple or batch."""
        return str(self.settings.get("queue_type", "simple"))

    @property
    def system(self) -> bool:
        """Whether it is an internal topic of the broker."""
        return self.settings.get("system") is True


def is_offset_id(text: str) -> bool:
    """Whether the form of a message id is that of an offset message id (section 2.8).

    A unique id has the same length and alphabet: the broker searches by offset, then by key.
    """
    try:
        ids.parse_offset_id(text)
    except ValueError:
        return False
    return True
