"""Options of the source ``tidemark_telemetry``. Pure, except that the list may be a file.

    [{"targets": ["10.0.0.1:8080", "10.0.0.2:8080"], "labels": {"cluster": "c", "broker": "g0"}}]

An entry is a *set*: all nodes of one replication group, or a node alone. Its addresses are those of
the API; the client finds the master among them. Step before: a command line or Spark. Step after:
``reader``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from analytics.local_path import local
from analytics.sources.option_values import BadOption, required, seconds, whole
from analytics.sources.topic.options import TopicOptions
from tidemark.formats.telemetry import TELEMETRY_TOPIC

RETRY_S: Final = 15.0
RECORDS_MAX: Final = 10_000
SPLIT_ROWS: Final = 1_000_000
COLUMNS: Final = ("queue_offset", "next_offset", "body", "gap", "gap_detail")
_WANTED: Final = 'a list like [{"targets": ["host:port"], "labels": {"cluster": "c"}}]'


class BrokerSet(NamedTuple):
    """The nodes that share one journal, and the labels of its samples."""

    urls: tuple[str, ...]
    cluster: str
    broker: str
    replica: str
    """Name of a node that is alone; nodes of a group write theirs into the journal."""

    @property
    def name(self) -> str:
        """Name of the set in offsets and gaps."""
        return f"{self.cluster}/{self.broker}"


class Options(NamedTuple):
    """See the constants for defaults."""

    sets: tuple[BrokerSet, ...]
    first: str
    """Where a new stream begins: ``first``, the oldest record, or ``last``, after the newest."""
    retry_s: float
    """How long a read waits for a master. Longer than a failover takes."""
    records_max: int
    """Maximum number of records of each set in one batch."""
    split_rows: int
    """Rows of snapshots in one task, about: each becomes two or three samples in its memory."""

    def topic_of(self, broker_set: BrokerSet) -> TopicOptions:
        """Options of a read of the journal's topic."""
        return TopicOptions(
            urls=broker_set.urls,
            topic=TELEMETRY_TOPIC,
            first="first" if self.first == "first" else "last",
            retry_seconds=self.retry_s,
            columns=COLUMNS,
        )


def parse(options: Mapping[str, str]) -> Options:
    """Parse options; see docs/analytics.md. Raises BadOption."""
    first = options.get("from", "last")
    if first not in ("first", "last"):
        raise BadOption("from", first, "first or last")
    return Options(
        _sets(required(options, "targets", f"{_WANTED}, or the path of a file with one")),
        first,
        seconds(options, "retry", RETRY_S),
        whole(options, "max_records", RECORDS_MAX, low=1),
        whole(options, "split_rows", SPLIT_ROWS, low=1),
    )


def _sets(text: str) -> tuple[BrokerSet, ...]:
    text = text.strip()
    if not text.startswith("["):
        try:
            text = local(text).read_text(encoding="utf-8")
        except OSError as error:
            raise BadOption("targets", text, f"a readable file: {error}") from error
    try:
        sets = [_set(entry) for entry in json.loads(text)]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadOption("targets", text[:80], f"{_WANTED} ({error})") from error
    names = [each.name for each in sets]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadOption("targets", ", ".join(twice), "one entry for each cluster and broker")
    return tuple(sorted(sets))


def _set(entry: dict[str, Any]) -> BrokerSet:
    urls = [url if "://" in url else f"http://{url}" for url in entry["targets"]]
    if not urls:
        raise ValueError("an entry has no targets")
    labels = {str(name): str(value) for name, value in entry.get("labels", {}).items()}
    names = (labels.get(name, "") for name in ("cluster", "broker", "replica"))
    return BrokerSet(tuple(urls), *names)
