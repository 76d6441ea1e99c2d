"""``tidemark delay``: lists and cancels delayed messages."""

from __future__ import annotations

from typing import Final

import click

from tidemark.cli.output import print_facts, print_rows, say, with_broker, with_client
from tidemark.client.client import Client
from tidemark.client.delayed import DelayedMessage
from tidemark.errors import UnknownDelayed

COLUMNS: Final = ["unique_id", "topic", "queue", "deliver_at_ms", "delay_level", "size"]


@click.group()
def delay() -> None:
    """Delayed messages that are not delivered yet: list, cancel."""


@delay.command("list")
@click.option("--topic", help="Only messages to this topic.")
@click.option(
    "--max", "count_max", type=click.IntRange(min=1), default=100, show_default=True,
    help="Maximum number of messages to list.",
)  # fmt: skip
@with_broker
def list_delayed(topic: str | None, count_max: int, url: str) -> None:
    """List waiting messages: those of each delay level, then those with their own times."""
    listed, pending = with_client(url, lambda client: _list(client, topic, count_max))
    if pending is not None and pending > len(listed):
        say(f"{len(listed)} listed{f' for {topic}' if topic else ''}, {pending} waiting in all")
    print_rows([one._asdict() for one in listed], COLUMNS)


async def _list(
    client: Client, topic: str | None, count_max: int
) -> tuple[list[DelayedMessage], int | None]:
    """Return at most count_max messages, and the total; None if it is not known."""
    page = await client.delayed.list(topic, max=count_max)
    listed = list(page.messages)
    while page.next is not None and len(listed) < count_max:
        page = await client.delayed.list(topic, max=count_max - len(listed), after=page.next)
        listed += page.messages
    return listed, page.pending


@delay.command()
@click.argument("topic")
@click.argument("unique_id", metavar="ID")
@click.option("--dry-run", is_flag=True, help="Search for it in the list; cancel nothing.")
@with_broker
def cancel(topic: str, unique_id: str, dry_run: bool, url: str) -> None:
    """Cancel the message to TOPIC with this unique ID: it is never delivered."""
    count = with_client(url, lambda client: _cancel(client, topic, unique_id, dry_run))
    messages = f"{count} message{'s' * (count != 1)} to {topic} with the unique id {unique_id}"
    say(f"{'would cancel' if dry_run else 'cancelled'} {messages}")
    print_facts({"topic": topic, "unique_id": unique_id, "cancelled": 0 if dry_run else count})


async def _cancel(client: Client, topic: str, unique_id: str, dry_run: bool) -> int:
    if not dry_run:
        return await client.delayed.cancel(topic, unique_id)
    count = 0
    async for waiting in client.delayed.iterate(topic):
        count += waiting.unique_id == unique_id
    if not count:
        raise UnknownDelayed(
            f"no message to {topic} with the unique id {unique_id} waits. It may be delivered.",
            "`tidemark message trace ID --topic TOPIC` shows what happened to it.",
        )
    return count
