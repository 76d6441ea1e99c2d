"""``tidemark store``: dumps, verifies, rebuilds and repairs a store's files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import click

from shared.files.kept_cuts import CUT_BYTES_MAX
from shared.files.log_walk import STATE_TOPIC
from shared.files.valid_end import Verdict
from tidemark.cli.offline import LogEnd, OfflineStore, described
from tidemark.cli.output import as_json, print_facts, progress_bar, say, to_json, with_output
from tidemark.cli.store_dump import queue_lines, record_lines
from tidemark.cli.store_rebuild import (
    Loss,
    begin,
    config_of_store,
    loss_at,
    losses,
    plan_rebuild,
    renames,
    restore_names,
)
from tidemark.cli.store_rebuild import cut as cut_log
from tidemark.cli.store_rebuild import rebuild as rebuild_derived
from tidemark.cli.store_verify import report_facts
from tidemark.cli.store_verify import verify as check
from tidemark.errors import BadRequest, CorruptRecord
from tidemark.formats.filenames import offset_name

T = TypeVar("T")

LINES_AT_ONCE: Final = 512


def store_option(function: Callable[..., T]) -> Callable[..., T]:
    """Add ``--store DIR``, which must exist."""
    return click.option(
        "--store",
        "root",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=Path("data"),
        show_default=True,
        help="Directory of the store: the one that contains commitlog/.",
    )(function)


def index_slots_option(function: Callable[..., T]) -> Callable[..., T]:
    """Add ``--index-slots``, for a store that RocketMQ wrote."""
    return click.option(
        "--index-slots",
        type=click.IntRange(min=1),
        help="Slots per index file, if the store does not record it (RocketMQ's maxHashSlotNum).",
    )(function)


@click.group()
def store() -> None:
    """A store's files, without a broker."""


@store.command()
@store_option
@click.option("--queues", is_flag=True, help="Print the consume queues instead of the records.")
@with_output
def dump(root: Path, queues: bool) -> None:
    """Print every record in physical order, one JSON object per line.

    With --queues: one object per (topic, queue) with all its units, as the next start will leave
    them. Read-only; works on any store, including one that RocketMQ wrote or that a node is using.
    """
    with OfflineStore(root) as offline:
        lines = queue_lines(offline) if queues else record_lines(offline)
        pending: list[str] = []
        for line in lines:
            if isinstance(line, LogEnd):
                _write(pending)
                _report_end(offline, line)
                return
            pending.append(line)
            if len(pending) >= LINES_AT_ONCE:
                _write(pending)
                pending = []


def _write(lines: list[str]) -> None:
    if lines:
        # surrogatepass: a property may contain bytes that are not text; they are kept.
        sys.stdout.buffer.write(("\n".join(lines) + "\n").encode("utf-8", "surrogatepass"))
        sys.stdout.buffer.flush()


def _report_end(offline: OfflineStore, end: LogEnd) -> None:
    """Report how the log ends; corruption is a failure, a torn tail is not."""
    if end.decision.verdict is Verdict.CORRUPTION:
        path = offline.files.path(offline.files.start_of(end.end))
        raise CorruptRecord(end.end, f"{end.reason}; {end.decision.reason}", path)
    if (text := described(end)) is not None:
        say(text)


@store.command()
@store_option
@index_slots_option
@with_output
def verify(root: Path, index_slots: int | None) -> None:
    """Check every record, every queue unit and every index entry against each other.

    Read-only: a node may run meanwhile. Exits with status 1 if anything is damaged, and reports
    each place by file and byte.
    """
    with OfflineStore(root) as offline:
        start = offline.min_offset
        with progress_bar("verifying", total=max(1, offline.files.end - start)) as show:
            report = check(
                offline, index_slots=index_slots, progress=lambda at: show(completed=at - start)
            )
    facts = report_facts(report)
    if as_json():
        click.echo(to_json(facts))
    else:
        print_facts({name: fact for name, fact in facts.items() if not isinstance(fact, list)})
        for remark in report.remarks:
            click.echo(f"remark: {remark}")
        for damage in report.damages:
            place = damage.where if damage.byte is None else f"{damage.where} byte {damage.byte}"
            click.echo(f"damage: {place}: {damage.problem}")
        if report.damages_not_named:
            click.echo(f"and {report.damages_not_named} more")
    if report.damage_count:
        say(
            f"{report.damage_count} places are damaged. Damage under commitlog/: see "
            "`tidemark store repair --dry-run`; anything else: stop the node and run "
            "`tidemark store rebuild`."
        )
        click.get_current_context().exit(1)


@store.command()
@store_option
@click.option("--queues", is_flag=True, help="Only the consume queues.")
@click.option("--index", is_flag=True, help="Only the index.")
@click.option("--topic", help="Only the consume queues of this topic.")
@click.option("--dry-run", is_flag=True, help="Show what would be rebuilt; change nothing.")
@index_slots_option
@with_output
def rebuild(
    root: Path,
    queues: bool,
    index: bool,
    topic: str | None,
    dry_run: bool,
    index_slots: int | None,
) -> None:
    """Rebuild consume queues and index from the commit log. No service may run.

    No message is at risk: queues and index contain only data that is in the log.
    """
    if topic is not None and index:
        raise click.UsageError("--topic applies to queues; there is one index for all topics")
    if not queues and not index:
        queues, index = True, topic is None
    with OfflineStore(root) as offline:
        plan = plan_rebuild(offline, queues=queues, index=index, topic=topic)
    for name, number in plan.kept_queues:
        say(f"topic {name} queue {number}: all its messages have expired; its files are kept")
    what = f"{len(plan.queues)} queues and {len(plan.index_files)} index files"
    if dry_run:
        say(f"would remove and rebuild {what}")
    else:
        rebuild_derived(root, plan, config_of_store(root, index_slots), say)
        say(f"removed {what} and rebuilt them from the log")
    if as_json():
        counts = {"queues": len(plan.queues), "index_files": len(plan.index_files)}
        print_facts({**counts, "rebuilt": not dry_run})


@store.command()
@store_option
@click.option("--dry-run", is_flag=True, help="Only explain; the default without --cut-at.")
@click.option(
    "--cut-at",
    type=click.IntRange(min=0),
    help="Cut the log at this physical offset: everything after it is lost to consumers.",
)
@click.option(
    "--begin-at",
    type=click.IntRange(min=0),
    help="Let the log start at this file: everything before it is lost to consumers.",
)
@click.option(
    "--rename",
    is_flag=True,
    help="Restore the names of log files that were renamed; nothing is lost.",
)
@click.option("--yes", is_flag=True, help="Confirm the loss of messages.")
@index_slots_option
@with_output
def repair(
    root: Path,
    dry_run: bool,
    rename: bool,
    cut_at: int | None,
    begin_at: int | None,
    yes: bool,
    index_slots: int | None,
) -> None:
    """Explain the damage in a commit log, or cut it off.

    A damaged record cannot be repaired: copy the file from another replica or a backup if there is
    one. Otherwise --cut-at zeroes the log from an offset on, keeps a copy in cut/, and rebuilds
    queues and index. If files are missing, --begin-at continues with the files after them. Files
    that have each other's names are not damaged: use --rename. No service may run.
    """
    if rename and (cut_at is not None or begin_at is not None):
        raise click.UsageError("--rename repairs names; run it before --cut-at or --begin-at")
    if cut_at is not None and begin_at is not None:
        raise click.UsageError(
            "--cut-at removes the end of the log, --begin-at its start: give one"
        )
    if rename and not dry_run:
        restore_names(root, say)
        return
    if _explain_renamed(root, is_asked=rename):
        if cut_at is not None or begin_at is not None:
            raise click.UsageError("files were renamed: run with --rename first")
        return
    if begin_at is not None:
        _begin(root, begin_at, index_slots, dry_run=dry_run, yes=yes)
        return
    with OfflineStore(root) as offline:
        missing = offline.missing_start()
        has_no_file = missing is not None and not offline.files.starts
        if cut_at is not None and has_no_file:
            raise BadRequest(
                "all files of the log are missing: there is nothing to cut. Nothing was changed.",
                "Put them back, or start an empty log with "
                f"--begin-at {offline.start_after_all()} --yes, which keeps the queue offsets.",
            )
        if cut_at is None:
            found = [] if has_no_file else losses(offline)
            if not found and missing is None:
                say("no damage in the commit log; nothing to repair")
            _explain(offline, found, cut=False)
            return
        loss = loss_at(offline, cut_at)
        if dry_run:
            _explain(offline, [loss], cut=False)
            return
        if not yes:
            raise click.UsageError("the cut loses messages for good: confirm with --yes")
        _explain(offline, [loss], cut=True)
    cut_log(root, loss, config_of_store(root, index_slots), say)
    say(f"the log now ends at {cut_at}")


def _explain_renamed(root: Path, *, is_asked: bool) -> bool:
    """List the misnamed log files. Returns whether there are any, or is_asked."""
    with OfflineStore(root) as offline:
        found = sorted(renames(offline.files).items())
    if as_json() and (found or is_asked):
        print_facts(
            {"renamed": [{"name": offset_name(n), "is": offset_name(true)} for n, true in found]}
        )
    else:
        for name, true in found:
            click.echo(f"{offset_name(name)} should be named {offset_name(true)}: use --rename")
    return bool(found) or is_asked


def _begin(root: Path, begin_at: int, index_slots: int | None, *, dry_run: bool, yes: bool) -> None:
    with OfflineStore(root) as offline:
        say(
            f"the log starts at {offline.min_offset}; with --begin-at {begin_at} everything before "
            f"{begin_at} is lost, and groups that have not read it continue after it"
        )
    if dry_run:
        return
    if not yes:
        raise click.UsageError("this loses messages for good: confirm with --yes")
    begin(root, begin_at, config_of_store(root, index_slots), say)
    say(f"the log now starts at {begin_at}")


def _explain(offline: OfflineStore, found: Sequence[Loss], *, cut: bool) -> None:
    """Print each damaged place and what is lost if the log is cut there.

    cut: whether the command cuts the log after this."""
    missing = offline.missing_start()
    if not as_json():
        if missing is not None and not offline.files.starts:
            click.echo(
                f"the log started at physical offset {missing}, and all its files are missing. "
                "Put them back, or give up all messages, groups and offsets with "
                f"--begin-at {offline.start_after_all()} --yes: an empty log starts there, and "
                "the queues continue with their next queue offsets"
            )
        elif missing is not None:
            click.echo(
                f"the log started at physical offset {missing} and now starts at "
                f"{offline.min_offset}: files are missing. Put them back, or give them up with "
                f"--begin-at {offline.min_offset} --yes"
            )
        for loss in found:
            _explain_one(offline, loss)
        return
    losses = [
        {
            "cut_at": loss.cut_at,
            "end": loss.end,
            "reason": loss.reason or None,
            "damaged_end": loss.damaged_end,
            "records": [
                {"topic": topic, "queue": queue, "count": count}
                for (topic, queue), count in sorted(loss.records.items())
            ],
            "begin_at": None if loss.beginning is None else loss.beginning.start,
            "records_before": None if loss.beginning is None else loss.beginning.records,
        }
        for loss in found
    ]
    begins = {"log_min_offset": offline.min_offset, "missing_from": missing}
    print_facts({**begins, "losses": losses, "cut": cut})


def _explain_one(offline: OfflineStore, loss: Loss) -> None:
    path = offline.files.path(offline.files.start_of(loss.cut_at))
    if loss.reason:
        click.echo(f"damage at physical offset {loss.cut_at} ({path}): {loss.reason}")
        if loss.damaged_end is not None:
            size = loss.damaged_end - loss.cut_at
            click.echo(f"  {size} bytes contain no readable record; sound ones follow them")
    lost = sum(loss.records.values())
    size = loss.end - loss.cut_at
    click.echo(
        f"  a cut at {loss.cut_at} removes {size} bytes with {lost} sound messages from the log; "
        f"the first {min(size, CUT_BYTES_MAX)} bytes are kept in {offline.store.cut_dir}"
    )
    for (topic, queue), count in sorted(loss.records.items()):
        click.echo(f"    topic {topic} queue {queue}: {count} messages")
    if lost:
        click.echo("  new messages reuse queue offsets after the last remaining message")
    if any(topic == STATE_TOPIC for topic, _ in loss.records):
        click.echo(
            f"  topics, groups and offsets are then as they were at {loss.cut_at}: later changes "
            "are lost, too"
        )
    if loss.beginning is not None:
        click.echo(
            f"  or --begin-at {loss.beginning.start} --yes: the log starts after the damage, with "
            f"topics, groups and offsets as they were there; {loss.beginning.records} sound "
            f"records before it are lost to consumers, their files are kept in "
            f"{offline.store.cut_dir}"
        )
