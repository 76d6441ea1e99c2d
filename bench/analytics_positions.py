"""Generates an hour of a large cluster for benchmarks of analytics: tables and server answers.

Queues are busy at different rates and 60 % of them idle at any time, as in docs/analytics.md.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self
from urllib.parse import parse_qs

import numpy as np
import pyarrow as pa

from analytics.schema import LOGS, PAIRS, POSITIONS, SERIES, fit, pair_id, series_id
from analytics.sources.prometheus.options import SCRAPES

BEGIN_S: Final = 1_767_600_000  # a whole hour
PERIOD_S: Final = 15
IDLE: Final = 0.6
SLICE_S: Final = 3000
"""Length of an answer: 200 ticks; a multiple of 1,000 s, so that one template fits all answers."""


def tables(
    pair_ids: np.ndarray,
    series_ids: np.ndarray,
    ticks_us: np.ndarray,
    sampled_us: np.ndarray,
    offsets: tuple[np.ndarray, np.ndarray],
    head_us: np.ndarray,
    first: int = 0,
) -> dict[str, pa.Table]:
    """Build positions, series, pairs and logs.

    Each pair has the same number of series. offsets: produced and committed, a row per series and a
    column per tick. head_us: store time of the oldest unread message, 0 if there is none. first:
    number of the first pair.
    """
    produced, committed = offsets
    series, ticks = produced.shape
    pairs = len(pair_ids)
    queues = series // pairs
    numbers = first + np.arange(pairs)
    groups = np.array([f"group{number}" for number in numbers])
    topics = np.array([f"topic{number}" for number in numbers])
    caught_up = head_us.ravel() == 0

    def words(count: int, **columns: str) -> dict[str, pa.Array]:
        first = pa.array(np.zeros(count, np.int8))
        return {name: pa.array([word]).take(first) for name, word in columns.items()}

    positions = {
        "ts": _times(np.tile(sampled_us, series)),
        "tick": _times(np.tile(ticks_us, series)),
        "series_id": np.repeat(series_ids, ticks),
        "pair_id": np.repeat(pair_ids, queues * ticks),
        **words(series * ticks, replica="n0"),
        "epoch": np.full(series * ticks, 3),
        "min_offset": np.full(series * ticks, 12_345),
        "max_offset": produced.astype(np.int64).ravel(),
        "commit_offset": committed.astype(np.int64).ravel(),
        "head_store_ts": pa.array(head_us.astype(np.int64).ravel(), mask=caught_up).cast(_TIME),
        "head_method": pa.array(["none", "exact"]).take(pa.array(~caught_up * 1)),
        "head_error_seconds": pa.array(np.zeros(series * ticks), mask=caught_up),
    }
    dimension = {
        "series_id": series_ids,
        "pair_id": np.repeat(pair_ids, queues),
        **words(series, cluster="c", broker="g0", kind="main"),
        "group": np.repeat(groups, queues),
        "topic": np.repeat(topics, queues),
        "queue": np.tile(np.arange(queues), pairs),
        "first_seen": _times(np.full(series, ticks_us[0])),
        "last_seen": _times(np.full(series, ticks_us[0])),
    }
    facts = {
        "ts": _times(np.tile(sampled_us, pairs)),
        "tick": _times(np.tile(ticks_us, pairs)),
        "pair_id": np.repeat(pair_ids, ticks),
        **words(pairs * ticks, cluster="c", broker="g0", replica="n0"),
        "group": np.repeat(groups, ticks),
        "topic": np.repeat(topics, ticks),
        "subscribed": np.ones(pairs * ticks, bool),
        "members": np.full(pairs * ticks, 4),
        "objective_seconds": np.full(pairs * ticks, 60.0),
    }
    end, at = np.arange(ticks) * 1_000_000, _times(sampled_us)
    logs = {
        "ts": at,
        "tick": _times(ticks_us),
        **words(ticks, cluster="c", broker="g0", replica="n0", role="master"),
        "epoch": np.full(ticks, 3),
        **{f"{name}_physical_offset": end for name in ("max", "confirm", "dispatched")},
        **{f"t_{name}": at for name in ("max", "confirm", "dispatched")},
        "t_min": _times(np.full(ticks, ticks_us[0] - 86_400_000_000)),
    }
    return {
        "positions": fit(pa.table(positions), POSITIONS),
        "series": fit(pa.table(dimension), SERIES),
        "pairs": fit(pa.table(facts), PAIRS),
        "logs": fit(pa.table(logs), LOGS),
    }


def hour(pairs: int, queues: int, ticks: int, seed: int, first: int = 0) -> dict[str, pa.Table]:
    """Generate the tables of ``pairs`` pairs with ``queues`` queues each, numbered from ``first``
    on."""
    chance = np.random.default_rng(seed)
    count = pairs * queues
    names = [("c", "g0", f"group{p}", f"topic{p}") for p in range(first, first + pairs)]
    tick = (BEGIN_S + PERIOD_S * np.arange(ticks)) * 1_000_000
    rate = chance.lognormal(2.0, 1.5, count) * (chance.random(count) >= IDLE)
    produced = chance.poisson(rate[:, None] * PERIOD_S, (count, ticks)).cumsum(axis=1) + 1_000_000
    behind = chance.poisson(rate[:, None] * 3, (count, ticks))
    commit = np.maximum.accumulate(produced - behind, axis=1)
    sampled = tick + 200_000 + chance.integers(0, 20_000, ticks)
    lag = produced - commit
    return tables(
        np.array([pair_id(*name) for name in names]),
        np.array([series_id(*name, queue) for name in names for queue in range(queues)]),
        tick,
        sampled,
        (produced, commit),
        np.where(lag > 0, sampled // 1000 * 1000 - lag * 250_000, 0),
        first,
    )


_TIME: Final = pa.timestamp("us", tz="UTC")


def _times(values: np.ndarray) -> pa.Array:
    return pa.array(np.ascontiguousarray(values).ravel(), pa.int64()).cast(_TIME)


_RANGE: Final = re.compile(r"\[([0-9]+)ms\]")


class CannedServer(ThreadingHTTPServer):
    """A Prometheus that answers every query by a function of the query's fields."""

    daemon_threads = True

    def __init__(self, answer: Callable[[Mapping[str, list[str]]], bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Canned)
        self.answer = answer
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *of: object) -> None:
        self.shutdown()
        self.server_close()


class _Canned(BaseHTTPRequestHandler):
    server: CannedServer

    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        body = self.server.answer(parse_qs(self.rfile.read(size).decode()))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


def slices(queues: int) -> Callable[[Mapping[str, list[str]]], bytes]:
    """Return answers of each range of SLICE_S with the samples of the queues of one group.

    A body is built once for each length of range. For each range only its times are replaced, so
    that the server costs almost nothing compared with the reader. There are four series per queue.
    The question when the server scraped gets a single series.
    """
    templates: dict[int, bytes] = {}

    def answer(fields: Mapping[str, list[str]]) -> bytes:
        if "time" not in fields:
            return b'{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}'
        query = fields["query"][0]
        span = _RANGE.search(query)
        assert span is not None, fields
        end_ms, length_ms = round(float(fields["time"][0]) * 1000), int(span[1])
        if query.startswith("{" + SCRAPES):
            return _scrapes(end_ms, length_ms)
        body = templates.get(length_ms)
        if body is None:
            body = templates[length_ms] = _template(queues, length_ms // 1000)
        first = (end_ms - length_ms + 1) // 1_000_000
        for index, mark in enumerate((b"[@", b"[#", b"[~")):
            body = body.replace(mark, b"[%d" % (first + index))
        return body

    return answer


def _scrapes(end_ms: int, length_ms: int) -> bytes:
    """Build the answer to the question when the server scraped."""
    period_ms = PERIOD_S * 1000
    first_ms = (end_ms - length_ms) // period_ms * period_ms + period_ms
    points = [[at / 1000 + 0.3, "1"] for at in range(first_ms, end_ms, period_ms)]
    metric = {"__name__": "up", "job": "tidemark-broker", "instance": "n0:8081"}
    result = {"resultType": "matrix", "result": [{"metric": metric, "values": points}]}
    return json.dumps({"status": "success", "data": result}, separators=(",", ":")).encode()


def _template(queues: int, length_s: int) -> bytes:
    """Build one slice of four series per queue; times start with a mark per 1,000 s."""
    chance = np.random.default_rng(7)
    ticks = np.arange(0, length_s, PERIOD_S)
    marks = ["@#~"[at // 1000] + f"{at % 1000:03d}.3" for at in ticks.tolist()]
    target = {
        "cluster": "c", "broker": "g0", "replica": "n0", "service": "broker",
        "job": "tidemark-broker", "instance": "n0:8081",
    }  # fmt: skip
    pair = {"group": "billing", "topic": "orders"}
    made = []

    def add(name: str, labels: dict[str, str], values: list[str]) -> None:
        metric = json.dumps({"__name__": name, **target, **labels}, separators=(",", ":"))
        points = ",".join(f'[{at},"{value}"]' for at, value in zip(marks, values, strict=True))
        made.append(f'{{"metric":{metric},"values":[{points}]}}')

    steady = ["1"] * len(marks)
    for name in ("tidemark_group_subscribed", "tidemark_group_lag_messages"):
        add(name, pair, steady)
    for queue in range(queues):
        where = {"topic": "orders", "queue": str(queue)}
        rate = 0 if chance.random() < IDLE else chance.integers(1, 2000)
        end = np.cumsum(chance.poisson(rate, len(marks))) + 1_000_000
        add("tidemark_queue_max_offset_messages", where, [str(v) for v in end.tolist()])
        add("tidemark_queue_min_offset_messages", where, ["12345"] * len(marks))
        both = {**pair, "queue": str(queue)}
        add("tidemark_group_queue_offset_messages", both, [str(v - 1) for v in end.tolist()])
        add("tidemark_group_queue_oldest_timestamp_seconds", both, ["1767590000.123"] * len(marks))
    head = '{"status":"success","data":{"resultType":"matrix","result":['
    return (head + ",".join(made) + "]}}").encode()
