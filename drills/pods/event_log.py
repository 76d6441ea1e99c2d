"""A readable log file of pod events, in which repeated events are one line with a count.

A failing probe fails every two seconds for minutes, which would hide earlier events. The step
before is ``cluster``, which reports events; developers read the file after a failed drill.
"""

from __future__ import annotations

from typing import TextIO

from drills.pods.kubelet import Event


class EventLog:
    """Writes each event at once, so that the last events are in the file if the run is killed."""

    def __init__(self, file: TextIO, began: float) -> None:
        """began: time 0 of the log, on the monotonic clock."""
        self._file, self._began = file, began
        self._last: dict[tuple[str, str], Event] = {}
        self._repeated: dict[tuple[str, str], int] = {}

    def note(self, event: Event) -> None:
        """Write an event, unless it equals the last one of its container."""
        of = event.pod, event.container
        last = self._last.get(of)
        if last is not None and last[1:] == event[1:]:
            self._last[of] = event
            self._repeated[of] = self._repeated.get(of, 0) + 1
            return
        self._write_repeated(of)
        self._last[of] = event
        self._write(event, event.message)

    def close(self) -> None:
        """Write the pending counts of repetitions, and close the file."""
        for of in list(self._last):
            self._write_repeated(of)
        self._file.close()

    def _write_repeated(self, of: tuple[str, str]) -> None:
        times = self._repeated.pop(of, 0)
        if times:
            self._write(self._last[of], f"the same, {times} more times")

    def _write(self, event: Event, message: str) -> None:
        at = f"{event.at - self._began:8.2f}"
        print(at, event.pod, event.container, event.reason, message, file=self._file, flush=True)
