"""Writes the calls of docs/api.md from the OpenAPI document: ``make api-page``. Pure but main.

The text between the two marks is generated; the rest of the page is written by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from services.broker.api.api_document import THEMES, Schema, document
from services.broker.api.encodings import OCTETS
from services.broker.api.messages import Rules
from services.broker.schema.calls import Call
from shared.files.store_config import StoreConfig

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "api.md"
_BEGIN, _END = "<!-- calls -->", "<!-- end of calls -->"
_FIELDS: Final = "| {} | Type | Default | Meaning |\n|---|---|---|---|\n"


def current(page: str) -> str:
    """Return the page with all calls. Raises ValueError if the marks are missing."""
    head, begin, rest = page.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the page has no {_BEGIN} and {_END}")
    return f"{head}{begin}\n\n{''.join(_sections())}{end}{tail}"


def _sections() -> Iterator[str]:
    levels = StoreConfig().delay_levels_ms
    rules = Rules(message_size_max=4 << 20, record_crc=True, delay_levels_ms=levels)
    made = document(version="", rules=rules, request_size_max=16 << 20)
    for theme in THEMES:
        title = (theme.__doc__ or "").partition("\n")[0].removesuffix(" Pure.").rstrip(".")
        yield f"## {title}\n\n"
        for call in theme.CALLS:
            yield _call(call, made["paths"][call.path][call.method.lower()])
    yield "## Maps\n\n"
    for name, schema in sorted(made["components"]["schemas"].items()):
        if "properties" in schema:
            yield _struct(name, schema)


def _call(call: Call, operation: Schema) -> str:
    lines = [f"### `{call.method} {call.path}`\n\n{call.summary}. {call.description}".rstrip()]
    rows = [
        _row(each["name"], each["schema"], each["description"], required=each["required"])
        for each in operation.get("parameters", ())
        if each["in"] != "path"
    ]
    if rows:
        lines.append(_FIELDS.format("Parameter") + "".join(rows).rstrip())
    if call.body is not None:
        optional = "" if call.body_required else ", may be left out"
        lines.append(f"Body: {_link(call.body.__name__)}{optional}.")
    if call.octets is not None:
        lines.append(f"Body, `{OCTETS}`: {call.octets[0].lower()}{call.octets[1:]}")
    answer = "none" if call.answer is None else _link(call.answer.__name__)
    errors = ", ".join(status for status in operation["responses"] if status >= "400")
    lines.append(f"Answer: {answer}. {call.answered} Errors: {errors}.")
    return "\n\n".join(lines) + "\n\n"


def _struct(name: str, schema: Schema) -> str:
    rows = "".join(
        _row(field, each, each.get("description", ""), required=field in schema["required"])
        for field, each in schema["properties"].items()
    )
    return f"### {name}\n\n{schema['description']}\n\n{_FIELDS.format('Field')}{rows}\n"


def _row(name: str, schema: Schema, meaning: str, *, required: bool) -> str:
    default = "required" if required else "–"
    if "default" in schema:
        default = f"`{json.dumps(schema['default'])}`"
    cells = (f"`{name}`", " or ".join(dict.fromkeys(_types(schema))), default, meaning or "–")
    return "| " + " | ".join(each.replace("|", r"\|") for each in cells) + " |\n"


def _types(schema: Schema) -> Iterable[str]:
    match schema:
        case {"$ref": reference}:
            return [_link(reference.rpartition("/")[2])]
        case {"anyOf": options} | {"oneOf": options}:
            return [name for option in options for name in _types(option)]
        case {"enum": choices}:
            return [f"`{choice}`" for choice in choices]
        case {"type": "array", "description": "[topic, queue]" as form}:
            return [form]
        case {"type": "array", "items": items}:
            return [f"list of {' or '.join(_types(items))}{_bounds(schema)}"]
        case {"type": str(name)}:
            return [_NAMES.get(name, name) + _bounds(schema)]
        case _:
            return ["any"]


_NAMES: Final = {"object": "map", "number": "float"}
_LIMITS: Final = (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems"))
_WIDE: Final = re.compile(r"-?9223372036854775\d{3}|-?214748364\d")


def _bounds(schema: Schema) -> str:
    """Return the limits that are narrower than those of 32 or 64 bits."""
    for low, high in _LIMITS:
        if high in schema and not _WIDE.fullmatch(str(schema[high])):
            return f" ({schema.get(low, 0)} to {schema[high]})"
    return ""


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(current(PAGE.read_text()))


if __name__ == "__main__":
    main()
