"""``tidemark dlq``: lists and redrives the dead letters of a group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, NamedTuple

import click
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from tidemark.cli.output import (
    print_facts,
    print_rows,
    progress_bar,
    say,
    with_broker,
    with_client,
)
from tidemark.cli.queues import OFFSET
from tidemark.cli.times import TIMESTAMP
from tidemark.client.client import Client
from tidemark.client.dead_letters import DeadLetter, LetterOffset, Redriven


class Filters(NamedTuple):
    """Selects dead letters, and the target of a redrive."""

    to: Literal["topic", "group"]
    topic: str | None
    key: str | None
    begin: int | None
    end: int | None
    message_id: str | None


@dataclass(slots=True)
class Tally:
    """Totals of all calls of one redrive."""

    matched: int = 0
    redriven: int = 0
    skipped: int = 0
    refused: int = 0
    refusals: list[dict[str, Any]] = field(default_factory=list)

    def add(self, step: Redriven) -> None:
        """Add the counts of one call."""
        self.matched += step.matched
        self.redriven += step.redriven
        self.skipped += step.skipped
        self.refused += step.refused
        self.refusals += step.facts.get("refusals", ())


COLUMNS: Final = [
    *("queue_offset", "original_topic", "original_message_id", "reconsume_times"),
    *("dead_at_ms", "tags", "keys", "size", "redriven"),
]
PAGE_MAX: Final = 1000
STEP_MAX: Final = 1000
"""Dead letters redriven per call, and so the step of the progress bar."""


from_offset_option = click.option(
    "--from-offset", type=OFFSET, default="0", help="Start at this offset; in a cluster as g0/120."
)


@click.group()
def dlq() -> None:
    """Dead letters: messages that failed too often in a group. List, redrive."""


@dlq.command("list")
@click.argument("group")
@click.option("--topic", help="Only messages that came from this topic.")
@from_offset_option
@click.option(
    "--max", "count_max", type=click.IntRange(min=1), default=100, show_default=True,
    help="Maximum number of messages to list.",
)  # fmt: skip
@with_broker
def list_dead(
    group: str, topic: str | None, from_offset: LetterOffset, count_max: int, url: str
) -> None:
    """List the dead letters of GROUP, oldest first."""
    letters = with_client(url, lambda client: _list(client, group, topic, from_offset, count_max))
    facts = [letter.facts for letter in letters]
    in_cluster = any("broker_group" in each for each in facts)
    print_rows(facts, ["broker_group", *COLUMNS] if in_cluster else COLUMNS)


async def _list(
    client: Client, group: str, topic: str | None, from_offset: LetterOffset, count_max: int
) -> list[DeadLetter]:
    listed: list[DeadLetter] = []
    while True:
        left = min(PAGE_MAX, count_max - len(listed))
        page = await client.dead_letters.list(group, from_offset=from_offset, max=left, topic=topic)
        listed += page.messages
        if page.done or len(listed) >= count_max:
            return listed[:count_max]
        from_offset = page.next_offset


@dlq.command()
@click.argument("group")
@click.option(
    "--to", type=click.Choice(["topic", "group"]), default="topic", show_default=True,
    help="To all groups that read the original topic, or to GROUP alone.",
)  # fmt: skip
@click.option("--topic", help="Only messages that came from this topic.")
@click.option("--key", help="Only messages with this key.")
@click.option("--begin", type=TIMESTAMP, help="Only messages that died at or after this time.")
@click.option("--end", type=TIMESTAMP, help="Only messages that died at or before this time.")
@click.option("--message-id", help="Only this one: by its id here, its first id, or its unique id.")
@from_offset_option
@click.option(
    "--max", "count_max", type=click.IntRange(min=1), help="Maximum number of matching messages."
)
@click.option("--dry-run", is_flag=True, help="Count what would be sent again; send nothing.")
@with_broker
def redrive(
    group: str,
    to: Literal["topic", "group"],
    topic: str | None,
    key: str | None,
    begin: int | None,
    end: int | None,
    message_id: str | None,
    from_offset: LetterOffset,
    count_max: int | None,
    dry_run: bool,
    url: str,
) -> None:
    """Send dead letters of GROUP again, each once: those redriven before are skipped."""
    filters = Filters(to, topic, key, begin, end, message_id)
    with progress_bar(
        f"dead letters of {group}",
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
    ) as show:
        tally = with_client(
            url,
            lambda client: _redrive(
                client, group, filters, from_offset, count_max, dry_run=dry_run, show=show
            ),
        )
    for refusal in tally.refusals:
        say(f"refused {refusal['count']} to {refusal['topic']}: {refusal['detail']}")
    say(f"{'would redrive' if dry_run else 'redriven'} {tally.redriven} of {tally.matched} matched")
    print_facts({"group": group, **asdict(tally), "dry_run": dry_run})
    if tally.refused:
        raise click.exceptions.Exit(1)


async def _redrive(
    client: Client,
    group: str,
    filters: Filters,
    start: LetterOffset,
    count_max: int | None,
    *,
    dry_run: bool,
    show: Callable[..., None],
) -> Tally:
    """Call the redrive of the API until the end of the dead letters, or until enough have matched.

    An interrupted call, or the whole command, may be repeated: each letter is sent once.
    """
    tally, from_offset = Tally(), start
    while True:
        left = STEP_MAX if count_max is None else min(STEP_MAX, count_max - tally.matched)
        step = await client.dead_letters.redrive(
            group, **filters._asdict(), from_offset=from_offset, max=left, dry_run=dry_run
        )
        tally.add(step)
        if isinstance(step.next_offset, int) and isinstance(start, int):
            # In a cluster, the letters of the other broker groups are not known yet.
            show(completed=step.next_offset - start, total=step.max_offset - start)
        if step.done or tally.matched == count_max:
            return tally
        from_offset = step.next_offset
