"""Runs the services of a node as child processes of ``tidemark dev``: start, log, restart, stop.

Children have their own process groups, so Ctrl-C reaches only the parent, which stops them in
order. They end with the parent, however it ends. Used by ``dev``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections import deque
from typing import Final

from shared.runtime.parent_death import stop_with_parent
from tidemark.cli.output import say
from tidemark.errors import NotServing

STOP_TIMEOUT_S: Final = 30.0
RESTART_DELAY_S: Final = 0.5
DEATHS_MAX: Final = 5
DEATHS_WINDOW_S: Final = 60.0
LINE_SIZE_MAX: Final = 1 << 20
NAME_SIZE: Final = len("n0 broker")
QUIET_LEVELS: Final = frozenset({"debug", "info"})


class Child:
    """One service: its process, its output, and the times at which it died."""

    def __init__(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str],
        *,
        ready_url: str,
        verbose: bool,
    ) -> None:
        """environment: variables in addition to those of this process."""
        self.name = name
        self._environment = environment
        self.ready_url = ready_url
        self._command = command
        self._verbose = verbose
        self._process: asyncio.subprocess.Process | None = None
        self._deaths: deque[float] = deque(maxlen=DEATHS_MAX)
        self._stopping = False
        self.was_ready = False
        """Whether it was ever ready. A service that dies before would die again after a restart."""

    async def run(self) -> None:
        """Keep the service running until ``stop``. Raises NotServing if it dies too often."""
        while not self._stopping:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env={**self._environment, **os.environ},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=LINE_SIZE_MAX,
                process_group=0,
                preexec_fn=stop_with_parent,
            )
            if self._stopping:  # stop was requested during the start
                self._process.terminate()
            await self._show(self._process)
            status = await self._process.wait()
            if self._stopping:
                return
            if not self.was_ready:
                raise NotServing(
                    f"{self.name} ended with status {status} before it was ready. "
                    "The node does not serve.",
                    "See its last log lines above.",
                )
            now = time.monotonic()
            self._deaths.append(now)
            if len(self._deaths) == DEATHS_MAX and now - self._deaths[0] < DEATHS_WINDOW_S:
                raise NotServing(
                    f"{self.name} ended {DEATHS_MAX} times within {DEATHS_WINDOW_S:.0f} s, the "
                    f"last time with status {status}. Acknowledged messages are on disk.",
                    "See its last log lines above; `tidemark store verify --store DIR` checks the "
                    "store.",
                )
            say(f"{self.name} ended with status {status}; restarting it")
            await asyncio.sleep(RESTART_DELAY_S * len(self._deaths))

    async def _show(self, process: asyncio.subprocess.Process) -> None:
        """Print the service's output until it closes."""
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:
                continue  # the line is too long; readline has dropped it
            if not line:
                return
            text = readable(line, verbose=self._verbose)
            if text is not None:
                say(f"{self.name:<{NAME_SIZE}} | {text}")

    async def stop(self) -> None:
        """Send SIGTERM and wait; after a timeout send SIGKILL, which is safe at any time."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            say(f"{self.name} did not end within {STOP_TIMEOUT_S:.0f} s; killing it")
            process.kill()
            await process.wait()


def readable(line: bytes, *, verbose: bool) -> str | None:
    """Format a service's log line for a terminal; None if its level is not shown."""
    text = line.decode("utf-8", "replace").rstrip()
    try:
        entry = json.loads(text)
    except ValueError:
        return text or None
    if not isinstance(entry, dict):
        return text
    level = str(entry.pop("level", "info")).lower()
    if level in QUIET_LEVELS and not verbose:
        return None
    sentence = entry.pop("message", entry.pop("msg", ""))
    for name in ("time", "timestamp", "ts", "logger", "service", "event"):
        entry.pop(name, None)
    facts = " ".join(f"{name}={value}" for name, value in entry.items())
    return " ".join(part for part in (f"{level}:", str(sentence), facts) if part)
