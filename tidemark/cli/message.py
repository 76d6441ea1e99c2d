"""``tidemark message``: one message by its id, or those with a key."""

from __future__ import annotations

import click

from tidemark.cli.output import (
    as_json,
    expected_errors,
    message_facts,
    output_option,
    print_facts,
    print_rows,
    to_json,
    url_option,
    with_client,
)
from tidemark.cli.times import TIMESTAMP
from tidemark.client.client import Client
from tidemark.client.messages import Message, is_offset_id
from tidemark.errors import RequestError, UnknownMessage


@click.group()
def message() -> None:
    """Messages by id or key."""


@message.command()
@click.argument("message_id", metavar="ID")
@click.option("--topic", help="Where to look for a unique id; all topics without it.")
@url_option
@output_option
@expected_errors
def get(message_id: str, topic: str | None, url: str) -> None:
    """Show the message with this ID: a message id, or the unique id that its sender gave it."""
    found = with_client(url, lambda client: _find(client, message_id, topic))
    print_facts(message_facts(found))


@message.command()
@click.argument("topic")
@click.option("--key", required=True, help="One of the message's keys.")
@click.option("--begin", type=TIMESTAMP, help="Stored at or after this time.")
@click.option("--end", type=TIMESTAMP, help="Stored at or before this time.")
@click.option("--max", "count_max", type=click.IntRange(1, 64), default=32, show_default=True)
@url_option
@output_option
@expected_errors
def find(
    topic: str, key: str, begin: int | None, end: int | None, count_max: int, url: str
) -> None:
    """List the messages of TOPIC that have a key."""
    found = with_client(
        url,
        lambda client: client.messages_by_key(
            topic, key, begin_ms=begin, end_ms=end, max=count_max
        ),
    )
    facts = [message_facts(one) for one in found]
    if as_json():
        for one in facts:
            click.echo(to_json(one))
        return
    columns = ["queue", "queue_offset", "store_timestamp_ms", "message_id", "tags", "keys", "size"]
    print_rows(facts, columns)


async def _find(client: Client, message_id: str, topic: str | None) -> Message:
    """Try it as a message id, then as a unique id: both are 32 or 56 hex digits."""
    if is_offset_id(message_id):
        try:
            return await client.message_by_id(message_id)
        except RequestError:
            pass  # no record there, or no offset of ours: it may still be a unique id
    topics = [topic] if topic is not None else [found.name for found in await client.topics()]
    for name in topics:
        try:
            return await client.message_by_unique_id(name, message_id)
        except UnknownMessage:
            continue
    raise UnknownMessage(
        f"no message has the id {message_id}, in any of {len(topics)} topics. "
        "It may have expired, or not be dispatched yet.",
        "Check the id; `tidemark message find TOPIC --key KEY` looks by key.",
    )
