"""Member processes of a consumer group that join, leave and are killed at random."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from tests.support.node import PROJECT

LEAVE_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Coming:
    """How many members there are, and how often one comes or goes."""

    members: int
    members_min: int
    pause_s: float
    """Mean time between two joins, leaves or kills."""


class Members:
    """The members of one run. ``wrong`` has the errors of those that ended by themselves."""

    def __init__(
        self, directory: Path, arguments: Sequence[str], coming: Coming, random: Random
    ) -> None:
        """directory: for their logs. arguments: of ``group_chaos_member``, without the number."""
        self._directory, self._arguments = directory, [*arguments]
        self._coming, self._random = coming, random
        self._present: dict[int, subprocess.Popen[bytes]] = {}
        self._leaving: dict[int, subprocess.Popen[bytes]] = {}
        self._next_number = 0
        self.events: Counter[str] = Counter()
        """How many have joined, left and were killed."""
        self.wrong: list[str] = []

    async def disturb(self, until: float) -> None:
        """Let members join, leave and die, until a time of the monotonic clock."""
        coming, random = self._coming, self._random
        while (now := time.monotonic()) < until:
            await asyncio.sleep(min(random.expovariate(1 / coming.pause_s), until - now))
            self.check()
            present = len(self._present)
            if present <= coming.members_min or (
                present < coming.members and random.random() < 0.5
            ):
                self.join()
            elif random.random() < 0.6:
                self._kill(random.choice([*self._present]))
            else:
                self._leave(random.choice([*self._present]))

    def join_all(self) -> None:
        """Start as many members as the plan has."""
        for _ in range(self._coming.members):
            self.join()

    def join(self) -> None:
        """Start one more member."""
        number = self._next_number
        self._next_number += 1
        command = [sys.executable, "-m", "tests.support.group_chaos_member", *self._arguments]
        with self._log(number).open("ab") as log:
            self._present[number] = subprocess.Popen(
                [*command, "--number", str(number)],
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.events["joined"] += 1

    async def leave_all(self) -> None:
        """Let all members finish what they have in hand and leave. Raises TimeoutExpired."""
        for number in [*self._present]:
            self._leave(number)
        for member in self._leaving.values():
            await asyncio.to_thread(member.wait, LEAVE_TIMEOUT_S)
        self.check()

    def _leave(self, number: int) -> None:
        member = self._leaving[number] = self._present.pop(number)
        member.send_signal(signal.SIGTERM)
        self.events["left"] += 1

    def _kill(self, number: int) -> None:
        member = self._present.pop(number)
        member.kill()
        member.wait()
        self.events["killed"] += 1

    def kill_all(self) -> None:
        """SIGKILL what still runs."""
        for member in (*self._present.values(), *self._leaving.values()):
            member.kill()
            member.wait()

    def check(self) -> None:
        """Check that no member ends by itself, and that members leave with status 0."""
        for number, member in [*self._present.items()]:
            if member.poll() is not None:
                del self._present[number]
                self._ended_badly(number, member)
        for number, member in [*self._leaving.items()]:
            if member.poll() is not None:
                del self._leaving[number]
                # Killed by the SIGTERM itself: it had only begun to start.
                if member.returncode not in (0, -signal.SIGTERM):
                    self._ended_badly(number, member)

    def _ended_badly(self, number: int, member: subprocess.Popen[bytes]) -> None:
        text = self._log(number).read_text(encoding="utf-8", errors="replace")[-2000:]
        self.wrong.append(f"member {number} ended with status {member.returncode}: {text}")

    def _log(self, number: int) -> Path:
        return self._directory / f"member-{number}.log"
