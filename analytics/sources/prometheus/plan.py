"""Cuts the work into time slices × selectors × shards of queues. Pure.

A part is one request of ``selector[slice]`` at the slice's end, and one task of Spark. Slices
exclude their start and include their end. Prometheus 2.x returns both ends and 3.x omits the start,
so ``reader`` filters the samples itself. Step before: ``options``. Step after: ``reader``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from analytics.sources.option_values import BadOption
from analytics.sources.prometheus.options import CONTEXT, SCRAPES, Options
from analytics.sources.prometheus.selectors import MS_US, shard_matcher

PARTS_MAX: Final = 100_000


class Part(NamedTuple):
    """Work of one task. Times in microseconds since 1970, whole milliseconds."""

    matchers: str
    start_us: int
    """Exclusive."""
    end_us: int
    """Inclusive."""
    context: str | None
    """Matchers of samples that are read for context and not written; None: none."""
    scrapes: str | None = None
    """Matchers of the samples that show when the server scraped. Only one part of each slice has
    them."""

    @property
    def subject(self) -> str:
        """Name of the part in rows of gaps."""
        return "{" + self.matchers + "}"


def plan(options: Options, start_us: int, end_us: int) -> Iterator[Part]:
    """Yield parts for all samples with start < time <= end. Raises BadOption if they are too
    many."""
    start, end = start_us // MS_US * MS_US, end_us // MS_US * MS_US
    step = max(MS_US, round(options.slice_s * 1000) * MS_US)
    count = max(0, -(-(end - start) // step)) * len(options.selectors) * options.shards
    if count > PARTS_MAX:
        raise BadOption("slice", f"{options.slice_s:g}s", f"no more than {PARTS_MAX} parts")
    for low in range(start, end, step):
        scrapes = None if options.interval_s is None else SCRAPES  # of any topic, any group
        for selector in options.selectors:
            for shard in range(options.shards):
                part = _part(options, selector, shard, low, min(low + step, end))
                yield part._replace(scrapes=scrapes)
                scrapes = None


def _part(options: Options, selector: str, shard: int, low: int, high: int) -> Part:
    share = shard_matcher(shard, options.shards)
    matchers = [selector, *([] if share is None else [share])]
    context = None
    if options.context and shard > 0:
        # Series without a label `queue` are in shard 0; the other shards read some of them as
        # context.
        context = ",".join((selector, CONTEXT, 'queue=""'))
    return Part(",".join(matchers), low, high, context)
