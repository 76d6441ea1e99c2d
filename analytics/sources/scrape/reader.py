"""From a spooled file to batches of samples, with gaps. Runs on executors, or without Spark.

Step before: ``scraper`` filled the spool. Step after: ``kernel.shape``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from analytics.schema import Gap
from analytics.sources import gaps
from analytics.sources.exposition import Parsed, Parser
from analytics.sources.gaps import Missing
from analytics.sources.labelled import batches
from analytics.sources.scrape.spool import Scraped, read
from analytics.sources.scrape.targets import Target

log = logging.getLogger(__name__)

SOURCE: Final = "scrape"
PARSERS_MAX: Final = 64


def samples(path: Path) -> Iterator[pa.RecordBatch]:
    """Rows of a file, with its gaps as rows. A missing or damaged file is a gap itself."""
    missing: list[Missing] = []
    try:
        for scraped in read(path):
            yield from _of_target(scraped, missing)
    except FileNotFoundError:
        missing.append(_of_file(path, Gap.VANISHED, "the spooled file no longer exists"))
    except (ValueError, KeyError, OSError) as error:
        missing.append(_of_file(path, Gap.DAMAGED, str(error)))
    if missing:
        yield gaps.batch(missing, SOURCE)


@lru_cache(maxsize=PARSERS_MAX)
def _parser(target: Target) -> Parser:
    """Parser of a target; cached, because it knows the series of the previous scrape."""
    return Parser(dict(target.labels))


def _of_target(scraped: Scraped, missing: list[Missing]) -> Iterator[pa.RecordBatch]:
    instance = scraped.target.instance

    def gap(reason: Gap, detail: str, rows: int | None = None) -> None:
        span = scraped.since_us, scraped.at_us
        missing.append(Missing(instance, *span, reason, detail, rows))

    if scraped.reason is not None:
        gap(scraped.reason, scraped.detail)
        return
    try:
        text = scraped.body.decode()
    except UnicodeDecodeError as error:
        gap(Gap.DAMAGED, f"the answer is not UTF-8: {error}")
        return
    parsed = _parser(scraped.target).parse(text, openmetrics=scraped.is_openmetrics)
    if not parsed.is_whole:
        gap(Gap.TORN, "the answer was cut off", len(parsed.at))
        return
    if parsed.unreadable:
        detail = f"{parsed.unreadable} lines are unreadable, like {parsed.shown[0]!r}"
        log.warning(
            "lines of a scrape are unreadable",
            extra={"event": "unreadable-lines", "target": instance, "lines": parsed.shown},
        )
        gap(Gap.DAMAGED, detail, parsed.unreadable)
    yield from _batches(parsed, scraped.at_us)


def _batches(parsed: Parsed, at_us: int) -> Iterator[pa.RecordBatch]:
    ts_us = np.full(len(parsed.at), at_us, np.int64)
    if parsed.ts_us is not None:
        ts_us = np.where(parsed.ts_us != 0, parsed.ts_us, ts_us)
    return batches(parsed.series, parsed.at, ts_us, parsed.values, SOURCE)


def _of_file(path: Path, reason: Gap, detail: str) -> Missing:
    digits = path.stem.partition("-")[2]
    at_us = int(digits) * 1000 if digits.isdigit() else 0
    return Missing(path.name, at_us, at_us, reason, detail)
