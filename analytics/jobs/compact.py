"""compact: merges the many small files of each table, and removes what is past its retention.

It needs no Spark. It may run beside all other jobs: they add files, and it replaces files that are
there. Step before: `collect`, `evaluate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from analytics import runs
from analytics.errors import BadOption
from analytics.jobs.options import pairs, tables_option
from analytics.schema import TABLES
from analytics.tables import TableRoot
from analytics.tables.upkeep import KEEP_DAYS, Kept, keep_up
from shared.runtime.clock import SystemClock


def run(
    tables: str | Path, keep_days: Mapping[str, int], now: datetime | None = None
) -> dict[str, Kept]:
    """Keep up all tables; return the result by table. keep_days: retention by table, where it is
    not the usual one."""
    root = TableRoot(tables)
    now = now or datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC)
    known, done = runs.sorted_days(root), {}
    with runs.run(root, "compact") as noted:
        for table in root.tables():
            are_sorted = {day.rpartition("/")[2] for day in known if day.startswith(f"{table}/")}
            keep = keep_days.get(table, KEEP_DAYS[table])
            done[table] = keep_up(root, table, now, keep, are_sorted)
            noted.sorted(table, done[table].sorted)
    return done


@click.command("compact")
@tables_option
@click.option("--keep", multiple=True, help="TABLE=DAYS that rows are kept; repeatable.")
def command(**given: Any) -> None:
    """Merge small files, sort days that have ended; remove what is past its retention."""
    done = run(given["tables"], days_by_table(given["keep"])).values()
    click.echo(
        f"{sum(each.before for each in done)} files became {sum(each.after for each in done)}; "
        f"{sum(each.expired for each in done)} expired, "
        f"{sum(each.removed for each in done)} removed from disk."
    )


def days_by_table(values: tuple[str, ...]) -> dict[str, int]:
    """Days by table. Raises BadOption."""
    found = {}
    for table, days in pairs(values, "--keep").items():
        if table not in TABLES:
            raise BadOption(
                f"--keep names table {table!r}, which does not exist.", ", ".join(TABLES)
            )
        if not days.isdigit() or not 1 <= int(days) <= 3650:
            raise BadOption(f"--keep {table}={days}: days must be from 1 to 3650.", "")
        found[table] = int(days)
    return found
