"""Turns an error of msgspec into ours: the field with its path, the rule, the given value. Pure.

msgspec names the place, e.g. ``$.offsets[3].offset``; the rule comes from the JSON Schema of the
request, which is also in the OpenAPI document.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from services.broker.fields import NAME_PATTERN, SHOWN_MAX, check_name, shown
from tidemark.errors import BadName, BadRequest

Schema = dict[str, Any]
Steps = list[tuple[str, str]]

WHOLE: Final = "the request body"
_MESSAGE: Final = re.compile(r"(.*?)(?: - at `(.*)`)?", re.DOTALL)
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")
_UNNAMED: Final = re.compile(r"Object (missing required|contains unknown) field `(.*)`", re.DOTALL)


@functools.lru_cache
def schema_of(kind: type[msgspec.Struct]) -> dict[str, Schema]:
    """Return the schemas of a struct and its parts by name, as msgspec makes them."""
    return msgspec.json.schema_components([kind], ref_template="{name}")[1]


def refusal(error: Exception, body: object, kind: type[msgspec.Struct]) -> BadRequest | BadName:
    """Return the error that the caller gets. body: what ``msgspec.convert`` was called with."""
    matched = _MESSAGE.fullmatch(str(error))
    where = "" if matched is None else matched[2] or ""
    if matched is None or where.startswith("key") or isinstance(error, UnicodeEncodeError):
        return BadRequest(f"{WHOLE} has a key that is not UTF-8 text.", field=WHOLE)
    steps: Steps = _STEP.findall(where)
    field = "".join(f".{name}" if name else f"[{index}]" for name, index in steps).lstrip(".")
    options = _options_at(kind, steps)
    if unnamed := _UNNAMED.fullmatch(matched[1]):
        name = f"{field}.{unnamed[2][:SHOWN_MAX]}".lstrip(".")
        if unnamed[1].startswith("missing"):
            return BadRequest(f"{name} is missing.", field=name)
        known = sorted({each for option in options for each in option.get("properties", ())})
        advice = f"It has: {', '.join(known) or 'none'}."
        return BadRequest(f"{shown(name)} is not a field of this call.", advice, field=name)
    value = _value_at(body, steps)
    if isinstance(value, str) and any(each.get("pattern") == NAME_PATTERN for each in options):
        try:
            check_name(value, field)
        except BadName as bad_name:
            return bad_name
    rule = " or ".join(dict.fromkeys(map(_rule, options)))
    facts: dict[str, Any] = {"field": field or WHOLE, **_limit(value, options)}
    return BadRequest(f"{field or WHOLE} must be {rule}, not {shown(value)}.", **facts)


def _limit(value: object, options: Iterable[Schema]) -> dict[str, int]:
    """Return the limit that a list or a text exceeds, as a fact of the error."""
    name = "maxItems" if isinstance(value, list) else "maxLength"
    limits = [each[name] for each in options if name in each]
    is_over = limits and isinstance(value, list | str) and len(value) > limits[0]
    return {"limit": limits[0]} if is_over else {}


def _value_at(body: object, steps: Steps) -> object:
    for name, index in steps:
        if name and isinstance(body, dict):
            body = body.get(name)
        elif index and isinstance(body, list) and int(index) < len(body):
            body = body[int(index)]
    return body


def _options_at(kind: type[msgspec.Struct], steps: Steps) -> list[Schema]:
    """Return the schemas that a value at this place may have."""
    parts = schema_of(kind)
    options = _options(parts, {"$ref": kind.__name__})
    for name, index in steps:
        inner: list[Schema] = []
        for each in options:
            if name and name in each.get("properties", ()):
                inner.append(each["properties"][name])
            elif index and "prefixItems" in each:
                inner += each["prefixItems"][int(index) : int(index) + 1]
            elif index and "items" in each:
                inner.append(each["items"])
        options = [option for each in inner for option in _options(parts, each)]
    return options


def _options(parts: dict[str, Schema], schema: Schema) -> list[Schema]:
    if "$ref" in schema:
        return [parts[schema["$ref"]]]
    if "anyOf" in schema:
        return [option for each in schema["anyOf"] for option in _options(parts, each)]
    return [] if schema.get("type") == "null" else [schema]


def _rule(schema: Schema) -> str:
    match schema:
        case {"enum": choices}:
            return f"one of {', '.join(map(str, choices))}"
        case {"type": "integer", "minimum": low, "maximum": high}:
            return f"a whole number from {low} to {high}"
        case {"type": "integer"}:
            return "a whole number"
        case {"type": "boolean"}:
            return "true or false"
        case {"type": "string", "title": form}:
            return str(form)
        case {"type": "string", "maxLength": longest}:
            return f"a string of {schema.get('minLength', 0)} to {longest} characters"
        case {"type": "string"}:
            return "a string of UTF-8 text"
        case {"type": "array", "description": form, "prefixItems": _}:
            return str(form)
        case {"type": "array", "maxItems": most}:
            return f"a list of {schema.get('minItems', 0)} to {most}"
        case {"type": "array"}:
            return "a list"
        case _:
            return "a map"
