"""Options of the source ``tidemark_scrape``. Pure, except that the list of targets may be a file.

Step before: a command line or Spark. Step after: ``scraper`` and ``spool``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from analytics.local_path import local
from analytics.sources.option_values import BadOption, required, seconds, whole
from analytics.sources.scrape.targets import Target
from analytics.sources.scrape.targets import parse as parse_targets

INTERVAL_S: Final = 15.0
KEEP_S: Final = 600.0
SIZE_MAX: Final = 256 << 20
CONCURRENCY: Final = 16
FILES_MAX: Final = 1000
LATE_SHARE: Final = 0.5
"""Maximum duration of a scrape as a share of the interval; a longer one is not an instant."""


class Options(NamedTuple):
    """See the constants for defaults."""

    targets: str
    """A list of targets as JSON, or the path of a file with one."""
    spool: Path
    """Directory that the driver and executors share."""
    interval_s: float
    timeout_s: float
    """Time limit of one scrape; at most half the interval."""
    keep_s: float
    """How long a scrape is kept after it was read."""
    size_max: int
    """Maximum size of one answer, in bytes."""
    concurrency: int
    files_max: int
    """Maximum number of spooled files in one batch."""

    def read_targets(self) -> tuple[Target, ...]:
        """Targets as of now. Raises BadOption; OSError if the file cannot be read."""
        text = self.targets.strip()
        if not text.startswith("["):
            text = local(text).read_text(encoding="utf-8")
        return parse_targets(text)


def parse(options: Mapping[str, str]) -> Options:
    """Parse options; see docs/analytics.md. Raises BadOption."""
    interval_s = seconds(options, "interval", INTERVAL_S)
    late_s = interval_s * LATE_SHARE
    found = Options(
        required(options, "targets", "a JSON list of targets, or the path of a file with one"),
        local(required(options, "spool", "a directory that executors can read")),
        interval_s,
        min(seconds(options, "timeout", late_s), late_s),
        seconds(options, "keep", KEEP_S),
        whole(options, "size_max", SIZE_MAX, low=1),
        whole(options, "concurrency", CONCURRENCY, low=1),
        whole(options, "max_files", FILES_MAX, low=1),
    )
    try:
        found.read_targets()
    except OSError as error:
        raise BadOption("targets", found.targets, f"a readable file: {error}") from error
    return found
