"""Pieces of Prometheus' text formats: escaping, numbers, heads of families. Pure.

Both formats, text 0.0.4 and OpenMetrics 1.0.0, are written from the same lines; only heads and the
end differ. Before: ``registry`` took values. After: ``exposition`` puts the pieces together.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Final

from shared.metrics.family import Family, Kind

Number = int | float

_UNITS: Final = ("seconds", "bytes", "ratio")
"""Units that OpenMetrics has a name for."""


class Format(enum.Enum):
    """What a scraper can be given; the value is its content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def label_text(names: Sequence[str], values: Sequence[str]) -> str:
    """``{name="value",…}``, or nothing without labels."""
    if not names:
        return ""
    pairs = ",".join(
        f'{name}="{escaped(value)}"' for name, value in zip(names, values, strict=True)
    )
    return "{" + pairs + "}"


def escaped(value: str) -> str:
    """A label's value as it stands between quotes.

    What UTF-8 cannot say becomes ``?``, and a zero byte, which ends Prometheus' input, a blank: a
    name that nobody should have must not take all other series away.
    """
    value = value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return value.replace("\0", " ").encode("utf-8", "replace").decode()


def number(value: Number) -> str:
    """A value as both formats read it; integers of any size exactly. Not for NaN."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return f"{+value}"  # plus: True is 1


def bound_text(bound: float) -> str:
    """An upper bound of a histogram's bucket, always with a point: 64 and 64.0 are one series."""
    return repr(float(bound))


def head(family: Family, form: Format) -> str:
    """The lines before a family's samples: what it means and what kind it is."""
    name, meaning = family.name, family.meaning.replace("\\", "\\\\").replace("\n", "\\n")
    if form is Format.TEXT:
        return f"# HELP {name} {meaning}\n# TYPE {name} {family.kind.value}\n"
    if family.kind is Kind.COUNTER:
        name = name.removesuffix("_total")
    unit = next((f"# UNIT {name} {unit}\n" for unit in _UNITS if name.endswith("_" + unit)), "")
    meaning = meaning.replace('"', '\\"')
    return f"# TYPE {name} {family.kind.value}\n{unit}# HELP {name} {meaning}\n"


def end(form: Format) -> str:
    """What stands behind the last family."""
    return "# EOF\n" if form is Format.OPENMETRICS else ""
