"""The complete OpenAPI document: ``openapi`` merged with the fragments of other modules. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from services.broker.api import (
    openapi,
    openapi_cluster,
    openapi_delayed,
    openapi_groups,
    openapi_retention,
    openapi_retry,
    openapi_views,
    traces,
)
from services.broker.api.messages import Rules
from services.broker.api.openapi_schemas import bodies, parameter, ref

Schema = dict[str, Any]


class Fragment(NamedTuple):
    """The description of one module's calls."""

    paths: Mapping[str, Mapping[str, Any]]
    """Path → method → call."""
    schemas: Mapping[str, Any]
    """Name → schema."""


FRAGMENTS: Final = tuple(
    Fragment(each.PATHS, each.SCHEMAS)
    for each in (
        openapi_groups,
        openapi_views,
        openapi_retry,
        openapi_delayed,
        openapi_retention,
        openapi_cluster,
    )
)


NOT_MASTER: Final[Schema] = {
    "description": "In a group: another node is the master. `master` and `api` say which, null "
    "while that is not known. Nothing was stored.",
    "content": bodies(ref("Error")),
}
READ_FROM: Final = parameter(
    openapi.READ_FROM,
    "header",
    {"type": "string"},
    f"In a group: `{openapi.ANYWHERE}` takes what a slave has, all of it confirmed, perhaps a "
    "little behind the master.",
)

FOLLOWED: Final = frozenset({"send", "pull", "fetch", "commit", "nack"})
"""Calls that accept a trace id."""
TRACE: Final = parameter(
    traces.HEADER,
    "header",
    {"type": "string"},
    "The services log each step of this request's messages under this id of 1 to 64 characters of "
    "`A-Z a-z 0-9 . _ -`; anything else is passed over. For a few requests, to look into them.",
)


def document(*, version: str, rules: Rules, request_size_max: int) -> Schema:
    """Return the document of all calls of the API port."""
    plain = openapi.document(version=version, rules=rules, request_size_max=request_size_max)
    readable = {call["operationId"] for calls in plain["paths"].values() for call in calls.values()}
    whole = merged(plain, *FRAGMENTS)
    paths = {
        path: {
            method: _with_trace(
                _in_a_group(call, on_slaves=method == "get" and call["operationId"] in readable)
            )
            for method, call in calls.items()
        }
        for path, calls in whole["paths"].items()
    }
    return {**whole, "paths": paths}


def _in_a_group(call: Schema, *, on_slaves: bool) -> Schema:
    """Add the answers of nodes in a group to a call. on_slaves: a slave can answer the call."""
    responses = call["responses"]
    if "503" not in responses:
        return call  # the call needs no master
    grouped = {**call, "responses": {**responses, "421": NOT_MASTER}}
    if on_slaves:
        grouped["parameters"] = [*call.get("parameters", ()), READ_FROM]
    return grouped


def _with_trace(call: Schema) -> Schema:
    """Add the trace header to a call that accepts it."""
    if call["operationId"] not in FOLLOWED:
        return call
    return {**call, "parameters": [*call.get("parameters", ()), TRACE]}


def merged(whole: Schema, *fragments: Fragment) -> Schema:
    """Return the document with the fragments merged into it.

    Several fragments may describe different methods of the same path. Raises ValueError if two of
    them describe the same call, or use the same name for different schemas.
    """
    paths = {path: dict(calls) for path, calls in whole["paths"].items()}
    schemas = dict(whole["components"]["schemas"])
    for fragment in fragments:
        for path, calls in fragment.paths.items():
            known = paths.setdefault(path, {})
            if twice := known.keys() & calls.keys():
                raise ValueError(f"{path} is described twice: {', '.join(sorted(twice))}")
            known.update(calls)
        for name, schema in fragment.schemas.items():
            if schemas.setdefault(name, schema) != schema:
                raise ValueError(f"two schemas are named {name}")
    return {
        **whole,
        "paths": paths,
        "components": {**whole["components"], "schemas": schemas},
    }
