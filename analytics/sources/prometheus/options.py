"""Options of the source ``tidemark_prometheus``: URL, selectors, size of the work. Pure.

Step before: a command line or Spark. Step after: ``plan`` cuts the work up, ``reader`` does it.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from analytics.kernel.shape import METRICS, QUEUE_METRICS, TIMED
from analytics.sources.gaps import SERVICES
from analytics.sources.option_values import (
    BadOption,
    flag,
    instant_us,
    required,
    seconds,
    whole,
)
from analytics.sources.prometheus.selectors import SHARDS_MAX, any_of, normal

SLICE_S: Final = 1800.0
SAMPLES_MAX: Final = 5_000_000
BYTES_PER_SAMPLE: Final = 64
"""Bytes per sample of an answer, labels included; a sample takes about 25."""
TIMEOUT_S: Final = 60.0
RETRIES: Final = 3
SETTLE_S: Final = 15.0
"""A scrape appears in the server after it ends, with the time of its start."""
PATIENCE_S: Final = 600.0
SLICES_MAX: Final = 16
ALIGN_S: Final = 0.001
HEADER: Final = "header."

COLLECTED: Final = any_of("__name__", sorted(METRICS | TIMED | {"up"}))
"""Families that shaping reads, and the counters that are stored by default."""
SCRAPES: Final = ",".join((any_of("__name__", ["up"]), any_of("service", SERVICES)))
"""Family with a sample for each scrape of one of our services."""
CONTEXT: Final = any_of("__name__", sorted(METRICS - QUEUE_METRICS))
"""Families without a queue that shaping reads."""


class Options(NamedTuple):
    """Times are in microseconds since 1970; see the constants for defaults."""

    url: str
    selectors: tuple[str, ...]
    """Matchers without braces, one entry per selector."""
    start_us: int | None
    """Exclusive."""
    end_us: int | None
    """Inclusive."""
    slice_s: float
    shards: int
    samples_max: int
    timeout_s: float
    retries: int
    context: bool
    settle_s: float
    patience_s: float
    slices_max: int
    align_s: float
    """Offsets of a stream are multiples of this. With the scrape period, samples of one tick from
    all processes of a node are in one batch."""
    interval_s: float | None
    """Scrape interval of the server; if set, times without scrapes are gaps."""
    headers: tuple[tuple[str, str], ...]

    @property
    def size_max(self) -> int:
        """Maximum size of one answer, in bytes."""
        return max(1 << 20, self.samples_max * BYTES_PER_SAMPLE)


def parse(options: Mapping[str, str]) -> Options:
    """Parse options; see docs/analytics.md. Raises BadOption."""
    url = required(options, "url", "the server's, like http://127.0.0.1:9090").strip().rstrip("/")
    url, login = _address(url)
    lines = [line for line in (options.get("selectors") or "").splitlines() if line.strip()]
    found = Options(
        url,
        tuple(normal(line) for line in lines) or (COLLECTED,),
        instant_us(options, "start"),
        instant_us(options, "end"),
        seconds(options, "slice", SLICE_S),
        whole(options, "shards", 1, low=1, high=SHARDS_MAX),
        whole(options, "max_samples", SAMPLES_MAX, low=1),
        seconds(options, "timeout", TIMEOUT_S),
        whole(options, "retries", RETRIES),
        flag(options, "context", default=False),
        seconds(options, "settle", SETTLE_S),
        seconds(options, "patience", PATIENCE_S),
        whole(options, "max_slices", SLICES_MAX, low=1),
        seconds(options, "align", ALIGN_S),
        seconds(options, "interval", 0.0) if options.get("interval") else None,
        login
        + tuple(
            (name[len(HEADER) :], value)
            for name, value in options.items()
            if name.lower().startswith(HEADER)
        ),
    )
    if found.start_us is not None and found.end_us is not None and found.start_us > found.end_us:
        raise BadOption("start", str(options.get("start")), "a time before end")
    return found


def _address(url: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Split a URL into the address and a header with its login. Raises BadOption."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    else:
        is_good = is_good and not parts.query and not parts.fragment and " " not in url
    if not is_good:
        raise BadOption("url", url, "http:// or https://, a host, a port, the path of a proxy")
    if parts.username is None:
        return url, ()
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return bare, (("Authorization", f"Basic {b64encode(login).decode()}"),)
