"""The slave's side of one link to a master (docs/replication.md, links). Pure.

HELLO → HELLO_OK → cut, copy everything, halt, wait, or in order → one ACK at once → bytes and ACKs.
A slave that must cut closes the link and connects again behind the cut: the next HELLO finds it in
order. Bytes come in order and go to the log's end; what is acknowledged is what the log reports as
appended and on disk, never what was received.

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
from services.ha.wire.payloads import Ack, Append, Hello, HelloOk, Payload, ResyncRequired
from services.ha.wire.versions import WITH_LEAVING
from shared.cluster.time_rules import TimeRules
from tidemark.formats.checkpoint import Slot
from tidemark.formats.epochs import EpochStart
from tidemark.offsets import Epoch, PhysicalOffset

HELD_FRAMES_MAX: Final = WINDOW_SIZE // 64
"""Frames that wait for an epoch's entry; no record, and so no useful frame, is as small."""
NO_COMMON_BYTES: Final = "no_common_bytes"
"""Reason of a resync: the tables agree, the bytes before every common point do not."""


class SlaveLog(NamedTuple):
    """The slave's log, settled: nothing is being copied or synced."""

    group: str
    member: Member
    version: int
    """Of the protocol, as agreed in the handshake."""
    file_size: int
    promised: int
    first_offset: int
    end: int
    durable: int
    confirm: int
    """The own checkpoint: nothing below it is cut without an operator."""
    table: tuple[EpochStart, ...]
    master_is_damaged: bool = False
    """The master says of itself that its log is damaged."""


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
        """The divergence check is done: bytes may come."""
        self.table = own.table
        """Grows with the epochs that come."""
        self.appended = own.end
        self.durable = own.durable
        self.received = own.end
        """End of the bytes taken over; behind appended by half a record or what is under way."""
        self._epoch = epoch
        self._own = own
        self._said = own.table
        self._said_end = own.end
        self._new_token = new_token
        self._rules = rules
        self._heard_ms = now_ms
        self._confirm_heard = 0
        self._nonce = 0
        self._first = True
        self.leaving = False
        """The master was told that this process is about to end."""
        self._persisting: int | None = None
        self._held: deque[Append] = deque()
        self._held_size = 0

    @property
    def confirm(self) -> int:
        """What may be seen here: confirmed by the master and on disk; never decreases."""
        return max(self._own.confirm, min(self._confirm_heard, self.durable))

    def hello(self) -> list[Effect]:
        """The first frame of the link."""
        own = self._own
        hello = Hello(
            group=own.group,
            node=own.member.node,
            incarnation=own.member.incarnation,
            version=own.version,
            file_size=own.file_size,
            promised=own.promised,
            first_offset=own.first_offset,
            end=self._said_end,
            durable=min(own.durable, self._said_end),
            confirm=own.confirm,
            table=self._said,
        )
        return [self._send(hello)]

    def hello_ok(
        self, ok: HelloOk, crc_before: CrcBefore, now_ms: int
    ) -> tuple[Outcome | None, list[Effect]]:
        """What the answer means. None: the link goes on asking, or is closed as unbelievable.

        InOrder comes with the ACK that makes the slave count; every other outcome with a closed
        link. Of a damaged master only what comes next is copied: the slave may be the one member
        to which it can hand over.
        """
        self._heard_ms = now_ms
        if self.closed or self.in_order:
            return None, self._close("a HELLO_OK that nobody asked for")
        entry = ok.table[0] if ok.table and ok.table[0] in self._said else None
        said = Extent(self._said, self._own.first_offset, self._said_end)
        if reason := self._unbelievable(ok, entry, said):
            return None, self._close(reason)
        crc = crc_before(ok.point, ok.crc_size) if ok.crc_size else 0
        if crc is None:
            return None, self._close(f"the {ok.crc_size} bytes before {ok.point} cannot be read")
        agrees = crc == ok.crc
        if not agrees and not self._own.master_is_damaged:
            return self._bytes_differ(ok, entry)
        whole = said._replace(table=self.table, end=self._own.end)
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
        """The master has no point from which to go on."""
        self._heard_ms = now_ms
        if self.closed or self.in_order:
            return None, self._close("a RESYNC_REQUIRED that nobody asked for")
        reason = required.reason.name.lower()
        return ResyncPlan(required.first_offset, reason), self._close(reason)

    def append(self, append: Append, now_ms: int) -> list[Effect]:
        """Take over bytes, or answer a heartbeat; anything out of order closes the link."""
        self._heard_ms = now_ms
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
        """PersistTable is done: what came behind the new epoch's entry may be copied."""
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
        """The log has whole records up to end, on disk up to durable: acknowledge."""
        if self.closed:
            return []
        if not self.appended <= end <= self.received or not self.durable <= durable <= end:
            return self._close(f"copied to {end}, {durable}; received {self.received}")
        self.appended, self.durable = end, durable
        return [self._ack()]

    def leave(self) -> list[Effect]:
        """This process is to end: say so once, and go on acknowledging until the master has taken
        this replica out of the set, so that no sender waits for it. Nothing if that was said."""
        if self.closed or not self.in_order or self.leaving or self._own.version < WITH_LEAVING:
            return []
        self.leaving = True
        return [self._ack()]

    def heard(self, now_ms: int) -> None:
        """A frame of the master came that is none of the above."""
        self._heard_ms = now_ms

    def dead(self, now_ms: int) -> bool:
        """Whether nothing was heard for so long that the link is over."""
        return now_ms - self._heard_ms > self._rules.link_dead_ms

    def _take(self, append: Append) -> list[Effect]:
        last = self.table[-1] if self.table else None
        if append.offset != self.received:
            return self._close(f"bytes at {append.offset} instead of {self.received}")
        if append.data_epoch > self._epoch or (last and append.data_epoch < last.epoch):
            return self._close(f"bytes of epoch {append.data_epoch} behind {last}")
        if append.size == 0:
            # Tells no epoch: one without bytes yet is not this log's.
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
        """The entry is durable before the epoch's first byte: the frame waits for it."""
        start = append.epoch_start
        # A log that begins in the middle of the master's oldest epoch has its start further back.
        begins_log = last is None and append.offset == self._own.first_offset
        fits = start == append.offset or (begins_log and start < append.offset)
        if not fits or (last and start <= last.start):
            return self._close(f"epoch {append.data_epoch} from {start} at {append.offset}")
        self.table = (*self.table, EpochStart(Epoch(append.data_epoch), PhysicalOffset(start)))
        self._persisting = self._new_token()
        self._held.appendleft(append)
        self._held_size += append.size
        return [PersistTable(self._persisting, self.table)]

    def _unbelievable(self, ok: HelloOk, entry: EpochStart | None, said: Extent) -> str | None:
        """Why this answer cannot be to what was asked."""
        if entry is None and said.end > said.first_offset:
            return "a HELLO_OK without a common entry"
        size = crc_size(ok.point, master_first=ok.first_offset, slave_first=said.first_offset)
        if ok.crc_size != size:
            return f"{ok.crc_size} bytes before {ok.point} compared instead of {size}"
        kept = 0 if entry is None else said.table.index(entry) + 1
        limit = said.table[kept].start if 0 < kept < len(said.table) else said.end
        if ok.point > limit or (entry is None and ok.point != said.first_offset):
            return f"point {ok.point} beyond {limit}, the end of {entry}"
        return None

    def _foreign(self, told: tuple[int, int]) -> list[Effect]:
        """Keep where RocketMQ wrote, for copying and for whoever reads here. A master whose page
        was lost may not know any more what this node still does."""
        begin, until = told
        if not until:
            return []
        return [Publish(((Slot.FOREIGN_FROM, begin), (Slot.FOREIGN_UNTIL, until)))]

    def _bytes_differ(
        self, ok: HelloOk, entry: EpochStart | None
    ) -> tuple[Outcome | None, list[Effect]]:
        """If bytes behind what is confirmed may be the ones that differ, ask again as if the log
        ended there; where nothing is confirmed, where the common entry begins.

        What the master has confirmed counts as well: a damaged master would have the last sound
        copy of it cut off here.
        """
        confirmed = max(self._own.confirm, min(ok.confirm, ok.point))
        if confirmed > self._own.first_offset:
            if ok.point <= confirmed:
                differ = LogsDiffer(ok.point - ok.crc_size, ok.point)
                return differ, self._close(f"the bytes from {differ.start} to {differ.end} differ")
            self._said = tuple(known for known in self._said if known.start < confirmed)
            self._said_end = confirmed
            return None, self.hello()
        kept = 0 if entry is None else self._said.index(entry)
        if entry is None or kept == 0:
            return ResyncPlan(ok.first_offset, NO_COMMON_BYTES), self._close(NO_COMMON_BYTES)
        self._said, self._said_end = self._said[:kept], entry.start
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
