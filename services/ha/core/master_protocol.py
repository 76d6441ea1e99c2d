"""The master's side of one link to one slave, in one term (docs/replication.md, links). Pure.

HELLO → divergence point → HELLO_OK → first ACK → stream. Nothing is streamed and no end counts
before the first ACK on this link in this epoch: an end reported elsewhere may belong to a tail that
is yet to be cut. Only durable ends count. ACKs bound the bytes in flight.

Step before: the handshake. Step after: ``confirm`` takes the smallest ``acked_end`` of the wait
set.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from services.ha.core.catch_up import WINDOW_SIZE, CatchUp
from services.ha.core.divergence import CrcBefore, Extent, crc_size, divergence_point, entry_of
from services.ha.core.effects import Close, Effect, Note, Send, Stream
from services.ha.lease.value import Member
from services.ha.wire import payloads
from services.ha.wire.payloads import (
    TABLE_ENTRIES_MAX,
    Ack,
    Append,
    Hello,
    HelloOk,
    Payload,
    ResyncReason,
    ResyncRequired,
)
from shared.cluster.time_rules import TimeRules
from tidemark.formats.epochs import EpochStart

STREAM_SIZE_MAX: Final = 256 * 1024
"""Bytes of one APPEND."""
CONFIRM_SEND_MS: Final = 10
"""Delay after which an idle link sends a confirm offset that moved."""
ERROR: Final = 40
"""Value of ``logging.ERROR``; a pure module must not import ``logging``."""


class MasterLog(NamedTuple):
    """The master's log as it is now."""

    table: tuple[EpochStart, ...]
    """Covers first_offset and everything after it; the last entry is this term's."""
    first_offset: int
    end: int
    """End of what is appended; bytes are streamed before they are on disk here."""
    confirm: int
    foreign: tuple[int, int] = (0, 0)
    """Range that RocketMQ wrote, see ``NodeSnapshot``. The slave checks its records differently."""


class MasterLink:
    """One slave on one link. Methods return effects; after ``closed`` they return none."""

    def __init__(
        self,
        link: int,
        peer: Member,
        *,
        epoch: int,
        group: str,
        version: int,
        file_size: int,
        rules: TimeRules,
        now_ms: int,
    ) -> None:
        self.link = link
        self.peer = peer
        self.acked_end: int | None = None
        """The slave's durable end, from its ACKs on this link; None before the first one."""
        self.appended: int | None = None
        """The slave's appended end in its last ACK."""
        self.closed = False
        self._catch_up = CatchUp(now_ms)
        self._epoch = epoch
        self._group = group
        self._version = version
        self._file_size = file_size
        self._rules = rules
        self._heard_ms = now_ms
        self._sent_ms = now_ms
        self._asked: Hello | None = None
        self._point: int | None = None
        self._next = 0
        self._nonce = 0
        self._nonce_seen = 0
        self._sent_confirm = 0
        self._reached_ms = now_ms
        self._mark: tuple[int, int] | None = None

    def hello(
        self, hello: Hello, own: MasterLog, crc_before: CrcBefore, now_ms: int
    ) -> list[Effect]:
        """Answer with the divergence point; if there is none, answer RESYNC_REQUIRED and close the
        link.

        A slave whose bytes differ before the point asks again with a shorter table.
        """
        self._heard_ms = now_ms
        if self.closed:
            return []
        if reason := self._unfit(hello):
            return self._close(reason)
        self._asked = hello
        slave = Extent(hello.table, hello.first_offset, hello.end)
        found = divergence_point(master=Extent(own.table, own.first_offset, own.end), slave=slave)
        if isinstance(found, ResyncReason):
            required = ResyncRequired(found, own.first_offset, own.end)
            return [self._send(required, now_ms), *self._close(f"resync: {found.name.lower()}")]
        size = crc_size(found.point, master_first=own.first_offset, slave_first=hello.first_offset)
        crc = crc_before(found.point, size) if size else 0
        if crc is None:
            return self._close(f"the {size} bytes before {found.point} cannot be read")
        since = 0 if found.entry is None else own.table.index(found.entry)
        self._point = found.point
        self._sent_confirm = own.confirm
        ok = HelloOk(
            point=found.point,
            crc=crc,
            crc_size=size,
            first_offset=own.first_offset,
            end=own.end,
            confirm=own.confirm,
            # From the common entry on, not the newest entries: without it the slave rejects the
            # answer.
            table=own.table[since : since + TABLE_ENTRIES_MAX],
            foreign=own.foreign,
        )
        return [self._send(ok, now_ms)]

    def ack(self, ack: Ack, own: MasterLog, now_ms: int) -> list[Effect]:
        """Count what the slave has on disk; close the link if the ACK cannot be true."""
        self._heard_ms = now_ms
        if self.closed:
            return []
        if self._point is None:
            return self._close("an ACK before HELLO_OK")
        if reason := self._untrue(ack, own):
            facts = {
                "peer": self.peer.node,
                "appended_offset": ack.appended,
                "durable_offset": ack.durable,
                "end_offset": own.end,
            }
            sentence = f"An acknowledgement that cannot be true was refused: {reason}."
            # Logged and counted, without an alarm: this node is as ready as before.
            note = Note(ERROR, "ack-refused", sentence, facts)
            return [note, *self._close(reason)]
        if self.acked_end is None:
            self._next = self._point
        self.appended, self.acked_end, self._nonce_seen = ack.appended, ack.durable, ack.nonce
        if self._mark is not None and self.acked_end >= self._mark[1]:
            self._reached_ms, self._mark = self._mark[0], None
        return []

    def stream(self, own: MasterLog, now_ms: int, *, awaited: bool = True) -> list[Effect]:
        """Return what to send now: bytes up to the window, or a heartbeat that is due.

        Called when the log grew, after each ACK, when the confirm offset moved, and on every tick.
        awaited: senders wait for this slave.
        """
        if self.closed or self.acked_end is None or self.appended is None:
            return []
        if self.acked_end >= own.end:
            self._reached_ms, self._mark = now_ms, None
        elif self._mark is None:
            self._mark = now_ms, own.end
        if self._next < own.first_offset:
            return self._close(f"retention removed what comes next, at {self._next}")
        effects: list[Effect] = []
        window_end = min(own.end, self.appended + self._window(own, now_ms, awaited=awaited))
        while self._next < window_end:
            index = entry_of(own.table, self._next)
            if index is None:
                return self._close(f"no epoch in the table for the byte at {self._next}")
            last = index + 1 == len(own.table)
            end = window_end if last else min(window_end, own.table[index + 1].start)
            size = min(end - self._next, STREAM_SIZE_MAX)
            frame = payloads.frame(self._epoch, self._append(own, index, size), self._version)
            effects.append(Stream(self.link, frame, self._next, size))
            self._next += size
            self._sent_ms = now_ms
        return effects or self._heartbeat(own, now_ms)

    def _window(self, own: MasterLog, now_ms: int, *, awaited: bool) -> int:
        if awaited or self.appended is None:
            return WINDOW_SIZE
        return self._catch_up.window(end=own.end, appended=self.appended, now_ms=now_ms)

    def heard(self, now_ms: int) -> None:
        """Record that another frame of the slave arrived, which keeps the link alive."""
        self._heard_ms = now_ms

    def dead(self, now_ms: int) -> bool:
        """Return whether the link has failed: no frame has arrived for ``link_dead_ms``."""
        return now_ms - self._heard_ms > self._rules.link_dead_ms

    def lag_ms(self, own_end: int, now_ms: int) -> int:
        """Return the age of the newest log end that the slave has on disk; 0 if it has all."""
        return (
            0
            if self.acked_end is not None and self.acked_end >= own_end
            else now_ms - self._reached_ms
        )

    def _heartbeat(self, own: MasterLog, now_ms: int) -> list[Effect]:
        silent_ms = now_ms - self._sent_ms
        is_confirm_due = own.confirm > self._sent_confirm and silent_ms >= CONFIRM_SEND_MS
        if silent_ms < self._rules.heartbeat_ms and not is_confirm_due:
            return []
        index = entry_of(own.table, self._next)
        if index is None:
            return self._close(f"no epoch in the table for the byte at {self._next}")
        return [self._send(self._append(own, index, 0), now_ms)]

    def _append(self, own: MasterLog, index: int, size: int) -> Append:
        """Return the next APPEND, without its bytes."""
        self._nonce += 1
        self._sent_confirm = max(self._sent_confirm, own.confirm)
        entry = own.table[index]
        return Append(entry.epoch, entry.start, self._next, self._sent_confirm, self._nonce, size)

    def _unfit(self, hello: Hello) -> str | None:
        """Return why this HELLO is not answered; None: it is."""
        if self.acked_end is not None:
            return "a HELLO after the first ACK"
        if Member(hello.node, hello.incarnation) != self.peer or hello.group != self._group:
            return f"HELLO of {hello.node} in {hello.group} on the link of {self.peer.node}"
        if hello.file_size != self._file_size or hello.version != self._version:
            return f"files of {hello.file_size} bytes, version {hello.version}"
        asked = self._asked
        if asked is not None and len(hello.table) >= len(asked.table) and hello.end >= asked.end:
            return "a second HELLO of a log that is not shorter"
        return None

    def _untrue(self, ack: Ack, own: MasterLog) -> str | None:
        """Return why this ACK cannot be true; None: it can."""
        if ack.durable > ack.appended:
            return f"durable {ack.durable} beyond appended {ack.appended}"
        if ack.appended > own.end:
            return f"appended {ack.appended}, and the master's log ends at {own.end}"
        if ack.nonce > self._nonce or ack.nonce < self._nonce_seen:
            return f"nonce {ack.nonce} after {self._nonce_seen}, sent {self._nonce}"
        if self.acked_end is None or self.appended is None:
            at = self._point
            return None if ack.appended == at else f"begins at {ack.appended} instead of {at}"
        if ack.appended > self._next:
            return f"appended {ack.appended}, and only {self._next} was sent"
        if ack.appended < self.appended or ack.durable < self.acked_end:
            return f"{ack.appended}, {ack.durable} after {self.appended}, {self.acked_end}"
        return None

    def _send(self, payload: Payload, now_ms: int) -> Effect:
        self._sent_ms = now_ms
        return Send(self.link, payloads.frame(self._epoch, payload, self._version))

    def _close(self, reason: str) -> list[Effect]:
        self.closed, self.acked_end = True, None
        return [Close(self.link, reason)]
