"""``python -m drills``: list the drills, or run some and write a report."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

from drills import families
from drills.group import Group
from drills.namespaces import Loopback, Namespaces, Network, NoNamespaces
from drills.picture import NoPictures, draw
from drills.report import page
from drills.running import Runner
from drills.stage import ETCD, Drill

REPORT: Final = "report.md"


def main() -> int:
    """Return 0 if all drills passed, 1 if one failed, 2 if none could be run."""
    parser = argparse.ArgumentParser(prog="python -m drills", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="by name or number")
    parser.add_argument("--list", action="store_true", help="name all drills, and do nothing")
    parser.add_argument("--all", action="store_true", help="run all but the longest")
    parser.add_argument("--short", action="store_true", help="those of continuous integration")
    parser.add_argument(
        "--lease",
        choices=[ETCD],
        help="where the lease of every drill is: an etcd with a member on each of three machines; "
        "default: what --list shows",
    )
    parser.add_argument("--seed", type=int, help="of everything that is random; default: any")
    parser.add_argument(
        "--patience",
        type=float,
        default=1.0,
        help="factor on the allowed time without service: for a machine that is otherwise busy",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("drill-report"),
        help="directory of stores, logs and report; default: %(default)s",
    )
    arguments = parser.parse_args()
    drills = families.all_drills()
    if arguments.lease:
        drills = [found.on_etcd() for found in drills]
    if arguments.list:
        for found in drills:
            print(f"{found.number:>3}  {found.name:<28} {found.needs.lease:<12} {found.title}")
        return 0
    chosen = _chosen(drills, arguments)
    if not chosen:
        parser.print_usage(sys.stderr)
        return 2
    seed = secrets.randbelow(1 << 31) if arguments.seed is None else arguments.seed
    try:
        network: Network = Namespaces()
    except NoNamespaces as error:
        left_out = [found.name for found in chosen if _privileged(found)]
        if left_out:
            print(f"{error} Left out: {', '.join(left_out)}.", file=sys.stderr)
        network, chosen = Loopback(), [found for found in chosen if not _privileged(found)]
        if not chosen:
            return 2
    return _run(chosen, network, arguments, seed)


def _chosen(drills: list[Drill[Group]], arguments: argparse.Namespace) -> list[Drill[Group]]:
    if arguments.all:
        return [found for found in drills if not found.long]
    if arguments.short:
        return [found for found in drills if found.short]
    wanted = set(arguments.names)
    unknown = wanted - {found.name for found in drills} - {found.number for found in drills}
    if unknown:
        print(f"no such drill: {', '.join(sorted(unknown))}; see --list", file=sys.stderr)
        return []
    return [found for found in drills if wanted & {found.name, found.number}]


def _privileged(found: Drill[Group]) -> bool:
    return found.needs.cuts or found.needs.disk_size is not None


def _run(
    drills: list[Drill[Group]], network: Network, arguments: argparse.Namespace, seed: int
) -> int:
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    began, started = time.strftime("%Y-%m-%d %H:%M:%S"), time.monotonic()
    print(f"{len(drills)} drills, seed {seed}, below {out.resolve()}", flush=True)
    runner = Runner(
        out, network, seed=seed, report=partial(print, flush=True), patience=arguments.patience
    )
    try:
        asyncio.run(runner.run(drills))
    finally:
        pictures = []
        for session in runner.sessions:
            try:
                draw(session, out / f"{session.name}.svg")
            except NoPictures as error:
                print(f"no pictures: {error}", file=sys.stderr)
                break
            pictures.append(f"{session.name}.svg")
        took_s = time.monotonic() - started
        text = page(
            runner.results,
            seed=seed,
            began=began,
            seconds=took_s,
            pictures=pictures,
            title=f"Fault drills{', leases in etcd' if arguments.lease else ''}",
        )
        (out / REPORT).write_text(text, encoding="utf-8")
        print(f"report: {out / REPORT}", flush=True)
    return 0 if all(result.passed for result in runner.results) else 1


if __name__ == "__main__":
    sys.exit(main())
