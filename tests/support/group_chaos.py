"""Chaos for a consumer group: members join, leave and are killed at random while messages flow.

    python -m tests.support.group_chaos --seconds 180 --rate 20000 [--ordered] [--seed N]

Broker, reput and every member are real processes. Instants and victims come from a seed, printed
with the counts; processes are not deterministic, so a seed repeats the plan and not every
interleaving. ``group_chaos_check`` judges what the members wrote down.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import tidemark
from tests.support.chaos_members import Coming, Members
from tests.support.group_chaos_check import SHOWN_MAX, Entry, What, judge, read
from tests.support.group_chaos_plan import Outcome, Plan
from tests.support.node import Node
from tidemark.errors import TidemarkError

TOPIC: Final = "chaos"
GROUP: Final = "workers"
BODY_SIZE: Final = 100
SENDS_PER_S_MAX: Final = 100
STORE: Final = {
    "commit_log_file_size": 64 << 20,
    "consume_queue_file_size": 2_000_000,
    "index_slots": 50_000,
    "index_entries": 200_000,
}
LOOK_S: Final = 0.5
DRAIN_S: Final = 60.0


class Chaos:
    """One run."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        """directory: holds the store, the logs and the file that members write to; it is kept."""
        self._plan = plan
        self._directory = directory
        self._file = directory / "handled"
        self._events: Counter[str] = Counter()
        self._sent: Counter[int] = Counter()
        self._lag_max = self._samples = 0
        self._wrong: list[str] = []
        self._commits = 0

    async def run(self) -> Outcome:
        """Start everything, let it happen, wait until the group has caught up, judge."""
        plan = self._plan
        with Node(self._directory, store=STORE) as node:
            node.start()
            await asyncio.to_thread(node.wait_ready)
            self._call(node, "PUT", f"/v1/topics/{TOPIC}", {"queues": plan.queues})
            self._call(node, "PUT", f"/v1/groups/{GROUP}", {"order": plan.ordered})
            coming = Coming(plan.members, plan.members_min, plan.pause_s)
            arguments = self._arguments(node)
            members = Members(self._directory, arguments, coming, Random(plan.seed))
            try:
                drained_s = await self._happen(node, members)
            finally:
                members.kill_all()
                self._events += members.events
                self._wrong += members.wrong
            ends = self._ends(node)
        verdict = judge(read(self._file), ends, ordered=plan.ordered)
        if plan.node_pause_s is None and not self._commits:
            self._wrong.append("no commit was seen")
        for queue, count in self._sent.items():
            # A send without an answer is stored or not.
            if ends[queue] < count or (ends[queue] > count and not self._events["unanswered"]):
                self._wrong.append(f"queue {queue}: {count} messages acked, {ends[queue]} there")
        return Outcome(
            plan,
            verdict,
            self._sent.total(),
            self._events,
            drained_s,
            self._lag_max,
            self._samples,
            self._wrong,
        )

    async def _happen(self, node: Node, members: Members) -> float:
        """Load and chaos, then quiet until there is no lag; return how long that took [s]."""
        plan = self._plan
        members.join_all()
        await self._until(lambda: self._present(node, members) == plan.members, "all to join")
        until = time.monotonic() + plan.seconds
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._produce(node, until))
            tasks.create_task(members.disturb(until))
            tasks.create_task(self._watch(node, until))
            if plan.node_pause_s is not None:
                tasks.create_task(self._disturb_node(node, until, plan.node_pause_s))
        began = time.monotonic()
        await self._until(lambda: self._lag(node) == 0, "the lag to be 0", DRAIN_S)
        drained_s = time.monotonic() - began
        await members.leave_all()
        return drained_s

    # -- load -----------------------------------------------------------------------------------

    async def _produce(self, node: Node, until: float) -> None:
        """Send at the plan's rate, a batch to one queue after another; late batches catch up."""
        plan = self._plan
        batch = max(1, plan.rate // SENDS_PER_S_MAX)
        interval_s, due = batch / plan.rate, time.monotonic()
        bodies = [number.to_bytes(4, "big") * (BODY_SIZE // 4) for number in range(batch)]
        queue = 0
        async with tidemark.connect(node.api_url) as mq:
            while due < until:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                try:
                    await mq.send_many(TOPIC, bodies, queue=queue, timeout_ms=30_000)
                    self._sent[queue] += batch
                except TidemarkError:
                    if plan.node_pause_s is None:
                        raise
                    self._events["unanswered"] += 1
                queue = (queue + 1) % plan.queues
                due += interval_s

    # -- chaos ----------------------------------------------------------------------------------

    async def _disturb_node(self, node: Node, until: float, pause_s: float) -> None:
        """Kill broker or reput now and then, from a seed of its own, and start it again."""
        random = Random(self._plan.seed + 1)
        while (now := time.monotonic()) < until:
            await asyncio.sleep(min(random.expovariate(1 / pause_s), until - now))
            role = random.choice(("broker", "broker", "reput"))
            await asyncio.to_thread(node.kill, role)
            await asyncio.to_thread(node.start, role)
            await asyncio.to_thread(node.wait_ready)
            self._events[role] += 1

    def _arguments(self, node: Node) -> list[str]:
        """Return the command line of a member, without its number."""
        plan = self._plan
        return [
            *(node.api_url, TOPIC, GROUP, str(self._file)),
            *("--session-ms", str(plan.session_ms), "--work-ms", str(plan.work_ms)),
            *["--ordered"] * plan.ordered,
        ]

    # -- lag ------------------------------------------------------------------------------------

    async def _watch(self, node: Node, until: float) -> None:
        """Read the lag all the time: it may be unknown for a moment, and is never negative."""
        while time.monotonic() < until:
            lag = await asyncio.to_thread(self._lag, node)
            self._lag_max = max(self._lag_max, lag or 0)
            await asyncio.sleep(LOOK_S)

    def _lag(self, node: Node) -> int | None:
        """Unread messages of the group; None while those of a queue are not known."""
        status, view = node.request_json("GET", f"/v1/groups/{GROUP}")
        if status in (0, 503) and self._plan.node_pause_s is not None:
            return None  # it is just being killed, or starts
        if status != 200:
            raise RuntimeError(f"the group's view was answered {status}: {view}")
        self._samples += 1
        owned = Counter(tuple(each) for one in view["members"] for each in one["assignment"])
        if twice := [place for place, owners in owned.items() if owners > 1]:
            self._wrong.append(f"assigned to two members at once: {twice[:3]}")
        for topic in view["topics"]:
            for queue in topic["queues"]:
                messages, committed = queue["messages"], queue["committed"]
                if messages is None and "messages" not in queue["reasons"]:
                    self._wrong.append(f"no reason why the lag is not known: {queue}")
                if messages is not None and (messages < 0 or committed > queue["max_offset"]):
                    self._wrong.append(f"committed beyond the end, or a negative lag: {queue}")
        if self._plan.node_pause_s is None:  # a broker that is killed may lose the last commits
            self._note_commits(view)
        lag: dict[str, Any] = view["lag"]
        return None if lag["unknown_queues"] else lag["messages"]

    def _note_commits(self, view: dict[str, Any]) -> None:
        entries = [
            Entry(What.COMMITTED, queue["queue"], 0, 0, 0, queue["committed"], time.monotonic_ns())
            for topic in view["topics"]
            if topic["topic"] == TOPIC
            for queue in topic["queues"]
            if queue["committed"] is not None
        ]
        self._commits += len(entries)
        with self._file.open("ab", buffering=0) as file:
            file.write(b"".join(entry.packed() for entry in entries))

    def _present(self, node: Node, members: Members) -> int:
        members.check()
        if wrong := members.wrong:
            raise RuntimeError(wrong[0])
        return len(self._call(node, "GET", f"/v1/groups/{GROUP}")["members"])

    def _ends(self, node: Node) -> dict[int, int]:
        queues = self._call(node, "GET", f"/v1/topics/{TOPIC}")["queues"]
        return {queue["queue"]: queue["max_offset"] for queue in queues}

    def _call(self, node: Node, method: str, path: str, body: object = None) -> dict[str, Any]:
        status, answer = node.request_json(method, path, body)
        if status != 200:
            raise RuntimeError(f"{method} {path} was answered {status}: {answer}")
        return answer

    async def _until(
        self, condition: Callable[[], object], what: str, timeout_s: float = 60.0
    ) -> None:
        deadline = time.monotonic() + timeout_s
        while not await asyncio.to_thread(condition):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"waited {timeout_s} s for {what}; {self._wrong[:3]}")
            await asyncio.sleep(0.1)


async def chaos(plan: Plan, directory: Path) -> Outcome:
    """Run a plan."""
    return await Chaos(plan, directory).run()


def main() -> int:
    """Read the command line, run, print; 1 if anything was violated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--queues", type=int, default=64)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--pause", type=float, default=2.0, help="mean seconds between events")
    parser.add_argument("--node-pause", type=float, help="mean seconds between kills of services")
    parser.add_argument("--work-ms", type=float, default=0.0)
    parser.add_argument("--ordered", action="store_true")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    given = parser.parse_args()
    plan = Plan(
        given.seed,
        seconds=given.seconds,
        rate=given.rate,
        queues=given.queues,
        members=given.members,
        pause_s=given.pause,
        work_ms=given.work_ms,
        node_pause_s=given.node_pause,
        ordered=given.ordered,
    )
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        outcome = asyncio.run(chaos(plan, Path(directory)))
    print(outcome.sentence())
    for wrong in (*outcome.wrong[:SHOWN_MAX], *outcome.verdict.wrong):
        print(wrong)
    return 1 if outcome.wrong or outcome.verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
