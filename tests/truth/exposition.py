"""A workload as exposition text: one scrape of a process, or an OpenMetrics file of all scrapes.

`promtool tsdb create-blocks-from openmetrics FILE DIR` turns the file into blocks that a Prometheus
serves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from shared.metrics.catalogue import BY_NAME
from shared.metrics.family import Kind
from tests.truth.samples import Target, lines, targets
from tests.truth.workload import SCRAPE_AFTER_SAMPLE, Truth


def scrape(truth: Truth, of: Target, sample: int) -> str:
    """What a process answers to a scrape whose sample was at `sample` (time), in the text
    format."""
    text: list[str] = []
    exported: set[str] = set()
    instant = np.array([sample], np.int64)
    for line in sorted(lines(truth, of, instant), key=lambda each: each.family):
        value = float(line.values[0])
        if math.isnan(value):
            continue
        if line.family not in exported:
            exported.add(line.family)
            family = BY_NAME[line.family]
            text.append(f"# HELP {line.family} {family.meaning}")
            text.append(f"# TYPE {line.family} {family.kind.value}")
        text.append(f"{line.family}{_labels(line.labels)} {_number(value)}")
    return "\n".join(text) + "\n"


def openmetrics(*truths: Truth) -> Iterator[str]:
    """Lines, each with its end, of a file with every sample of every target, and `up` of each.

    The timestamp of a scrape is that of its sample plus SCRAPE_AFTER_LOOK. Workloads beside each
    other must be of clusters of different names.
    """
    by_family: dict[str, list[tuple[dict[str, str], np.ndarray, list[str]]]] = {}
    for truth in truths:
        sample_times = truth.sample_times()
        stamps = [f"{at / 1_000_000:.3f}" for at in (sample_times + SCRAPE_AFTER_SAMPLE).tolist()]
        for of in targets(truth):
            added = of.labels(truth.cluster)
            by_family.setdefault("up", []).append((added, np.ones(len(sample_times)), stamps))
            for line in lines(truth, of, sample_times):
                row = (line.labels | added, line.values, stamps)
                by_family.setdefault(line.family, []).append(row)
    for name in sorted(by_family):
        family = BY_NAME.get(name)
        counter = family is not None and family.kind is Kind.COUNTER
        yield f"# TYPE {name.removesuffix('_total')} {'counter' if counter else 'gauge'}\n"
        for labels, values, stamps in by_family[name]:
            written = _labels(labels)
            for stamp, value in zip(stamps, values.tolist(), strict=True):
                if not math.isnan(value):
                    yield f"{name}{written} {_number(value)} {stamp}\n"
    yield "# EOF\n"


def write_openmetrics(truth: Truth, path: Path, *others: Truth) -> None:
    """The file for promtool, of one workload or of several."""
    with path.open("w") as file:
        file.writelines(openmetrics(truth, *others))


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items()))
    return "{" + inside + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def scrapes(truth: Truth) -> Iterable[tuple[int, Target, str]]:
    """(time of the scrape, target, text) of every tick that was heard of, in order of time."""
    for sample in truth.sample_times().tolist():
        for of in targets(truth):
            yield sample + SCRAPE_AFTER_SAMPLE, of, scrape(truth, of, sample)
