"""The services of a node as children of ``tidemark dev``: started, shown, started again, stopped.

Children live in process groups of their own: Ctrl-C reaches the parent alone, which then decides;
and they end with it, however it ends. Used by ``dev``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import time
from collections import deque
from typing import Final

from tidemark.cli.output import say
from tidemark.errors import NotServing

STOP_TIMEOUT_S: Final = 30.0
RESTART_DELAY_S: Final = 0.5
DEATHS_MAX: Final = 5
DEATHS_WINDOW_S: Final = 60.0
LINE_SIZE_MAX: Final = 1 << 20
NAME_SIZE: Final = len("n0 broker")
QUIET_LEVELS: Final = frozenset({"debug", "info"})
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG: Final = 1


def _die_with_parent() -> None:
    """In a child before it becomes the service: SIGTERM when this process is gone, however.

    Without it a killed ``tidemark dev`` leaves two services behind that hold the store.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Child:
    """One service: its process, what it says, when it died."""

    def __init__(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str],
        *,
        ready_url: str,
        verbose: bool,
    ) -> None:
        """environment: variables beside those of this process."""
        self.name = name
        self._environment = environment
        self.ready_url = ready_url
        self._command = command
        self._verbose = verbose
        self._process: asyncio.subprocess.Process | None = None
        self._deaths: deque[float] = deque(maxlen=DEATHS_MAX)
        self._stopping = False
        self.was_ready = False
        """It has once said so; a service that dies before that would only do it again."""

    async def run(self) -> None:
        """Keep the service running until ``stop``; raises NotServing if it dies again and again."""
        while not self._stopping:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env={**self._environment, **os.environ},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=LINE_SIZE_MAX,
                process_group=0,
                preexec_fn=_die_with_parent,
            )
            if self._stopping:  # asked to stop while it was being started
                self._process.terminate()
            await self._show(self._process)
            status = await self._process.wait()
            if self._stopping:
                return
            if not self.was_ready:
                raise NotServing(
                    f"{self.name} ended with status {status} before it was ready. "
                    "The node does not serve.",
                    "See its last words above.",
                )
            now = time.monotonic()
            self._deaths.append(now)
            if len(self._deaths) == DEATHS_MAX and now - self._deaths[0] < DEATHS_WINDOW_S:
                raise NotServing(
                    f"{self.name} ended {DEATHS_MAX} times within {DEATHS_WINDOW_S:.0f} s, at last "
                    f"with status {status}. What was acked is on the disk.",
                    "See its last words above; `tidemark store verify --store DIR` checks the "
                    "store.",
                )
            say(f"{self.name} ended with status {status}; it is started again")
            await asyncio.sleep(RESTART_DELAY_S * len(self._deaths))

    async def _show(self, process: asyncio.subprocess.Process) -> None:
        """Print what the service says until it closes its output."""
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:
                continue  # longer than a line may be: readline has dropped it
            if not line:
                return
            text = readable(line, verbose=self._verbose)
            if text is not None:
                say(f"{self.name:<{NAME_SIZE}} | {text}")

    async def stop(self) -> None:
        """SIGTERM, then wait for the end; SIGKILL (safe at any instant) if it does not come."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            say(f"{self.name} did not end within {STOP_TIMEOUT_S:.0f} s; it is killed")
            process.kill()
            await process.wait()


def readable(line: bytes, *, verbose: bool) -> str | None:
    """A service's log line for a terminal: its sentence and facts; None if nobody needs it now."""
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
