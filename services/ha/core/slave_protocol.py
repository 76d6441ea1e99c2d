"""The slave's side of one link to a master (docs/replication.md, links). Pure.

The slave sends HELLO, and the master answers with HELLO_OK. If the logs agree (*in order*), the
slave sends one ACK at once; bytes and ACKs follow. Otherwise the slave cuts its log, copies the
whole log anew, halts or waits. It closes the link first and connects again later: after a cut the
next HELLO finds the logs in order. Bytes arrive in sequence and go to the end of the log. The slave
acknowledges what the log reports as appended and on disk, never what was only received.

Step before: the log is settled, all of it on disk. Step after: ``copied_log`` checks the records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from services.ha.core.catch_up import WINDOW_SIZE
from services.ha.core.divergence import CrcBefore, Extent, crc_size
from services.ha.core.effects import Close, Copy, Effect, PersistTable, Publish, Send
from services.ha.core.truncation import InOrder, LogsDiffer, Outcome, ResyncPlan, plan
from services.ha.lease.value import Member
from services.ha.wire import payloads
from services.ha.wire.payloads import (
    TABLE_ENTRIES_MAX,
    Ack,
    Append,
    Hello,
    HelloOk,
    Payload,
    ResyncRequired,
)
from shared.cluster.time_rules import TimeRules
from tidemark.formats.checkpoint import Slot
from tidemark.formats.epochs import EpochStart
from tidemark.offsets import Epoch, PhysicalOffset

HELD_FRAMES_MAX: Final = WINDOW_SIZE // 64
"""Frames that wait for an epoch's entry. No record, and so no useful frame, is that small."""
NO_COMMON_BYTES: Final = "no_common_bytes"
"""Reason of a resync: the tables agree, but the bytes before every divergence point differ."""


class SlaveLog(NamedTuple):
    """The slave's settled log: nothing is being copied or synced."""

    group: str
    member: Member
    version: int
    """Version of the protocol, as agreed in the handshake."""
    file_size: int
    promised: int
    first_offset: int
    end: int
    durable: int
    confirm: int
    """This node's checkpoint: nothing below it is cut without an operator."""
    table: tuple[EpochStart, ...]
    master_is_damaged: bool = False
    """Whether the master reports that its own log is damaged."""


class SlaveLink:
    """One link to the master of one epoch. After ``closed``, methods return no effects."""

    def __init__(
        self,
        link: int,
        *,
        epoch: int,
        own: SlaveLog,
        new_token: Callable[[], int],
        rules: TimeRules,
        now_ms: int,
    ) -> None:
        self.link = link
        self.closed = False
        self.in_order = False
        """Whether the divergence check has passed, so that bytes may arrive."""
        self.table = own.table
        """This node's table, extended by the epochs that arrive."""
        self.appended = own.end
        self.durable = own.durable
        self.received = own.end
        """End of the accepted bytes. It exceeds ``appended`` by the bytes that are not written yet:
        those on their way to the disk and those of an incomplete record."""
        self._epoch = epoch
        self._own = own
        self._hello_table = own.table
        self._hello_end = own.end
        self._new_token = new_token
        self._rules = rules
        self.heard_ms = now_ms
        self._confirm_heard = 0
        self._nonce = 0
        self._first = True
        self.leaving = False
        """Whether each ACK informs the master that this process is about to end."""
        self._persisting: int | None = None
        self._held: deque[Append] = deque()
        self._held_size = 0

    @property
    def confirm(self) -> int:
        """The confirm offset here: confirmed by the master and on disk. It never decreases."""
        return max(self._own.confirm, min(self._confirm_heard, self.durable))

    def hello(self) -> list[Effect]:
        """Return the first frame of the link."""
        own = self._own
        hello = Hello(
            group=own.group,
            node=own.member.node,
            incarnation=own.member.incarnation,
            version=own.version,
            file_size=own.file_size,
            promised=own.promised,
            first_offset=own.first_offset,
            end=self._hello_end,
            durable=min(own.durable, self._hello_end),
            confirm=own.confirm,
            table=self._hello_table[-TABLE_ENTRIES_MAX:],
        )
        return [self._send(hello)]

    def hello_ok(
        self, ok: HelloOk, crc_before: CrcBefore, now_ms: int
    ) -> tuple[Outcome | None, list[Effect]]:
        """Handle HELLO_OK. Outcome None: the link asks again, or is closed because the answer is
        invalid.

        InOrder comes with the ACK that makes the slave count; every other outcome closes the link.
        From a damaged master only the following bytes are copied: the slave may be the only
        member to which it can hand over.
        """
        self.heard_ms = now_ms
        if self.closed or self.in_order:
            return None, self._close("HELLO_OK was not expected")
        entry = ok.table[0] if ok.table and ok.table[0] in self._hello_table else None
        sent = Extent(self._hello_table, self._own.first_offset, self._hello_end)
        if reason := self._invalid_answer(ok, entry, sent):
            return None, self._close(reason)
        crc = crc_before(ok.point, ok.crc_size) if ok.crc_size else 0
        if crc is None:
            return None, self._close(f"the {ok.crc_size} bytes before {ok.point} cannot be read")
        agrees = crc == ok.crc
        if not agrees and not self._own.master_is_damaged:
            return self._bytes_differ(ok, entry)
        whole = sent._replace(table=self.table, end=self._own.end)
        outcome = plan(
            whole,
            confirm=self._own.confirm,
            entry=entry,
            point=ok.point,
            master_first=ok.first_offset,
        )
        if not isinstance(outcome, InOrder):
            if not agrees:
                return self._bytes_differ(ok, entry)
            return outcome, self._close(type(outcome).__name__)
        self.in_order = True
        self._confirm_heard = ok.confirm
        return outcome._replace(agrees=agrees), [*self._foreign(ok.foreign), self._ack()]

    def resync_required(
        self, required: ResyncRequired, now_ms: int
    ) -> tuple[Outcome | None, list[Effect]]:
        """Handle RESYNC_REQUIRED: there is no point from which the master can continue."""
        self.heard_ms = now_ms
        if self.closed or self.in_order:
            return None, self._close("RESYNC_REQUIRED was not expected")
        reason = required.reason.name.lower()
        return ResyncPlan(required.first_offset, reason), self._close(reason)

    def append(self, append: Append, now_ms: int) -> list[Effect]:
        """Accept bytes, or answer a heartbeat; a frame out of order closes the link."""
        self.heard_ms = now_ms
        if self.closed:
            return []
        if not self.in_order:
            return self._close("an APPEND before the divergence check")
        if append.nonce != self._nonce + 1:
            return self._close(f"APPEND {append.nonce} after {self._nonce}")
        self._nonce = append.nonce
        if self._persisting is None:
            return self._take(append)
        self._held.append(append)
        self._held_size += append.size
        if self._held_size > WINDOW_SIZE or len(self._held) > HELD_FRAMES_MAX:
            return self._close(f"{len(self._held)} frames, {self._held_size} bytes: no window")
        return []

    def table_persisted(self, token: int) -> list[Effect]:
        """Copy the bytes that waited for the new epoch's entry, which is durable now."""
        if self.closed or token != self._persisting:
            return []
        self._persisting = None
        effects: list[Effect] = []
        while self._held and self._persisting is None and not self.closed:
            append = self._held.popleft()
            self._held_size -= append.size
            effects += self._take(append)
        return effects

    def copied(self, end: int, durable: int) -> list[Effect]:
        """Acknowledge that the log has whole records up to end, on disk up to durable."""
        if self.closed:
            return []
        if not self.appended <= end <= self.received or not self.durable <= durable <= end:
            return self._close(f"copied to {end}, {durable}; received {self.received}")
        self.appended, self.durable = end, durable
        return [self._ack()]

    def leave(self) -> list[Effect]:
        """Announce once that this process is about to end, and keep acknowledging until the master
        has removed this replica from the set, so that no sender waits for it.

        Before the divergence check there is no ACK; the first one then carries the announcement.
        """
        if self.closed or self.leaving:
            return []
        self.leaving = True
        return [self._ack()] if self.in_order else []

    def heard(self, now_ms: int) -> None:
        """Record that another frame of the master arrived, which keeps the link alive."""
        self.heard_ms = now_ms

    def dead(self, now_ms: int) -> bool:
        """Return whether the link has failed: no frame has arrived for ``link_dead_ms``."""
        return now_ms - self.heard_ms > self._rules.link_dead_ms

    def _take(self, append: Append) -> list[Effect]:
        last = self.table[-1] if self.table else None
        if append.offset != self.received:
            return self._close(f"bytes at {append.offset} instead of {self.received}")
        if append.data_epoch > self._epoch or (last and append.data_epoch < last.epoch):
            return self._close(f"bytes of epoch {append.data_epoch} after {last}")
        if append.size == 0:
            # A heartbeat carries no epoch: this log does not have one that is still empty.
            self._confirm_heard = max(self._confirm_heard, append.confirm)
            return [self._ack()]
        if last is None or append.data_epoch > last.epoch:
            return self._begin_epoch(append, last)
        if append.epoch_start != last.start:
            return self._close(f"epoch {last.epoch} from {append.epoch_start}, not {last.start}")
        self._confirm_heard = max(self._confirm_heard, append.confirm)
        self.received += append.size
        first, self._first = self._first, False
        return [Copy(append.offset, append.data, first)]

    def _begin_epoch(self, append: Append, last: EpochStart | None) -> list[Effect]:
        """Hold the frame until the epoch's entry is durable: it must be on disk before the first
        byte."""
        start = append.epoch_start
        # A log that begins inside the master's oldest epoch has a start before its first byte.
        begins_log = last is None and append.offset == self._own.first_offset
        fits = start == append.offset or (begins_log and start < append.offset)
        if not fits or (last and start <= last.start):
            return self._close(f"epoch {append.data_epoch} from {start} at {append.offset}")
        self.table = (*self.table, EpochStart(Epoch(append.data_epoch), PhysicalOffset(start)))
        self._persisting = self._new_token()
        self._held.appendleft(append)
        self._held_size += append.size
        return [PersistTable(self._persisting, self.table)]

    def _invalid_answer(self, ok: HelloOk, entry: EpochStart | None, sent: Extent) -> str | None:
        """Return why this answer does not fit the question; None: it does."""
        if entry is None and sent.end > sent.first_offset:
            return "a HELLO_OK without a common entry"
        size = crc_size(ok.point, master_first=ok.first_offset, slave_first=sent.first_offset)
        if ok.crc_size != size:
            return f"{ok.crc_size} bytes before {ok.point} compared instead of {size}"
        kept = 0 if entry is None else sent.table.index(entry) + 1
        limit = sent.table[kept].start if 0 < kept < len(sent.table) else sent.end
        if ok.point > limit or (entry is None and ok.point != sent.first_offset):
            return f"point {ok.point} beyond {limit}, the end of {entry}"
        return None

    def _foreign(self, found: tuple[int, int]) -> list[Effect]:
        """Keep the range that RocketMQ wrote, for copying and for readers here. A master whose page
        was lost may not know it any more."""
        begin, until = found
        if not until:
            return []
        return [Publish(((Slot.FOREIGN_FROM, begin), (Slot.FOREIGN_UNTIL, until)))]

    def _bytes_differ(
        self, ok: HelloOk, entry: EpochStart | None
    ) -> tuple[Outcome | None, list[Effect]]:
        """Ask again with a shorter log if the bytes that differ may lie after the confirm offset.

        The log then seems to end at the confirm offset, or at the start of the common entry if
        nothing is confirmed. The master's confirm offset counts as well: otherwise a damaged master
        would have the last undamaged copy cut off here.
        """
        confirmed = max(self._own.confirm, min(ok.confirm, ok.point))
        if confirmed > self._own.first_offset:
            if ok.point <= confirmed:
                differ = LogsDiffer(ok.point - ok.crc_size, ok.point)
                return differ, self._close(f"the bytes from {differ.start} to {differ.end} differ")
            self._hello_table = tuple(
                known for known in self._hello_table if known.start < confirmed
            )
            self._hello_end = confirmed
            return None, self.hello()
        kept = 0 if entry is None else self._hello_table.index(entry)
        if entry is None or kept == 0:
            return ResyncPlan(ok.first_offset, NO_COMMON_BYTES), self._close(NO_COMMON_BYTES)
        self._hello_table, self._hello_end = self._hello_table[:kept], entry.start
        return None, self.hello()

    def _ack(self) -> Effect:
        return self._send(Ack(self.appended, self.durable, self._nonce, self.leaving))

    def _send(self, payload: Payload) -> Effect:
        return Send(self.link, payloads.frame(self._epoch, payload, self._own.version))

    def _close(self, reason: str) -> list[Effect]:
        if self.closed:
            return []
        self.closed = True
        self._held.clear()
        return [Close(self.link, reason)]
