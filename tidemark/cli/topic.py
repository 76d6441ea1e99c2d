"""``tidemark topic``: creates, extends, lists, shows and deletes topics."""

from __future__ import annotations

import click

from tidemark.cli.output import (
    confirm_deletion,
    end_partly,
    print_facts,
    print_rows,
    read_with_client,
    say,
    with_broker,
    with_client,
)
from tidemark.cli.times import DURATION, Parsed
from tidemark.client.messages import Topic

groups_option = click.option(
    "--groups",
    type=Parsed("groups", lambda text: [each for each in text.split(",") if each]),
    help="Broker groups of the cluster, separated by commas.  [default: all; for extend and sync: "
    "its own]",
)


@click.group()
def topic() -> None:
    """Topics and their queues."""


@topic.command()
@click.argument("name")
@click.option(
    "--queues", type=click.IntRange(min=1), help="How many.  [default: unchanged, 4 if new]"
)
@click.option(
    "--retention",
    type=DURATION,
    help="How long a message can be read, such as 7d; 0ms: as long as its file is kept.",
)
@click.option(
    "--queue-type",
    type=click.Choice(["simple", "batch"]),
    help="batch: store the messages of a request as one record.  [default: unchanged, simple if "
    "new]",
)
@groups_option
@with_broker
def create(
    name: str,
    queues: int | None,
    retention: int | None,
    queue_type: str | None,
    groups: list[str] | None,
    url: str,
) -> None:
    """Create a topic NAME, or give it this many queues and this retention.

    In a cluster, every broker group gets this many queues. If it fails at some of them, repeat it.
    """
    made = with_client(
        url,
        lambda client: client.create_topic(
            name,
            queues=queues,
            retention_ms=retention,
            queue_type=queue_type,
            broker_groups=groups,
        ),
    )
    print_facts(_facts(made))
    broker_groups: dict[str, int] = made.settings.get("broker_groups", {name: made.queues})
    if queues is not None and any(count != queues for count in broker_groups.values()):
        say(
            f"{name} keeps its {made.queues} queues, because queues are never removed. New "
            f"messages go to the first {made.write_queues}."
        )
        click.get_current_context().exit(1)


@topic.command()
@click.argument("name")
@click.option("--queues", type=click.IntRange(min=1), required=True, help="Of each broker group.")
@groups_option
@with_broker
def extend(name: str, queues: int, groups: list[str] | None, url: str) -> None:
    """Give topic NAME more queues, at all its broker groups or at some.

    Queues are never removed: a broker group that has more is refused. If it fails at some broker
    groups, repeat it. Messages with a sharding key may go to other queues from then on.
    """
    done = with_client(url, lambda client: client.extend_topic(name, queues, groups))
    print_rows(
        [
            {"broker_group": group or None, "before": each.before, "after": each.after}
            for group, each in done.items()
        ],
        ["before", "after"] if "" in done else ["broker_group", "before", "after"],
    )
    if all(each.before == each.after for each in done.values()):
        say(f"{name} has {queues} queues already: none was added")


@topic.command()
@click.argument("name")
@groups_option
@with_broker
def sync(name: str, groups: list[str] | None, url: str) -> None:
    """Give topic NAME the same queues and settings at all its broker groups.

    They are those of its first broker group, by name. --groups adds broker groups.
    """
    print_facts(_facts(with_client(url, lambda client: client.sync_topic(name, groups))))


def _facts(made: Topic) -> dict[str, object]:
    facts: dict[str, object] = {
        "topic": made.name,
        "queues": made.queues,
        "write_queues": made.write_queues,
        "retention_ms": made.settings.get("retention_ms"),
        "queue_type": made.queue_type,
    }
    if "broker_groups" in made.settings:
        facts["broker_groups"] = made.settings["broker_groups"]
    return facts


@topic.command("list")
@click.option("--all", "everything", is_flag=True, help="Include the broker's internal topics.")
@with_broker
def list_topics(everything: bool, url: str) -> None:
    """List all topics."""
    topics, failure = read_with_client(url, lambda client: client.topics())
    rows: list[dict[str, object]] = []
    columns = ["topic", "queues", "retention_ms", "queue_type"]
    if any("broker_groups" in found.settings for found in topics):
        columns.append("broker_groups")
    for found in topics:
        if everything or not found.system:
            facts = _facts(found)
            rows.append({column: facts[column] for column in columns if column in facts})
    print_rows(rows, columns)
    end_partly(failure)


@topic.command()
@click.argument("name")
@with_broker
def show(name: str, url: str) -> None:
    """Show the queues of topic NAME and their offset ranges."""
    found, failure = read_with_client(url, lambda client: client.topic(name))
    print_rows(_ranges(found), ["queue", "queue_type", "min_offset", "max_offset", "messages"])
    end_partly(failure)


@topic.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for the name again.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; delete nothing.")
@with_broker
def delete(name: str, yes: bool, dry_run: bool, url: str) -> None:
    """Delete topic NAME: its messages can no longer be read."""

    found = with_client(url, lambda client: client.topic(name))
    messages = sum(queue.max_offset - queue.min_offset for queue in found.ranges)
    what = f"topic {name}: {found.queues} queues, {messages} messages"
    if not dry_run:
        confirm_deletion("topic", name, what, yes=yes)
        with_client(url, lambda client: client.delete_topic(name))
    say(f"{'would delete' if dry_run else 'deleted'} {what}")
    print_facts(
        {"topic": name, "queues": found.queues, "messages": messages, "deleted": not dry_run}
    )


def _ranges(found: Topic) -> list[dict[str, object]]:
    return [
        {
            "queue": queue.queue,
            "queue_type": found.queue_type,
            "min_offset": queue.min_offset,
            "max_offset": queue.max_offset,
            "messages": queue.max_offset - queue.min_offset,
        }
        for queue in found.ranges
    ]
