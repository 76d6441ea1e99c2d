"""The events of pods as a file that people read: what repeats is one line and a number.

A probe that fails fails every two seconds for minutes, and would hide what came before. Step
before: ``cluster`` tells of events. Step after: whoever looks why a drill failed.
"""

from __future__ import annotations

from typing import TextIO

from drills.pods.kubelet import Event


class EventLog:
    """Writes each event at once: a run that is killed has its last ones, too."""

    def __init__(self, file: TextIO, began: float) -> None:
        """began: second 0, of the monotonic clock."""
        self._file, self._began = file, began
        self._last: dict[tuple[str, str], Event] = {}
        self._repeated: dict[tuple[str, str], int] = {}

    def note(self, event: Event) -> None:
        """Write event, unless it is what that container's last one was."""
        of = event.pod, event.container
        last = self._last.get(of)
        if last is not None and last[1:] == event[1:]:
            self._last[of] = event
            self._repeated[of] = self._repeated.get(of, 0) + 1
            return
        self._tell_repeated(of)
        self._last[of] = event
        self._write(event, event.message)

    def close(self) -> None:
        """Write how often the last ones were repeated, and close the file."""
        for of in list(self._last):
            self._tell_repeated(of)
        self._file.close()

    def _tell_repeated(self, of: tuple[str, str]) -> None:
        times = self._repeated.pop(of, 0)
        if times:
            self._write(self._last[of], f"the same, {times} more times")

    def _write(self, event: Event, message: str) -> None:
        at = f"{event.at - self._began:8.2f}"
        print(at, event.pod, event.container, event.reason, message, file=self._file, flush=True)
