"""Messages: as a send has them, and as reads return them. Pure.

Sends are checked by ``api.messages`` and on the fast path by ``tidemark.formats.produce_wire``,
which turn a body into stored entries in one pass; ``NewMessage`` and ``Send`` describe what they
accept.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from services.broker.limits import ACK_TIMEOUT_MS_MAX, BATCH_SIZE_MAX, MESSAGES_MAX
from services.broker.schema.calls import CHANGING, Call
from services.broker.schema.values import I32, Answer, Count, Query, QueueNumber, Request
from tidemark.formats.delay import DELAY_MS_MAX
from tidemark.formats.inner_batch import COUNT_MAX
from tidemark.formats.produce_wire import UNIQUE_ID_SIZE_MAX

AckLevel = Literal["memory", "disk", "replicated"]
StoredText = Annotated[str, Meta(min_length=1, pattern=r"^[^\x01\x02]+\Z")]
"""Text without the separators of stored properties."""
Word = Annotated[str, Meta(min_length=1, pattern=r"^[^\x01\x02 ]+\Z")]
"""Text without separators and spaces."""


class Message(Answer, frozen=True):
    """One stored message."""

    message_id: Annotated[str, Meta(description="Offset id: store host and physical offset.")]
    unique_id: str | None
    topic: str
    queue: int
    queue_offset: int
    physical_offset: int
    size: Annotated[int, Meta(description="Bytes of its record; in a batch, of one of its own.")]
    tags: str | None
    keys: list[str]
    properties: dict[str, str]
    born_timestamp_ms: int
    store_timestamp_ms: int
    born_host: str
    store_host: str
    reconsume_times: int
    flag: int
    sys_flag: int
    body_crc: int
    tags_code: int
    prepared_transaction_offset: int
    body: Annotated[
        str | UnsetType, Meta(description="Bytes in msgpack; base64 in JSON if it is not text.")
    ] = UNSET
    body_text: Annotated[str | UnsetType, Meta(description="JSON only, if the body is UTF-8.")] = (
        UNSET
    )


class NewMessage(Request, frozen=True):
    """One message of a send."""

    rules: ClassVar[dict[str, Any]] = {
        "oneOf": [{"required": ["body"]}, {"required": ["body_text"]}],
        "not": {
            "anyOf": [
                {
                    "properties": {name: {"type": ["string", "integer"]} for name in pair},
                    "required": list(pair),
                }
                for pair in (
                    ("delay_level", "delay_ms"),
                    ("delay_level", "deliver_at_ms"),
                    ("delay_ms", "deliver_at_ms"),
                )
            ]
        },
    }

    body: (
        Annotated[
            str,
            Meta(
                pattern=r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?\Z",
                description="Base64 in JSON, bytes in msgpack. Exactly one of body and body_text; "
                "at most `message_size_max` bytes.",
                extra_json_schema={"contentEncoding": "base64"},
            ),
        ]
        | UnsetType
    ) = UNSET
    body_text: Annotated[str | UnsetType, Meta(description="The body as text.")] = UNSET
    tags: Annotated[
        Annotated[str, Meta(pattern=r"^[^\x01\x02]*\Z")] | None, Meta(description="Empty: none.")
    ] = None
    keys: Annotated[
        list[Word] | None,
        Meta(description="Business keys to find the message by; without spaces."),
    ] = None
    properties: Annotated[
        dict[StoredText, StoredText] | None,
        Meta(
            description="Names that the store sets itself are refused. Properties, tags and keys "
            "together may have at most 31,723 bytes."
        ),
    ] = None
    queue: Annotated[
        QueueNumber | None, Meta(description="Queue number; default: the broker picks.")
    ] = None
    sharding_key: Annotated[
        StoredText | None, Meta(description="Equal keys share a queue, unless `queue` picks it.")
    ] = None
    flag: Annotated[I32, Meta(description="The application's own number.")] = 0
    unique_id: Annotated[
        Annotated[Word, Meta(max_length=UNIQUE_ID_SIZE_MAX)] | None,
        Meta(description="The sender's own id; default: the broker creates one."),
    ] = None
    delay_level: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="One of the levels in `delay_levels`, 1 the shortest."),
    ] = None
    delay_ms: Annotated[
        Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)] | None,
        Meta(description="Delay until delivery."),
    ] = None
    deliver_at_ms: Annotated[
        Count | None,
        Meta(description="Delivery time, ms since 1970; at most 40 days ahead."),
    ] = None


class Send(Request, frozen=True):
    """Messages to store, all or none."""

    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=MESSAGES_MAX)]
    ack: Annotated[
        AckLevel | None,
        Meta(
            description="Level to wait for. Default: disk; in a group replicated while the in-sync "
            "set has two members or more, else disk."
        ),
    ] = None
    retry: Annotated[
        bool,
        Meta(
            description="true: it was sent before, and its outcome is unknown. Messages whose "
            "unique_id was stored in the last ten minutes are not stored again; the answer has "
            "their old places. Every message needs its unique_id then."
        ),
    ] = False
    make_unique_ids: Annotated[
        bool,
        Meta(
            description="false: a message without unique_id gets none, and is not indexed for it."
        ),
    ] = True
    timeout_ms: Annotated[
        Annotated[int, Meta(ge=1, le=ACK_TIMEOUT_MS_MAX)] | None,
        Meta(
            description="Longest wait for the level. Default: 3000; in a group as its lease allows."
        ),
    ] = None


class BatchQuery(Query, frozen=True):
    """The parameters of a batch request."""

    queue: Annotated[
        QueueNumber | None, Meta(description="Queue number; default: the broker picks.")
    ] = None
    unique_id: Annotated[
        Annotated[Word, Meta(max_length=UNIQUE_ID_SIZE_MAX)] | None,
        Meta(
            description="The sender's id of the batch. Default: that of its first message; if it "
            "has none, the broker creates one. Both may be given only if they are equal."
        ),
    ] = None
    ack: Annotated[AckLevel | None, Meta(description="As in a send.")] = None
    timeout_ms: Annotated[
        Annotated[int, Meta(ge=1, le=ACK_TIMEOUT_MS_MAX)] | None, Meta(description="As in a send.")
    ] = None
    retry: Annotated[
        Literal["true", "false"],
        Meta(
            description="true: it was sent before, and its outcome is unknown. If a batch of this "
            "unique id was stored in the last ten minutes, it is not stored again."
        ),
    ] = "false"


class Acked(Answer, frozen=True):
    """The durability that was reached."""

    level: AckLevel
    copies: Annotated[int, Meta(ge=1)]


class StoredMessage(Answer, frozen=True):
    """Where one message was stored."""

    message_id: str
    queue: int
    queue_offset: int
    physical_offset: int
    store_timestamp_ms: int
    unique_id: Annotated[str | UnsetType | None, Meta(description="null: sent without one.")] = (
        UNSET
    )


class Sent(Answer, frozen=True):
    """The outcome of a send."""

    status: Literal["PUT_OK"]
    ack: Acked
    results: list[StoredMessage]


class StoredBatch(Answer, frozen=True):
    """Where a batch was stored."""

    message_id: Annotated[str, Meta(description="Offset id that all of its messages have.")]
    unique_id: str
    queue: int
    queue_offset: Annotated[int, Meta(description="That of its first message.")]
    message_count: int
    physical_offset: int
    store_timestamp_ms: int


class SentBatch(Answer, frozen=True):
    """The outcome of a batch request."""

    status: Literal["PUT_OK"]
    ack: Acked
    batch: StoredBatch


CALLS: Final = (
    Call(
        "send", "POST", "/v1/topics/{topic}/messages", "Store messages: all of the request or none",
        Sent, "Stored, at the level named.", (403, 404, *CHANGING, 504), body=Send, traced=True,
        description="Messages without queue and sharding_key share one queue, picked in turn.",
    ),
    Call(
        "sendBatch", "POST", "/v1/topics/{topic}/batches",
        "Store a batch of messages as one record, in a topic with batch queues",
        SentBatch, "Stored, at the level named.", (403, 404, *CHANGING, 504), query=BatchQuery,
        octets="The messages as wire entries, one after another (docs/formats.md, section 2.12): "
        f"at most {COUNT_MAX} messages and {BATCH_SIZE_MAX} bytes.",
        traced=True,
        description="The body is stored as it is. Properties are UTF-8 text; names that the store "
        "sets itself are refused, except TAGS, KEYS, UNIQ_KEY and __SHARDINGKEY.",
    ),
)  # fmt: skip
