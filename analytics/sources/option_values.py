"""Values of a source's options: durations, times, counts. Pure.

Options are text from a command line or from Spark. An error names the option and the allowed
values. Step after: a source's own ``options`` combines them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa

from analytics import errors
from analytics.moments import to_us

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|)").fullmatch


class BadOption(errors.AnalyticsError):
    """An option of a source has a bad value."""

    code, title = "bad-source-option", "An option of a source is wrong"

    def __init__(self, name: str, found: str, wanted: str) -> None:
        super().__init__(
            f"Option {name} is {found!r}; wanted: {wanted}. Nothing was read.",
            "docs/analytics.md lists the options of each source.",
            option=name,
        )


def required(options: Mapping[str, str], name: str, wanted: str) -> str:
    """Return a required text."""
    text = options.get(name) or ""
    if not text.strip():
        raise BadOption(name, text, wanted)
    return text


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """A duration like 30m, 90s, 500ms or plain seconds; above 0."""
    text = options.get(name)
    if text is None:
        return default
    found = _DURATION(text.strip())
    value = 0.0 if found is None else float(found[1]) * _UNITS[found[2]]
    if value <= 0:
        raise BadOption(name, text, "a duration above 0, like 30m, 90s or 500ms")
    return value


def whole(
    options: Mapping[str, str], name: str, default: int, *, low: int = 0, high: int | None = None
) -> int:
    """A whole number within bounds."""
    text = options.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"{low} to {high}"
        raise BadOption(name, text, f"a whole number, {bounds}")
    return value


def instant_us(options: Mapping[str, str], name: str) -> int | None:
    """A time: ISO 8601 (UTC if it names no zone), or seconds since 1970. Microseconds."""
    text = options.get(name)
    if text is None:
        return None
    try:
        return round(float(text) * 1e6)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadOption(name, text, "a time like 2026-01-31T12:00:00Z") from error
    return microseconds(found)


def microseconds(at: datetime) -> int:
    """Microseconds since 1970; UTC without a zone."""
    return to_us(at if at.tzinfo is not None else at.replace(tzinfo=UTC))


def flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Parse yes or no."""
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise BadOption(name, text, "true or false")
    return text.lower() == "true"


# -- sources whose options are checked by a dataclass ----------------------------------------------


def by_lower_name(given: Mapping[str, str], source: str, known: Iterable[str]) -> dict[str, str]:
    """Options by name in lower case. Raises errors.BadOption for unknown ones."""
    texts = {name.lower(): text for name, text in given.items()}
    if unknown := sorted(set(texts) - set(known)):
        raise errors.BadOption(
            f"{source} has no option {', '.join(unknown)}.",
            f"Its options are {', '.join(sorted(known))}.",
        )
    return texts


def names(text: str | None) -> tuple[str, ...] | None:
    """Names separated by commas; None without a text."""
    if text is None:
        return None
    return tuple(name for part in text.split(",") if (name := part.strip()))


def number(name: str, text: str) -> int:
    """A whole number. Raises errors.BadOption."""
    try:
        return int(text)
    except ValueError:
        raise errors.BadOption(f"{name} is {text!r}, no whole number.", "Give a number.") from None


def check_columns(asked: tuple[str, ...] | None, schema: pa.Schema, of: str) -> None:
    """Check the option `columns`; None: all. Raises errors.BadOption."""
    unknown = [name for name in asked or () if name not in schema.names]
    if unknown or asked == ():
        raise errors.BadOption(
            f"columns names {', '.join(unknown) or 'nothing'}; {of} has other columns.",
            f"Take some of {', '.join(schema.names)}.",
        )


def only(schema: pa.Schema, asked: tuple[str, ...] | None) -> pa.Schema:
    """Schema of the columns asked for, in the order of the table."""
    return schema if asked is None else pa.schema([each for each in schema if each.name in asked])
