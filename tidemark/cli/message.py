"""``tidemark message``: gets a message by id, finds messages by key, traces a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from tidemark.cli.output import (
    answer_of,
    as_json,
    body_facts,
    end_partly,
    message_facts,
    print_facts,
    print_rows,
    read_from_option,
    read_with_client,
    to_json,
    with_broker,
    with_client,
)
from tidemark.cli.times import TIMESTAMP, shown_time
from tidemark.client.client import Client
from tidemark.client.connection import ReadFrom
from tidemark.client.messages import Message, is_offset_id
from tidemark.client.trace import Trace, TraceEvent
from tidemark.errors import PartialFailure, RequestError, UnknownMessage, UnknownTopic
from tidemark.formats.properties import REAL_TOPIC, RETRY_TOPIC

TRACED: Final = [
    *("topic", "queue", "queue_offset", "message_id", "unique_id", "tags", "keys", "size"),
]
"""Fields of the message itself in a trace; ``get`` shows all."""
FOUND: Final = [
    *("queue", "queue_offset", "store_timestamp_ms", "message_id", "tags", "keys", "size"),
]
PLACE: Final = ("topic", "queue", "queue_offset")
RECORD: Final = frozenset({*PLACE, "message_id", "physical_offset"})
"""Fields of an event that identify its record; shown only in JSON."""


queue_offset_option = click.option(
    "--queue-offset",
    type=click.IntRange(min=0),
    help="Which message of a batch, whose messages all have the same ID; default: the first.",
)


@click.group()
def message() -> None:
    """Messages by id or key: get, find, trace."""


@message.command()
@click.argument("message_id", metavar="ID")
@click.option("--topic", help="Topic in which to search for a unique id; default: all topics.")
@queue_offset_option
@read_from_option
@with_broker
def get(
    message_id: str, topic: str | None, queue_offset: int | None, url: str, read_from: ReadFrom
) -> None:
    """Show the message with this ID: an offset message id or a unique id."""
    found = with_client(
        url,
        lambda client: _find(client, message_id, topic, queue_offset),
        read_from=read_from,
    )
    print_facts(message_facts(found))


@message.command()
@click.argument("topic")
@click.option("--key", required=True, help="One of the message's keys.")
@click.option("--begin", type=TIMESTAMP, help="Stored at or after this time.")
@click.option("--end", type=TIMESTAMP, help="Stored at or before this time.")
@click.option("--max", "count_max", type=click.IntRange(1, 64), default=32, show_default=True)
@read_from_option
@with_broker
def find(
    topic: str,
    key: str,
    begin: int | None,
    end: int | None,
    count_max: int,
    url: str,
    read_from: ReadFrom,
) -> None:
    """List the messages of TOPIC that have a key."""
    found, failure = read_with_client(
        url,
        lambda client: client.messages_by_key(topic, key, begin=begin, end=end, max=count_max),
        read_from=read_from,
    )
    facts = [message_facts(one) for one in found]
    if as_json():
        for one in facts:
            click.echo(to_json(one))
    else:
        print_rows(facts, FOUND)
    end_partly(failure)


@message.command()
@click.argument("message_id", metavar="ID")
@click.option("--topic", help="Topic in which to search for a unique id; default: all topics.")
@queue_offset_option
@with_broker
def trace(message_id: str, topic: str | None, queue_offset: int | None, url: str) -> None:
    """Show what happened to the message with this ID, step by step.

    Produced, delayed, flushed, dispatched, delivered to which member of which group, committed,
    retried, dead, redriven: from the log, and from the broker's memory of deliveries.
    """
    found = with_client(url, lambda client: _trace(client, message_id, topic, queue_offset))
    if as_json():
        click.echo(to_json(found.facts | {"message": _as_text(found.message)}))
        return
    shown = {name: found.message.get(name) for name in TRACED if name in found.message}
    print_facts(shown)
    click.echo()
    rows = [
        {
            "at": shown_time(event.at_ms),
            "what": event.what,
            "facts": _shown_facts(event, found.message),
        }
        for event in found.events
    ]
    print_rows(rows, ["at", "what", "facts"])


async def _trace(
    client: Client, message_id: str, topic: str | None, queue_offset: int | None
) -> Trace:
    """Trace by either kind of id. The broker needs the topic of a unique id; search it here."""
    if is_offset_id(message_id):
        try:
            return await client.trace(message_id, queue_offset=queue_offset)
        except (PartialFailure, RequestError):
            pass  # as in _find
    if topic is None:
        found = await _find(client, message_id, None, None)
        # A delayed or retried message has the topic to which it belongs in its properties.
        names = (found.properties.get(name) for name in (RETRY_TOPIC, REAL_TOPIC))
        topic = next((name for name in names if name is not None), found.topic)
    return await client.trace(message_id, topic=topic)


def _as_text(message: Mapping[str, Any]) -> dict[str, object]:
    """Return a message with its body in a form that JSON can represent."""
    facts = dict(message)
    body = facts.pop("body", None)
    return facts if body is None else facts | body_facts(body)


def _shown_facts(event: TraceEvent, message: Mapping[str, Any]) -> str:
    """Format an event's other facts, and why its time is unknown: ``group=billing member=m-1``.

    Its position is omitted if it is the message's own, which is shown above.
    """
    shown = {name: value for name, value in event.facts.items() if name not in RECORD}
    place = [event.facts.get(name) for name in PLACE]
    if place != [message.get(name) for name in PLACE] and place[0] is not None:
        shown["place"] = "{}/{}@{}".format(*place)
    if event.at_ms is None:
        shown["time"] = event.reason
    return " ".join(f"{name}={value}" for name, value in shown.items() if value is not None)


async def _find(
    client: Client, message_id: str, topic: str | None, queue_offset: int | None
) -> Message:
    """Search by message id, then by unique id, since both are 32 or 56 hex digits.

    Raises UnknownMessage; PartialFailure if a broker group that did not answer may have it.
    """
    failure: PartialFailure | None = None
    if is_offset_id(message_id):
        try:
            return await client.message_by_id(message_id, queue_offset=queue_offset)
        except PartialFailure as error:
            failure = error
        except RequestError:
            pass  # no record at that offset: it may still be a unique id
    if topic is not None:
        topics = [topic]
    else:
        # Topics of users come first; copies in the broker's internal topics come later.
        known, failure = await answer_of(client.topics())
        listed = sorted(known, key=lambda found: found.system)
        topics = [found.name for found in listed]
    for name in topics:
        try:
            return await client.message_by_unique_id(name, message_id)
        except (UnknownMessage, UnknownTopic):
            continue  # in a cluster, clients are not led to the broker's internal topics
        except PartialFailure as error:
            failure = error
    if failure is not None:
        raise failure
    raise UnknownMessage(
        f"no message has the id {message_id} in any of {len(topics)} topics. "
        "It may have expired, or not be dispatched yet.",
        "Check the id; `tidemark message find TOPIC --key KEY` searches by key.",
    )
