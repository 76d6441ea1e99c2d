"""``python -m drills.pods run``: an overlay's pods on this machine, until Ctrl-C.

``drill`` runs the drills on them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from drills.pods.api import NoTool
from drills.pods.cluster import Cluster, described
from drills.pods.drilling import PodRunner, with_short_liveness
from drills.pods.families import DRILLS
from drills.pods.group import PROFILE, PodGroup
from drills.pods.kubelet import Event
from drills.pods.objects import BadManifest, Objects
from drills.pods.plans import NOT_DONE
from drills.pods.starting import (
    Published,
    new_network,
    publish,
    render,
    what_is_missing,
    with_secrets,
)
from drills.report import page
from drills.stage import Drill

HEAD: Final = ("POD", "ADDRESS", "ROLE", "READY", "RESTARTS", "")
POLL_S: Final = 0.2
EXIT_USAGE: Final = 2


def main() -> int:
    """Return 0 on success, 1 if a drill failed, 2 if nothing could be run."""
    parser = argparse.ArgumentParser(prog="python -m drills.pods", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="start the pods, and stop them at Ctrl-C")
    run.add_argument("--keep", action="store_true", help="go on with the claims that are in --out")
    drill = verbs.add_parser("drill", help="break them under load, and judge")
    drill.add_argument("names", nargs="*", metavar="NAME", help="drills; default: all")
    drill.add_argument(
        "--short", action="store_true", help="those of the tests, with shorter liveness probes"
    )
    drill.add_argument("--list", action="store_true", help="name all drills, and do nothing")
    drill.add_argument("--seed", type=int, help="of what is random; default: any")
    drill.add_argument("--patience", type=float, default=1.0, help="as of `tidemark drill`")
    for verb in (run, drill):
        verb.add_argument("--overlay", type=Path, default=Path("deploy/k8s/overlays/ha"))
        verb.add_argument("--out", type=Path, default=Path("build/k8s"), help="claims and logs")
    arguments = parser.parse_args()
    if arguments.verb == "drill" and arguments.list:
        for found in DRILLS:
            print(f"{found.name:<16} {found.title}")
        return 0
    try:
        missing = what_is_missing()
        if missing:
            raise NoTool(missing)
        objects, made = with_secrets(render(arguments.overlay))
        if made:
            print(f"Made for this run, as nothing in the overlay does: Secret {', '.join(made)}.")
        if arguments.verb == "drill":
            chosen = [
                one
                for one in DRILLS
                if (one.name in arguments.names or not arguments.names)
                and (one.short or not arguments.short)
            ]
            if arguments.short:
                objects = with_short_liveness(objects)
            unknown = set(arguments.names) - {one.name for one in DRILLS}
            if unknown:
                parser.error(f"no such drill: {', '.join(sorted(unknown))}; see --list")
            return _drill(objects, chosen, arguments)
        published = publish(objects)
        return _run(objects, arguments.out, published, keep=arguments.keep)
    except (NoTool, BadManifest) as error:
        print(f"tidemark: {error}", file=sys.stderr)
        return EXIT_USAGE


def _run(objects: Objects, out: Path, published: Sequence[Published], *, keep: bool) -> int:
    if not keep:
        shutil.rmtree(out / "claims", ignore_errors=True)
    shutil.rmtree(out / "logs", ignore_errors=True)
    began = time.monotonic()

    def show(event: Event) -> None:
        where = f"{event.pod}/{event.container}" if event.container else event.pod
        message = " ".join(event.message.split())
        at = f"{event.at - began:7.1f} s"
        print(f"{at}  {where:<24} {event.reason}: {message}", flush=True)

    network = new_network()
    sockets = {(one.service, one.port): one.listening for one in published}
    cluster = Cluster(objects, out.resolve(), network, on_event=show, published=sockets)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_until_stopped(cluster, published))
    return 0


def _drill(
    objects: Objects, drills: Sequence[Drill[PodGroup]], arguments: argparse.Namespace
) -> int:
    out: Path = arguments.out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    seed = secrets.randbelow(1 << 31) if arguments.seed is None else arguments.seed
    began, started = time.strftime("%Y-%m-%d %H:%M:%S"), time.monotonic()
    runner = PodRunner(
        objects,
        out.resolve(),
        new_network(),
        report=partial(print, flush=True),
        patience=arguments.patience,
        seed=seed,
    )
    asyncio.run(runner.run(drills))
    report = out / "report.md"
    text = page(
        runner.results,
        seed=seed,
        began=began,
        seconds=time.monotonic() - started,
        pictures=(),
        title="Drills on pods",
        profile=PROFILE,
    )
    report.write_text(text, encoding="utf-8")
    print(f"report: {report}")
    passed = len(runner.results) == len(drills) and all(one.passed for one in runner.results)
    return 0 if passed else 1


async def _until_stopped(cluster: Cluster, published: Sequence[Published]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    print(f"Not done here: {'; '.join(NOT_DONE)}.")
    async with cluster:
        if not cluster.wiring.enforced:
            print(
                "Policies hold at Services only: nft is not installed (apt-get install nftables)."
            )
        shown: list[tuple[str, ...]] = []
        announced = False
        while not stop.is_set():
            cluster.check()
            rows = described(cluster)
            if rows != shown:
                shown = rows
                print(table(rows), flush=True)
            if not announced and cluster.is_rolled_out():
                announced = True
                print(_what_to_try(cluster, published), flush=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), POLL_S)
        print("Stopping, the highest ordinal first. Again Ctrl-C: at once.", flush=True)
        stop.clear()
        stopping = asyncio.create_task(cluster.stop())
        at_once = asyncio.create_task(stop.wait())
        await asyncio.wait({stopping, at_once}, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            stopping.result()
        stopping.cancel()
        at_once.cancel()
        await asyncio.gather(stopping, at_once, return_exceptions=True)


def table(rows: Sequence[Sequence[str]]) -> str:
    lines = [HEAD, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _what_to_try(cluster: Cluster, published: Sequence[Published]) -> str:
    lines = ["", "All pods are ready. Services, from this machine:"]
    lines += [f"  {one.service:<22} {one.url}" for one in published]
    names = sorted(cluster.pods, key=lambda name: (cluster.role(name) != "master", name))
    for name in names[:1]:
        pod = cluster.pods[name]
        container = pod.plan.containers[0].name
        process = pod.containers[container].started
        enter = f"sudo nsenter --all --target {process.pid} --setuid {pod.plan.containers[0].user}"
        tidemark = f"{enter} env PATH=/opt/tidemark/bin:/usr/bin tidemark"
        lines += [
            f"In another terminal, inside the container {container} of {name}:",
            f"  {tidemark} cluster status",
            f"  {tidemark} topic create greetings",
            f"  echo hello | {tidemark} produce greetings",
            f"  kill -9 {process.pid}    # the kubelet starts it again",
        ]
    lines += [f"Logs: {cluster.directory / 'logs'}. Ctrl-C stops all pods in order.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
