"""The processes of the chaos of a cluster: name services and broker groups of two nodes each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final, Self

from tests.support.cluster import Cluster
from tests.support.command import run
from tests.support.names import NamesProcesses

STORE: Final = {
    "commit_log_file_size": 64 << 20,
    "consume_queue_file_size": 2_000_000,
    "index_slots": 50_000,
    "index_entries": 200_000,
}
NODES: Final = 2
COMMAND_S: Final = 300.0
DOWN_MAX_S: Final = 4.0
"""Longest time that a killed node or name service is away."""


class Stage:
    """Everything that runs but clients. ``events`` counts what was killed."""

    def __init__(self, directory: Path, groups: Sequence[str], profile: str, seed: int) -> None:
        """groups: their names. profile: of their times."""
        self._directory, self._profile, self._seed = directory, profile, seed
        self._closing = contextlib.ExitStack()
        self.names = NamesProcesses(directory, 2, groups=",".join(groups))
        self.groups = {name: self._made(name) for name in groups}
        self.events: Counter[str] = Counter()

    def _made(self, name: str) -> Cluster:
        return Cluster(
            self._directory / name,
            nodes=NODES,
            profile=self._profile,
            cluster={"name": "tidemark", "group": name},
            store=STORE,
            broker={"names": {"urls": self.names.urls}, "auto_create_topics": False},
        )

    def __enter__(self) -> Self:
        with self._closing:
            self._closing.enter_context(self.names)
            for group in self.groups.values():
                self._closing.enter_context(group).start()
            for group in self.groups.values():
                group.wait_in_sync()
            self._closing = self._closing.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.__exit__(kind, error, trace)

    def add(self, name: str) -> None:
        """Start one more broker group, which the name services know after their next start."""
        self.names.configure(groups=",".join([*self.groups, name]))
        group = self._closing.enter_context(self._made(name))
        group.start()
        group.wait_master()
        self.groups[name] = group

    def start_all(self) -> None:
        """Start what does not run, and wait until all broker groups serve."""
        self.names.start([at for at, each in enumerate(self.names.processes) if not each.is_alive])
        for group in self.groups.values():
            group.start()
        for group in self.groups.values():
            group.wait_master()

    async def disturb_group(self, name: str, until: float, pause_s: float) -> None:
        """SIGKILL a node, or one process of a node, now and then, and start it again."""
        group, random = self.groups[name], Random(f"{self._seed} {name}")
        while (now := time.monotonic()) < until:
            await asyncio.sleep(min(random.expovariate(1 / pause_s), until - now))
            self._note_ended(group)
            node = random.choice(group.names)
            role = random.choice(("", "", "", "broker", "reput", "ha"))
            down_s = random.uniform(0.0, DOWN_MAX_S)
            await asyncio.to_thread(group.kill, node, *([role] if role else []))
            self.events[role or "node"] += 1
            if not role:
                await asyncio.sleep(down_s)
            await asyncio.to_thread(group.start, node)

    def _note_ended(self, group: Cluster) -> None:
        """Count services that have ended although nothing killed them."""
        for node in group.nodes.values():
            for role, process in node.processes.items():
                if process.wanted and not process.is_alive:
                    self.events[f"{role} ended by itself"] += 1

    async def disturb_names(self, until: float, pause_s: float) -> None:
        """SIGKILL a name service, or all at once, now and then, and start them again."""
        random = Random(f"{self._seed} names")
        while (now := time.monotonic()) < until:
            await asyncio.sleep(min(random.expovariate(1 / pause_s), until - now))
            victims = random.choice(([0], [1], [0, 1]))
            for number in victims:
                self.names.processes[number].kill()
            self.events["name service"] += len(victims)
            self.events["all name services at once"] += len(victims) == len(self.names.urls)
            await asyncio.sleep(random.uniform(0.0, DOWN_MAX_S))
            await asyncio.to_thread(self.names.start, victims)

    async def command(self, *arguments: str) -> dict[str, Any]:
        """Give a command of ``tidemark`` until it succeeds; return its facts.

        Raises RuntimeError with the last error if that takes too long.
        """
        url, until = ",".join(self.names.urls), time.monotonic() + COMMAND_S
        while True:
            done = await asyncio.to_thread(run, *arguments, "--url", url, "--output", "json")
            if done.returncode == 0:
                facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
                return facts
            if time.monotonic() > until:
                raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.decode()}")
            self.events["command repeated"] += 1
