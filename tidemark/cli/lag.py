"""``tidemark lag``: shows the lag of groups in messages, bytes and seconds.

An unknown number is ``-`` in the table and null in JSON, always with its reason, never 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import click

from tidemark.cli.output import (
    READER_RETRY_FOR_S,
    answer_of,
    client_for,
    end_partly,
    print_rows,
    repeated,
    run,
    say,
    with_broker,
    with_client,
)
from tidemark.client.client import Client
from tidemark.errors import PartialFailure, UnknownGroup

NUMBERS: Final = ["messages", "bytes", "seconds"]
GROUP_COLUMNS: Final = [
    *("group", "state", "members", *NUMBERS),
    *("in_flight", "expiring_messages", "lost", "lagging_queues", "unknown_queues", "why"),
]
QUEUE_COLUMNS: Final = [
    *("topic", "queue", "member", "committed", "min_offset", "max_offset", *NUMBERS),
    *("expiring_messages", "lost", "why"),
]
CALLS_AT_ONCE: Final = 8


@click.command()
@click.argument("group", required=False)
@click.option("--topic", help="Only the queues of this topic; needs GROUP.")
@click.option("--watch", "-w", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two updates of --watch.",
)
@with_broker
def lag(group: str | None, topic: str | None, watch: bool, interval: float, url: str) -> None:
    """Show the lag of GROUP per queue, or of all groups, one line each.

    seconds is the age of the oldest unread message by its store time.
    """
    if topic is not None and group is None:
        raise click.UsageError("--topic needs a GROUP")
    if not watch:
        columns = GROUP_COLUMNS if group is None else QUEUE_COLUMNS
        rows, failure = with_client(url, lambda client: _rows(client, group, topic))
        print_rows(rows, columns)
        end_partly(failure)
        return
    try:
        run(_watch(url, group, topic, interval))
    except KeyboardInterrupt:
        return  # Ctrl-C is the normal way to end


async def _rows(
    client: Client, group: str | None, topic: str | None
) -> tuple[list[dict[str, object]], PartialFailure | None]:
    """Return the rows, and the failure of broker groups whose lag is not known."""
    if group is not None:
        detail, failure = await answer_of(client.groups.get(group))
        rows = queue_rows(detail.facts)
        if topic is None:
            return rows, failure
        of_topic = [row for row in rows if row["topic"] == topic]
        if not of_topic:
            known = ", ".join(sorted({str(row["topic"]) for row in rows})) or "none"
            say(f"group {group} does not read topic {topic}; its topics: {known}")
        return of_topic, failure
    slots = asyncio.Semaphore(CALLS_AT_ONCE)
    failures: list[PartialFailure | None] = []

    async def row_of(name: str) -> dict[str, object] | None:
        async with slots:
            try:
                detail, failure = await answer_of(client.groups.get(name))
                failures.append(failure)
                return group_row(detail.facts)
            except UnknownGroup:
                return None  # deleted after it was listed

    listed, failure = await answer_of(client.groups.list())
    found = await asyncio.gather(*(row_of(each.name) for each in listed))
    rows = [row for row in found if row is not None]
    return rows, next((each for each in (failure, *failures) if each is not None), None)


def group_row(facts: Mapping[str, Any]) -> dict[str, object]:
    """Build a row with a group and its totals from the answer that describes it."""
    total = facts["lag"]
    return {
        "group": facts["group"],
        "state": facts["state"],
        "members": len(facts["members"]),
        **total,
        "why": _why(total),
    }


def queue_rows(facts: Mapping[str, Any]) -> list[dict[str, object]]:
    """Build a row per queue from the answer that describes a group."""
    return [
        {
            "topic": topic["topic"],
            **queue,
            "why": _why(queue),
        }
        for topic in facts["topics"]
        for queue in topic["queues"]
    ]


def _why(lag: Mapping[str, Any]) -> str | None:
    """Return why numbers are unknown; None if all are known."""
    reasons = {name: lag.get("reasons", {}).get(name) for name in NUMBERS if lag.get(name) is None}
    unlike = set(reasons.values())
    if not reasons:
        return None
    if len(unlike) == 1:
        return str(unlike.pop())
    return ", ".join(f"{name}: {reason}" for name, reason in reasons.items())


async def _watch(url: str, group: str | None, topic: str | None, interval_s: float) -> None:
    columns = GROUP_COLUMNS if group is None else QUEUE_COLUMNS
    async with client_for(url, retry_for_s=READER_RETRY_FOR_S) as client:
        with repeated(columns) as show:
            shown: PartialFailure | None = None
            while True:
                rows, failure = await _rows(client, group, topic)
                show(rows)
                if failure is not None and (
                    shown is None or shown.errors.keys() != failure.errors.keys()
                ):
                    say(str(failure))
                shown = failure
                await asyncio.sleep(interval_s)
