"""Reads parts of the plan from a server: batches of raw samples, and rows for gaps.

A part always ends, with all its samples or with rows that name the missing time and the reason. A
slice that is too much for the server is halved, at most ``SPLITS_MAX`` times. A server that does
not answer is asked again a few times. Incomplete answers are dropped. Works with Spark and without.
Step before: ``plan``. Step after: ``kernel.shape``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final
from urllib.parse import urlencode

import pyarrow as pa

from analytics.schema import SAMPLES, Gap
from analytics.sources import gaps
from analytics.sources.gaps import Missing, Unanswered
from analytics.sources.http import fetch
from analytics.sources.labelled import batches
from analytics.sources.option_values import BadOption
from analytics.sources.prometheus.answer import Samples, error_of, instant_us, parse
from analytics.sources.prometheus.holes import holes, range_before_us
from analytics.sources.prometheus.options import Options
from analytics.sources.prometheus.plan import Part, plan
from analytics.sources.prometheus.selectors import MS_US

SOURCE: Final = "prometheus"
CONTEXT: Final = "context"
SUBJECT: Final = "prometheus"
"""Subject of a gap of the whole server."""
SPLITS_MAX: Final = 6
"""How often a slice is halved. Also the total for a part with a slow server, because each request
that times out takes the whole timeout."""
BACKOFF_S: Final = 0.5
_TOO_MUCH: Final = ("too many samples", "exceeds the maximum", "too large", "limit exceeded")
_AGAIN: Final = (Gap.UNREACHABLE, Gap.TORN)


class Reader:
    """Reader of one server. It holds no connection, so it can be sent to another process."""

    def __init__(self, options: Options, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """sleep: waits this many seconds between two tries."""
        self._options = options
        self._sleep = sleep

    def plan(self, start_us: int, end_us: int) -> list[Part]:
        """Return parts for all samples with start < time <= end; microseconds since 1970."""
        return list(plan(self._options, start_us, end_us))

    def read(self, part: Part, schema: pa.Schema = SAMPLES) -> Iterator[pa.RecordBatch]:
        """Yield the samples of a part, with gaps as rows. schema: SAMPLES or CODED_SAMPLES. Raises
        BadOption for a bad selector."""
        todo = [(part.start_us, part.end_us, 0)]
        slow_splits = 0
        has_values = False
        missing: list[Missing] = []
        while todo:
            low, high, depth = todo.pop()
            try:
                context = None if part.context is None else self._ask(part.context, low, high)
                found = self._ask(part.matchers, low, high)
            except Unanswered as trouble:
                slow_splits += trouble.reason is Gap.TIMEOUT
                is_slow = trouble.reason is Gap.TIMEOUT and slow_splits <= SPLITS_MAX
                can_split = is_slow or trouble.reason is Gap.OVERLOAD
                middle = (low + (high - low) // 2) // MS_US * MS_US
                if can_split and depth < SPLITS_MAX and low < middle < high:
                    todo += [(middle, high, depth + 1), (low, middle, depth + 1)]
                else:
                    missing.append(Missing(part.subject, low, high, trouble.reason, trouble.detail))
                continue
            if context is not None:
                has_values |= _has_values(context)
                yield from _kept(context, low, high, CONTEXT, schema)
            has_values |= _has_values(found)
            yield from _kept(found, low, high, SOURCE, schema)
        missing += self._holes(part, missing, has_values=has_values)
        if missing:
            yield gaps.batch(missing, SOURCE).cast(schema)

    def _holes(self, part: Part, unread: Sequence[Missing], *, has_values: bool) -> list[Missing]:
        """Times of the part at which the server scraped nothing. unread: known gaps."""
        interval_s = self._options.interval_s
        left_us = part.end_us - part.start_us - sum(each.to_us - each.from_us for each in unread)
        if part.scrapes is None or interval_s is None or left_us <= 0:
            return []
        interval_us = round(interval_s * 1e6)
        since_us = part.start_us - range_before_us(interval_us)
        try:
            seen_us = self._ask(part.scrapes, since_us, part.end_us).ts_us
        except Unanswered as trouble:
            span = part.start_us, part.end_us
            return [Missing(part.scrapes, *span, trouble.reason, trouble.detail)]
        if has_values and not seen_us.size:
            return []  # the server has no `up`, or other labels: nothing is known of its scrapes
        return [
            Missing(SUBJECT, *hole, Gap.UNSCRAPED, "the server has no scrape of this time")
            for hole in holes(seen_us, part.start_us, part.end_us, interval_us)
        ]

    def now_us(self) -> int | None:
        """The server's clock [microseconds since 1970]; None if its answer has no time. Raises
        Unanswered if it does not answer queries now."""
        timeout_s = min(5.0, self._options.timeout_s)
        return instant_us(self._query("1", None, timeout_s=timeout_s, size_max=1 << 16))

    def _ask(self, matchers: str, low: int, high: int) -> Samples:
        """Return all samples of one span, both ends included if the server does so. Repeats the
        query if the server does not answer. Raises Unanswered."""
        options = self._options
        query = f"{{{matchers}}}[{(high - low) // MS_US}ms]"
        attempt = 0
        while True:
            try:
                body = self._query(
                    query, high, timeout_s=options.timeout_s, size_max=options.size_max
                )
                found = parse(body)
            except Unanswered as trouble:
                attempt += 1
                if trouble.reason not in _AGAIN or attempt > options.retries:
                    raise
                self._sleep(BACKOFF_S * 2 ** (attempt - 1))
                continue
            if len(found.at) > options.samples_max:
                raise Unanswered(Gap.OVERLOAD, f"{len(found.at)} samples in one answer")
            return found

    def _query(self, query: str, at_us: int | None, *, timeout_s: float, size_max: int) -> bytes:
        """Return the body of a good answer. Raises Unanswered; BadOption for a wrong query."""
        options = self._options
        fields = {"query": query, "timeout": f"{round(timeout_s * 1000)}ms"}
        if at_us is not None:
            fields["time"] = f"{at_us // MS_US / 1000:.3f}"
        answer = fetch(
            f"{options.url}/api/v1/query",
            timeout_s=timeout_s,
            size_max=size_max,
            headers={
                "Content-Type": "application/x-www-form-urlencoded",
                "Accept-Encoding": "identity",
                **dict(options.headers),
            },
            body=urlencode(fields).encode(),
        )
        if answer.status == 200:
            return answer.body
        message = error_of(answer.body)
        if answer.status == 400 and "parse error" in message:
            raise BadOption("selectors", query, f"what the server can read; its message: {message}")
        raise Unanswered(_reason(answer.status, message), f"status {answer.status}: {message}")


def _reason(status: int, message: str) -> Gap:
    """Return why there is no answer, from the message of the server."""
    lower = message.lower()
    if any(text in lower for text in _TOO_MUCH):
        return Gap.OVERLOAD
    if status in (408, 504) or "timed out" in lower or "deadline exceeded" in lower:
        return Gap.TIMEOUT
    return Gap.UNREACHABLE


def _has_values(found: Samples) -> bool:
    """Whether there is a sample of one of our metrics. `up` is not: a server scrapes itself."""
    return any(series.metric != "up" for series in found.series)


def _kept(
    found: Samples, low: int, high: int, source: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Samples in the slice. Some servers also send its start, which belongs to the previous
    slice."""
    inside = (found.ts_us > low) & (found.ts_us <= high)
    if inside.all():
        return batches(found.series, found.at, found.ts_us, found.values, source, schema)
    at, ts_us, values = found.at[inside], found.ts_us[inside], found.values[inside]
    return batches(found.series, at, ts_us, values, source, schema)
