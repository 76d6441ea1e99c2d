"""One client at a time does its worst: what another client's sends take meanwhile and afterwards.

For each attack (``bad_clients``): p99 of one client's sends before it, during it, and how long
after its end the last send takes longer than three times the p99 of before.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import tidemark
from bench.bad_clients import ATTACKS, GROWTH_MAX, MIB, SETTINGS, attackable
from bench.harness import PROJECT, Figure, of_ratios, report
from bench.servers import LOAD_CORE, Node, pin_to_load_core, wait_until

SECONDS: Final = 4.0
SECONDS_QUICK: Final = 1.5
AFTER_S: Final = 2.0
RUNS: Final = 3
PAUSE_S: Final = 0.002
"""Between two sends of the client that is measured."""
BEGUN_S: Final = 1.0
"""From the start of the attack's process to the first send that counts."""
RATIO_MAX: Final = 3.0
BACK_MAX_S: Final = 1.0
STORE: Final = {"commit_log_file_size": 64 * MIB, "index_slots": 50_000, "index_entries": 200_000}
GOOD: Final = "good"


class Sent(NamedTuple):
    """Sends of one stretch of time."""

    took: list[tuple[float, float]]
    """(when it ended, seconds that it took) of each."""

    @property
    def p99_s(self) -> float:
        """99 of 100 sends took no longer [s]."""
        ordered = sorted(seconds for _, seconds in self.took)
        return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]

    def back_s(self, since: float, limit_s: float) -> float:
        """How long after ``since`` the last send ended that took longer than the limit [s]."""
        return max((at - since for at, seconds in self.took if seconds > limit_s), default=0.0)


class Round(NamedTuple):
    """One attack."""

    before_s: float
    during_s: float
    back_s: float
    memory: int
    """Bytes of its own that the broker had at most above those of before."""
    without_core_s: float
    """Time per send during the attack in which the client or the broker's loop could run, and the
    kernel gave the core to another process: no work of the broker."""


def run_delay_s(pid: int) -> float:
    """Time so far in which the main thread of a process could run and had no core [s]."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9


def sends(node: Node, seconds: float) -> tuple[Sent, int, float]:
    """Send for so long, one message at a time; the most memory that the broker had, and the time
    without a core per send."""
    pids = os.getpid(), node.pid("broker")
    delayed_s = sum(map(run_delay_s, pids))
    body = json.dumps({"messages": [{"body_text": "good"}]})
    took: list[tuple[float, float]] = []
    most = 0
    connection = http.client.HTTPConnection(*node.address, timeout=120)
    with contextlib.closing(connection):
        until = time.monotonic() + seconds
        while (began := time.monotonic()) < until:
            connection.request(
                "POST", f"/v1/topics/{GOOD}/messages", body, {"Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            data = answer.read()
            ended = time.monotonic()
            if answer.status != 200:
                raise OSError(f"a send was refused: {data!r}")
            took.append((ended, ended - began))
            most = max(most, node.processes["broker"].status("RssAnon"))
            time.sleep(PAUSE_S)
    return Sent(took), most, (sum(map(run_delay_s, pids)) - delayed_s) / len(took)


def _give_way() -> None:
    """Run only on what a core has left: a client of another machine takes no processor time from
    the one that is measured. At nice 10 it did, up to a slice of 3 ms at each of its wake-ups."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def attacked(node: Node, name: str, seconds: float) -> Round:
    """Send before, during and after one attack."""
    before, at_first, _ = sends(node, seconds)
    command = [sys.executable, "-m", "bench.bad_clients", name]
    command += ["--api", str(node.ports["api"]), "--admin", str(node.ports["broker"])]
    attacker = subprocess.Popen(
        command, cwd=PROJECT, stdout=subprocess.DEVNULL, preexec_fn=_give_way
    )
    try:
        sends(node, BEGUN_S)
        during, most, without_core_s = sends(node, seconds)
        if attacker.poll() is not None:
            raise OSError(f"{name} ended with status {attacker.returncode}")
    finally:
        attacker.send_signal(signal.SIGKILL)
        attacker.wait()
    stopped = time.monotonic()
    after, _, _ = sends(node, AFTER_S)
    back_s = after.back_s(stopped, RATIO_MAX * before.p99_s)
    return Round(before.p99_s, during.p99_s, back_s, most - at_first, without_core_s)


def measure(names: Sequence[str], runs: int, seconds: float) -> dict[str, list[Round]]:
    """All attacks in turn, so many times."""
    found: dict[str, list[Round]] = {name: [] for name in names}
    with Node(store=STORE, broker=SETTINGS) as node:
        with tidemark.connect_sync(node.url) as mq:
            mq.create_topic(GOOD, queues=1)
            attackable(mq)
            wait_until(lambda: bool(mq.messages_by_key("bad", "last")), "dispatch")
        for _ in range(runs):
            for name in names:
                done = attacked(node, name, seconds)
                print(f"{name}: {done}", file=sys.stderr, flush=True)
                found[name].append(done)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short runs; writes no result")
    parser.add_argument("--attacks", nargs="*", choices=ATTACKS, default=list(ATTACKS))
    given = parser.parse_args(arguments)
    pin_to_load_core()
    seconds, runs = (SECONDS_QUICK, 1) if given.quick else (SECONDS, RUNS)
    figures: list[Figure] = []
    notes: list[str] = []
    for name, rounds in measure(given.attacks, runs, seconds).items():
        what = name.replace("_", " ")
        before = [each.before_s * 1000 for each in rounds]
        during = [each.during_s * 1000 for each in rounds]
        ratio = of_ratios(f"p99 of sends beside {what}", during, before, RATIO_MAX, "before it")
        figures.append(ratio._replace(more_is_better=False))
        back = [each.back_s for each in rounds]
        figures.append(Figure(f"back after {what}", "s", back, BACK_MAX_S, more_is_better=False))
        most = [each.memory / MIB for each in rounds]
        bound = GROWTH_MAX / MIB
        figures.append(Figure(f"memory beside {what}", "MiB", most, bound, more_is_better=False))
        without_core_s = statistics.median(each.without_core_s for each in rounds)
        notes.append(
            f"{what}: p99 {statistics.median(before):.1f} ms before, "
            f"{statistics.median(during):.1f} ms during, of a mean send "
            f"{without_core_s * 1000:.2f} ms without a core"
        )
    method = f"""Broker and reput on core 0; on core {LOAD_CORE} one client that sends one message
        at a time at disk, with {PAUSE_S * 1000:.0f} ms between two, and the attack's process, which
        the kernel runs only while the client does not (SCHED_IDLE). {seconds:.1f} s before the
        attack, {BEGUN_S:.0f} s until it is at work, {seconds:.1f} s of it, then its end by SIGKILL
        and {AFTER_S:.0f} s after it; {runs} rounds of all attacks in turn. The ratio is that of the
        p99 during to that before, round by round; back is the end of the last send after the attack
        that took longer than {RATIO_MAX:.0f} times the p99 of before. Memory is the most that the
        broker had of its own during the attack above that of before, at most half of
        waiting_bytes_max and what one request takes while it is decoded."""
    return report("one_bad_client", figures, method, quick=given.quick, notes=notes)


if __name__ == "__main__":
    raise SystemExit(main())
