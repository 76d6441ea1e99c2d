"""Turns decoded bodies and query parameters into the structs of requests. Pure.

The first mistake is raised, with its field, before anything is changed.
Step before: ``encodings`` decoded the bytes. Step after: the handler of the call.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Collection, Mapping
from typing import Final, TypeVar

import msgspec

from services.broker.schema.mistakes import refusal, schema_of
from services.broker.schema.values import Query, Request

R = TypeVar("R", bound=Request)
Q = TypeVar("Q", bound=Query)

_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_DEPTH: Final = 3
"""Maps and lists within each other in a request: the body, a list, a queue."""


def parsed(body: object, kind: type[R]) -> R:
    """Return the checked request. Raises BadRequest, BadName.

    A field that is null is equivalent to a missing one, and 3.0 counts as 3.
    """
    with contextlib.suppress(msgspec.ValidationError, UnicodeEncodeError):
        return msgspec.convert(body, kind)  # most requests have neither null nor 3.0
    fields = _plain(body, _DEPTH, *_names(kind))
    try:
        return msgspec.convert(fields, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise refusal(error, fields, kind) from None


def _plain(
    value: object, depth: int, names: Collection[str], inner_names: Collection[str]
) -> object:
    """Return the value without the fields that are null, and with 3 in place of 3.0.

    names: fields of a map that may be null; inner_names: those of the maps in it. A null of another
    name stays, because the field is unknown.
    """
    if depth and isinstance(value, dict):
        return {
            name: _plain(each, depth - 1, inner_names, inner_names)
            for name, each in value.items()
            if each is not None or name not in names
        }
    if depth and isinstance(value, list):
        return [_plain(each, depth - 1, names, inner_names) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@functools.lru_cache
def _names(kind: type[Request]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the fields of a request that may be null, and those of its parts."""
    if not kind.null_is_absent:
        return frozenset(), frozenset()
    parts = {name: frozenset(part.get("properties", ())) for name, part in schema_of(kind).items()}
    names = parts.pop(kind.__name__)
    return names, frozenset().union(*parts.values())


def query(given: Mapping[str, str], kind: type[Q]) -> Q:
    """Return the checked query parameters. Raises BadRequest, BadName."""
    numbers = _numbers(kind)
    # A regular expression because int() also accepts "1_000", "+1", " 1" and non-ASCII digits.
    fields = {
        name: int(text) if name in numbers and _INTEGER.fullmatch(text) else text
        for name, text in given.items()
    }
    try:
        return msgspec.convert(fields, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise refusal(error, fields, kind) from None


@functools.lru_cache
def _numbers(kind: type[Query]) -> frozenset[str]:
    """Return the names of the parameters that are whole numbers."""
    properties = schema_of(kind)[kind.__name__]["properties"].items()
    return frozenset(name for name, schema in properties if '"integer"' in json.dumps(schema))
