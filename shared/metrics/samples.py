"""Values of label sets that a scrape took, and the lines that they become.

``prometheus_client`` writes a line of OpenMetrics in 12 µs, and a whole family in one go: 2 s for
10,000 topics and groups. So the lines of our own label sets are written here, a few hundred at a
time. A line consists of the family's name, the label set's text, which is kept between scrapes, and
the number. It is the same in both text formats. Step before: ``labelled`` and ``tables``. Step
after: ``exposition``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from prometheus_client import Metric
from prometheus_client.samples import Sample

from shared.metrics.family import Family, Kind, Number

LINES_AT_ONCE: Final = 128
"""Lines of one piece: about a tenth of a millisecond, and 12 KiB."""
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\"", "\0": " "})


class LabelSet:
    """The label values of one series."""

    __slots__ = ("text", "values")

    def __init__(self, names: Sequence[str], values: tuple[str, ...]) -> None:
        """Write the text, ``{name="value",…}`` as in a line; it is empty without labels.

        A character that UTF-8 cannot encode becomes ``?``. A zero byte, which ends Prometheus'
        input, becomes a blank. So an invalid name does not make the whole scrape fail.
        """
        pairs = [
            f'{name}="{value.translate(_ESCAPES)}"'
            for name, value in zip(names, values, strict=True)
        ]
        text = ",".join(pairs).encode("utf-8", "replace").decode()
        self.values, self.text = values, f"{{{text}}}" if pairs else ""


def number(value: Number) -> str:
    """Format a value; integers of any size are exact. Not for NaN."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return f"{+value}"  # plus: True becomes 1


def metric_of(family: Family) -> Metric:
    """Return the library's object of a family, without samples."""
    name = family.name.removesuffix("_total") if family.kind is Kind.COUNTER else family.name
    return Metric(name, family.meaning, family.kind.value, family.base_unit)


def _odd(name: str, of: LabelSet, value: Number) -> str:
    return f"{name}{of.text} {number(value)}\n" if value == value else ""


class Samples(NamedTuple):
    """Values of a counter or gauge by label set."""

    family: Family
    label_sets: Sequence[LabelSet]
    values: Sequence[Number | None]
    """None or NaN: no sample."""

    def lines(self) -> Iterator[str]:
        """Yield pieces of whole lines."""
        name = self.family.name
        for start in range(0, len(self.label_sets), LINES_AT_ONCE):
            piece = slice(start, start + LINES_AT_ONCE)
            yield "".join(
                [
                    # value * 0 is 0 unless the value is infinite or NaN, which are rare.
                    f"{name}{each.text} {+value}\n" if value * 0 == 0 else _odd(name, each, value)
                    for each, value in zip(self.label_sets[piece], self.values[piece], strict=True)
                    if value is not None
                ]
            )

    def metric(self) -> Metric:
        """Return the library's object."""
        metric, labels = metric_of(self.family), self.family.labels
        metric.samples = [
            Sample(self.family.name, dict(zip(labels, each.values, strict=True)), value)
            for each, value in zip(self.label_sets, self.values, strict=True)
            if value is not None and value == value
        ]
        return metric


class Buckets(NamedTuple):
    """Values of a histogram by label set."""

    family: Family
    label_sets: Sequence[LabelSet]
    counts: Sequence[Sequence[Number]]
    """For each label set the number of values in each bucket, the last bucket holding all above the
    bounds, then the sum of the values."""

    def lines(self) -> Iterator[str]:
        """Yield pieces of whole lines."""
        name, bounds = self.family.name, bounds_of(self.family)
        tails = [f'le="{bound}"}} ' for bound in bounds]
        at_once = max(1, LINES_AT_ONCE // (len(bounds) + 2))
        for start in range(0, len(self.label_sets), at_once):
            lines: list[str] = []
            piece = slice(start, start + at_once)
            for of, (*each, total) in zip(self.label_sets[piece], self.counts[piece], strict=True):
                text = of.text
                before = f"{name}_bucket{text[:-1]}," if text else f"{name}_bucket{{"
                below = list(itertools.accumulate(each))
                lines += [f"{before}{tail}{n}\n" for tail, n in zip(tails, below, strict=True)]
                lines.append(f"{name}_count{text} {below[-1]}\n{name}_sum{text} {total}\n")
            yield "".join(lines)

    def metric(self) -> Metric:
        """Return the library's object."""
        metric, name, bounds = metric_of(self.family), self.family.name, bounds_of(self.family)
        for each, (*counts, total) in zip(self.label_sets, self.counts, strict=True):
            labels = dict(zip(self.family.labels, each.values, strict=True))
            below = list(itertools.accumulate(counts))
            metric.samples += [
                Sample(f"{name}_bucket", {**labels, "le": bound}, count)
                for bound, count in zip(bounds, below, strict=True)
            ]
            metric.samples.append(Sample(f"{name}_count", labels, below[-1]))
            metric.samples.append(Sample(f"{name}_sum", labels, total))
        return metric


def bounds_of(family: Family) -> list[str]:
    """Return each bucket's upper bound as the text of a float, so 64 and 64.0 are the same."""
    return [*(repr(float(bound)) for bound in family.buckets), "+Inf"]
