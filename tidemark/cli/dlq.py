"""``tidemark dlq``: lists and redrives the dead letters of a group."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, NamedTuple

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from tidemark.cli.output import (
    client_for,
    expected_errors,
    output_option,
    print_facts,
    print_rows,
    run,
    say,
    url_option,
)
from tidemark.cli.times import TIMESTAMP
from tidemark.client.dead_letters import DeadLetter, Redriven


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
RETRY_FOR_S: Final = 1.0
PAGE_MAX: Final = 1000
STEP_MAX: Final = 1000
"""Dead letters redriven per call, and so the step of the progress bar."""


@click.group()
def dlq() -> None:
    """Dead letters: messages that failed too often in a group. List, redrive."""


@dlq.command("list")
@click.argument("group")
@click.option("--topic", help="Only messages that came from this topic.")
@click.option("--from-offset", type=click.IntRange(min=0), default=0, help="Start at this offset.")
@click.option(
    "--max", "count_max", type=click.IntRange(min=1), default=100, show_default=True,
    help="Maximum number of messages to list.",
)  # fmt: skip
@url_option
@output_option
@expected_errors
def list_dead(group: str, topic: str | None, from_offset: int, count_max: int, url: str) -> None:
    """List the dead letters of GROUP, oldest first."""
    letters = run(_list(url, group, topic, from_offset, count_max))
    print_rows([letter.facts for letter in letters], COLUMNS)


async def _list(
    url: str, group: str, topic: str | None, from_offset: int, count_max: int
) -> list[DeadLetter]:
    async with client_for(url, retry_for_s=RETRY_FOR_S) as client:
        listed: list[DeadLetter] = []
        while True:
            left = min(PAGE_MAX, count_max - len(listed))
            page = await client.dead_letters.list(
                group, from_offset=from_offset, max=left, topic=topic
            )
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
@click.option("--from-offset", type=click.IntRange(min=0), default=0, help="Start at this offset.")
@click.option(
    "--max", "count_max", type=click.IntRange(min=1), help="Maximum number of matching messages."
)
@click.option("--dry-run", is_flag=True, help="Count what would be sent again; send nothing.")
@url_option
@output_option
@expected_errors
def redrive(
    group: str,
    to: Literal["topic", "group"],
    topic: str | None,
    key: str | None,
    begin: int | None,
    end: int | None,
    message_id: str | None,
    from_offset: int,
    count_max: int | None,
    dry_run: bool,
    url: str,
) -> None:
    """Send dead letters of GROUP again, each once: those redriven before are skipped."""
    filters = Filters(to, topic, key, begin, end, message_id)
    tally = run(_redrive(url, group, filters, from_offset, count_max, dry_run))
    for refusal in tally.refusals:
        say(f"refused {refusal['count']} to {refusal['topic']}: {refusal['detail']}")
    say(f"{'would redrive' if dry_run else 'redriven'} {tally.redriven} of {tally.matched} matched")
    print_facts({"group": group, **asdict(tally), "dry_run": dry_run})
    if tally.refused:
        raise click.exceptions.Exit(1)


async def _redrive(
    url: str,
    group: str,
    filters: Filters,
    from_offset: int,
    count_max: int | None,
    dry_run: bool,
) -> Tally:
    """Call the redrive of the API until the end of the dead letters, or until enough have matched.

    An interrupted call, or the whole command, may be repeated: each letter is sent once.
    """
    tally = Tally()
    async with client_for(url, retry_for_s=RETRY_FOR_S) as client:
        with _bar(f"dead letters of {group}") as seen:
            while True:
                left = STEP_MAX if count_max is None else min(STEP_MAX, count_max - tally.matched)
                step = await client.dead_letters.redrive(
                    group,
                    **filters._asdict(),
                    from_offset=from_offset,
                    max=left,
                    dry_run=dry_run,
                )
                tally.add(step)
                seen(step.next_offset - from_offset, step.max_offset - from_offset)
                if step.done or tally.matched == count_max:
                    return tally
                from_offset = step.next_offset


@contextlib.contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that advances a progress bar: letters done, and letters left before that.

    The bar is shown on standard error, and only in a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda _done, _left: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)

        def seen(done: int, left: int) -> None:
            before = progress.tasks[task].completed
            progress.update(task, completed=before + done, total=before + left)

        yield seen
