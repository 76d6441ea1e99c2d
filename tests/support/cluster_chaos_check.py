"""Rules for what members of a group in a cluster handled: everything, and keys in order. Pure.

The order of a key is kept *while the list of queues is unchanged*. The list has the queues of the
topic that accept messages, over all broker groups, as the producer's client knew it when the call
began. A message belongs to the list under which it was sent. Among the messages of one key that
were sent under one list, first deliveries are in the order of sending: no message is handled for
the first time after a later one. There is no such rule between messages of different lists. A
message whose call failed may have been stored late, or not at all: it is not compared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from tests.support.cluster_chaos_load import ACKED, Stream
from tests.support.group_chaos_check import SHOWN_MAX, Entry, Verdict, Violation, What


def judge(entries: Iterable[Entry], streams: Sequence[Stream]) -> Verdict:
    """Compare handled messages with acked ones.

    entries: of handled messages; ``queue`` is the stream, ``queue_offset`` the first number.
    """
    verdict = Verdict()
    seen = [_Seen(stream) for stream in streams]
    for entry in entries:
        assert entry.what is What.HANDLED
        if entry.queue >= len(seen):
            verdict.violated(Violation.NEVER_SENT, f"{entry} is of a stream that is not there")
        else:
            seen[entry.queue].handle(entry, verdict)
    for stream in seen:
        stream.end(verdict)
    return verdict


class _Seen:
    """What was handled of one stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._starts = [first for first, _ in stream.lists]
        self._handled = bytearray(len(stream.outcomes))
        """One byte per message: 1 once it is handled."""
        self._latest = [-1] * len(stream.lists)
        """Per list of queues: the highest number handled."""

    def handle(self, entry: Entry, verdict: Verdict) -> None:
        """Adjacent messages were handled."""
        first, behind = entry.queue_offset, entry.queue_offset + entry.messages
        if behind > len(self._handled):
            verdict.violated(
                Violation.NEVER_SENT,
                f"stream {self._stream.index}: {first} to {behind - 1} were handled, and "
                f"{len(self._handled)} messages sent",
            )
            return
        verdict.handled += entry.messages
        if self._stream.key is not None:
            for number, part_behind in self._parts(first, behind):
                self._check_order(entry.member, number, part_behind, verdict)
        self._handled[first:behind] = b"\1" * entry.messages

    def _parts(self, first: int, behind: int) -> Iterator[tuple[int, int]]:
        """Split a range where the list of queues changed."""
        while first < behind:
            at = bisect_right(self._starts, first)
            part_behind = min(behind, self._starts[at]) if at < len(self._starts) else behind
            yield first, part_behind
            first = part_behind

    def _check_order(self, member: int, first: int, behind: int, verdict: Verdict) -> None:
        """Check messages sent under one list of queues."""
        under = bisect_right(self._starts, first) - 1
        number = self._handled.find(0, first, behind)
        while number != -1 and self._stream.outcomes[number] != ACKED:
            number = self._handled.find(0, number + 1, behind)
        if -1 < number < self._latest[under]:
            verdict.violated(
                Violation.ORDER,
                f"key {self._stream.key}: member {member} handled message {number} for the first "
                f"time after {self._latest[under]} was handled; both were sent under one list",
            )
        self._latest[under] = max(self._latest[under], behind - 1)

    def end(self, verdict: Verdict) -> None:
        """Count what was handled, and find what is missing."""
        verdict.distinct += self._handled.count(1)
        missing = [
            number
            for number, (outcome, handled) in enumerate(
                zip(self._stream.outcomes, self._handled, strict=True)
            )
            if outcome == ACKED and not handled
        ]
        if missing:
            verdict.missing += len(missing)
            verdict.violated(
                Violation.MISSING,
                f"stream {self._stream.index} (key {self._stream.key}): {len(missing)} acked and "
                f"not handled: {', '.join(map(str, missing[:SHOWN_MAX]))} …",
            )
