"""``tidemark produce``: sends every line of a file or of standard input as one message.

Lines of one queue are stored in order, because at most one request per queue is in flight. Several
queues take turns by whole batches. A last line without a newline is marked, so that ``consume`` can
write the input back byte by byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import click
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from tidemark.cli.lines import Lines, read_lines
from tidemark.cli.output import (
    as_json,
    client_for,
    progress_bar,
    run,
    say,
    to_json,
    trace_option,
    with_broker,
)
from tidemark.cli.queues import QUEUE
from tidemark.cli.times import Parsed
from tidemark.client.client import Client
from tidemark.client.connection import RETRY_FOR_S
from tidemark.client.queue_choice import writable_queues
from tidemark.client.queue_names import QueueName
from tidemark.errors import RequestError, TidemarkError, UnknownTopic

NO_NEWLINE: Final = "no-newline"
"""Property of a message whose line ended with the input instead of a newline."""
REQUEST_SIZE_MAX: Final = 1 << 20
IN_FLIGHT_MAX: Final = 8
RATE_STEP_S: Final = 0.1
VISIBLE_TIMEOUT_S: Final = 30.0


def _regex(text: str) -> re.Pattern[bytes]:
    """Parse a regular expression over bytes, because lines need not be text."""
    try:
        return re.compile(text.encode())
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send and how, from the command line."""

    topic: str
    queue: QueueName | None
    ack: str | None
    batch: int
    tags: str | None
    key_regex: re.Pattern[bytes] | None
    rate: float | None
    timeout_ms: int


@dataclass(slots=True)
class Tally:
    """Totals of what has been acknowledged so far."""

    lines: int = 0
    size: int = 0
    keys_left_out: int = 0
    level: str = "-"
    copies: int = 0
    last_offsets: dict[QueueName, int] = field(default_factory=dict)
    """The last stored queue offset, by queue."""
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    """Time from the first line to the last answer."""

    def facts(self) -> dict[str, object]:
        """Return the result that the command prints."""
        seconds = self.seconds
        return {
            "lines": self.lines,
            "bytes": self.size,
            "seconds": round(seconds, 3),
            "lines_per_second": round(self.lines / seconds) if seconds else 0,
            "level": self.level,
            "copies": self.copies,
        }


@click.command()
@click.argument("topic")
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Send the lines of this file; default: standard input.",
)
@click.option("--queue", type=QUEUE, help="Store all lines in this queue; in a cluster as g0/3.")
@click.option("--tags", help="Give every message this tag.")
@click.option(
    "--key-regex",
    type=Parsed("regex", _regex),
    help="Key of a message: the match in its line, or the first group of the match.",
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Lines per second.")
@click.option(
    "--ack", type=click.Choice(["memory", "disk", "replicated"]), help="Level to wait for."
)
@click.option("--batch", type=click.IntRange(1, 4096), default=1000, show_default=True)
@click.option("--timeout-ms", type=click.IntRange(1, 60_000), default=10_000, show_default=True)
@trace_option
@with_broker
def produce(
    topic: str,
    path: Path | None,
    queue: QueueName | None,
    tags: str | None,
    key_regex: re.Pattern[bytes] | None,
    rate: float | None,
    ack: str | None,
    batch: int,
    timeout_ms: int,
    url: str,
) -> None:
    """Send every line of a file, or of standard input, to TOPIC.

    The body of a message is the line without its newline, byte by byte. Without --queue, batches go
    to the topic's queues in turn; lines of one queue keep their order.
    """
    plan = Plan(topic, queue, ack, batch, tags, key_regex, rate, timeout_ms)
    tally = Tally()
    with contextlib.ExitStack() as parts:
        source, size = _open(path, parts)
        show = parts.enter_context(
            progress_bar(
                f"to {topic}",
                *(TextColumn("{task.description}"), BarColumn(), DownloadColumn()),
                *(TransferSpeedColumn(), TimeRemainingColumn()),
                total=size,
            )
        )
        try:
            run(_produce(url, plan, source, tally, show))
        except KeyboardInterrupt:
            say(f"interrupted: {tally.lines} lines were stored; one more request may be, too")
            raise
        except TidemarkError as error:
            error.detail += f" {tally.lines} lines ({tally.size} bytes) were stored before it."
            raise
    facts = tally.facts()
    if as_json():
        click.echo(to_json(facts))
    else:
        say(
            f"{tally.lines} lines, {tally.size} bytes in {facts['seconds']} s "
            f"({facts['lines_per_second']} lines/s), acked at {tally.level}"
        )
    if tally.keys_left_out:
        say(f"{tally.keys_left_out} lines got no key: the match is not usable as a key")


async def _produce(
    url: str, plan: Plan, source: BinaryIO, tally: Tally, show: Callable[..., None]
) -> None:
    async with client_for(url, retry_for_s=RETRY_FOR_S) as client:
        queues = [plan.queue] if plan.queue is not None else await _queues(client, plan.topic)
        # In sending order. Queues take turns and each has at most one request in flight, so the
        # previous request of a queue is answered before its next one: its order is kept.
        flights: deque[asyncio.Task[None]] = deque()
        turn = 0
        try:
            async for batch in _batches(read_lines(source), plan, tally):
                if not queues:
                    # If the broker creates topics automatically, this request creates it.
                    await _send(client, plan, batch, None, tally, show)
                    queues = await _queues(client, plan.topic)
                    continue
                while len(flights) >= min(len(queues), IN_FLIGHT_MAX):
                    await flights.popleft()
                queue = queues[turn % len(queues)]
                turn += 1
                flights.append(asyncio.create_task(_send(client, plan, batch, queue, tally, show)))
            while flights:
                await flights.popleft()
            tally.seconds = time.monotonic() - tally.started
            await _wait_until_readable(client, plan.topic, tally)
        except TidemarkError:
            # Let the other requests end, so that the error includes what they stored.
            await asyncio.gather(*flights, return_exceptions=True)
            raise


async def _wait_until_readable(client: Client, topic: str, tally: Tally) -> None:
    """Wait until the last lines can be read, so that a following ``consume`` finds them all."""
    give_up_at = time.monotonic() + VISIBLE_TIMEOUT_S
    for queue, last in tally.last_offsets.items():
        offset = last
        while (left_s := give_up_at - time.monotonic()) > 0:
            wait_ms = min(1000, int(left_s * 1000))
            looked = await client.pull_raw(topic, queue, offset, max=1, wait_ms=wait_ms)
            if looked.max_offset > last:
                break
            # A pull at the end of the queue is held until there is more; one beyond it is not.
            offset = looked.max_offset
        else:
            say("stored, but not yet readable: dispatch is behind; see /ready of reput")
            return


async def _queues(client: Client, topic: str) -> list[QueueName]:
    """Return the topic's queues that accept messages; empty if the topic does not exist."""
    try:
        found = await client.topic(topic)
    except UnknownTopic:
        return []
    if "broker_groups" not in found.settings:
        return list(range(found.write_queues))
    queues = writable_queues(await client.routes(topic))
    return [f"{each.broker_group}/{each.queue}" for each in queues]


@dataclass(frozen=True, slots=True)
class _Batch:
    """The messages of one request."""

    wires: list[dict[str, object]]
    size: int
    first_line: int


async def _batches(source: AsyncIterator[Lines], plan: Plan, tally: Tally) -> AsyncIterator[_Batch]:
    """Group lines into requests at the given rate; a partial batch is sent when input pauses."""
    number = 1
    step = max(1, int(plan.rate * RATE_STEP_S)) if plan.rate is not None else plan.batch
    count_max = min(plan.batch, step)
    loop = asyncio.get_running_loop()
    started = loop.time()
    async for read in source:
        for start, end in _cuts(read.lines, count_max):
            lines = read.lines[start:end]
            if plan.rate is not None:
                # Relative to the start, so that later sends make up for a slow answer.
                await asyncio.sleep(started + (number - 1) / plan.rate - loop.time())
            wires = [_wire(line, plan, tally) for line in lines]
            size = sum(map(len, lines)) + len(lines)
            if read.open_ended:
                size -= 1
                wires[-1]["properties"] = {NO_NEWLINE: "true"}
            yield _Batch(wires, size, number)
            number += len(lines)


def _cuts(lines: list[bytes], count_max: int) -> Iterator[tuple[int, int]]:
    """Yield [start, end) of consecutive requests within the limits of count and size."""
    start = size = 0
    for index, line in enumerate(lines):
        if index > start and (index - start >= count_max or size + len(line) > REQUEST_SIZE_MAX):
            yield start, index
            start, size = index, 0
        size += len(line)
    if start < len(lines):
        yield start, len(lines)


def _wire(line: bytes, plan: Plan, tally: Tally) -> dict[str, object]:
    wire: dict[str, object] = {"body": line}
    if plan.tags is not None:
        wire["tags"] = plan.tags
    if plan.key_regex is not None and (found := plan.key_regex.search(line)):
        keys = _keys(found[1] if found.re.groups else found[0])
        if keys:
            wire["keys"] = keys
        else:
            tally.keys_left_out += 1
    return wire


def _keys(found: bytes | None) -> list[str]:
    """Split a match into keys at spaces; empty if it is not usable as text."""
    try:
        text = (found or b"").decode()
    except UnicodeDecodeError:
        return []
    if "\x01" in text or "\x02" in text:
        return []
    return [key for key in text.split(" ") if key]


async def _send(
    client: Client,
    plan: Plan,
    batch: _Batch,
    queue: QueueName | None,
    tally: Tally,
    show: Callable[..., None],
) -> None:
    if queue is not None:
        for wire in batch.wires:
            wire["queue"] = queue
    try:
        answer = await client.producer.post(
            plan.topic, batch.wires, ack=plan.ack, timeout_ms=plan.timeout_ms
        )
    except RequestError as error:
        last = batch.first_line + len(batch.wires) - 1
        error.detail += f" The request contained lines {batch.first_line} to {last}."
        raise
    stored = answer.map()
    tally.level, tally.copies = stored["ack"]["level"], stored["ack"]["copies"]
    last = stored["results"][-1]
    tally.last_offsets[last["queue"] if queue is None else queue] = last["queue_offset"]
    tally.lines += len(batch.wires)
    tally.size += batch.size
    show(completed=tally.size)


def _open(path: Path | None, parts: contextlib.ExitStack) -> tuple[BinaryIO, int | None]:
    if path is None or str(path) == "-":
        return sys.stdin.buffer, None
    return parts.enter_context(path.open("rb")), path.stat().st_size or None
