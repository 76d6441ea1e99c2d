"""The OpenAPI document of the API, from the structs and calls of ``services.broker.schema``. Pure.

``tests/processes/test_openapi.py`` compares it with the running server in both directions: allowed
requests are accepted, and forbidden requests are refused with a documented answer.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from services.broker.api import traces
from services.broker.api.encodings import JSON, MSGPACK, OCTETS, RECORDS
from services.broker.api.messages import Rules
from services.broker.schema import (
    delayed,
    group_views,
    groups,
    members,
    messages,
    node,
    offsets,
    retry,
    routes,
    topics,
)
from services.broker.schema.calls import ANYWHERE, ERRORS, READ_FROM, Call
from services.broker.schema.values import UTF8_PATTERN as UTF8
from services.broker.schema.values import Error, MessageId, Name, Query, QueueNumber, Request
from tidemark.formats.produce_wire import UNIQUE_ID_SIZE_MAX

Schema = dict[str, Any]

THEMES: Final = (
    topics,
    messages,
    groups,
    group_views,
    members,
    offsets,
    retry,
    delayed,
    node,
    routes,
)
CALLS: Final = tuple(itertools.chain.from_iterable(theme.CALLS for theme in THEMES))
PATH_PARAMETERS: Final = {
    "topic": Annotated[Name, Meta(description="The topic's name.")],
    "queue": Annotated[QueueNumber, Meta(description="Queue number, from 0.")],
    "group": Annotated[Name, Meta(description="The group's name.")],
    "member": Annotated[Name, Meta(description="The member's name; the member chooses it.")],
    "message_id": MessageId,
    "unique_id": Annotated[
        str,
        Meta(
            min_length=1,
            max_length=UNIQUE_ID_SIZE_MAX,
            pattern=r"^[A-Za-z0-9_.:-]+\Z",
            description="As the send gave it, or was given it.",
        ),
    ],
}
_REF: Final = "#/components/schemas/{name}"
_PULL_HEADERS: Final = (
    "Tidemark-Status",
    "Tidemark-Next-Offset",
    "Tidemark-Min-Offset",
    "Tidemark-Max-Offset",
    "Tidemark-Count",
    "Tidemark-Poll-After-Ms",
)


def document(*, version: str, rules: Rules, request_size_max: int) -> Schema:
    """Return the document of all calls of the API port."""
    schemas = _components()
    level = schemas["NewMessage"]["properties"]["delay_level"]["anyOf"][0]
    level["maximum"] = max(1, len(rules.delay_levels_ms))
    paths: dict[str, Schema] = {"/v1/openapi.json": {"get": _THIS}}
    for call in CALLS:
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(call)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidemark",
            "version": version,
            "description": "A durable message broker. Bodies are msgpack (default) or JSON; an "
            "answer is in the encoding that Accept names, else in the request's, else JSON. A "
            f"request body has at most {request_size_max} bytes, and a message's body "
            f"{rules.message_size_max}.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


_THIS: Final[Schema] = {
    "operationId": "openapi",
    "summary": "This document",
    "responses": {
        "200": {
            "description": "OpenAPI 3.1.",
            "content": {JSON: {"schema": {"type": "object"}}},
        }
    },
}


def _operation(call: Call) -> Schema:
    operation: Schema = {"operationId": call.name, "summary": call.summary}
    if call.description:
        operation["description"] = call.description
    if parameters := [*_path_parameters(call), *_query_parameters(call.query), *_headers(call)]:
        operation["parameters"] = parameters
    if call.body is not None:
        # Only JSON is described: the msgpack body is the same map with bytes in `body`.
        content = {JSON: {"schema": _ref(call.body)}}
        operation["requestBody"] = {"required": call.body_required, "content": content}
    if call.octets is not None:
        schema = {"type": "string", "format": "binary", "description": call.octets}
        operation["requestBody"] = {"required": True, "content": {OCTETS: {"schema": schema}}}
    errors = {400, *call.errors, *((421,) if 503 in call.errors else ())}
    operation["responses"] = {
        **_done(call),
        **{
            str(status): {"description": ERRORS[status], "content": _bodies(_ref(Error))}
            for status in sorted(errors)
        },
    }
    return operation


def _done(call: Call) -> Schema:
    if call.answer is None:
        return {"204": {"description": call.answered}}
    content = _bodies(_ref(call.answer))
    done: Schema = {"description": call.answered, "content": content}
    if call.records is not None:
        schema = {"type": "string", "format": "binary", "description": call.records}
        content[RECORDS] = {"schema": schema}
    if call.query is topics.PullQuery:
        header = {"schema": {"type": "string"}, "description": "With raw records only."}
        done["headers"] = dict.fromkeys(_PULL_HEADERS, header)
    return {"200": done}


def _path_parameters(call: Call) -> Iterator[Schema]:
    for name in re.findall(r"{(\w+)}", call.path):
        kind = call.path_types.get(name, PATH_PARAMETERS[name])
        (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REF)
        yield _parameter(name, "path", _adapted(schema), required=True)


def _query_parameters(kind: type[Query]) -> Iterator[Schema]:
    _, parts = msgspec.json.schema_components([kind], ref_template=_REF)
    schema = _adapted(parts[kind.__name__])
    for name, each in schema["properties"].items():
        for option in each.pop("anyOf", ()):
            each |= {} if option == _NULL else option  # a parameter cannot be null
        yield _parameter(name, "query", each, required=name in schema["required"])


def _headers(call: Call) -> Iterator[Schema]:
    text = {"type": "string"}
    if call.on_slaves:
        description = (
            f"In a group: `{ANYWHERE}` takes what a slave has, all of it confirmed, perhaps a "
            "little behind the master."
        )
        yield _parameter(READ_FROM, "header", {**text, "description": description})
    if call.traced:
        description = (
            "The services log each step of this request's messages under this id of 1 to 64 "
            "characters of `A-Z a-z 0-9 . _ -`; anything else is ignored. For a few requests, to "
            "follow them through the node."
        )
        yield _parameter(traces.HEADER, "header", {**text, "description": description})


def _parameter(name: str, where: str, schema: Schema, *, required: bool = False) -> Schema:
    return {
        "name": name,
        "in": where,
        "required": required,
        "description": schema.pop("description", ""),
        "schema": schema,
    }


def _ref(kind: type[msgspec.Struct]) -> Schema:
    return {"$ref": _REF.format(name=kind.__name__)}


def _bodies(schema: Schema) -> Schema:
    return {JSON: {"schema": schema}, MSGPACK: {"schema": schema}}


_NULL: Final[Schema] = {"type": "null"}


def _components() -> dict[str, Schema]:
    """Return the schemas of all bodies by name."""
    kinds = {kind for call in CALLS for kind in (call.body, call.answer) if kind is not None}
    _, parts = msgspec.json.schema_components(
        sorted({*kinds, Error}, key=lambda kind: kind.__name__), ref_template=_REF
    )
    schemas: dict[str, Schema] = {name: _adapted(schema) for name, schema in parts.items()}
    for request in Request.__subclasses__():
        schema = schemas[request.__name__]
        schema.update(request.rules)
        for name, each in parts[request.__name__]["properties"].items():
            if "default" in each and request.null_is_absent:
                schema["properties"][name] = _or_null(schema["properties"][name])
    return schemas


def _or_null(schema: Schema) -> Schema:
    if "anyOf" in schema:
        rest = [option for option in schema["anyOf"] if option != _NULL]
        return {**schema, "anyOf": [*rest, _NULL]}
    outer: Schema = {name: schema[name] for name in ("description", "default") if name in schema}
    inner = {name: value for name, value in schema.items() if name not in outer}
    return {**outer, "anyOf": [inner, _NULL]}


def _adapted(value: Any) -> Any:
    """Return a schema of msgspec in the form that readers of OpenAPI expect.

    Integers have a format; patterns are those of ECMAScript; no title repeats the name.
    """
    if isinstance(value, list):
        return [_adapted(each) for each in value]
    if not isinstance(value, dict):
        return value
    adapted = {name: _adapted(each) for name, each in value.items()}
    if isinstance(adapted.get("title"), str):
        del adapted["title"]
    if adapted.get("type") == "integer":
        adapted["format"] = "int64"
    if isinstance(pattern := adapted.get("pattern"), str):
        adapted["pattern"] = pattern.removesuffix(r"\Z") + "$"
        if pattern == UTF8:
            del adapted["pattern"]
    if "default" in adapted and adapted["default"] is None:
        del adapted["default"]
    return adapted
