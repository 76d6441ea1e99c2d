"""Types of fields that several calls have, and the bases of requests and answers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from msgspec import Meta, Struct, field

from services.broker.fields import I32_MAX, I64_MAX, NAME_PATTERN
from services.broker.limits import LIST_MAX

TIME_MS_MAX: Final = 1 << 53
"""Largest integer that a JSON number holds exactly."""
UTF8_PATTERN: Final = r"^[^\ud800-\udfff]*\Z"
"""Matches all text that can be encoded; msgpack text that is not UTF-8 is decoded to surrogates.
The document does not have it, because JSON text is Unicode already."""
MESSAGE_ID_PATTERN: Final = r"^([0-9A-Fa-f]{16}|[0-9A-Fa-f]{40})[0-7][0-9A-Fa-f]{15}\Z"

Count = Annotated[int, Meta(ge=0, le=I64_MAX)]
I32 = Annotated[int, Meta(ge=-I32_MAX - 1, le=I32_MAX)]
TimeMs = Annotated[int, Meta(ge=0, le=TIME_MS_MAX)]
QueueNumber = Annotated[int, Meta(ge=0, le=I32_MAX)]
Name = Annotated[str, Meta(pattern=NAME_PATTERN, examples=["orders"])]
"""Name of a topic, group or member."""
Text = Annotated[str, Meta(pattern=UTF8_PATTERN)]
MessageId = Annotated[
    str,
    Meta(
        pattern=MESSAGE_ID_PATTERN,
        title="a message id: 32 or 56 hexadecimal digits",
        description="As a send, a pull or a fetch returned it.",
    ),
]
Queue = Annotated[tuple[Name, QueueNumber], Meta(description="[topic, queue]")]
ShownQueue = Annotated[
    list[str | int], Meta(min_length=2, max_length=2, description="[topic, queue]")
]
"""A queue in an answer. Not a tuple: schemathesis cannot validate answers with ``prefixItems``."""
Next = Annotated[
    str | None, Meta(description="`after` of the next page; null: this is the last page.")
]
PollAfterMs = Annotated[
    int,
    Meta(
        ge=1,
        le=I64_MAX,
        description="Only if the call should have been held but was not (`held_pulls_max`): when "
        "to call again.",
    ),
]


class Request(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the bodies of requests and their parts."""

    null_is_absent: ClassVar[bool] = True
    """Whether a field that is null is equivalent to a missing one."""
    rules: ClassVar[Mapping[str, Any]] = {}
    """Rules between fields, as keywords of JSON Schema; ``__post_init__`` checks them."""


class Query(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of query parameters; a field without default is required."""


class NoParameters(Query, frozen=True):
    """The parameters of a call without any."""


class ListQuery(Query, frozen=True):
    """A list with pages."""

    after: Annotated[
        Text, Meta(description="Only names after this one: `next` of the page before.")
    ] = ""
    count_max: Annotated[int, Meta(ge=1, le=LIST_MAX, description="Names of one page.")] = field(
        name="max", default=LIST_MAX
    )


class Answer(Struct, frozen=True):
    """Base of answers and their parts."""


HALF_NAMED: Final[list[dict[str, Any]]] = [
    {
        "properties": {"generation": {"type": "integer"}, "member": {"type": "null"}},
        "required": ["generation"],
    },
    {
        "properties": {"member": {"type": "string"}, "generation": {"type": "null"}},
        "required": ["member"],
    },
]
"""Matches a generation without a member or a member without a generation; both are refused."""


class Error(Answer, frozen=True):
    """Further fields hold the facts of the error: field, limit, path …"""

    code: Annotated[str, Meta(description="Stable; a heading of docs/runbook.md.")]
    title: str
    detail: Annotated[str, Meta(description="What happened, and what is still safe.")]
    advice: Annotated[str, Meta(description="What to do.")]
    retriable: Annotated[bool, Meta(description="The same call, unchanged, may succeed later.")]
