"""``tidemark doctor``: checks a node's settings, disk, machine and nodes, and gives advice.

It changes nothing. The exit status is 0 without errors, 1 with a finding of level error, 2 for a
usage error. Each check has a time limit, and a check without a result is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from tidemark.cli.doctor import disk, lease, machine, names, nodes, ports
from tidemark.cli.doctor.findings import Check, Finding, Level, carried_out
from tidemark.cli.doctor.settings import Asked, ask, differing
from tidemark.cli.doctor.subject import subject, subject_options
from tidemark.cli.output import as_json, to_json, with_output

MARKS: Final = {Level.OK: "ok", Level.UNKNOWN: "??", Level.WARNING: "!!", Level.ERROR: "ERROR"}


@click.command()
@subject_options
@click.option("--all", "show_all", is_flag=True, help="Show passed checks, too.")
@with_output
def doctor(
    config: tuple[str, ...],
    store: Path | None,
    url: str | None,
    show_all: bool,
) -> None:
    """Report problems with a node's settings, disk, clock, limits and addresses."""
    asked = subject(config, store, url)
    findings = examined(asked.files, asked.store, asked.urls)
    show(findings, show_all=show_all)
    if any(finding.level is Level.ERROR for finding in findings):
        click.get_current_context().exit(1)


def examined(files: Mapping[str, Path], store: Path | None, urls: Sequence[str]) -> list[Finding]:
    """Return all findings. files: settings by service; store: None for the one in the settings."""
    asked: dict[str, Asked] = {}

    def asking(service: str, path: Path) -> Sequence[Finding]:
        asked[service] = ask(service, path, store)
        return asked[service].findings

    findings = carried_out(
        [
            Check(f"config.{service}", str(path), lambda s=service, p=path: asking(s, p))  # type: ignore[misc]
            for service, path in files.items()
        ]
    )
    settings = {name: each.settings for name, each in asked.items() if each.settings is not None}
    findings += differing(settings)
    broker = settings.get("broker")
    place = store or _store_of(settings)
    checks = [*machine.checks(broker), *ports.checks(settings)]
    checks += names.checks(settings, urls)
    checks += lease.checks(settings.get("ha") or broker or {})
    if place is not None:
        checks += disk.checks(place, broker)
    if urls:
        checks += nodes.checks(urls)
        checks += ports.replication_checks(broker or settings.get("ha") or {})
    return findings + carried_out(checks)


def show(findings: Sequence[Finding], *, show_all: bool) -> None:
    """Print the findings: one JSON object, or lines with the worst last, above the prompt."""
    counts = Counter(finding.level for finding in findings)
    if as_json():
        summary = {level.value: counts[level] for level in Level}
        click.echo(to_json({"summary": summary, "findings": [f._asdict() for f in findings]}))
        return
    order = list(Level)
    for finding in sorted(findings, key=lambda each: order.index(each.level)):
        if finding.level is Level.OK and not show_all:
            continue
        click.echo(f"{MARKS[finding.level]:<5} {finding.check} {finding.subject}: {finding.cause}")
        if finding.code:
            click.echo(f"      [{finding.code}] {finding.remedy}".rstrip())
    click.echo(", ".join(f"{counts[level]} {level.value}" for level in Level))


def _store_of(settings: Mapping[str, Mapping[str, Any]]) -> Path | None:
    return next(
        (Path(each["store_dir"]) for each in settings.values() if "store_dir" in each), None
    )
