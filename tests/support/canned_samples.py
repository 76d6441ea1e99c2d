"""Samples of broker sets that are served over HTTP as their time comes, with planned trouble.

Each broker set has a journal of records, one for each tick. A record may come late, twice, or only
when its broker set answers again. The stream `canned_samples` follows the journals by record
number, so a repeated batch has the same records. `CannedServer` runs in the test's process; the
stream runs in drivers and executors.
"""

from __future__ import annotations

import io
import json
import random
import threading
import urllib.request
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from analytics.schema import SAMPLES
from analytics.tables.frames import spark_schema
from tests.truth.closed import Capacity, broker_of, constant, drained, queue, reading
from tests.truth.paces import at
from tests.truth.rendered import samples_table
from tests.truth.steps import SECOND
from tests.truth.workload import Pair, Truth

NAME: Final = "canned_samples"
PERIOD_S: Final = 15
CLOCK_OFF_US: Final = 600 * SECOND
LATE_SHARE: Final = 0.004
TWICE_SHARE: Final = 0.004


class Record(NamedTuple):
    """The samples of one tick of a broker set, and when they come."""

    tick: int
    comes: int
    """Number of the tick at which it is there."""


def workloads(brokers: int, pairs: int, ticks: int, chance: random.Random) -> list[Truth]:
    """Broker sets with groups of one queue each, whose consumers stop and go on at random. The
    clock of the last broker set is ten minutes ahead."""
    seconds = float(ticks * PERIOD_S)
    found = []
    for number in range(brokers):
        of_broker, queues = [], []
        for pair in range(pairs):
            rate = chance.uniform(0.1, 0.5)
            of = replace(queue(constant(rate, seconds)), broker=f"g{number}", topic=f"t{pair}")
            steps, since = [(0.0, rate * 3)], 0.0
            while since < seconds:
                since += chance.uniform(120.0, 3600.0)
                steps.append((since, rate * chance.choice((0.0, 0.5, 0.9, 3.0, 3.0))))
            done = drained(of.eras[0].stored, Capacity(steps))
            of_broker.append(Pair(f"group-{pair}", of.topic, of.broker, (reading(of, done),)))
            queues.append(of)
        broker = replace(
            broker_of(queues),
            name=f"g{number}",
            nodes=(f"g{number}-a", f"g{number}-b"),
            clock_off=CLOCK_OFF_US if number == brokers - 1 else 0,
        )
        found.append(Truth("canned", (broker,), tuple(of_broker), at(seconds)))
    return found


def journals(
    brokers: int, ticks: int, chance: random.Random, *, away: range, late_most: int
) -> list[list[Record]]:
    """Return the journal of each broker set. away: ticks at which the first one does not answer;
    its records come after that. late_most: greatest delay, in ticks."""
    found = []
    for number in range(brokers):
        records = []
        for tick in range(ticks):
            comes = tick
            if number == 0 and tick in away:
                comes = away.stop
            elif number and chance.random() < LATE_SHARE:
                comes += chance.randint(3, late_most)
            records.append(Record(tick, comes))
            if chance.random() < TWICE_SHARE:
                records.append(Record(tick, comes + chance.randint(0, late_most)))
        found.append(sorted(records, key=lambda record: (record.comes, record.tick)))
    return found


def write(truth: Truth, path: Path) -> None:
    """Write the samples of a broker set as Arrow, a batch for each tick."""
    whole = samples_table(truth).combine_chunks().sort_by("ts").combine_chunks()
    stamps = np.asarray(whole.column("ts").cast(pa.int64()))
    bounds = np.searchsorted(stamps, [*np.unique(stamps), np.iinfo(np.int64).max])
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, SAMPLES) as file:
        for first, end in pairwise(bounds.tolist()):
            file.write_table(whole.slice(first, end - first), end - first)


class CannedServer:
    """Serves `/there` (the number of records of each broker set that does answer) and `/records`.

    The test moves the time.
    """

    def __init__(
        self, files: Sequence[Path], journals: Sequence[list[Record]], *, away: range
    ) -> None:
        self.journals = journals
        self._samples = [pa.ipc.open_file(pa.memory_map(str(path))) for path in files]
        self._comes = [[record.comes for record in journal] for journal in journals]
        self._away = away
        self.now = 0.0
        """The present tick, by number."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = outer._answer(self.path)
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def is_over(self) -> bool:
        """Whether all records are there."""
        return self.now > max(comes[-1] for comes in self._comes)

    def _answer(self, path: str) -> bytes:
        asked = urlsplit(path)
        if asked.path == "/there":
            now = self.now
            there = {str(n): bisect_right(comes, now) for n, comes in enumerate(self._comes)}
            if self._away.start <= now < self._away.stop:
                del there["0"]
            return json.dumps(there).encode()
        broker, first, end = (int(parse_qs(asked.query)[name][0]) for name in ("of", "from", "to"))
        out = io.BytesIO()
        with pa.ipc.new_stream(out, SAMPLES) as stream:
            for record in self.journals[broker][first:end]:
                stream.write_batch(self._samples[broker].get_batch(record.tick))
        return out.getvalue()


class CannedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Options: url, records (of each broker set in one batch)."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._url, self._records = options["url"], int(options["records"])
        self._until: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._records)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._there()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        there = self._there() if self._until is None else self._until
        return start | {
            broker: min(count, start.get(broker, 0) + self._records)
            for broker, count in there.items()
        }

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [
            InputPartition((broker, start.get(broker, 0), until))
            for broker, until in end.items()
            if until > start.get(broker, 0)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        broker, first, end = partition.value
        content = _get(f"{self._url}/records?of={broker}&from={first}&to={end}")
        yield from pa.ipc.open_stream(content)

    def _there(self) -> dict[str, int]:
        found: dict[str, int] = json.loads(_get(f"{self._url}/there"))
        return found


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


class CannedSamples(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType | str:
        return spark_schema(SAMPLES)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return CannedStream(dict(self.options))
