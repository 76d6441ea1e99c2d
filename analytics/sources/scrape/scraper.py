"""Scrapes all targets at equal intervals into the spool, in its own thread.

A round begins at each multiple of the interval, independently of the stream's batches. A target
without a complete answer in half the interval has a gap of one round and delays no other target.
Rounds that were missed (the process was down or suspended) are gaps too. Step before: ``targets``.
Step after: ``spool``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from analytics.schema import Gap
from analytics.sources.gaps import Unanswered
from analytics.sources.http import fetch
from analytics.sources.option_values import BadOption
from analytics.sources.scrape.options import Options
from analytics.sources.scrape.spool import Scraped, SpoolWriter
from analytics.sources.scrape.targets import Target

log = logging.getLogger(__name__)

TARGETS_AGAIN_S: Final = 60.0
MISSED_ROUNDS: Final = 2
"""Number of intervals between two rounds that make a gap."""
ACCEPT: Final = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


class Scraper:
    """Scrapes into one spool. ``start`` begins the thread, ``close`` ends it."""

    def __init__(
        self, options: Options, spool: SpoolWriter, clock: Callable[[], float] = time.time
    ) -> None:
        """clock: wall clock [s]."""
        self._options = options
        self._spool = spool
        self._clock = clock
        self._targets = options.read_targets()
        self._targets_read_s = clock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pool = ThreadPoolExecutor(options.concurrency, thread_name_prefix="scrape")
        self.failure: BaseException | None = None
        """Error that ended the thread, other than ``close``."""
        there = spool.files()
        self._last_us: int | None = there[-1].at_ms * 1000 if there else None
        """Start of the previous round [µs]."""

    def start(self) -> None:
        """Scrape at every multiple of the interval from now on."""
        self._thread = threading.Thread(target=self._run_and_log, name="scraper", daemon=True)
        self._thread.start()

    def round(self) -> None:
        """Scrape all targets once and spool the answers. Takes no longer than the timeout."""
        self._read_targets_again()
        at_us = round(self._clock() * 1000) * 1000
        since_us = self._since(at_us)
        deadline_s = time.monotonic() + self._options.timeout_s
        found = list(
            self._pool.map(lambda target: self._scrape(target, since_us, deadline_s), self._targets)
        )
        found += self._missed(at_us)
        by_set: dict[str, list[Scraped]] = {}
        for each in found:
            by_set.setdefault(each.target.set_name, []).append(each)
        for name in sorted(by_set):
            self._spool.write(by_set[name], at_us // 1000)
        self._last_us = at_us

    def close(self) -> None:
        """Stop after the current round."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._pool.shutdown()

    def _run_and_log(self) -> None:
        try:
            interval_s = self._options.interval_s
            while not self._stop.is_set():
                self.round()
                next_s = (self._clock() // interval_s + 1) * interval_s
                # A wait may end a little early, and the round would be one of the tick before.
                while (left_s := next_s - self._clock()) > 0 and not self._stop.wait(left_s):
                    pass
        except BaseException as error:
            self.failure = error
            log.exception("scraping ended", extra={"event": "scraping-ended"})
            raise

    def _since(self, at_us: int) -> int:
        """Return the start of the interval that a round at at_us covers: the previous round."""
        interval_us = round(self._options.interval_s * 1e6)
        return (
            at_us - interval_us
            if self._last_us is None
            else max(self._last_us, at_us - MISSED_ROUNDS * interval_us)
        )

    def _missed(self, at_us: int) -> list[Scraped]:
        """A gap per target if no round began for more than two intervals."""
        interval_us = round(self._options.interval_s * 1e6)
        if self._last_us is None or at_us - self._last_us < MISSED_ROUNDS * interval_us:
            return []
        return [
            Scraped(target, at_us, self._last_us, b"", False, Gap.UNSCRAPED, "collect was down")
            for target in self._targets
        ]

    def _read_targets_again(self) -> None:
        now = self._clock()
        if 0 <= now - self._targets_read_s < TARGETS_AGAIN_S:
            return
        self._targets_read_s = now
        try:
            self._targets = self._options.read_targets()
        except (OSError, BadOption) as error:
            # A file that is being written may be incomplete; the previous targets stay.
            log.warning(
                "the list of targets is unreadable and stays as it was",
                extra={"event": "targets-unreadable", "error": str(error)},
            )

    def _scrape(self, target: Target, since_us: int, deadline_s: float) -> Scraped:
        options = self._options
        at_us = round(self._clock() * 1000) * 1000

        def gap(reason: Gap, detail: str) -> Scraped:
            return Scraped(target, at_us, min(since_us, at_us), b"", False, reason, detail)

        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return gap(Gap.LATE, "it was not scraped in time, because too many targets are slow")
        headers: Mapping[str, str] = {"Accept": ACCEPT, "Accept-Encoding": "identity"}
        try:
            answer = fetch(
                target.url,
                timeout_s=left_s,
                size_max=options.size_max,
                headers=headers,
            )
        except Unanswered as trouble:
            return gap(trouble.reason, trouble.detail)
        if answer.status != 200:
            return gap(Gap.UNREACHABLE, f"status {answer.status}")
        is_openmetrics = answer.content_type.startswith("application/openmetrics-text")
        return Scraped(target, at_us, since_us, answer.body, is_openmetrics)
