"""``tidemark group``: create, list, describe, reset and delete groups. ``lag`` shows their lag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import click

from tidemark.cli.lag import QUEUE_COLUMNS, queue_rows
from tidemark.cli.output import (
    as_json,
    confirm_deletion,
    end_partly,
    print_facts,
    print_rows,
    read_with_client,
    say,
    to_json,
    with_broker,
    with_client,
)
from tidemark.cli.queues import QUEUE
from tidemark.cli.times import DURATION, TIMESTAMP, Parsed, shown_time
from tidemark.client.groups import Start
from tidemark.client.queue_names import QueueName

LIST_COLUMNS: Final = ["group", "state", "members", "order", "broadcast", "start", "retry_max"]
MEMBER_COLUMNS: Final = ["member", "subscriptions", "assignment", "session_ms", "last_seen_ms"]


@click.group()
def group() -> None:
    """Consumer groups: settings, members and offsets."""


def _start(text: str) -> Start:
    if text == "first":
        return "first"
    return "last" if text == "last" else TIMESTAMP.parse(text)


@group.command()
@click.argument("name")
@click.option("--order/--no-order", default=None, help="One batch of a queue at a time, in order.")
@click.option("--broadcast/--no-broadcast", default=None, help="Every member gets every message.")
@click.option(
    "--start", type=Parsed("start", _start), help="Start of new queues: first, last, or a time."
)
@click.option("--retry-max", type=click.IntRange(min=0), help="Retries before a dead letter.")
@click.option("--lag-objective", type=DURATION, help="The maximum desired lag, such as 30s.")
@with_broker
def create(
    name: str,
    order: bool | None,
    broadcast: bool | None,
    start: Start | None,
    retry_max: int | None,
    lag_objective: int | None,
    url: str,
) -> None:
    """Create a group NAME, or change its given settings."""
    made = with_client(
        url,
        lambda client: client.groups.create(
            name,
            order=order,
            broadcast=broadcast,
            start=start,
            retry_max=retry_max,
            lag_objective_ms=lag_objective,
        ),
    )
    print_facts(made.settings)


@group.command("list")
@with_broker
def list_groups(url: str) -> None:
    """List all groups."""
    found, failure = read_with_client(url, lambda client: client.groups.list())
    groups = [each.settings for each in found]
    print_rows(groups if as_json() else [_shown_config(one) for one in groups], LIST_COLUMNS)
    end_partly(failure)


@group.command()
@click.argument("name")
@with_broker
def describe(name: str, url: str) -> None:
    """Show group NAME: its settings, its members, and its position and lag in every queue."""
    found, failure = read_with_client(url, lambda client: client.groups.get(name))
    _show(found.facts)
    end_partly(failure)


def _show(facts: Mapping[str, Any]) -> None:
    if as_json():
        click.echo(to_json(facts))
        return
    nested = ("members", "topics", "lag")
    settings = {name: value for name, value in facts.items() if name not in nested}
    print_facts(_shown_config(settings))
    click.echo()
    print_rows([_member_row(member) for member in facts["members"]], MEMBER_COLUMNS)
    click.echo()
    print_rows(queue_rows(facts), QUEUE_COLUMNS)


@group.command()
@click.argument("name")
@click.argument("topic")
@click.option("--to", "place", type=click.Choice(["first", "last"]), help="First or last message.")
@click.option("--to-time", type=TIMESTAMP, help="The first message stored at this time.")
@click.option("--to-offset", type=click.IntRange(min=0), help="This queue offset.")
@click.option("--queue", type=QUEUE, help="One queue; in a cluster as g0/3.  [default: all]")
@click.option("--dry-run", is_flag=True, help="Show what would move; move nothing.")
@with_broker
def reset(
    name: str,
    topic: str,
    place: Literal["first", "last"] | None,
    to_time: int | None,
    to_offset: int | None,
    queue: QueueName | None,
    dry_run: bool,
    url: str,
) -> None:
    """Set the offsets of group NAME in TOPIC. Requires that the group has no members."""
    if sum((place is not None, to_time is not None, to_offset is not None)) != 1:
        raise click.UsageError("give one of --to, --to-time and --to-offset")
    moves = with_client(
        url,
        lambda client: client.groups.reset(
            name,
            topic,
            to=place if to_time is None else to_time,
            offset=to_offset,
            queue=queue,
            dry_run=dry_run,
        ),
    )
    rows = [
        {"topic": topic, "queue": move.queue, "from": move.from_offset, "to": move.to_offset}
        for move in moves
    ]
    queues = f"{len(rows)} queue{'s' * (len(rows) != 1)}"
    say(f"{'would move' if dry_run else 'moved'} group {name} in {queues} of {topic}")
    print_rows(rows, ["topic", "queue", "from", "to"])


@group.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for the name again.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; delete nothing.")
@with_broker
def delete(name: str, yes: bool, dry_run: bool, url: str) -> None:
    """Delete group NAME, its offsets and its retries. Its dead letters stay."""

    topics = with_client(url, lambda client: client.groups.get(name)).facts["topics"]
    queues = sum(len(topic["queues"]) for topic in topics)
    what = f"group {name}: its offsets in {queues} queues"
    if not dry_run:
        confirm_deletion("group", name, what, yes=yes)
        with_client(url, lambda client: client.groups.delete(name))
    say(f"{'would delete' if dry_run else 'deleted'} {what}")
    print_facts({"group": name, "queues": queues, "deleted": not dry_run})


def _shown_config(facts: Mapping[str, Any]) -> dict[str, object]:
    """Format a group's settings for a person."""
    shown: dict[str, object] = dict(facts)
    if isinstance(facts.get("start"), int):
        shown["start"] = shown_time(facts["start"])
    if facts.get("lag_objective_ms") is None:
        shown.pop("lag_objective_ms", None)
    return shown


def _member_row(member: Mapping[str, Any]) -> dict[str, object]:
    return {
        "member": member["member"],
        "subscriptions": [
            one["topic"] if one["tags"] == "*" else f"{one['topic']}({one['tags']})"
            for one in member["subscriptions"]
        ],
        "assignment": _shown_queues(member["assignment"]),
        "session_ms": member["session_ms"],
        "last_seen_ms": member["last_seen_ms"],
    }


def _shown_queues(queues: Sequence[Sequence[Any]]) -> list[str]:
    """Format queues by topic: ``orders:0,1,5``."""
    by_topic: dict[str, list[QueueName]] = {}
    for topic, queue in queues:
        by_topic.setdefault(topic, []).append(queue)
    return [f"{topic}:{','.join(map(str, sorted(of)))}" for topic, of in sorted(by_topic.items())]
