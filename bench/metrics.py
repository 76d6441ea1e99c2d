"""Figure 16: cost of instruments per send, and of a scrape with 10,000 topics and groups."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import statistics
import sys
import time
import urllib.request
from collections.abc import Sequence
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any, Final, NamedTuple

import uvloop

from bench import crowd
from bench.exchange import LoadFailed
from bench.harness import Figure, Options, Result, at_most, benchmark
from bench.latency import percentiles
from bench.load import Shape
from bench.one_sender import TOPIC
from bench.servers import SERVER_CORE, Node, pin_to, pin_to_load_core, settle, work_dir
from bench.steady import Steady
from bench.whole_send import Broker
from shared.metrics.bounds import GROUPS_MAX, PAIRS_MAX, TOPICS_MAX
from shared.metrics.family import Family
from shared.metrics.registry import Registry

COST_GOAL: Final = 2.0
SCRAPE_GOAL_S: Final = 1.0
P99_GOAL: Final = 1.5
SENDS: Final = 250
"""Number of sends in one block."""
MESSAGES: Final = {"a message": 1, "16 messages": 16}
PER_SECOND: Final = 200.0
CONNECTIONS: Final = 8
PHASE_S: Final = 15.0
PHASE_S_QUICK: Final = 4.0
PHASES: Final = 5
PAUSE_S: Final = 0.5
"""Pause between two scrapes. Prometheus waits thirty times as long; here scrapes are measured."""


# -- cost of instruments --------------------------------------------------------------------------


class _Nothing:
    """An instrument that does nothing, with labels and without."""

    def labels(self, *values: str) -> _Nothing:
        return self

    def inc(self, amount: int = 1) -> None:
        return

    def set(self, value: float) -> None:
        return

    def observe(self, value: float) -> None:
        return

    def observe_counts(self, counts: Sequence[int], total: float) -> None:
        return


class NoRegistry(Registry):
    def counter(self, family: Family) -> Any:
        return _Nothing()

    gauge = histogram = own_counter = own_histogram = counter


class _Sender:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout

    async def block(self, port: int) -> float:
        """CPU time of this process' thread per send [µs], measured over a block."""
        gc.collect()
        began = time.thread_time()
        self._in.write(f"{port} {SENDS}\n".encode())
        if await self._out.readline() != b"done\n":
            raise LoadFailed("the sender has ended")
        return (time.thread_time() - began) / SENDS * 1e6


async def _costs(root: Path, messages: int, blocks: int) -> tuple[list[float], list[float]]:
    """Measure the cost of a send with instruments and without, block by block [µs]."""
    found: tuple[list[float], list[float]] = ([], [])
    sending = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.one_sender",
        str(messages),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    sender = _Sender(sending)
    async with (
        Broker(root / "with", Registry("broker")) as counting,
        Broker(root / "without", NoRegistry("broker")) as silent,
    ):
        sides = [(counting, found[0]), (silent, found[1])]
        for number in range(-4, blocks):
            for broker, values in sides if number % 2 else sides[::-1]:
                value = await sender.block(broker.port)
                if number >= 0:
                    values.append(value)
        sending.terminate()
        await sending.wait()
    return found


def cost_figures(given: Options) -> list[Figure]:
    figures = []
    for name, messages in MESSAGES.items():
        root = work_dir("metrics")
        blocks = given.pick(240, quick=60)
        counting, silent = uvloop.run(_costs(root, messages, blocks))
        settle()
        added = [(one / none - 1) * 100 for one, none in zip(counting, silent, strict=True)]
        what, baseline = f"send of {name} with instruments", "with instruments that do nothing"
        figures += [
            at_most(f"instruments add to a send of {name}, processor time", "%", added, COST_GOAL),
            at_most(what, "µs", counting, None, baseline, silent),
        ]
    return figures


# -- cost of a scrape -----------------------------------------------------------------------------


class Scrape(NamedTuple):
    began: float
    ended: float
    """On the clock of ``time.perf_counter``."""
    lines: int
    size: int
    """Size in bytes."""


def scrape(url: str) -> Scrape:
    """Fetch all metrics of a broker like Prometheus."""
    request = urllib.request.Request(
        url, headers={"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    )
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
    return Scrape(began, time.perf_counter(), text.count(b"\n") - 1, len(text))


class Phases(NamedTuple):
    """Results of phases with and without scrapes, one value per run."""

    quiet_ms: list[float]
    """p99 of sends without scrapes."""
    scraped_ms: list[float]
    """p99 of sends that were due during a scrape."""
    writing_ms: list[float]
    """p99 of sends, without scrapes, while the broker writes files of all groups."""
    quiet_read_ms: list[float]
    scraped_read_ms: list[float]
    """The same until the sender's thread had read the answer."""
    scrape_s: list[float]
    """Median of the scrapes of a phase."""
    lines: int
    size: int


def _phases(scraper: Pool, node: Node, url: str, given: Options) -> Phases:
    phase_s = given.pick(PHASE_S, quick=PHASE_S_QUICK)
    shape = Shape(messages=1, ack="disk")
    found = Phases([], [], [], [], [], [], 0, 0)
    for number in range(-1, PHASES):
        with Steady(
            node.address, TOPIC, shape, per_second=PER_SECOND, connections=CONNECTIONS
        ) as load:
            settled = time.perf_counter() + 1.0
            time.sleep(1.0 + phase_s)
            until = time.perf_counter() + phase_s
            scrapes = []
            quiet_until = time.perf_counter()
            while time.perf_counter() < until:
                scrapes.append(scraper.apply(scrape, (url,)))
                time.sleep(PAUSE_S)
        # Selected by due time and not by overlap, which would favour slow sends.
        during = [sent for each in scrapes for sent in load.between(each.began, each.ended)]
        quiet = load.between(settled, quiet_until)
        quiet_ms = percentiles([sent.took_s for sent in quiet]).p99
        if number < 0:  # the files of the new topics and groups are being written
            found.writing_ms.append(quiet_ms)
            continue
        found.quiet_ms.append(quiet_ms)
        found.scraped_ms.append(percentiles([sent.took_s for sent in during]).p99)
        found.quiet_read_ms.append(percentiles([sent.read_s for sent in quiet]).p99)
        found.scraped_read_ms.append(percentiles([sent.read_s for sent in during]).p99)
        found.scrape_s.append(statistics.median(each.ended - each.began for each in scrapes))
        found = found._replace(
            lines=max(each.lines for each in scrapes), size=max(each.size for each in scrapes)
        )
        print(
            f"phase {number}: p99 {found.quiet_ms[-1]:.1f} ms, during {len(scrapes)} scrapes "
            f"{found.scraped_ms[-1]:.1f} ms ({len(during)} sends); a scrape "
            f"{found.scrape_s[-1]:.3f} s, {found.lines} lines, {found.size >> 10} KiB",
            flush=True,
        )
    return found


def scrape_figures(given: Options) -> tuple[list[Figure], str]:
    """Measure a scrape; return the figures and a note about the node."""
    count = given.pick(10_000, quick=1_000)
    with (
        Node(profile="local", core=None) as node,
        # A separate process like Prometheus: reading 13 MB in this process would hold the
        # interpreter lock, and the sends would appear slower.
        multiprocessing.get_context("spawn").Pool(1) as scraper,
    ):
        url = f"{node.admin_url('broker')}/metrics"
        node.make_topic(TOPIC, 4)
        crowd.make(node, count)
        node.wait_dispatched()
        scrape(url)
        found = _phases(scraper, node, url, given)
        folded = ("tidemark_broker_received_bytes_total", "tidemark_group_members")
        dropped = sum(
            node.metric("broker", f'tidemark_telemetry_series_dropped_total{{family="{name}"}}')
            for name in (folded if count > TOPICS_MAX else ())
        )
    ratios = [busy / quiet for busy, quiet in zip(found.scraped_ms, found.quiet_ms, strict=True)]
    scraped, during = f"scrape of {count:,} topics and groups", "p99 of a send during scrapes"
    writing = f"p99 of a send after {count:,} topics and groups were made, while files of them are"
    with_core, busy_read = f"{during}, until the sender's thread has a core", found.scraped_read_ms
    figures = [
        at_most(f"{scraped}, {found.lines:,} lines", "s", found.scrape_s, SCRAPE_GOAL_S),
        at_most(during, "× without", ratios, P99_GOAL),
        at_most(during, "ms", found.scraped_ms, None, "without", found.quiet_ms),
        at_most(f"{writing} written", "ms", found.writing_ms),
        at_most(with_core, "ms", busy_read, None, "without", found.quiet_read_ms),
    ]
    note = (
        f"{found.lines:,} lines, {found.size >> 10:,} KiB; bounds {TOPICS_MAX:,} topics, "
        f"{PAIRS_MAX:,} pairs, {GROUPS_MAX:,} groups; {dropped:,.0f} series of topics and groups "
        "folded"
    )
    return figures, note


def main(given: Options) -> Result:
    pin_to(SERVER_CORE)
    figures = cost_figures(given)
    pin_to_load_core()
    shown, note = scrape_figures(given)
    return Result(
        [*figures, *shown],
        f"""Cost: the broker's own code from a connection on the loopback to the page cache and
        back, ack=memory, one request after the other from another process, blocks of {SENDS} with
        instruments and with ones that do nothing in turn; processor time of the broker's
        thread. Scrapes: broker and reput, profile local, neither pinned;
        {PER_SECOND:g} sends/s of one message with ack=disk over {CONNECTIONS} connections to one
        topic; {PHASES} times {PHASE_S:g} s without and {PHASE_S:g} s with a scrape every
        {PAUSE_S:g} s after the last, all of it once before that. During scrapes: sends due while
        one was under way. A send takes until the kernel has its answer for the sender.""",
        notes=[note],
    )


if __name__ == "__main__":
    benchmark(main)
