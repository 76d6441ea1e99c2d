"""Prove from a system call trace that every ack at ``disk`` follows the fdatasync of its bytes.

Pure: lines of ``strace -f -y`` in, a verdict out. The rule, for every response with ``"level":
"disk"`` and physical offset P of a record of S bytes:

1. ``pwrite64`` calls that returned covered [P, P + S) of the commit log;
2. after that, an ``fdatasync`` of the same file was entered and returned 0;
3. if the file was made in this trace, an ``fsync`` of its directory returned 0 as well;
4. only then was the write entered that sends the response to the socket.

The order of lines is the order in which the tracer stopped the threads, so a line that comes later
cannot have happened before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

TRACED_CALLS: Final = (
    "openat", "pwrite64", "fdatasync", "fsync", "sendto", "sendmsg", "write", "writev"
)  # fmt: skip
STRACE_ARGUMENTS: Final = (
    "-f", "-y", "-s", "1000000", "-e", "trace=" + ",".join(TRACED_CALLS)
)  # fmt: skip

_LINE: Final = re.compile(r"^(?:\[pid +)?(\d+)\]? +(.*)$")
_CALL: Final = re.compile(r"^(\w+)\((.*)$")
_RESUMED: Final = re.compile(r"^<\.\.\. (\w+) resumed>(.*)$")
_RESULT: Final = re.compile(r"\) += (-?\d+)(?:<([^>]*)>)?[^=]*$")
_DESCRIPTOR: Final = re.compile(r"^(\d+)<([^>]*)>")
_PWRITE_END: Final = re.compile(r", (\d+), (\d+)(?:\) += -?\d+)?$")
_OFFSET: Final = re.compile(r'physical_offset\\":\s*(\d+)')
_UNFINISHED: Final = " <unfinished ...>"
_ANSWERS: Final = frozenset({"sendto", "sendmsg", "write", "writev"})
_LOG_NAME: Final = re.compile(r"/commitlog/(\d{20})$")


class Verdict(NamedTuple):
    """What the trace proves."""

    acked: frozenset[int]
    """Physical offsets in responses at level ``disk``."""
    violations: tuple[str, ...]
    syncs: int
    """fdatasync calls on commit log files that returned 0."""


@dataclass(slots=True)
class _LogFile:
    """Bytes of one commit log file: written, and of those, durable."""

    base: int
    written: list[tuple[int, int]] = field(default_factory=list)
    durable: list[tuple[int, int]] = field(default_factory=list)
    name_is_durable: bool = True


class _Judge:
    """Replays the trace. Only completed calls count, from the line that completed them."""

    def __init__(self, record_sizes: Mapping[int, int]) -> None:
        self._record_sizes = record_sizes
        self._files: dict[int, _LogFile] = {}
        self._pending: dict[str, tuple[str, str, list[tuple[_LogFile, list[tuple[int, int]]]]]] = {}
        self.acked: set[int] = set()
        self.violations: list[str] = []
        self.syncs = 0

    def line(self, line: str) -> None:
        match = _LINE.match(line)
        if match is None:
            return
        thread, rest = match.groups()
        resumed = _RESUMED.match(rest)
        if resumed is not None:
            name, arguments, seen = self._pending.pop(thread, (resumed[1], "", []))
            self._completed(name, arguments, resumed[2], seen)
            return
        call = _CALL.match(rest)
        if call is None:
            return
        name, arguments = call.groups()
        seen = self._entered(name, arguments)
        if arguments.endswith(_UNFINISHED):
            self._pending[thread] = (name, arguments.removesuffix(_UNFINISHED), seen)
        else:
            self._completed(name, arguments, arguments, seen)

    def _entered(self, name: str, arguments: str) -> list[tuple[_LogFile, list[tuple[int, int]]]]:
        """Note what a sync will cover if it succeeds; judge an answer before it leaves."""
        if name in _ANSWERS:
            self._judge_answer(arguments)
        if name != "fdatasync":
            return []
        log_file = self._log_file(arguments)
        return [(log_file, list(log_file.written))] if log_file is not None else []

    def _completed(
        self,
        name: str,
        arguments: str,
        ending: str,
        covered: list[tuple[_LogFile, list[tuple[int, int]]]],
    ) -> None:
        result = _RESULT.search(ending)
        if result is None or int(result[1]) < 0:
            return
        match name:
            case "pwrite64":
                log_file = self._log_file(arguments)
                position = _PWRITE_END.search(arguments)
                if log_file is not None and position is not None:
                    start = log_file.base + int(position[2])
                    log_file.written.append((start, start + int(result[1])))
            case "fdatasync":
                for log_file, extents in covered:
                    if len(extents) > len(log_file.durable):
                        log_file.durable = extents
                    self.syncs += 1
            case "fsync":
                descriptor = _DESCRIPTOR.match(arguments)
                if descriptor is not None and descriptor[2].endswith("/commitlog"):
                    for log_file in self._files.values():
                        log_file.name_is_durable = True
            case "openat":
                made = _LOG_NAME.search(result[2] or "")
                if made is not None and "O_CREAT" in arguments:
                    self._files[int(made[1])] = _LogFile(int(made[1]), name_is_durable=False)

    def _log_file(self, arguments: str) -> _LogFile | None:
        descriptor = _DESCRIPTOR.match(arguments)
        name = _LOG_NAME.search(descriptor[2]) if descriptor is not None else None
        if name is None:
            return None
        return self._files.setdefault(int(name[1]), _LogFile(int(name[1])))

    def _judge_answer(self, arguments: str) -> None:
        if '\\"level\\": \\"disk\\"' not in arguments and '\\"level\\":\\"disk\\"' not in arguments:
            return
        for text in _OFFSET.findall(arguments):
            start = int(text)
            end = start + self._record_sizes.get(start, 1)
            self.acked.add(start)
            holder = max((base for base in self._files if base <= start), default=None)
            if holder is None or not _covers(self._files[holder].durable, start, end):
                self.violations.append(f"[{start}, {end}) acked before its fdatasync returned")
            elif not self._files[holder].name_is_durable:
                self.violations.append(f"[{start}, {end}) acked before its file's name was synced")


def judge(lines: Iterable[str], record_sizes: Mapping[int, int]) -> Verdict:
    """Judge a whole trace. record_sizes: bytes of each record, by its physical offset."""
    judged = _Judge(record_sizes)
    for line in lines:
        judged.line(line.rstrip("\n"))
    return Verdict(frozenset(judged.acked), tuple(judged.violations), judged.syncs)


def _covers(extents: list[tuple[int, int]], start: int, end: int) -> bool:
    """Say whether the union of extents holds [start, end)."""
    for low, high in sorted(extents):
        if low <= start < high:
            start = high
        if start >= end:
            return True
    return False
