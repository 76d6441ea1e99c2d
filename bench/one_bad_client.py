"""Effect of one misbehaving client at a time on another client's sends, during and after it.

For each attack (``bad_clients``), and once a round for none, it measures the p99 of one client's
sends before, during and after the attack. Sends that end more than one second after it may not take
longer than a second. Single sends that are less late are not counted: the shared disk and machine
delay as many without an attack.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import tidemark
from bench.bad_clients import ATTACKS, GROWTH_MAX, MIB, SETTINGS, attackable
from bench.harness import PROJECT, Figure, Options, Result, at_most, benchmark, of_ratios
from bench.latency import percentiles
from bench.servers import LOAD_CORE, Node, pin_to_load_core, wait_until

SECONDS: Final = 4.0
SECONDS_QUICK: Final = 1.5
AFTER_S: Final = 3.0
BACK_MAX_S: Final = 1.0
"""Time after the end of the attack within which sends must be as before."""
RUNS: Final = 3
PAUSE_S: Final = 0.002
"""Pause between two sends of the measured client."""
BEGUN_S: Final = 1.0
"""Time from the start of the attacking process to the first counted send."""
RATIO_MAX: Final = 3.0
NO_ATTACK: Final = "no_attack"
STORE: Final = {"commit_log_file_size": 64 * MIB, "index_slots": 50_000, "index_entries": 200_000}
GOOD: Final = "good"


class Send(NamedTuple):
    ended: float
    """By the monotonic clock."""
    seconds: float
    without_core_s: float
    """Time during the send in which the client or the broker's loop was runnable without a core,
    which is due to other processes of the machine."""


class Sent(NamedTuple):
    """The sends of one period."""

    sends: list[Send]
    memory: int
    """Maximum private memory of the broker in bytes."""

    @property
    def p99_s(self) -> float:
        """The 99th percentile of the send times [s]."""
        return percentiles([each.seconds for each in self.sends]).p99 / 1000

    @property
    def longest_s(self) -> float:
        """The longest send [s]."""
        return max(each.seconds for each in self.sends)

    @property
    def with_core_p99_s(self) -> float:
        """The same, without the time in which client or broker had no core."""
        return percentiles([each.seconds - each.without_core_s for each in self.sends]).p99 / 1000


class Round(NamedTuple):
    before: Sent
    during: Sent
    after: Sent


def run_delay_s(pid: int) -> float:
    """Total time in which the main thread of a process was runnable without a core [s]."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9


def sends(node: Node, seconds: float) -> Sent:
    """Send one message at a time for the given seconds."""
    pids = os.getpid(), node.pid("broker")
    body = json.dumps({"messages": [{"body_text": "good"}]})
    done: list[Send] = []
    most = 0
    connection = http.client.HTTPConnection(*node.address, timeout=120)
    with contextlib.closing(connection):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            delayed_s = sum(map(run_delay_s, pids))
            began = time.monotonic()
            connection.request(
                "POST", f"/v1/topics/{GOOD}/messages", body, {"Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            data = answer.read()
            ended = time.monotonic()
            if answer.status != 200:
                raise OSError(f"a send was refused: {data!r}")
            delayed_s = min(ended - began, sum(map(run_delay_s, pids)) - delayed_s)
            done.append(Send(ended, ended - began, delayed_s))
            most = max(most, node.processes["broker"].memory("RssAnon"))
            time.sleep(PAUSE_S)
    return Sent(done, most)


def _give_way() -> None:
    """Run only when the core is otherwise idle: a client on another machine would not take CPU time
    from the measured one. At nice 10 it did, up to a slice of 3 ms at each wake-up."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


@contextlib.contextmanager
def attack(node: Node, name: str) -> Iterator[None]:
    """Attack for as long as the block runs; its end is a SIGKILL."""
    if name == NO_ATTACK:
        yield
        return
    command = [sys.executable, "-m", "bench.bad_clients", name]
    command += ["--api", str(node.ports["api"]), "--admin", str(node.ports["broker"])]
    attacker = subprocess.Popen(
        command, cwd=PROJECT, stdout=subprocess.DEVNULL, preexec_fn=_give_way
    )
    try:
        yield
        if attacker.poll() is not None:
            raise OSError(f"{name} ended with status {attacker.returncode}")
    finally:
        attacker.send_signal(signal.SIGKILL)
        attacker.wait()


def attacked(node: Node, name: str, seconds: float) -> Round:
    before = sends(node, seconds)
    with attack(node, name):
        sends(node, BEGUN_S)
        during = sends(node, seconds)
    back = time.monotonic() + BACK_MAX_S
    after = sends(node, AFTER_S)
    # The send that is in flight a second after the end counts, however long it takes.
    counted = [each for each in after.sends if each.ended > back]
    return Round(before, during, after._replace(sends=counted))


def measure(names: Sequence[str], runs: int, seconds: float) -> dict[str, list[Round]]:
    """Run all attacks in turn, ``runs`` times."""
    found: dict[str, list[Round]] = {name: [] for name in names}
    with Node(store=STORE, broker=SETTINGS) as node:
        with tidemark.connect_sync(node.url) as mq:
            mq.create_topic(GOOD, queues=1)
            attackable(mq)
            wait_until(lambda: bool(mq.messages_by_key("bad", "last")), "dispatch")
        for _ in range(runs):
            for name in names:
                done = attacked(node, name, seconds)
                print(f"{name}: {summary([done])}", file=sys.stderr, flush=True)
                found[name].append(done)
    return found


def summary(rounds: Sequence[Round]) -> str:
    """Format p99 before, during and after an attack, with and without the time without a core."""
    return "p99 " + ", ".join(
        f"{statistics.median(each.with_core_p99_s for each in sent) * 1000:.1f} ms "
        f"({statistics.median(each.p99_s for each in sent) * 1000:.1f} with waiting for a core) "
        f"{when}"
        for when, sent in (
            ("before", [each.before for each in rounds]),
            ("during", [each.during for each in rounds]),
            ("after", [each.after for each in rounds]),
        )
    )


def main(given: Options) -> Result:
    pin_to_load_core()
    seconds, runs = given.pick((SECONDS, RUNS), quick=(SECONDS_QUICK, 1))
    figures: list[Figure] = []
    notes: list[str] = []
    measured = measure([NO_ATTACK, *ATTACKS], runs, seconds)
    idle = min(each.before.memory for rounds in measured.values() for each in rounds)
    for name, rounds in measured.items():
        what = name.replace("_", " ")
        before = [each.before.with_core_p99_s * 1000 for each in rounds]
        for when, sent in (
            ("beside", [each.during for each in rounds]),
            ("after", [each.after for each in rounds]),
        ):
            p99 = [each.with_core_p99_s * 1000 for each in sent]
            ratio = of_ratios(f"p99 of sends {when} {what}", p99, before, RATIO_MAX, "before it")
            figures.append(ratio._replace(more_is_better=False))
        longest = [each.after.longest_s for each in rounds]
        figures.append(at_most(f"longest send after {what}", "s", longest, BACK_MAX_S))
        most = [(each.during.memory - idle) / MIB for each in rounds]
        figures.append(at_most(f"memory beside {what}", "MiB", most, GROWTH_MAX / MIB))
        notes.append(f"{what}: {summary(rounds)}")
    method = f"""Broker and reput on core 0; on core {LOAD_CORE} one client that sends one message
        at a time at disk, with {PAUSE_S * 1000:.0f} ms between two, and the attack's process, which
        the kernel runs only while the client does not (SCHED_IDLE). {seconds:.1f} s before the
        attack, {BEGUN_S:.0f} s until it is at work, {seconds:.1f} s of it, then its end by SIGKILL,
        and the sends that end {BACK_MAX_S:.0f} s to {AFTER_S:.0f} s after it; {runs} rounds of all
        attacks in turn, and of none. The ratios are those of the p99 during the attack, and after
        it, to that before, round by round, without the time in which the client or the broker's
        loop could run and had no core. Memory is the most that the broker had of its own during the
        attack above the least of the run. It may be half of waiting_bytes_max and what one request
        takes while it is decoded."""
    return Result(figures, method, notes)


if __name__ == "__main__":
    benchmark(main)
