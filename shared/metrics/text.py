"""Parts of Prometheus' text formats: escaping, numbers, headers of families. Pure.

Both formats, text 0.0.4 and OpenMetrics 1.0.0, use the same sample lines; only headers and the end
differ. Before: ``registry`` took values. After: ``exposition`` assembles the text.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Final

from shared.metrics.family import Family, Kind

Number = int | float

_UNITS: Final = ("seconds", "bytes", "ratio")
"""Units that have a name in OpenMetrics."""


class Format(enum.Enum):
    """Formats for scrapers; the value is the content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def label_text(names: Sequence[str], values: Sequence[str]) -> str:
    """Return ``{name="value",…}``, or an empty text without labels."""
    if not names:
        return ""
    pairs = ",".join(
        f'{name}="{escaped(value)}"' for name, value in zip(names, values, strict=True)
    )
    return "{" + pairs + "}"


def escaped(value: str) -> str:
    """Return a label's value as it is written between quotes.

    A character that UTF-8 cannot encode becomes ``?``. A zero byte, which ends Prometheus' input,
    becomes a blank. So an invalid name does not make the whole scrape fail.
    """
    value = value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return value.replace("\0", " ").encode("utf-8", "replace").decode()


def number(value: Number) -> str:
    """Format a value for both formats; integers of any size are exact. Not for NaN."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return f"{+value}"  # plus: True becomes 1


def bound_text(bound: float) -> str:
    """Format the upper bound of a bucket, always with a point: 64 and 64.0 are one series."""
    return repr(float(bound))


def head(family: Family, form: Format) -> str:
    """Return the lines before a family's samples: help text and type."""
    name, meaning = family.name, family.meaning.replace("\\", "\\\\").replace("\n", "\\n")
    if form is Format.TEXT:
        return f"# HELP {name} {meaning}\n# TYPE {name} {family.kind.value}\n"
    if family.kind is Kind.COUNTER:
        name = name.removesuffix("_total")
    unit = next((f"# UNIT {name} {unit}\n" for unit in _UNITS if name.endswith("_" + unit)), "")
    meaning = meaning.replace('"', '\\"')
    return f"# TYPE {name} {family.kind.value}\n{unit}# HELP {name} {meaning}\n"


def end(form: Format) -> str:
    """Return the text after the last family."""
    return "# EOF\n" if form is Format.OPENMETRICS else ""
