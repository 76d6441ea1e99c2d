"""Measure a figure beside its baseline, interleaved in one run; print median and spread."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Final, NamedTuple

RUNS: Final = 7


class Figure(NamedTuple):
    """Rates per second of one measured thing, and of what it is held against."""

    what: str
    unit: str
    rates: list[float]
    baseline: str
    baseline_rates: list[float]

    @property
    def ratio(self) -> float:
        """Median of the pairwise ratios: a machine that drifts hits both sides alike."""
        pairs = zip(self.rates, self.baseline_rates, strict=True)
        return statistics.median(rate / base for rate, base in pairs)


def measure(
    what: str,
    unit: str,
    run: Callable[[], int],
    baseline: str,
    run_baseline: Callable[[], int],
) -> Figure:
    """Run both in turn, RUNS times after one warm-up. A callable returns how many units it did."""

    def rate(job: Callable[[], int]) -> float:
        gc.collect()
        began = time.perf_counter()
        done = job()
        return done / (time.perf_counter() - began)

    rate(run)
    rate(run_baseline)
    pairs = [(rate(run), rate(run_baseline)) for _ in range(RUNS)]
    return Figure(what, unit, [a for a, _ in pairs], baseline, [b for _, b in pairs])


def machine() -> str:
    """One line about where this ran."""
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def show(figures: list[Figure], method: str) -> None:
    """Print the figures, the last line being the last figure's."""
    print(f"machine: {machine()}\nmethod: {method}; median of {RUNS} runs (min to max)")
    for figure in figures:
        print(
            f"{figure.what}: {statistics.median(figure.rates):,.0f} {figure.unit}/s "
            f"({min(figure.rates):,.0f} to {max(figure.rates):,.0f}); "
            f"{figure.ratio:.3f} x {figure.baseline}"
        )
