"""``tidemark consume``: writes message bodies as lines, or whole messages as JSON.

Without ``--follow`` it reads queue after queue up to the end that each had at the start. With it,
it waits for new messages. Bodies are written unchanged, each followed by a newline: a single queue
that ``produce`` filled is written back byte by byte. The next pull runs while the last is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from dataclasses import dataclass
from typing import Final, Literal

import click

from tidemark.cli.awaited_topic import awaited_topic
from tidemark.cli.consume_group import consume_group
from tidemark.cli.message_writer import Writer
from tidemark.cli.output import (
    READER_RETRY_FOR_S,
    as_json,
    client_for,
    read_from_option,
    run,
    say,
    trace_option,
    with_broker,
)
from tidemark.cli.queues import parsed_queue
from tidemark.cli.times import TIMESTAMP, Parsed
from tidemark.client.checks import parse_queue
from tidemark.client.client import Client
from tidemark.client.connection import ReadFrom
from tidemark.client.queue_names import QueueName
from tidemark.errors import UnknownQueue

FOLLOWED_QUEUES_MAX: Final = 64
_OPERATOR: Final = re.compile(r"^!|[&|,\s]")
"""A tag may contain such a character, but it is usually a mistaken operator or separator."""


def _queue(text: str) -> QueueName | None:
    """Parse a queue; None for ``all``."""
    if text == "all":
        return None
    try:
        return parsed_queue(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a queue number nor `all`") from None


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading starts in every queue."""

    at: Literal["beginning", "end", "time", "offset"]
    value: int = 0
    """The time [ms] or the queue offset."""


@click.command()
@click.argument("topic")
@click.option(
    "--queue",
    type=Parsed("queue", _queue),
    help="One queue, in a cluster as g0/3, or all.  [default: all]",
)
@click.option("--from-beginning", is_flag=True, help="Start at the oldest message.")
@click.option("--from-time", type=TIMESTAMP, help="Start at the first message stored at this time.")
@click.option("--offset", type=click.IntRange(min=0), help="Start at this queue offset.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more instead of ending.")
@click.option(
    "--max", "count_max", type=click.IntRange(min=1), help="End after this many messages."
)
@click.option("--group", help="Join this group, which commits what is written.")
@click.option("--tags", help="Only messages with one of these tags: `a || b`.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["body", "json"]),
    default="body",
    show_default=True,
    help="Bodies as lines, or one JSON object per message, as with -o json.",
)
@trace_option
@read_from_option
@with_broker
def consume(
    topic: str,
    queue: QueueName | None,
    from_beginning: bool,
    from_time: int | None,
    offset: int | None,
    follow: bool,
    count_max: int | None,
    group: str | None,
    tags: str | None,
    form: str,
    url: str,
    read_from: ReadFrom,
) -> None:
    """Write the messages of TOPIC to standard output.

    Starts at the oldest message, or with --follow at the end, unless an option says otherwise.
    Without --follow it ends where the queues ended at the start. Messages of one queue are in
    order, those of several queues are not.

    With --group: starts at the group's committed offsets, shares the queues with its other
    members, and ends when the group has committed everything that was there at the start.
    """
    if sum((from_beginning, from_time is not None, offset is not None)) > 1:
        raise click.UsageError("give one of --from-beginning, --from-time and --offset")
    start = Start("end" if follow and not from_beginning else "beginning")
    if from_time is not None:
        start = Start("time", from_time)
    elif offset is not None:
        start = Start("offset", offset)
    in_json = form == "json" or as_json()
    writer = Writer(sys.stdout.buffer, as_json=in_json, count_max=count_max, tags=tags)
    _remark_on(tags)
    try:
        if group is None:
            run(_consume(url, topic, queue, start, follow, writer, read_from))
        else:
            if queue is not None or offset is not None:
                raise click.UsageError("a group reads all queues, from their committed offsets")
            if read_from == "any":
                raise click.UsageError("only the master serves groups")
            begin: Literal["first"] | int | None = "first" if from_beginning else from_time
            run(consume_group(url, topic, group, begin, follow=follow, writer=writer))
    except KeyboardInterrupt:
        if not follow:  # with --follow, Ctrl-C is the normal way to end
            raise


def _remark_on(expression: str | None) -> None:
    """Warn about parts of a tag expression that look like several tags but are a single one.

    They are legal tags. Without the remark, an empty answer is all that shows the mistake.
    """
    tags = [tag.strip() for tag in (expression or "").split("||")]
    if odd := [f"`{tag}`" for tag in tags if _OPERATOR.search(tag)]:
        say(
            f"each of these is taken literally, as one tag: {', '.join(odd)}. Only || separates "
            "tags, as in `a || b`; there is no other operator."
        )


async def _consume(
    url: str,
    topic: str,
    queue: QueueName | None,
    start: Start,
    follow: bool,
    writer: Writer,
    read_from: ReadFrom,
) -> None:
    async with client_for(url, retry_for_s=READER_RETRY_FOR_S, read_from=read_from) as client:
        found, is_new = await awaited_topic(client, topic, wait=follow)
        queues = [each.queue for each in found.ranges]
        if is_new and start.at == "end":
            start = Start("beginning")  # the messages that created the topic are wanted
        if isinstance(queue, int) and queue not in queues:
            # In a cluster, a number is enough if one broker group has the topic.
            named = [each for each in queues if isinstance(each, str) and _number(each) == queue]
            queue = named[0] if len(named) == 1 else queue
        if queue is not None and queue not in queues:
            raise UnknownQueue(
                f"topic {topic} has no queue {queue}: its queues are {queues[0]} to {queues[-1]}.",
                "Choose one of them, or `--queue all`.",
            )
        queues = queues if queue is None else [queue]
        if not follow:
            # Take all ends first: messages sent to a later queue meanwhile are not wanted.
            ends = [await _range(client, topic, number, writer.tags) for number in queues]
            for number, (first, end) in zip(queues, ends, strict=True):
                offset = await _start(client, topic, number, start, first, end)
                if await _write(client, topic, number, offset, end, writer):
                    return
            return
        if len(queues) > FOLLOWED_QUEUES_MAX:
            raise UnknownQueue(
                f"topic {topic} has {len(queues)} queues; at most {FOLLOWED_QUEUES_MAX} can be "
                "followed.",
                "Choose one with --queue.",
            )
        followers = [
            asyncio.create_task(_follow(client, topic, number, start, writer)) for number in queues
        ]
        try:
            # The first follower to end has written the last wanted message, or failed.
            done, _ = await asyncio.wait(followers, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for follower in followers:
                follower.cancel()
            await asyncio.gather(*followers, return_exceptions=True)
        for follower in done:
            follower.result()


def _number(queue: str) -> int:
    return parse_queue(queue)[1]


async def _follow(
    client: Client, topic: str, queue: QueueName, start: Start, writer: Writer
) -> None:
    first, end = await _range(client, topic, queue, writer.tags)
    offset = await _start(client, topic, queue, start, first, end)
    await _write(client, topic, queue, offset, None, writer)


async def _write(
    client: Client, topic: str, queue: QueueName, offset: int, end: int | None, writer: Writer
) -> bool:
    """Write the messages up to ``end``, or with None forever; return whether enough are written.

    The next pull runs while the messages of the last one are written.
    """
    batches = client.batches(topic, queue, offset, end=end, follow=end is None, tags=writer.tags)
    async with contextlib.aclosing(batches):
        async for messages in batches:
            writer.write_messages(messages)
            if writer.full:
                return True
    return False


async def _range(client: Client, topic: str, queue: QueueName, tags: str | None) -> tuple[int, int]:
    """Return (min, max) offset of a queue. tags: so that the broker checks the expression."""
    looked = await client.pull_raw(topic, queue, 0, max=1, tags=tags)
    return looked.min_offset, looked.max_offset


async def _start(
    client: Client, topic: str, queue: QueueName, start: Start, first: int, end: int
) -> int:
    match start.at:
        case "beginning":
            return first
        case "end":
            return end
        case "offset":
            return start.value
        case "time":
            return await client.offset_by_time(topic, queue, start.value)
