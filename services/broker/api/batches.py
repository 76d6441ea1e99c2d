"""Batch requests: the entries of a body are checked in one pass, and stored as they are. Pure.

The body is what the record's body will be, so no message is copied on its own. Properties that only
the store may set are refused, as in other sends. ``send`` reads the body before this step; after it
``deduplicator`` searches for a repeated batch (write path, step 3).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypedDict

from services.broker.api.messages import Rules
from services.broker.fields import shown
from services.broker.limits import BATCH_SIZE_MAX
from services.broker.log.ack_levels import AckLevel
from services.broker.schema.messages import BatchQuery
from services.broker.send.request import ProduceRequest
from tidemark.errors import (
    BadProperty,
    BadRequest,
    MessageTooLarge,
    RequestError,
    TooManyMessages,
)
from tidemark.formats import batch_parts, native, properties
from tidemark.formats.batch_parts import Fault, FaultKind, Part


class _Limits(TypedDict):
    message_size_max: int
    message_properties_size_max: int
    body_size_max: int
    properties_size_max: int


def batch_request(
    entries: bytes,
    asked: BatchQuery,
    rules: Rules,
    properties_of: Callable[[Part], bytes],
) -> ProduceRequest | None:
    """Return the request that stores the entries; None if they have a fault, see ``check``.

    properties_of: returns the properties of the batch. Raises BadRequest for unique ids that do not
    go together.
    """
    part = native.read_batch(entries, **_limits(rules))
    if part is None:
        return None
    return ProduceRequest(
        entries,
        part.message_count,
        asked.queue,
        rules.ack_default if asked.ack is None else AckLevel(asked.ack),
        rules.timeout_ms_default if asked.timeout_ms is None else asked.timeout_ms,
        retry=asked.retry == "true",
        batch_properties=properties_of(_with_id(part, asked)),
    )


def check(entries: bytes, rules: Rules) -> None:
    """Raise the error of the first fault of the entries; it may take long. Does not make ids."""
    fault = batch_parts.fault_of(entries, **_limits(rules))
    if fault is not None:
        raise _refusal(fault)


@functools.lru_cache(maxsize=4)
def _limits(rules: Rules) -> _Limits:
    return {
        "message_size_max": rules.message_size_max,
        "message_properties_size_max": rules.properties_size_max,
        "body_size_max": BATCH_SIZE_MAX,
        "properties_size_max": properties.size_max(record_crc=rules.record_crc),
    }


def _with_id(part: Part, asked: BatchQuery) -> Part:
    """Return the batch with the id that the request gives it.

    The index finds a batch by one id only. It must be that of the first message if that has one,
    because a message is looked up by its own id. Raises BadRequest.
    """
    given = None if asked.unique_id is None else asked.unique_id.encode()
    if given is not None and part.unique_id not in (None, given):
        raise BadRequest(
            f"unique_id is {shown(asked.unique_id)}, and the first message has another unique id. "
            "Nothing was stored.",
            "Leave it out, or give the first message this one or none.",
            field="unique_id",
        )
    if asked.retry == "true" and given is None and part.unique_id is None:
        raise BadRequest(
            "the batch has no unique_id, and retry finds it by that. Nothing was stored.",
            "Choose an id for every batch before its first send, and repeat it.",
            field="unique_id",
        )
    return part if given is None else part._replace(unique_id=given)


def _refusal(fault: Fault) -> RequestError:
    place = "" if fault.entry is None else f"entry {fault.entry} of the batch: "
    detail = f"{place}{fault.reason}. Nothing was stored."
    facts: dict[str, object] = {} if fault.entry is None else {"index": fault.entry}
    if fault.limit is not None:
        detail = f"{place}{fault.reason}, {fault.limit} are allowed. Nothing was stored."
        facts["limit"] = fault.limit
    match fault.kind:
        case FaultKind.DAMAGED:
            return BadRequest(
                detail, "The body must be wire entries, see docs/formats.md, 2.12.", **facts
            )
        case FaultKind.PROPERTY:
            return BadProperty(detail, "Change or remove the property.", **facts)
        case FaultKind.TOO_LARGE:
            return MessageTooLarge(detail, "Send it in several batches.", **facts)
        case FaultKind.TOO_MANY:
            return TooManyMessages(detail, "Send it in several batches.", **facts)
