"""Chaos for a cluster: messages go through three broker groups while everything is killed.

    python -m tests.support.cluster_chaos --seconds 180 --rate 20000 [--seed N]

Nodes, single services, name services and members of the consumer group are killed at random and
start again. One broker group is drained meanwhile, and a fourth one is added. All are real
processes. Instants and victims come from a seed, printed with the counts; processes are not
deterministic, so a seed repeats the plan and not every interleaving. ``cluster_chaos_check`` has
the rules. What has failed keeps its folder.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import tidemark
from tests.support.chaos_members import Coming, Members
from tests.support.cluster_chaos_check import judge
from tests.support.cluster_chaos_load import CHANGED, Load
from tests.support.cluster_chaos_stage import Stage
from tests.support.group_chaos_check import SHOWN_MAX, Verdict, read
from tidemark.client.queue_choice import writable_queues
from tidemark.errors import TidemarkError

TOPIC: Final = "chaos"
GROUP: Final = "workers"
BROKER_GROUPS: Final = ("g0", "g1", "g2")
DRAINED, ADDED = "g1", "g3"
DRAIN_AT, ADD_AT = 0.3, 0.5
"""When a broker group is drained and one is added, as shares of the time."""
CATCH_UP_S: Final = 180.0
PRODUCERS: Final = 2
"""Clients that send."""
RETRY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of a run."""

    seed: int
    seconds: float = 25.0
    rate: int = 2000
    """Messages a second, half of them with a sharding key."""
    queues: int = 8
    """Of the topic, in each broker group."""
    keys: int = 24
    plain: int = 4
    """Producers of messages without a key."""
    members: Coming = Coming(members=4, members_min=2, pause_s=4.0)  # noqa: RUF009 - frozen
    node_pause_s: float = 10.0
    """Mean time between two kills in one broker group."""
    names_pause_s: float = 12.0
    duplicates_max: float = 0.05
    """Share of the messages that may come more than once."""
    profile: str = "local"
    """Times of the broker groups."""
    session_ms: int = 10_000
    """Of members. It is longer than a failover: a session that ends meanwhile loses its commits."""


@dataclass(slots=True)
class Outcome:
    """The results, for people and for asserts."""

    plan: Plan
    load: Load
    verdict: Verdict
    events: Counter[str]
    """What was killed, and commands that had to be repeated."""
    members: Counter[str]
    stored: int
    emptied_s: float
    """From the drain until the broker group was empty."""
    caught_up_s: float
    """From the last message sent until the group had no lag."""
    wrong: list[str]
    """Errors besides the verdict."""

    def sentence(self) -> str:
        """The counts in a few lines."""
        plan, load, verdict, members = self.plan, self.load, self.verdict, self.members
        violations = {str(kind): count for kind, count in verdict.violations.items()}
        key_gap_s = max(each.gap_s for each in load.streams if each.key is not None)
        return (
            f"seed {plan.seed}: {load.took_s:.0f} s, {load.acked} messages acked "
            f"({load.acked / load.took_s:.0f}/s of {plan.rate}), {load.sent - load.acked} without "
            f"an ack, {self.stored} stored\n"
            f"killed: {_counted(self.events)}; {members['joined']} members joined, "
            f"{members['left']} left, {members['killed']} were killed\n"
            f"{verdict.distinct} handled, {verdict.missing} acked and not handled, "
            f"{verdict.duplicates} more than once ({verdict.duplicate_share:.2%}); "
            f"{_counted(violations) or 'no violation'}\n"
            f"longest time without an ack {load.gap_s:.1f} s, of one key {key_gap_s:.1f} s; failed "
            f"calls: {_counted(load.failures) or 'none'}\n"
            f"{DRAINED} empty {self.emptied_s:.1f} s after its drain, no lag "
            f"{self.caught_up_s:.1f} s after the last message"
        )

    @property
    def faults(self) -> list[str]:
        """Everything that must not be, in words."""
        return [*self.wrong[:SHOWN_MAX], *self.verdict.wrong]


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


class Chaos:
    """One run."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        """directory: holds stores, logs and the file that members write to; it is kept."""
        self._plan, self._directory = plan, directory
        self._file = directory / "handled"
        self._file.touch()
        self._load = Load(TOPIC, plan.rate, plan.keys, plan.plain)
        self._drained = asyncio.Event()
        self._emptied_s = 0.0

    async def run(self) -> Outcome:
        """Start everything, let it happen, wait until the group has caught up, judge."""
        plan, load = self._plan, self._load
        with Stage(self._directory, BROKER_GROUPS, plan.profile, plan.seed) as stage:
            arguments = [",".join(stage.names.urls), TOPIC, GROUP, str(self._file)]
            arguments += ["--numbered", "--session-ms", str(plan.session_ms)]
            members = Members(self._directory, arguments, plan.members, Random(plan.seed))
            try:
                async with AsyncExitStack() as closing:
                    mq, *producers = [
                        await closing.enter_async_context(
                            tidemark.connect(stage.names.urls, retry_for_s=RETRY_S)
                        )
                        for _ in range(1 + PRODUCERS)
                    ]
                    caught_up_s = await self._happen(stage, mq, producers, members)
                    stored = await _stored(mq)
            finally:
                members.kill_all()
            wrong = [*members.wrong, *load.wrong, *self._lists_wrong()]
        verdict = judge(read(self._file), load.streams)
        if not load.acked <= stored <= load.sent:
            wrong.append(f"{stored} messages are stored, {load.acked} acked, {load.sent} sent")
        if verdict.duplicate_share > plan.duplicates_max:
            wrong.append(f"{verdict.duplicate_share:.1%} of the messages came more than once")
        return Outcome(
            plan,
            load,
            verdict,
            stage.events,
            members.events,
            stored,
            self._emptied_s,
            caught_up_s,
            wrong,
        )

    async def _happen(
        self,
        stage: Stage,
        mq: tidemark.Client,
        producers: Sequence[tidemark.Client],
        members: Members,
    ) -> float:
        """Load and chaos, then quiet until there is no lag; return how long that took [s]."""
        plan = self._plan
        await mq.create_topic(TOPIC, queues=plan.queues)
        await mq.groups.create(GROUP)
        members.join_all()
        for each in (mq, *producers):
            await _until(partial(_has_queues, each, len(BROKER_GROUPS)), "all routes")
        until = time.monotonic() + plan.seconds
        async with asyncio.TaskGroup() as tasks:
            for name in BROKER_GROUPS:
                tasks.create_task(stage.disturb_group(name, until, plan.node_pause_s))
            tasks.create_task(stage.disturb_names(until, plan.names_pause_s))
            tasks.create_task(members.disturb(until))
            tasks.create_task(self._drain(stage))
            tasks.create_task(self._add(stage, until))
            await self._load.run(producers, until)
            ended = time.monotonic()
        await asyncio.to_thread(stage.start_all)
        await _until(lambda: _knows_all(mq), "the routes of all broker groups")
        await _until(lambda: _has_no_lag(mq), "the lag to be 0")
        caught_up_s = time.monotonic() - ended
        await members.leave_all()
        return caught_up_s

    async def _drain(self, stage: Stage) -> None:
        """Drain a broker group, and wait until nothing is left there."""
        await asyncio.sleep(DRAIN_AT * self._plan.seconds)
        await stage.command("cluster", "drain", DRAINED)
        at = time.monotonic()
        self._load.drained = DRAINED, at
        self._drained.set()
        while not (await stage.command("cluster", "drain", DRAINED, "--dry-run"))["empty"]:
            if time.monotonic() > at + self._plan.seconds + CATCH_UP_S:
                raise TimeoutError(f"{DRAINED} is not empty")
        self._emptied_s = time.monotonic() - at

    async def _add(self, stage: Stage, until: float) -> None:
        """Add a broker group with the topic, and let it take part in the chaos."""
        await asyncio.sleep(ADD_AT * self._plan.seconds)
        await self._drained.wait()  # so that all producers see the same lists of queues
        await asyncio.to_thread(stage.add, ADDED)
        queues = str(self._plan.queues)
        await stage.command("topic", "create", TOPIC, "--queues", queues, "--groups", ADDED)
        await _until(self._is_added, f"the queues of {ADDED}")
        self._load.may_end = True
        await stage.disturb_group(ADDED, until, self._plan.node_pause_s)

    async def _is_added(self) -> bool:
        return self._load.is_seen(ADDED)

    def _lists_wrong(self) -> list[str]:
        """Compare the lists of queues that producers saw with those that there were."""
        expected = [
            set(BROKER_GROUPS),
            set(BROKER_GROUPS) - {DRAINED},
            {*BROKER_GROUPS, ADDED} - {DRAINED},
        ]
        wrong = []
        for stream in self._load.streams:
            lists = [
                {each.broker_group for each in queues}
                for _, queues in stream.lists
                if queues != CHANGED
            ]
            # A producer that waits for a broker group may miss a list.
            if lists != [each for each in expected if each in lists]:
                wrong.append(f"stream {stream.index}: saw queues of {lists}")
        return wrong


async def _has_queues(mq: tidemark.Client, broker_groups: int) -> bool:
    routes = await mq.routes(TOPIC)
    return len({each.broker_group for each in writable_queues(routes)}) == broker_groups


async def _knows_all(mq: tidemark.Client) -> bool:
    return len((await mq.routes(TOPIC)).groups) == len((*BROKER_GROUPS, ADDED))


async def _has_no_lag(mq: tidemark.Client) -> bool:
    return (await mq.groups.get(GROUP)).lag.messages == 0


async def _stored(mq: tidemark.Client) -> int:
    return sum(each.max_offset - each.min_offset for each in (await mq.topic(TOPIC)).ranges)


async def _until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for a condition; errors of calls are those of a cluster that is being broken."""
    deadline = time.monotonic() + CATCH_UP_S
    last: TidemarkError | None = None
    while time.monotonic() < deadline:
        try:
            if await holds():
                return
        except TidemarkError as error:
            last = error
        await asyncio.sleep(0.2)
    raise TimeoutError(f"waited {CATCH_UP_S:.0f} s for {what}; the last error: {last}")


async def chaos(plan: Plan, directory: Path) -> Outcome:
    """Run a plan."""
    return await Chaos(plan, directory).run()


def main() -> int:
    """Read the command line, run, print; 1 if anything was violated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--keys", type=int, default=64)
    parser.add_argument("--members", type=int, default=6)
    parser.add_argument("--member-pause", type=float, default=5.0, help="mean seconds of events")
    parser.add_argument("--node-pause", type=float, default=15.0, help="mean, in a broker group")
    parser.add_argument("--names-pause", type=float, default=15.0)
    parser.add_argument("--profile", default="default", help="times of the broker groups")
    parser.add_argument("--session-ms", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    given = parser.parse_args()
    plan = Plan(
        given.seed,
        seconds=given.seconds,
        rate=given.rate,
        keys=given.keys,
        members=Coming(given.members, max(1, given.members // 2), given.member_pause),
        node_pause_s=given.node_pause,
        names_pause_s=given.names_pause,
        profile=given.profile,
        session_ms=given.session_ms,
    )
    logging.disable(logging.WARNING)  # clients warn whenever the name services are killed
    print(f"seed {plan.seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="cluster-chaos-"))
    try:
        outcome = asyncio.run(chaos(plan, directory))
    except BaseException:
        print(f"everything is kept in {directory}", file=sys.stderr)
        raise
    print(outcome.sentence())
    if not outcome.faults:
        shutil.rmtree(directory)
        return 0
    print(*outcome.faults, f"everything is kept in {directory}", sep="\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
