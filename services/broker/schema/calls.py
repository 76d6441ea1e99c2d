"""A call of the API as a value: path, request, answer and errors. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct

from services.broker.schema.values import NoParameters, Query, Request

_RETRIABLE: Final = "Nothing was stored; the same call may succeed later."
ERRORS: Final = {
    400: "A field, parameter or name is missing, of the wrong type or out of range; `detail` names "
    "it.",
    403: "The topic's permissions do not allow it, or the group is switched off.",
    404: "No such topic, queue, group, member, message or call; `code` says which.",
    405: "The path is known, but not with this method.",
    408: "The request did not arrive in time.",
    409: "Not with the group, its members or the store as they are now; `code` says why.",
    413: "Too large, or too many messages; `limit` is the bound.",
    415: "Content type or content encoding not understood.",
    421: "In a group: another node is the master. `master` and `api` name it, null while it is not "
    "known. Nothing was stored.",
    503: f"The node does not serve now, or is at a bound. {_RETRIABLE}",
    504: "Stored, but the level was not reached in time, or the disk failed meanwhile: the outcome "
    "is unknown. A send has `results`.",
    507: f"The disk is full or read-only: `path`, free bytes and limit are given. {_RETRIABLE}",
}
READ_FROM: Final = "Tidemark-Read-From"
"""Header of a read: with ANYWHERE a slave may answer, which may lag behind the master."""
ANYWHERE: Final = "any"
READING: Final = (404, 503)
WITH_BODY: Final = (408, 413, 415, 503)
"""Errors of every call with a body."""
CHANGING: Final = (*WITH_BODY, 507)
"""Errors of every call with a body that stores something."""


class Call(NamedTuple):
    """One call; its errors are listed without 400, which every call has."""

    name: str
    method: str
    path: str
    summary: str
    answer: type[Struct] | None
    """None: 204, without a body."""
    answered: str
    """Describes the answer."""
    errors: tuple[int, ...]
    query: type[Query] = NoParameters
    body: type[Request] | None = None
    body_required: bool = True
    octets: str | None = None
    """Describes the body if it is bytes and no map."""
    description: str = ""
    records: str | None = None
    """Describes the answer with raw records; None: the call has none."""
    on_slaves: bool = False
    """Whether a slave answers a request with the header ``READ_FROM``."""
    traced: bool = False
    """Whether the call accepts a trace id."""
    path_types: Mapping[str, Any] = {}
    """Types of parameters in the path that differ from those of other calls."""
