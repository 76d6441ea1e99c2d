"""Generates an hour of a large cluster for benchmarks of analytics: tables and server answers.

Queues are busy at different rates and 60 % of them idle at any time, as in docs/analytics.md.
"""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self
from urllib.parse import parse_qs

import numpy as np
import pyarrow as pa

from analytics.schema import LOGS, PAIRS, POSITIONS, SERIES, fit, pair_id, series_id

BEGIN_S: Final = 1_767_600_000  # a whole hour
PERIOD_S: Final = 15
IDLE: Final = 0.6
SLICE_S: Final = 3000
"""Length of an answer: 200 ticks; a multiple of 1,000 s, so that one template fits all answers."""


def hour(pairs: int, queues: int, ticks: int, seed: int) -> dict[str, pa.Table]:
    """Generate positions, series, pairs and logs of ``pairs`` pairs with ``queues`` queues each."""
    chance = np.random.default_rng(seed)
    count = pairs * queues
    ids = np.array([pair_id("c", "g0", f"group{p}", f"topic{p}") for p in range(pairs)])
    names = np.array(
        [
            series_id("c", "g0", f"group{p}", f"topic{p}", q)
            for p in range(pairs)
            for q in range(queues)
        ]
    )
    of_series = np.repeat(ids, queues)
    tick = (BEGIN_S + PERIOD_S * np.arange(ticks)) * 1_000_000
    rate = chance.lognormal(2.0, 1.5, count) * (chance.random(count) >= IDLE)
    produced = chance.poisson(rate[:, None] * PERIOD_S, (count, ticks)).cumsum(axis=1) + 1_000_000
    behind = chance.poisson(rate[:, None] * 3, (count, ticks))
    commit = np.maximum.accumulate(produced - behind, axis=1)
    sampled_at = tick[None, :] + 200_000 + chance.integers(0, 20_000, (1, ticks))
    sample_times = np.broadcast_to(sampled_at, (count, ticks))
    lag = produced - commit
    head = np.where(lag > 0, sample_times // 1000 * 1000 - lag * 250_000, 0)
    rows = count * ticks
    positions = pa.table(
        {
            "ts": _times(sample_times),
            "tick": _times(np.broadcast_to(tick, (count, ticks))),
            "series_id": np.repeat(names, ticks),
            "pair_id": np.repeat(of_series, ticks),
            "replica": pa.array(["n0"]).take(pa.array(np.zeros(rows, np.int8))),
            "epoch": np.full(rows, 3),
            "min_offset": np.full(rows, 12_345),
            "max_offset": produced.ravel(),
            "commit_offset": commit.ravel(),
            "head_store_ts": pa.array(head.ravel(), mask=head.ravel() == 0).cast(_TIME),
            "head_method": pa.array(["none", "exact"]).take(pa.array((head.ravel() > 0) * 1)),
            "head_error_seconds": pa.array(np.zeros(rows), mask=head.ravel() == 0),
        }
    )
    when = pa.array([int(tick[0])], _TIME)
    series = pa.table(
        {
            "series_id": names,
            "pair_id": of_series,
            "cluster": ["c"] * count,
            "broker": ["g0"] * count,
            "group": [f"group{p}" for p in range(pairs) for _ in range(queues)],
            "topic": [f"topic{p}" for p in range(pairs) for _ in range(queues)],
            "queue": [q for _ in range(pairs) for q in range(queues)],
            "kind": ["main"] * count,
            "first_seen": when.take(pa.array([0] * count)),
            "last_seen": when.take(pa.array([0] * count)),
        }
    )
    per_pair = pairs * ticks
    every = pa.table(
        {
            "ts": _times(np.tile(sampled_at[0], pairs)),
            "tick": _times(np.tile(tick, pairs)),
            "pair_id": np.repeat(ids, ticks),
            "cluster": ["c"] * per_pair,
            "broker": ["g0"] * per_pair,
            "replica": ["n0"] * per_pair,
            "group": [f"group{p}" for p in range(pairs) for _ in range(ticks)],
            "topic": [f"topic{p}" for p in range(pairs) for _ in range(ticks)],
            "subscribed": np.ones(per_pair, bool),
            "members": np.full(per_pair, 4),
            "objective_seconds": np.full(per_pair, 60.0),
        }
    )
    end = np.arange(ticks) * 1_000_000
    logs = pa.table(
        {
            "ts": _times(sampled_at[0]),
            "tick": _times(tick),
            "cluster": ["c"] * ticks,
            "broker": ["g0"] * ticks,
            "replica": ["n0"] * ticks,
            "epoch": np.full(ticks, 3),
            "role": ["master"] * ticks,
            "max_physical_offset": end,
            "confirm_physical_offset": end,
            "dispatched_physical_offset": end,
            "t_max": _times(sampled_at[0]),
            "t_confirm": _times(sampled_at[0]),
            "t_dispatched": _times(sampled_at[0]),
        }
    )
    return {
        "positions": fit(positions, POSITIONS),
        "series": fit(series, SERIES),
        "pairs": fit(every, PAIRS),
        "logs": fit(logs, LOGS),
    }


_TIME: Final = pa.timestamp("us", tz="UTC")


def _times(values: np.ndarray) -> pa.Array:
    return pa.array(np.ascontiguousarray(values).ravel(), pa.int64()).cast(_TIME)


_RANGE: Final = re.compile(r"\[([0-9]+)ms\]")


class CannedServer(ThreadingHTTPServer):
    """Answers each range of SLICE_S with the samples of the queues of one group.

    The body is built once. For each range only its times are replaced, so that the server costs
    almost nothing compared with the reader. There are four series per queue.
    """

    daemon_threads = True

    def __init__(self, queues: int) -> None:
        super().__init__(("127.0.0.1", 0), _Canned)
        self.template = _template(queues)
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
        fields = parse_qs(self.rfile.read(size).decode())
        if "time" not in fields:
            body = b'{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}'
        else:
            body = self.server.template
            span = _RANGE.search(fields["query"][0])
            assert span is not None, fields
            end_ms = round(float(fields["time"][0]) * 1000)
            first = (end_ms - int(span[1]) + 1) // 1_000_000
            for index, mark in enumerate((b"[@", b"[#", b"[~")):
                body = body.replace(mark, b"[%d" % (first + index))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


def _template(queues: int) -> bytes:
    """Build one slice of four series per queue; times start with a mark per 1,000 s."""
    chance = np.random.default_rng(7)
    ticks = np.arange(0, SLICE_S, PERIOD_S)
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
